"""The official SDK's own retries over connections that break: nothing runs twice but a stream that was left (A3)."""

from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from openai import OpenAI

from tests.wire.cutter import Cut, cutting
from tests.wire.house import House, until

SETTINGS = """
routes:
  kimi-k2.5: {targets: [kimi]}
  cancel: {model: kimi-k2.5, targets: [kimi], on_abandon: cancel}
"""
HELLO: Any = [{"role": "user", "content": "Hello, Kimi!"}]
PACED: Any = {"tokens_per_second": 40, "output_tokens": 40, "reasoning_tokens": 0}
HEAD_ONLY = 1
"""A byte of the answer's head: the client has nothing of it, the gateway has handed it over."""


@pytest.fixture(scope="module")
def numbers() -> Iterator[str]:
    return (f"key-{number}" for number in range(1000))


def client(port: int, house: House, **more: Any) -> OpenAI:
    return OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=house.key, max_retries=4, **more)


def ask(kimi: OpenAI, key: str = "", sim: Any = None, **more: Any) -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    return kimi.chat.completions.create(
        model=more.pop("model", "kimi-k2.5"),
        messages=HELLO,
        extra_body={"sim": PACED | (sim or {})},
        extra_headers=headers,
        **more,
    )


def calm(house: House) -> None:
    until(20, lambda: house.total("moongate_in_flight") == 0, "every call has ended")


def tries(house: House) -> list[dict[str, Any]]:
    """The records of this test's calls, once all are closed."""

    def closed() -> list[dict[str, Any]]:
        rows = house.rows("SELECT * FROM calls WHERE created >= ? ORDER BY created", house.cleared)
        return rows if len(rows) > 1 and all(row["outcome"] for row in rows) else []

    return until(20, closed, "their records are closed")


def test_cuts_of_the_request(house: House) -> None:
    """What did not arrive whole is no call; what did, runs once."""
    for up in (1, 100, 400):
        house.begin()
        with cutting(house.port, Cut(up=up), Cut(up=up)) as network, client(network.port, house) as kimi:
            assert ask(kimi).choices[0].message.content
            assert network.accepted == 3
        calm(house)
        assert len(house.executions()) == 1, up


@pytest.mark.parametrize("key", ["", "plain"])
def test_cuts_before_a_plain_answer(house: House, key: str) -> None:
    """The SDK times out and comes back, again and again: it joins the call that runs, or finds its answer."""
    with client(house.port, house, timeout=0.45) as kimi:
        assert ask(kimi, key).choices[0].message.content
    calm(house)
    [execution] = house.executions()
    assert execution["how"] == "completed"
    assert sum(row["billed_micro"] or 0 for row in tries(house)) == execution["cost_micro"]


@pytest.mark.parametrize("with_key", [False, True])
def test_cuts_of_a_plain_answer(house: House, numbers: Iterator[str], with_key: bool) -> None:
    """It was handed over whole, and lost behind the gateway at any byte: the SDK comes back, and finds it."""
    whole = len(house.ask(PACED).body)
    for down in (1, 200, 500, 600 + whole // 2):
        house.begin()
        cuts = [Cut(down=down)] * 2
        with cutting(house.port, *cuts) as network, client(network.port, house) as kimi:
            assert (
                ask(kimi, next(numbers) if with_key else "", {"text": f"It is {down}."})
                .choices[0]
                .message.content
            )
        calm(house)
        assert len(house.executions()) == 1, down


@pytest.mark.parametrize("key", ["", "stream"])
def test_cuts_of_a_stream_before_its_first_event(house: House, key: str) -> None:
    """With a key it is drained and joined; without one it was left, and is made anew."""
    with client(house.port, house, timeout=0.3) as kimi:
        slow = {"first_token": 0.8}
        stream = ask(kimi.with_options(timeout=5) if not key else kimi, key, slow, stream=True)
        assert [chunk for chunk in stream if chunk.choices]
    calm(house)
    assert len(house.executions()) == 1


def test_a_stream_that_the_sdk_left_is_made_anew(house: House) -> None:
    with client(house.port, house, timeout=0.5) as kimi, pytest.raises(openai.APITimeoutError):
        ask(kimi.with_options(max_retries=1), "", {"first_token": 2.0}, stream=True)
    calm(house)
    until(10, lambda: [one["how"] for one in house.executions()] == ["aborted"] * 2, "both were left")
    first, second = tries(house)
    assert (first["outcome"], second["outcome"]) == ("abandoned", "abandoned")
    assert second["retry_of"] == first["call_id"]


def test_a_plain_call_that_was_cancelled_is_not_paid_again(house: House) -> None:
    with client(house.port, house, timeout=0.4) as kimi, pytest.raises(openai.ConflictError) as caught:
        ask(kimi, model="cancel")
    assert caught.value.code == "idempotency_expired"
    calm(house)
    assert len(house.executions()) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_everything_at_once(house: House, numbers: Iterator[str], stream: bool) -> None:
    """Keys over a network that breaks at many places: every call is answered, none runs twice."""
    cuts = [Cut(down=size) for size in (1, 150, 400, 700, 1200, 2500)]
    for cut in cuts:
        key = f"{next(numbers)}-{stream}"
        house.begin()
        with cutting(house.port, cut) as network, client(network.port, house) as kimi:
            text = ""
            for _ in range(3):
                try:
                    answer = ask(kimi, key, stream=stream)
                    text = _text(answer) if stream else answer.choices[0].message.content
                    break
                except (openai.APIConnectionError, httpx2.TransportError):
                    continue
        assert text
        calm(house)
        assert len(house.executions()) == 1, cut


def _text(stream: Any) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
