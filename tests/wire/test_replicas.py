"""Among replicas of a self-hosted model, calls go to the one with room, by what their gauges say."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.wire.house import House, lived_in, until
from tests.wire.raw import Raw

MODEL = "moonshotai/Kimi-K2.5"


def hosts(face: str) -> list[dict[str, Any]]:
    return [{"name": name, "face": face, "slots": 1} for name in ("one", "two")]


@contextmanager
def holding(house: House, host: str, calls: int) -> Iterator[None]:
    """Somebody else's calls at this host: the first runs, the others wait."""
    body = house.body({"tokens_per_second": 1, "output_tokens": 200}, model=MODEL, stream=True)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    clients = [Raw(house.ports[host]) for _ in range(calls)]
    try:
        for client in clients:
            client.send(head + body)
        yield
    finally:
        for client in clients:
            client.close()


def load(house: House, host: str) -> float:
    return house.metrics().get(f'moongate_upstream_load{{target="{host}"}}', -1.0)


@pytest.mark.parametrize("face", ["vllm", "sglang"])
def test_a_busy_replica_is_left_alone_until_it_is_free(tmp_path: Path, face: str) -> None:
    settings = (
        f"health: {{kimi_seconds: 0.2}}\nroutes: {{kimi-k2.5: {{model: '{MODEL}', targets: [one, two]}}}}\n"
    )
    with lived_in(tmp_path, settings, hosts(face)) as house:
        until(20, lambda: load(house, "one") == load(house, "two") == 0, "both are idle")
        with holding(house, "one", 3):
            until(20, lambda: load(house, "one") > 2, "two wait at the first")
            house.metrics()
            answers = [house.ask() for _ in range(6)]
        assert {answer.status for answer in answers} == {200}
        for answer in answers:
            assert [each["target"] for each in house.record(answer.call_id)["attempts"]] == ["two"]
        until(20, lambda: load(house, "one") == 0, "the first is free again")
        with holding(house, "two", 1):
            until(20, lambda: load(house, "two") >= 1, "the second is full")
            house.metrics()
            last = house.ask()
        assert [each["target"] for each in house.record(last.call_id)["attempts"]] == ["one"]
