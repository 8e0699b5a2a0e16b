"""How connections are opened, kept, reused, limited and given up."""

import asyncio
import gc
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from moongate.core.faults import Fault, Reach
from moongate.upstream.connection import Connection
from moongate.upstream.transport import Phase, Valve
from tests.upstream.client import Kept, failed, outbound, pool, send, until
from tests.upstream.conftest import Run
from tests.upstream.raw import Peer, RawServer, serving

LARGE = b"x" * 20_000_000


@contextmanager
def deaf() -> Iterator[int]:
    """A port that takes no connection: its backlog is full, so a SYN is not answered."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        port = listening.getsockname()[1]
        waiting = [socket.socket() for _ in range(3)]
        try:
            for each in waiting:
                each.setblocking(False)
                each.connect_ex(("127.0.0.1", port))
            yield port
        finally:
            for each in waiting:
                each.close()


def test_a_connection_is_reused(run: Run) -> None:
    async def main() -> None:
        async with RawServer(serving) as server, pool(server.port) as transport:
            reused = [(await send(transport))[0].reused for _ in range(5)]
            assert reused == [False, True, True, True, True]
            assert (server.opened, transport.idle, transport.in_use) == (1, 1, 0)

    run(main())


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n",
        b"HTTP/1.0 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: Close, x\r\n",
    ],
)
def test_a_connection_is_not_reused_against_the_peers_word(run: Run, head: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(head + b"Content-Length: 2\r\n\r\n{}")
        await peer.gone()

    async def main() -> None:
        async with RawServer(script) as server, pool(server.port) as transport:
            for _ in range(3):
                ended, _ = await send(transport)
                assert (ended.fault, ended.reused) == (None, False)
            assert (server.opened, transport.idle) == (3, 0)

    run(main())


async def once(peer: Peer) -> None:
    """Answer one request and close without a word."""
    await peer.request()
    await peer.answer()


@pytest.mark.parametrize("pause", [0.0, 0.02])
def test_a_connection_closed_by_the_peer_is_passed_over(run: Run, pause: float) -> None:
    async def main() -> None:
        async with RawServer(once) as server, pool(server.port) as transport:
            for _ in range(5):
                ended, _ = await send(transport)
                assert (ended.fault, ended.reused) == (None, False)
                await asyncio.sleep(pause)
                if not pause:
                    time.sleep(0.005)  # noqa: ASYNC251 - the close is in the kernel, the loop has not seen it
            assert server.opened == 5

    run(main())


def test_a_reused_connection_reset_after_the_request_proves_nothing(run: Run) -> None:
    async def script(peer: Peer) -> None:
        await once(peer)
        await peer.request()
        peer.reset()

    async def main() -> None:
        async with RawServer(script) as server, pool(server.port) as transport:
            await send(transport)
            ended, _ = await send(transport)
            failed(ended, Fault.KIMI_NETWORK_UNREACHABLE)
            assert (ended.reach, ended.reused) == (Reach.SENT, True)

    run(main())


class Resetting(Kept):
    """Resets the peer's end at the last moment before the request is written."""

    peer: socket.socket

    def open(self, valve: Valve) -> None:
        super().open(valve)
        self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.peer.close()


