"""What every transport promises to whoever pauses, cuts, cancels, waits or closes."""

import asyncio
import gzip
import os
import random
import resource
import time

import pytest

from moongate.core.faults import Fault, Reach
from moongate.upstream.transport import Phase, Transport, Valve
from tests.upstream.client import Kept, failed, outbound, send, until
from tests.upstream.voice import EVENT, Play, Voice, echo

CALLS = int(os.environ.get("MOONGATE_LEAVERS", "2000"))


def test_a_paused_sink_stops_the_upstream(play: Play) -> None:
    piece, most = b"x" * 16384, 4000
    sent = 0

    async def speech(voice: Voice) -> None:
        nonlocal sent
        await voice.request()
        await voice.head()
        for _ in range(most):
            await voice.piece(piece)
            sent += 1
        await voice.end()

    async def act(transport: Transport) -> None:
        def stop(sink: Kept, _: bytes) -> None:
            if not stopped:
                stopped.append(True)
                sink.held.pause()

        stopped: list[bool] = []
        sink = Kept(stop)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        task = asyncio.create_task(
            transport.exchange(outbound(phases={"idle": 0.2, "first_event": 0.2}), sink)
        )
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
        sink.on_data = lambda sink, _: sink.held.beat()
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


def test_a_pause_is_given_back_to_the_total(play: Play) -> None:
    async def speech(voice: Voice) -> None:
        await voice.request()
        await voice.head()
        await voice.piece(EVENT)
        await asyncio.sleep(0.4)
        await voice.end()

    async def act(transport: Transport) -> None:
        sink = Kept(lambda sink, _: sink.held.pause())
        task = asyncio.create_task(transport.exchange(outbound(phases={"total": 0.25}), sink))
        await until(lambda: bool(sink.pieces))
        await asyncio.sleep(0.5)
        sink.held.resume()
        assert (await task).fault is None

    play(speech, act)


def test_timers_start_anew_after_a_pause(play: Play) -> None:
    async def speech(voice: Voice) -> None:
        await voice.request()
        await voice.head()
        await voice.piece(EVENT)
        await voice.left()

    async def act(transport: Transport) -> None:
        def beat_and_pause(sink: Kept, _: bytes) -> None:
            sink.held.beat()
            sink.held.pause()

        sink = Kept(beat_and_pause)
        task = asyncio.create_task(transport.exchange(outbound(phases={"idle": 0.2}), sink))
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
        def open(self, valve: Valve) -> None:
            super().open(valve)
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
        with pytest.raises(asyncio.CancelledError):
            await left
        done.set()
        for ended in await asyncio.gather(first, second, third):
            assert ended.fault is None

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
        await voice.piece(gzip.compress(bytes(16 * 1024 * 1024), 6))
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


@pytest.mark.parametrize("on", ["first", "reused"])
def test_what_was_executed_is_never_sent_again(play: Play, on: str) -> None:
    executed = 0

    async def speech(voice: Voice) -> None:
        nonlocal executed
        body = await voice.request()
        if body == b"execute":
            executed += 1
            voice.hang_up()
            await voice.left()
            return
        await voice.head()
        await voice.end()

    async def act(transport: Transport) -> None:
        if on == "reused":
            assert (await send(transport, outbound(b"first")))[0].fault is None
        ended, _ = await send(transport, outbound(b"execute"))
        failed(ended, Fault.KIMI_NETWORK_UNREACHABLE)
        assert ended.reach is Reach.SENT
        await asyncio.sleep(0.2)
        assert executed == 1
        assert (await send(transport, outbound(b"last")))[0].fault is None

    play(speech, act)
