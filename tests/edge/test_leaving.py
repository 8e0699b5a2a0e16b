"""Clients that leave, stall or read slowly, and the server that stops: who is told, and what is left."""

import asyncio
import gzip
import socket

import pytest

from moongate.core.faults import Fault
from moongate.edge.server import RequestHead
from moongate.flow.downstream import Downstream
from tests.edge.test_server import CLOSE, GET, LOOPS, post
from tests.edge.toy import PLAIN, STREAM, echo, run, serving, settle, statuses, turns


class Told:
    """A handler that waits to be told, and what it was told."""

    def __init__(self, *, start: bool = False, write: bytes = b"") -> None:
        self.heard: list[str] = []
        self.go = asyncio.Event()
        self.down: Downstream | None = None
        self._start = start or bool(write)
        self._write = write

    def downstream_ready(self) -> None:
        self.heard.append("ready")

    def downstream_gone(self) -> None:
        self.heard.append("gone")
        self.go.set()

    async def __call__(self, _head: RequestHead, _body: bytes, down: Downstream) -> None:
        self.down = down
        down.watch(self)
        if self._start:
            down.start(STREAM)
        if self._write:
            down.write(self._write)
        await self.go.wait()
        down.write(b"nobody reads this")
        down.end()
        down.respond(PLAIN, b"nor this")
        down.abort()


@LOOPS
@pytest.mark.parametrize("phase", ["waiting", "head held", "streaming", "pipelined bytes wait"])
@pytest.mark.parametrize("how", ["close", "half-close", "reset"])
def test_a_client_that_leaves_is_noticed_at_once(loop: str, phase: str, how: str) -> None:
    async def main() -> None:
        told = Told(start=phase == "head held", write=b"one" if phase == "streaming" else b"")
        async with serving(told) as stage:
            client = await stage.client()
            await client.send(GET + (post(b"x" * 30_000)[:-1] if phase == "pipelined bytes wait" else b""))
            await settle(lambda: told.down is not None)
            if phase == "streaming":
                await client.until(b"one")
            assert not stage.fate
            if how == "half-close":
                client.sock.shutdown(socket.SHUT_WR)
            elif how == "reset":
                client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                client.leave()
            else:
                client.leave()
            await settle(lambda: told.heard, 1.0)
            assert told.heard == ["gone"]
            assert stage.fate == Fault.CLIENT_CLOSED
            await settle(lambda: stage.server.active == 0)
            assert len(stage.api.seen) == 1

    run(main(), loop)


@LOOPS
def test_leaving_is_noticed_though_an_answer_waits_to_be_taken(loop: str) -> None:
    async def main() -> None:
        told = Told(write=b"x" * 20_000_000)
        async with serving(told) as stage:
            client = await stage.client(SO_RCVBUF=8192)
            await client.send(GET)
            await settle(lambda: told.down is not None)
            client.sock.shutdown(socket.SHUT_WR)
            await settle(lambda: told.heard, 1.0)
            assert stage.fate == Fault.CLIENT_CLOSED
            stage.pass_time(40)
            await settle(lambda: stage.server.connections == 0)

    run(main(), loop)


@LOOPS
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\r\n",
        b"GET / HT",
        post(b"x" * 1000)[:-500],
        post(b"x" * 1000, b"Transfer-Encoding: chunked\r\n"),
    ],
)
def test_a_client_that_leaves_in_its_request_leaves_nothing(loop: str, sent: bytes) -> None:
    async def main() -> None:
        async with serving() as stage:
            client = await stage.client()
            await client.send(sent)
            await settle(lambda: stage.server.connections)
            await turns()
            client.leave()
            await settle(lambda: stage.server.connections == 0)
            assert stage.held.used == 0
            assert not stage.api.seen

    run(main(), loop)


def test_a_client_that_leaves_while_its_body_is_unpacked() -> None:
    async def main() -> None:
        async with serving() as stage:
            client = await stage.client()
            await client.send(post(gzip.compress(b"x" * 30_000_000), b"Content-Encoding: gzip\r\n"))
            await settle(lambda: stage.server.active)
            client.leave()
            await settle(lambda: stage.server.active == 0)
            assert not stage.api.seen
            assert stage.held.used == 0

    run(main())


@LOOPS
def test_slow_headers_end_in_408(loop: str) -> None:
    async def main() -> None:
        async with serving() as stage:
            client = await stage.client()
            for piece in (b"GET ", b"/ HTTP/1.1\r\n", b"Host: a\r\n"):
                await client.send(piece)
                await turns()
                await asyncio.sleep(0.01)
                stage.pass_time(3)
            stage.pass_time(2)
            assert statuses(await client.rest()) == [408]
            assert b"slow_request" in client.got
            assert b"x-should-retry: true" in client.got
            assert stage.server.refused == {Fault.SLOW_REQUEST: 1}

    run(main(), loop)


@LOOPS
def test_a_stalled_body_ends_in_408_and_a_slow_one_does_not(loop: str) -> None:
    async def main() -> None:
        async with serving() as stage:
            client = await stage.client()
            request = post(b"x" * 10_000)
            await client.send(request[:-9000])
            for _ in range(4):
                await asyncio.sleep(0.01)
                stage.pass_time(50)
                await client.send(b"x" * 1024)
            await asyncio.sleep(0.01)
            stage.pass_time(20)
            assert not client.got
            for _ in range(3):
                await client.send(b"x")
                await asyncio.sleep(0.01)
                stage.pass_time(15)
            stage.pass_time(15)
            assert statuses(await client.rest()) == [408]
            assert stage.held.used == 0

    run(main(), loop)