def test_a_reused_connection_that_takes_no_byte_is_stale(run: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.setblocking(False)
            async with pool(listening.getsockname()[1]) as transport:
                first = asyncio.create_task(send(transport))
                peer, _ = await loop.sock_accept(listening)
                await loop.sock_recv(peer, 65536)
                await loop.sock_sendall(peer, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                assert (await first)[0].fault is None
                sink = Resetting()
                sink.peer = peer
                ended, _ = await send(transport, sink=sink)
                failed(ended, Fault.KIMI_STALE_CONNECTION)
                assert (ended.reach, sink.opened) == (Reach.NOTHING_SENT, 1)

    run(main())


def test_unasked_bytes_close_an_idle_connection(run: Run) -> None:
    async def script(peer: Peer) -> None:
        await once(peer)
        await asyncio.sleep(0.01)
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        await peer.gone()

    async def main() -> None:
        async with RawServer(script) as server, pool(server.port) as transport:
            await send(transport)
            assert transport.idle == 1
            await until(lambda: transport.idle == 0)
            assert (await send(transport))[1].body == b"{}"

    run(main())


def test_idle_connections_are_few_and_grow_old(run: Run) -> None:
    async def main() -> None:
        async with (
            RawServer(serving) as server,
            pool(server.port, max_idle=3, idle_seconds=0.2) as transport,
        ):
            await asyncio.gather(*(send(transport) for _ in range(8)))
            assert transport.idle == 3
            await asyncio.sleep(0.1)
            assert transport.idle == 3
            await until(lambda: transport.idle == 0)
            assert (await send(transport))[0].fault is None

    run(main())


def test_no_more_connections_than_allowed_and_first_come_first_served(run: Run) -> None:
    order: list[bytes] = []

    async def script(peer: Peer) -> None:
        while True:
            order.append((await peer.request())[1])
            await asyncio.sleep(0.005)
            await peer.answer()

    async def main() -> None:
        async with RawServer(script) as server, pool(server.port, max_connections=1) as transport:
            bodies = [b"%d" % number for number in range(10)]
            tasks = [asyncio.create_task(send(transport, outbound(body))) for body in bodies]
            await asyncio.sleep(0)
            assert (transport.in_use, transport.waiting) == (1, 9)
            assert all(ended.fault is None for ended, _ in await asyncio.gather(*tasks))
            assert order == bodies
            assert server.opened == 1

    run(main())


def test_whoever_waits_gets_the_slot_of_a_failed_dial(run: Run) -> None:
    async def main() -> None:
        async with RawServer(serving) as server:
            port = server.port
        async with pool(port, max_connections=1) as transport:
            results = await asyncio.gather(*(send(transport) for _ in range(5)))
            assert {ended.fault for ended, _ in results} == {Fault.KIMI_NETWORK_UNREACHABLE}

    run(main())


def test_a_syn_that_nobody_answers(run: Run) -> None:
    async def main() -> None:
        with deaf() as port:
            async with pool(port) as transport:
                began = time.monotonic()
                ended, sink = await send(transport, outbound(phases={"connect": 0.2}))
                failed(ended, Fault.KIMI_NETWORK_TIMEOUT)
                assert (ended.phase, ended.reach, sink.opened) == (Phase.CONNECT, Reach.NOTHING_SENT, 0)
                assert 0.19 < time.monotonic() - began < 0.5

    run(main())


def test_cancelling_a_dial_closes_its_socket(run: Run) -> None:
    async def main() -> None:
        with deaf() as port:
            async with pool(port, max_connections=1) as transport:
                for turns in range(4):
                    task = asyncio.create_task(transport.exchange(outbound(), Kept()))
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                    await until(lambda: transport.in_use == 0)
        gc.collect()  # an open socket would warn, and warnings are errors

    run(main())


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 70 + ".invalid"])
def test_a_name_that_does_not_exist(run: Run, host: str) -> None:
    async def main() -> None:
        async with pool(80, host=host) as transport:
            ended, _ = await send(transport)
            failed(ended, Fault.KIMI_NETWORK_UNREACHABLE)
            assert ended.reach is Reach.NOTHING_SENT
            assert ended.detail.startswith("dns:")

    run(main())


def test_the_second_address_of_a_name_is_tried(run: Run) -> None:
    async def main() -> None:
        async with RawServer(serving) as server, pool(server.port, host="localhost") as transport:
            assert (await send(transport))[0].fault is None

    run(main())


async def unread(peer: Peer) -> None:
    """Read the head of a request and no byte more."""
    peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.sleep(30)


@asynccontextmanager
async def stuck(**limits: float) -> AsyncIterator[tuple[object, "asyncio.Task[object]", Kept]]:
    """An exchange whose request the peer does not read."""
    async with RawServer(unread) as server, pool(server.port) as transport:
        sink = Kept()
        task: asyncio.Task[object] = asyncio.create_task(
            transport.exchange(outbound(LARGE, phases=limits), sink)
        )
        await until(lambda: sink.opened > 0)
        yield transport, task, sink


def test_a_peer_that_does_not_read(run: Run) -> None:
    async def main() -> None:
        async with stuck(write=0.3) as (_, task, _):
            ended = failed(await task, Fault.KIMI_NETWORK_TIMEOUT)  # type: ignore[arg-type]
            assert (ended.phase, ended.reach, ended.sent_at) == (Phase.WRITE, Reach.PARTLY_SENT, 0.0)

    run(main())


def test_cancelling_while_it_is_written(run: Run) -> None:
    async def main() -> None:
        async with stuck() as (transport, task, _):
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert transport.in_use == 0  # type: ignore[attr-defined]

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


def test_a_paused_exchange_leaves_a_connection_that_reads(run: Run) -> None:
    async def main() -> None:
        async with RawServer(serving) as server, pool(server.port) as transport:
            for _ in range(3):
                ended, _ = await send(transport, sink=Kept(lambda sink, _: sink.held.pause()))
                assert ended.fault is None
            assert server.opened == 1

    run(main())


def test_a_cut_at_the_end_of_the_answer_keeps_the_connection(run: Run) -> None:
    async def main() -> None:
        async with RawServer(serving) as server, pool(server.port) as transport:
            for _ in range(3):
                ended, _ = await send(transport, sink=Kept(lambda sink, _: sink.held.cut(None, "done")))
                assert (ended.fault, ended.detail) == (None, "done")
            assert server.opened == 1

    run(main())


def test_closed_connections_are_let_go(run: Run) -> None:
    async def main() -> None:
        async with RawServer(once) as server, pool(server.port) as transport:
            for _ in range(50):
                await send(transport)
                await asyncio.sleep(0)
            await until(lambda: transport.idle == 0)
            await asyncio.sleep(0.01)
            alive = sum(isinstance(each, Connection) for each in gc.get_objects())
            assert alive <= 2  # without waiting for the collector

    gc.collect()
    gc.disable()
    try:
        run(main())
    finally:
        gc.enable()


def test_sockets_are_set_up_for_small_writes_and_dead_peers(run: Run) -> None:
    async def main() -> None:
        async with RawServer(serving) as server, pool(server.port) as transport:
            await send(transport)
            sock = transport._idle[0]._sock
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)

    run(main())
