"""What every transport promises (upstream/transport.py), whichever protocol it speaks."""

import asyncio
import time

import pytest

from moongate.core.faults import Fault, Reach
from moongate.upstream.transport import Ended, Phase, Transport
from tests.upstream.client import Kept, failed, outbound, send
from tests.upstream.conftest import Run
from tests.upstream.voice import EVENT, Play, Protocoled, Voice, echo


def test_an_answer_arrives_whole(play: Play, protocol: Protocoled) -> None:
    async def act(transport: Transport) -> None:
        began = time.monotonic()
        ended, sink = await send(transport, outbound(b"a" * 5000))
        assert (ended.fault, ended.reach, ended.framed) == (None, Reach.HEAD, protocol.frames)
        assert (sink.status, sink.body, sink.opened) == (200, b"a" * 5000, 1)
        assert (b"content-type", b"application/json") in sink.headers
        times = [began, ended.connected_at, ended.sent_at, ended.head_at, ended.ended_at, time.monotonic()]
        assert times == sorted(times)
        assert transport.in_use == 0

    play(echo, act)


@pytest.mark.parametrize("status", [200, 204, 302, 400, 429, 500, 503])
def test_every_final_status_is_passed_on(play: Play, status: int) -> None:
    async def speech(voice: Voice) -> None:
        await voice.request()
        await voice.head(status, ("Location", "http://127.0.0.1:1/elsewhere"))
        if status != 204:
            await voice.end()

    async def act(transport: Transport) -> None:
        ended, sink = await send(transport)
        assert ended.fault is None
        assert sink.status == status

    play(speech, act)


def test_pieces_are_pushed_as_they_come(play: Play) -> None:
    said = asyncio.Event()

    async def speech(voice: Voice) -> None:
        await voice.request()
        await voice.head()
        await voice.piece(b"one")
        await asyncio.wait_for(said.wait(), 2)
        await voice.piece(b"two")
        await voice.end()

    async def act(transport: Transport) -> None:
        sink = Kept(lambda *_: said.set())
        ended, _ = await send(transport, sink=sink)
        assert ended.fault is None
        assert sink.pieces == [b"one", b"two"]

    play(speech, act)


def test_nothing_listens(run: Run, protocol: Protocoled) -> None:
    async def main() -> None:
        async with protocol.server(echo) as port:
            pass
        async with protocol.transport(port) as transport:
            ended, sink = await send(transport)
            failed(ended, Fault.KIMI_NETWORK_UNREACHABLE)
            assert (ended.reach, ended.phase, sink.opened) == (Reach.NOTHING_SENT, Phase.CONNECT, 0)

    run(main())


def test_reset_before_the_head(play: Play) -> None:
    async def speech(voice: Voice) -> None:
        await voice.request()
        voice.reset()
        await voice.left()

    async def act(transport: Transport) -> None:
        ended, _ = await send(transport)
        failed(ended, Fault.KIMI_NETWORK_UNREACHABLE)
        assert (ended.reach, ended.phase) == (Reach.SENT, Phase.HEAD)

    play(speech, act)


@pytest.mark.parametrize("pieces", [0, 1, 3])
def test_reset_within_the_body(play: Play, pieces: int) -> None:
    async def speech(voice: Voice) -> None:
        await voice.request()
        await voice.head()
        for _ in range(pieces):
            await voice.piece(EVENT)
        await asyncio.sleep(0.02)
        voice.reset()
        await voice.left()

    async def act(transport: Transport) -> None:
        ended, sink = await send(transport)
        failed(ended, Fault.KIMI_STREAM_TRUNCATED)
        assert ended.reach is Reach.HEAD
        assert sink.body == EVENT * pieces

    play(speech, act)


async def timed(transport: Transport, phase: Phase, seconds: float, sink: Kept, **limits: float) -> Ended:
    """Send; it must end by that phase's time-out, after about that many seconds."""
    began = time.monotonic()
    ended, _ = await send(transport, outbound(phases=limits), sink)
    took = time.monotonic() - began
    failed(ended, Fault.KIMI_NETWORK_TIMEOUT)
    assert ended.phase is phase
    assert seconds - 0.01 <= took <= seconds + 0.3
    return ended


@pytest.mark.parametrize("phase", [Phase.HEAD, Phase.FIRST_EVENT, Phase.IDLE, Phase.TOTAL])
def test_time_outs(play: Play, phase: Phase) -> None:
    async def speech(voice: Voice) -> None:
        await voice.request()
        if phase is Phase.HEAD:
            await voice.left()
            return
        await voice.head()
        if phase is Phase.IDLE:
            await voice.piece(EVENT)
        for _ in range(30):
            await voice.piece(EVENT if phase is Phase.TOTAL else b": still here\n\n")
            await asyncio.sleep(0.02)

    def beat_on_events(sink: Kept, chunk: bytes) -> None:
        for _ in range(chunk.count(b"data:")):
            sink.held.beat()

    async def act(transport: Transport) -> None:
        ended = await timed(transport, phase, 0.2, Kept(beat_on_events), **{phase.value: 0.2})
        assert ended.reach is (Reach.SENT if phase is Phase.HEAD else Reach.HEAD)

    play(speech, act)


def test_the_deadline_ends_what_runs(play: Play) -> None:
    async def speech(voice: Voice) -> None:
        await voice.request()
        await voice.left()

    async def act(transport: Transport) -> None:
        ended, _ = await send(transport, outbound(seconds=0.15))
        failed(ended, Fault.KIMI_NETWORK_TIMEOUT)
        assert (ended.phase, ended.detail) == (Phase.TOTAL, "deadline")

    play(speech, act)


def test_nothing_starts_after_the_deadline(play: Play) -> None:
    async def act(transport: Transport) -> None:
        ended, sink = await send(transport, outbound(seconds=0))
        failed(ended, Fault.DEADLINE_EXCEEDED)
        assert (ended.reach, sink.opened, transport.idle) == (Reach.NOTHING_SENT, 0, 0)

    play(echo, act)
