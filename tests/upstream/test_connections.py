"""How connections are opened, kept, reused, limited and given up."""

import asyncio
import gc
import resource
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from moongate.core.faults import Fault, Reach
from moongate.upstream.connection import Connection
from moongate.upstream.http1 import Http1
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


def test_a_connection_closed_by_the_peer_is_passed_over(run: Run) -> None:
    async def main() -> None:
        async with RawServer(once) as server, pool(server.port) as transport:
            for _ in range(5):
                ended, _ = await send(transport)
                assert (ended.fault, ended.reused) == (None, False)
                await until(lambda: transport.idle == 0)
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
        reset(self.peer)


async def met(listening: socket.socket, *, close: bool = False) -> socket.socket:
    """Take a connection and answer its first request; the peer's end stays in the test's hand."""
    loop = asyncio.get_running_loop()
    peer, _ = await loop.sock_accept(listening)
    await loop.sock_recv(peer, 65536)
    await loop.sock_sendall(peer, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    if close:
        peer.close()
    return peer


@asynccontextmanager
async def in_hand() -> AsyncIterator[tuple[socket.socket, Http1]]:
    """A listening socket without any server behind it, and a pool to it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        async with pool(listening.getsockname()[1]) as transport:
            yield listening, transport


def reset(peer: socket.socket) -> None:
    """Close with RST, now."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def test_a_reused_connection_that_takes_no_byte_is_stale(run: Run) -> None:
    async def main() -> None:
        async with in_hand() as (listening, transport):
            first = asyncio.create_task(send(transport))
            sink = Resetting()
            sink.peer = await met(listening)
            assert (await first)[0].fault is None
            ended, _ = await send(transport, sink=sink)
            failed(ended, Fault.KIMI_STALE_CONNECTION)
            assert (ended.reach, ended.reused, sink.opened) == (Reach.NOTHING_SENT, True, 1)

    run(main())


@pytest.mark.parametrize("end", [socket.socket.close, reset, lambda peer: peer.send(b"HTTP/1.1 408 X")])
def test_what_the_kernel_knows_and_the_loop_does_not_yet(
    run: Run, end: Callable[[socket.socket], object]
) -> None:
    async def main() -> None:
        async with in_hand() as (listening, transport):
            first = asyncio.create_task(send(transport))
            peer = await met(listening)
            assert (await first)[0].fault is None
            end(peer)
            time.sleep(0.03)  # noqa: ASYNC251 - the loop must not see it
            second = asyncio.create_task(send(transport))
            (await met(listening, close=True)).close()
            ended, sink = await second
            assert (ended.fault, ended.reused, sink.opened) == (None, False, 1)
            peer.close()

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
            last = tasks.pop()
            last.cancel()
            await asyncio.wait([last])
            assert transport.waiting == 8
            assert all(ended.fault is None for ended, _ in await asyncio.gather(*tasks))
            assert order == bodies[:9]
            assert server.opened == 1

    run(main())


def test_whoever_waits_gets_the_slot_of_a_closed_connection(run: Run) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")

    async def main() -> None:
        async with RawServer(script) as server, pool(server.port, max_connections=1) as transport:
            results = await asyncio.gather(*(send(transport) for _ in range(5)))
            assert [ended.fault for ended, _ in results] == [None] * 5
            assert server.opened == 5

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


def test_no_descriptor_is_left(run: Run) -> None:
    async def main() -> None:
        async with RawServer(serving) as server, pool(server.port, max_connections=4) as transport:
            await send(transport)
            kept = resource.getrlimit(resource.RLIMIT_NOFILE)
            task = asyncio.create_task(send(transport))
            second = asyncio.create_task(send(transport))
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, kept[1]))
            try:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                ended = failed((await second)[0], Fault.GATEWAY_OVERLOADED)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, kept)
            assert ended.reach is Reach.NOTHING_SENT
            assert (await task)[0].fault is None

    run(main())
