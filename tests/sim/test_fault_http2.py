"""The faults of HTTP/2, frame by frame."""

import asyncio
import contextlib
import struct
from typing import Any

import pytest

from tests.sim.test_http2 import H2Client
from tests.sim.world import World, run

DATA, HEADERS, RST, SETTINGS, PUSH, PING, GOAWAY, CONTINUATION = 0, 1, 3, 4, 5, 6, 7, 9
Frame = tuple[int, int, bytes]
"""Kind, stream, payload."""


async def frames(client: H2Client, wanted: int, count: int = 1) -> list[Frame]:
    """Read frames until `count` of the wanted kind have come; all of them, in order."""
    found: list[Frame] = []
    raw = b""
    while sum(kind == wanted for kind, _, _ in found) < count:
        raw += await asyncio.wait_for(client._reader.read(65_536), 20)
        while len(raw) >= 9 and len(raw) >= 9 + int.from_bytes(raw[:3], "big"):
            size = int.from_bytes(raw[:3], "big")
            found.append((raw[3], int.from_bytes(raw[5:9], "big"), raw[9 : 9 + size]))
            raw = raw[9 + size :]
    return found


def code_of(frame: Frame) -> int:
    """The error code that a RST_STREAM or GOAWAY ends with."""
    return int(struct.unpack("!I", frame[2][-4:])[0])


@pytest.mark.parametrize(
    ("fault", "kind", "count", "stream"),
    [
        ("h2_continuation_flood;count=500", CONTINUATION, 500, 1),
        ("h2_settings_flood;count=500", SETTINGS, 500, 0),
        ("h2_ping_flood;count=500", PING, 500, 0),
        ("h2_reset_flood;count=500", RST, 500, 1),
        ("h2_hpack_bomb;count=500", HEADERS, 1, 1),
        ("h2_bad_frame", DATA, 1, 0),
        ("h2_push", PUSH, 1, 1),
        ("h2_last_stream", HEADERS, 1, 2**31 - 1),
    ],
)
def test_what_no_client_should_take(fault: str, kind: int, count: int, stream: int) -> None:
    async def story(world: World) -> None:
        async with H2Client(world.running.port) as client:
            client.ask(sim={"fault": fault})
            seen = await frames(client, kind, count)
            assert [frame[1] for frame in seen if frame[0] == kind][-1] == stream
        (row,) = await world.settled()
        assert row["fault"] == fault.partition(";")[0]

    run(story)


@pytest.mark.parametrize(
    ("fault", "kind", "code", "runs"),
    [
        ("h2_refused", RST, 7, False),
        ("h2_reset_before_head", RST, 2, True),
        ("h2_reset;code=5", RST, 5, True),
        ("h2_goaway", GOAWAY, 0, False),
        ("h2_goaway;code=1", GOAWAY, 1, False),
        ("h2_goaway_calm", GOAWAY, 11, False),
    ],
)
def test_streams_that_end_with_a_code(fault: str, kind: int, code: int, runs: bool) -> None:
    async def story(world: World) -> None:
        async with H2Client(world.running.port) as client:
            await client.finish(client.ask())
            client.ask(stream=True, sim={"fault": fault})
            seen = await frames(client, kind)
            assert code_of(seen[-1]) == code
            heads = sum(frame[0] == HEADERS for frame in seen)
            assert heads == (1 if fault.startswith("h2_reset;") else 0)
            if kind == GOAWAY:
                assert struct.unpack("!I", seen[-1][2][:4]) == (1,)
        rows = await world.settled()
        assert [row["fault"] for row in rows[1:]] == ([fault.partition(";")[0]] if runs else [])

    run(story)


def test_streams_below_a_goaway_go_on() -> None:
    async def story(world: World) -> None:
        async with H2Client(world.running.port) as client:
            client.ask(stream=True, sim={"tokens_per_second": 100, "output_tokens": 30})
            await asyncio.sleep(0.05)
            client.ask(sim={"fault": "h2_goaway"})
            await frames(client, GOAWAY)
            seen = await frames(client, DATA, 10)
            assert {frame[1] for frame in seen} == {1}
        assert [row["how"] for row in await world.settled()][-1] in ("completed", "aborted")

    run(story)


def test_no_window_holds_later_requests_up() -> None:
    async def story(world: World) -> None:
        async with H2Client(world.running.port) as client:
            assert (await client.finish(client.ask(sim={"fault": "h2_no_window"}))).status == 200
            await client.finish(client.ask())
            window = client.connection.outbound_flow_control_window
            await client.finish(client.ask(user="x" * 10_000))
            assert client.connection.outbound_flow_control_window < window - 10_000

    run(story)


def test_the_number_of_streams_can_fall() -> None:
    async def story(world: World) -> None:
        async with H2Client(world.running.port) as client:
            asked = client.ask(sim={"fault": "h2_max_streams;streams=2"})
            assert (await client.finish(asked)).status == 200
            assert client.connection.remote_settings.max_concurrent_streams == 2

    run(story)


def test_a_peer_that_vanishes_acknowledges_nothing() -> None:
    async def story(world: World) -> None:
        async with H2Client(world.running.port) as client:
            client.ask(stream=True, sim={"fault": "h2_vanished;after=1"})
            await frames(client, DATA, 2)
            await asyncio.sleep(0.1)
            client._writer.write(b"\0\0\x08\x06\0\0\0\0\0moongate")  # a PING, which it would have to answer
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client._reader.read(1), 0.3)
            with contextlib.suppress(OSError):
                client._writer.transport.abort()

    run(story)


@pytest.mark.parametrize(("fault", "status"), [("h2_refused", 503), ("h2_goaway", 503), ("h2_push", 200)])
def test_http_1_knows_nothing_of_it(fault: str, status: int) -> None:
    async def story(world: World) -> None:
        answer: Any = await world.chat(sim={"fault": fault})
        assert answer.status == status

    run(story)
