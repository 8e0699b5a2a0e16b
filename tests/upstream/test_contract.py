"""What every transport promises (upstream/transport.py), whichever protocol it speaks."""

import asyncio
import gzip
import os
import random
import resource
import time
from collections.abc import Awaitable, Callable

import pytest

from moongate.core.faults import Fault, Reach
from moongate.upstream.transport import Ended, Phase, Transport
from tests.upstream.client import Kept, failed, outbound, send, until
from tests.upstream.conftest import Run
from tests.upstream.voice import Http1Protocol, Protocoled, Voice

EVENT = b'data: {"x":1}\n\n'
Act = Callable[[Transport], Awaitable[None]]


@pytest.fixture(params=[Http1Protocol()], ids=["http1"])
def protocol(request: pytest.FixtureRequest) -> Protocoled:
    """Each protocol in turn."""
    given: Protocoled = request.param
    return given


@pytest.fixture
def play(run: Run, protocol: Protocoled) -> Callable[..., None]:
    """Run `act` against a server that serves each exchange with `speech`."""

    def played(speech: Callable[[Voice], Awaitable[None]], act: Act, **settings: object) -> None:
        async def main() -> None:
            async with protocol.server(speech) as port, protocol.transport(port, **settings) as transport:
                await act(transport)

        run(main())

    return played


Play = Callable[..., None]
CALLS = int(os.environ.get("MOONGATE_LEAVERS", "2000"))


async def echo(voice: Voice) -> None:
    body = await voice.request()
    await voice.head(200, ("Content-Type", "application/json"))
    await voice.piece(body)
    await voice.end()


def test_an_answer_arrives_whole(play: Play) -> None:
    async def act(transport: Transport) -> None:
        began = time.monotonic()
        ended, sink = await send(transport, outbound(b"a" * 5000))
        assert (ended.fault, ended.reach, ended.framed) == (None, Reach.HEAD, True)
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
    ended, _ = await send(transport, outbound(**limits), sink)
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


def test_a_paused_sink_stops_the_upstream(play: Play) -> None:
    piece, most = b"x" * 16384, 4000
    sent = 0

    async def speech(voice: Voice) -> None:
        nonlocal sent
        await voice.request()
        await voice.head()
        for sent in range(1, most + 1):
            await voice.piece(piece)
        await voice.end()

    async def act(transport: Transport) -> None:
        def stop(sink: Kept, _: bytes) -> None:
            if not stopped:
                stopped.append(True)
                sink.held.pause()

        stopped: list[bool] = []
        sink = Kept(stop)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        task = asyncio.create_task(transport.exchange(outbound(idle=0.2, first_event=0.2, total=0.4), sink))
        await until(lambda: bool(stopped))
        seen = -1
        while seen != sent:  # until the server is stuck
            seen = sent
            await asyncio.sleep(0.15)
        held = len(sink.body)
        await asyncio.sleep(0.3)  # longer than any of its timers
        assert not task.done()
        assert len(sink.body) == held < 1_000_000
        assert sent < most
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024  # KB
        sink.on_data = None
        sink.pieces.clear()
        sink.held.resume()
        ended = await task
        assert ended.fault is None
        assert held + len(sink.body) == most * len(piece)

    play(speech, act)


def test_a_pause_holds_no_longer_than_the_deadline(play: Play) -> None:
    async def speech(voice: Voice) -> None:
        await voice.request()
        await voice.head()
        await voice.piece(EVENT)
        await voice.left()

    async def act(transport: Transport) -> None:
        ended, _ = await send(transport, outbound(seconds=0.2), Kept(lambda sink, _: sink.held.pause()))
        failed(ended, Fault.KIMI_NETWORK_TIMEOUT)
        assert ended.phase is Phase.TOTAL

    play(speech, act)


def test_timers_start_anew_after_a_pause(play: Play) -> None:
    async def speech(voice: Voice) -> None:
        await voice.request()
        await voice.head()
        await voice.piece(EVENT)
        await voice.left()

    async def act(transport: Transport) -> None:
        sink = Kept(lambda sink, _: (sink.held.beat(), sink.held.pause()) and None)
        task = asyncio.create_task(transport.exchange(outbound(idle=0.2), sink))
        await until(lambda: bool(sink.pieces))
        await asyncio.sleep(0.4)
        assert not task.done()
        began = time.monotonic()
        sink.held.resume()
        ended = await task
        failed(ended, Fault.KIMI_NETWORK_TIMEOUT)
        assert ended.phase is Phase.IDLE
        assert 0.19 <= time.monotonic() - began <= 0.5

    play(speech, act)


