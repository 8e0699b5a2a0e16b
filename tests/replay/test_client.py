"""The client against a server that does what it is told to."""

import asyncio
import socket
import time

import pytest

from moongate.core.addresses import Base
from moongate.core.call import Usage
from moongate.replay.client import Client
from moongate.replay.ending import Answer
from tests.replay.server import answer, refusal, serving, stream


def asked(*script: bytes | None, timeout: float = 5.0) -> tuple[list[Answer], int]:
    """What a client sees of these answers, asked for one after another, and how many connections it took."""

    async def main() -> tuple[list[Answer], int]:
        async with serving(lambda number: script[number]) as server:
            client = Client(server.base, "mg_key", time.monotonic)
            seen = [await client.ask(b'{"n": %d}' % number, timeout) for number in range(len(script))]
            client.close()
            return seen, server.connections

    return asyncio.run(main())


def test_a_stream_is_read_with_its_times_and_tokens() -> None:
    [seen], _ = asked(answer(30, 7, 20))
    assert (seen.outcome, seen.usage, seen.model) == ("completed", Usage(30, 7, 20), "kimi-k2.5")
    assert 0 < seen.first <= seen.total < 5


def test_a_request_names_its_key_and_its_length() -> None:
    async def main() -> bytes:
        async with serving(lambda _: answer()) as server:
            client = Client(server.base, "mg_key", time.monotonic)
            await client.ask(b"{}", 5)
            client.close()
            return server.heads[0]

    lines = asyncio.run(main()).lower().split(b"\r\n")
    assert lines[0] == b"post /v1/chat/completions http/1.1"
    assert {b"authorization: bearer mg_key", b"content-length: 2", b"content-type: application/json"} <= set(
        lines
    )


def test_connections_are_used_again_after_answers_and_refusals_alike() -> None:
    seen, connections = asked(answer(), refusal(503), answer())
    assert [one.outcome for one in seen] == ["completed", "engine_overloaded", "completed"]
    assert connections == 1


def test_nothing_of_an_earlier_answer_is_left_on_a_connection() -> None:
    seen, _ = asked(answer(30, 7), stream(b"data: {}\n\n"))
    assert (seen[1].outcome, seen[1].usage) == ("no_done", None)


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        (None, "connection_lost"),
        (b"SSH-2.0-x\r\n\r\n", "not_http"),
        (b"", "timeout"),
        (stream(b"data: {}\n\n", end=b""), "timeout"),
        (stream(b'data: {"error": {"code": "stream_truncated"}}\n\n'), "stream_truncated"),
        (stream(b": nothing\n\n"), "no_done"),
        (refusal(502, b"<html>"), "status_502"),
    ],
)
def test_whatever_goes_wrong_is_named_and_the_next_call_is_made(said: bytes | None, outcome: str) -> None:
    seen, _ = asked(said, answer(), timeout=0.3)
    assert [one.outcome for one in seen] == [outcome, "completed"]


def test_what_was_seen_before_a_stream_stalled_still_counts() -> None:
    [seen], _ = asked(stream(b": wait\n\n", b"data: {}\n\n", end=b""), timeout=0.3)
    assert 0 < seen.first < seen.total
    [seen], _ = asked(stream(b": wait\n\n", end=b""), timeout=0.3)
    assert seen.first < 0 < seen.total


def test_usage_is_found_though_much_follows_it() -> None:
    usage = b'data: {"usage": {"prompt_tokens": 3, "completion_tokens": 1}}\n\n'
    much = [b": %b\n\n" % (b"x" * 500)] * 20
    [seen], _ = asked(stream(*much, usage, *much, b"data: [DONE]\n\n"))
    assert (seen.outcome, seen.usage) == ("completed", Usage(3, 1))


def test_nobody_there_is_an_outcome_too() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    async def main() -> Answer:
        return await Client(Base().parse(f"http://127.0.0.1:{port}/v1"), "k", time.monotonic).ask(b"{}", 5)

    assert asyncio.run(main()).outcome == "not_connected"


def test_a_connection_that_lay_idle_for_long_is_not_trusted() -> None:
    now = 0.0

    async def main() -> tuple[list[str], int]:
        nonlocal now
        async with serving(lambda _: answer()) as server:
            client = Client(server.base, "k", lambda: now)
            seen = [await client.ask(b"{}", 5)]
            now = 60.0
            seen.append(await client.ask(b"{}", 5))
            client.close()
            return [one.outcome for one in seen], server.connections

    assert asyncio.run(main()) == (["completed", "completed"], 2)