def test_idle_connections_are_closed_after_their_time_and_not_before() -> None:
    async def main() -> None:
        async with serving() as stage:
            fresh, used = await stage.client(), await stage.client()
            await used.send(GET)
            await used.until(b"GET /a")
            await used.send(b"\r\n")
            await turns()
            stage.pass_time(74)
            assert stage.server.connections == 2
            stage.pass_time(1.5)
            assert await fresh.rest() == b""
            assert statuses(await used.rest()) == [200]

    run(main())


@LOOPS
def test_a_stalled_reader_pauses_the_stream_and_is_ended(loop: str) -> None:
    written = 0

    async def main() -> None:
        nonlocal written

        async def stream(_head: RequestHead, _body: bytes, down: Downstream) -> None:
            nonlocal written
            down.start(STREAM)
            while down.gone is None:
                down.write(b"x" * 10_000)
                written += 10_000
                await down.drain()
                await asyncio.sleep(0)

        async with serving(stream) as stage:
            stalled = await stage.client(SO_RCVBUF=8192)
            await stalled.send(GET)
            await settle(lambda: stage.api.downs and not stage.api.downs[0].ready)
            before = written
            await asyncio.sleep(0.05)
            assert written == before
            assert stage.connection._transport.get_write_buffer_size() < 65_536 + 10_100
            stage.pass_time(29)
            assert not stage.fate
            stage.pass_time(10)
            assert stage.fate == Fault.SLOW_CLIENT
            await settle(lambda: stage.server.connections == 0)
            assert (await stalled.rest()).endswith(b"reset") is False

    run(main(), loop)


@LOOPS
def test_a_slow_reader_goes_on_and_hears_ready(loop: str) -> None:
    async def main() -> None:
        told = Told(write=b"x" * 20_000_000)
        async with serving(told) as stage:
            slow = await stage.client()
            await slow.send(GET)
            await settle(lambda: told.down is not None)
            assert told.down is not None
            for _ in range(10):
                await slow.more(1_000_000)
                await asyncio.sleep(0.01)
                stage.pass_time(10)
            assert told.down.gone is None
            assert not told.heard
            while not told.heard:
                await slow.more(100_000)
            assert told.heard == ["ready"]
            told.go.set()
            while not slow.got.endswith(b"nobody reads this\r\n0\r\n\r\n"):
                await slow.some(1 << 20)

    run(main(), loop)


def test_the_tail_of_an_answer_that_nobody_takes_ends_too() -> None:
    async def big(_head: RequestHead, _body: bytes, down: Downstream) -> None:
        down.respond(PLAIN, b"x" * 8_000_000)

    async def main() -> None:
        async with serving(big) as stage:
            for request in (GET, GET[:-2] + CLOSE):
                client = await stage.client(SO_RCVBUF=8192)
                await client.send(request)
                await settle(lambda: stage.api.seen and stage.server.active == 0)
                await asyncio.sleep(0.02)
                stage.pass_time(29)
                assert stage.server.connections == 1
                stage.pass_time(10)
                await settle(lambda: stage.server.connections == 0)
                stage.api.seen.clear()

    run(main())


@LOOPS
def test_an_abort_is_never_taken_for_an_end(loop: str) -> None:
    async def cut(_head: RequestHead, _body: bytes, down: Downstream) -> None:
        down.start(STREAM)
        down.write(b"one")
        await asyncio.sleep(0.02)
        down.abort()
        assert down.gone is None

    async def main() -> None:
        async with serving(cut) as stage:
            chunked = await stage.ask(GET)
            assert chunked.endswith(b"3\r\none\r\n")
            old = await stage.client()
            await old.send(b"GET / HTTP/1.0\r\n\r\n")
            await old.until(b"one")
            assert await old.some() == b"reset"

    run(main(), loop)


@LOOPS
def test_draining_finishes_what_runs_and_closes_what_idles(loop: str) -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def wait(head: RequestHead, body: bytes, down: Downstream) -> None:
            if head.path == "/stream":
                down.start(STREAM)
                down.write(b"one")
            await go.wait()
            if head.path == "/stream":
                down.write(b"two")
                down.end()
            else:
                await echo(head, body, down)

        async with serving(wait) as stage:
            idle, plain, stream = [await stage.client() for _ in range(3)]
            half = await stage.client()
            await plain.send(GET + GET)
            await stream.send(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")
            await half.send(GET[:9])
            await stream.until(b"one")
            await settle(lambda: stage.server.active == 2)
            stage.server.drain()
            assert await idle.rest() == b""
            assert not await stage.server.closed(0.01)
            late = await stage.client()
            await late.send(GET)
            await turns()
            assert len(stage.api.seen) == 2
            go.set()
            await half.send(GET[9:])
            for client in (plain, half):
                answer = await client.rest()
                assert statuses(answer) == [200]
                assert b"Connection: close\r\n" in answer
                client.leave()
            assert (await stream.rest()).endswith(b"two\r\n0\r\n\r\n")
            assert await stage.server.closed(1)
            stage.clients.remove(late)
            late.leave()

    run(main(), loop)


@LOOPS
def test_abort_all_ends_what_would_not_end(loop: str) -> None:
    async def main() -> None:
        told = Told(write=b"one")
        async with serving(told) as stage:
            client, idle, half = [await stage.client() for _ in range(3)]
            await client.send(GET)
            await half.send(post(b"hello")[:-2])
            await client.until(b"one")
            await settle(lambda: stage.held.used == 3)
            stage.server.drain()
            assert not await stage.server.closed(0.01)
            stage.server.abort_all()
            assert told.down is not None
            assert told.down.gone is Fault.GATEWAY_DRAINING
            assert await stage.server.closed(1)
            assert b"0\r\n\r\n" not in await client.rest()
            await idle.rest()

    run(main(), loop)