@pytest.mark.parametrize("fault", [None, Fault.SLOW_CLIENT])
@pytest.mark.parametrize("inside", [True, False], ids=["while-pushing", "later"])
def test_a_sink_cuts(play: Play, fault: Fault | None, inside: bool) -> None:
    left = asyncio.Event()

    async def speech(voice: Voice) -> None:
        await voice.request()
        await voice.head()
        await voice.piece(EVENT)
        await voice.left()
        left.set()

    async def act(transport: Transport) -> None:
        sink = Kept(lambda sink, _: sink.held.cut(fault, "enough") if inside else None)
        task = asyncio.create_task(transport.exchange(outbound(), sink))
        await until(lambda: bool(sink.pieces))
        if not inside:
            sink.held.cut(fault, "enough")
        ended = await task
        assert (ended.fault, ended.detail, ended.reach) == (fault, "enough", Reach.HEAD)
        await asyncio.wait_for(left.wait(), 1)
        for late in (sink.held.pause, sink.held.resume, sink.held.beat):
            late()
        sink.held.cut(Fault.GATEWAY_ERROR)

    play(speech, act)


def test_a_cut_before_anything_is_written(play: Play) -> None:
    class Unwilling(Kept):
        def open(self, valve: object) -> None:
            super().open(valve)  # type: ignore[arg-type]
            self.held.cut(Fault.LEDGER_UNAVAILABLE)

    async def act(transport: Transport) -> None:
        ended, _ = await send(transport, sink=Unwilling())
        failed(ended, Fault.LEDGER_UNAVAILABLE)
        assert ended.reach is Reach.NOTHING_SENT

    play(echo, act)


@pytest.mark.parametrize("phase", [Phase.HEAD, Phase.FIRST_EVENT, Phase.IDLE])
def test_cancelling_closes_at_once(play: Play, phase: Phase) -> None:
    left = asyncio.Event()

    async def speech(voice: Voice) -> None:
        await voice.request()
        if phase is not Phase.HEAD:
            await voice.head()
        if phase is Phase.IDLE:
            await voice.piece(EVENT)
        await voice.left()
        left.set()

    async def act(transport: Transport) -> None:
        sink = Kept(lambda sink, _: sink.held.beat())
        task = asyncio.create_task(transport.exchange(outbound(), sink))
        await until(
            lambda: (
                sink.opened > 0
                if phase is Phase.HEAD
                else bool(sink.status if phase is Phase.FIRST_EVENT else sink.pieces)
            )
        )
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert transport.in_use == 0
        await asyncio.wait_for(left.wait(), 1)

    play(speech, act)


def test_many_at_once_get_each_its_own(play: Play) -> None:
    async def act(transport: Transport) -> None:
        async def one(number: int) -> None:
            body = b"%d" % number * (number + 1)
            ended, sink = await send(transport, outbound(body))
            assert ended.fault is None
            assert sink.body == body

        for _ in range(3):
            await asyncio.gather(*(one(number) for number in range(100)))

    play(echo, act)


def test_a_body_of_megabytes(play: Play) -> None:
    async def act(transport: Transport) -> None:
        body = random.Random(1).randbytes(4_000_000)
        ended, sink = await send(transport, outbound(body))
        assert ended.fault is None
        assert sink.body == body
        assert ended.sent_at > 0

    play(echo, act)


