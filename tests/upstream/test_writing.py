"""Requests that cannot be written at once: how far they came, and answers that come before they are whole."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from moongate.core.faults import Fault, Reach
from moongate.upstream.http1 import Http1
from moongate.upstream.transport import Ended, Phase, Valve
from tests.upstream.client import Kept, failed, outbound, pool, send, until
from tests.upstream.conftest import Run
from tests.upstream.raw import Peer, RawServer

LARGE = b"x" * 20_000_000


async def unread(peer: Peer) -> None:
    """Read the head of a request and no byte more."""
    peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.sleep(30)


@asynccontextmanager
async def stuck(**limits: float) -> AsyncIterator[tuple[Http1, asyncio.Task[Ended]]]:
    """An exchange whose request the peer does not read."""
    async with RawServer(unread) as server, pool(server.port) as transport:
        sink = Kept()
        task = asyncio.create_task(transport.exchange(outbound(LARGE, phases=limits), sink))
        await until(lambda: sink.opened > 0)
        yield transport, task


def test_a_peer_that_does_not_read(run: Run) -> None:
    async def main() -> None:
        async with stuck(write=0.3) as (_, task):
            ended = failed(await task, Fault.KIMI_NETWORK_TIMEOUT)
            assert (ended.phase, ended.reach, ended.sent_at) == (Phase.WRITE, Reach.PARTLY_SENT, 0.0)

    run(main())


def test_a_small_request_that_is_taken_in_part(run: Run) -> None:
    class Narrow(Kept):
        def open(self, valve: Valve) -> None:
            super().open(valve)
            next(iter(pools[0]._connections))._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    async def main() -> None:
        async with RawServer(unread, receive_buffer=4096) as server, pool(server.port) as transport:
            pools.append(transport)
            ended, _ = await send(transport, outbound(bytes(250_000), phases={"write": 0.2}), Narrow())
            failed(ended, Fault.KIMI_NETWORK_TIMEOUT)
            assert (ended.phase, ended.reach, ended.sent_at) == (Phase.WRITE, Reach.PARTLY_SENT, 0.0)

    pools: list[Http1] = []
    run(main())


def test_cancelling_while_it_is_written(run: Run) -> None:
    async def main() -> None:
        async with stuck() as (transport, task):
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert transport.in_use == 0

    run(main())


def test_a_reset_while_it_is_written(run: Run) -> None:
    async def script(peer: Peer) -> None:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(0.1)
        peer.reset()

    async def main() -> None:
        async with RawServer(script) as server, pool(server.port) as transport:
            ended, _ = await send(transport, outbound(LARGE))
            failed(ended, Fault.KIMI_NETWORK_UNREACHABLE)
            assert ended.reach is Reach.PARTLY_SENT

    run(main())


@pytest.mark.parametrize("closes", [True, False])
def test_an_answer_before_the_request_is_whole(run: Run, closes: bool) -> None:
    async def script(peer: Peer) -> None:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(0.05)
        await peer.answer(b"no", b"413 Content Too Large")
        await asyncio.sleep(0.0 if closes else 1.0)

    async def main() -> None:
        async with RawServer(script) as server, pool(server.port) as transport:
            ended, sink = await send(transport, outbound(LARGE))
            assert (ended.fault, ended.reach, sink.status, sink.body) == (None, Reach.HEAD, 413, b"no")
            assert transport.idle == 0  # the rest of the request can be neither sent nor taken back

    run(main())


def test_a_head_that_comes_while_it_is_still_written(run: Run) -> None:
    async def script(peer: Peer) -> None:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(0.05)
        await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await asyncio.sleep(0.05)
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        await peer.request()
        await peer.send(b"0\r\n\r\n")
        await peer.request()
        await peer.answer()

    async def main() -> None:
        async with RawServer(script) as server, pool(server.port) as transport:
            ended, _ = await send(transport, outbound(LARGE))
            assert (ended.fault, ended.reach) == (None, Reach.HEAD)
            assert 0 < ended.head_at < ended.sent_at
            assert (await send(transport))[0].reused

    run(main())