def test_waiting_for_a_connection_is_bounded_by_the_deadline(play: Play) -> None:
    done = asyncio.Event()

    async def speech(voice: Voice) -> None:
        await voice.request()
        await done.wait()
        await voice.head()
        await voice.end()

    async def act(transport: Transport) -> None:
        first = asyncio.create_task(transport.exchange(outbound(), Kept()))
        second = asyncio.create_task(transport.exchange(outbound(), Kept()))
        await asyncio.sleep(0)
        ended, sink = await send(transport, outbound(seconds=0.15))
        failed(ended, Fault.GATEWAY_OVERLOADED)
        assert (ended.reach, sink.opened) == (Reach.NOTHING_SENT, 0)
        third = asyncio.create_task(transport.exchange(outbound(), Kept()))
        left = asyncio.create_task(transport.exchange(outbound(), Kept()))
        await asyncio.sleep(0.02)
        left.cancel()
        done.set()
        for ended in await asyncio.gather(first, second, third):
            assert ended.fault is None
        with pytest.raises(asyncio.CancelledError):
            await left

    play(speech, act, max_connections=2)


def test_closing_ends_what_runs_as_draining(play: Play) -> None:
    async def speech(voice: Voice) -> None:
        await voice.request()
        await voice.head()
        await voice.left()

    async def act(transport: Transport) -> None:
        sink = Kept()
        running = asyncio.create_task(transport.exchange(outbound(), sink))
        await until(lambda: sink.status != 0)
        dialing = asyncio.create_task(transport.exchange(outbound(), Kept()))
        waiting = asyncio.create_task(transport.exchange(outbound(), Kept()))
        await asyncio.sleep(0)
        await transport.close()
        assert (await running).reach is Reach.HEAD
        for task in (running, dialing, waiting):
            failed(await task, Fault.GATEWAY_DRAINING)
        ended, late = await send(transport)
        failed(ended, Fault.GATEWAY_DRAINING)
        assert (ended.reach, late.opened) == (Reach.NOTHING_SENT, 0)

    play(speech, act, max_connections=2)


def test_gzip_is_decoded(play: Play) -> None:
    text = b"".join(b'data: {"n":%d}\n\n' % n for n in range(20_000))

    async def speech(voice: Voice) -> None:
        await voice.request()
        await voice.head(200, ("Content-Encoding", "gzip"))
        packed = gzip.compress(text)
        for at in range(0, len(packed), 1000):
            await voice.piece(packed[at : at + 1000])
        await voice.end()

    async def act(transport: Transport) -> None:
        def trickle(sink: Kept, _: bytes) -> None:
            sink.held.pause()
            asyncio.get_running_loop().call_soon(sink.held.resume)

        for on_data in (None, trickle):
            ended, sink = await send(transport, sink=Kept(on_data))
            assert ended.fault is None
            assert sink.body == text

    play(speech, act)


def test_a_gzip_bomb_is_stopped(play: Play) -> None:
    async def speech(voice: Voice) -> None:
        await voice.request()
        await voice.head(200, ("Content-Encoding", "gzip"))
        await voice.piece(gzip.compress(bytes(64 * 1024 * 1024), 6))
        await voice.left()

    async def act(transport: Transport) -> None:
        ended, sink = await send(transport)
        failed(ended, Fault.KIMI_BAD_RESPONSE)
        assert len(sink.body) < 8 * 1024 * 1024

    play(speech, act)


def test_leavers_leak_no_slot(play: Play) -> None:
    """70 % of the calls are cancelled at random points; MOONGATE_LEAVERS says how many calls there are."""
    dice = random.Random(7)

    async def speech(voice: Voice) -> None:
        await voice.request()
        await voice.head()
        await asyncio.sleep(dice.random() * 0.002)
        await voice.piece(EVENT)
        await voice.end()

    async def act(transport: Transport) -> None:
        whole = 0

        async def one() -> None:
            nonlocal whole
            task = asyncio.create_task(transport.exchange(outbound(), Kept()))
            if dice.random() < 0.7:
                for _ in range(dice.randrange(12)):
                    await asyncio.sleep(0)
                if dice.random() < 0.5:
                    await asyncio.sleep(dice.random() * 0.004)
                task.cancel()
            try:
                ended = await task
            except asyncio.CancelledError:
                return
            assert ended.fault is None, ended
            whole += 1

        async def caller() -> None:
            for _ in range(CALLS // 40):
                await one()

        await asyncio.gather(*(caller() for _ in range(40)))
        assert transport.in_use == 0
        assert whole > CALLS * 0.25
        await asyncio.gather(*(send(transport) for _ in range(16)))

    play(speech, act, max_connections=16)
