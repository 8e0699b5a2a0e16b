"""A server on loopback with a toy API behind it, and raw clients: what the tests of the edge stand on."""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import uvloop

from moongate.core.faults import Failure, Fault, refuse
from moongate.core.held import Held
from moongate.core.wire import error_lines
from moongate.edge.connection import Connection
from moongate.edge.server import RequestHead, Server, ServerLimits
from moongate.flow.downstream import Downstream, Head

PLAIN = Head(200, b"Content-Type: text/plain\r\n")
STREAM = Head(200, b"Content-Type: text/event-stream\r\n", stream=True)
Handle = Callable[[RequestHead, bytes, Downstream], Awaitable[None]]


class Clock:
    """Monotonic seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def echo(head: RequestHead, body: bytes, down: Downstream) -> None:
    down.respond(PLAIN, b"%b %b %b" % (head.method.encode(), head.path.encode(), body[:100]))


@dataclass
class ToyApi:
    """Keeps what it was asked; refuses the key `bad` at the end of the headers."""

    answer: Handle = echo
    seen: list[tuple[RequestHead, bytes]] = field(default_factory=list)
    screened: list[RequestHead] = field(default_factory=list)
    downs: list[Downstream] = field(default_factory=list)
    refusals: list[tuple[Fault, object]] = field(default_factory=list)
    forsook: list[object] = field(default_factory=list)

    def screen(self, head: RequestHead) -> object:
        self.screened.append(head)
        if head.headers.get(b"authorization") == b"Bearer bad":
            raise refuse(Fault.UNAUTHENTICATED)
        if head.path == "/broken-screen":
            raise ZeroDivisionError
        return head.path

    async def handle(self, head: RequestHead, screened: object, body: bytes, down: Downstream) -> None:
        assert screened == head.path
        self.seen.append((head, body))
        self.downs.append(down)
        await self.answer(head, body, down)

    def refuse(self, failure: Failure, head: RequestHead | None, screened: object, down: Downstream) -> None:
        self.refusals.append((failure.fault, screened))
        down.respond(*self.render(failure, head))

    def forsaken(self, answered: object) -> None:
        self.forsook.append(answered)

    def render(self, failure: Failure, head: RequestHead | None) -> tuple[Head, bytes]:
        if head is not None and head.path == "/broken-render":
            raise ZeroDivisionError
        facts = failure.rule.facts
        return Head(facts.status, error_lines(failure)), b'{"error":{"code":"%b"}}' % facts.code.encode()


class Client:
    """One raw connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.got = bytearray()

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def some(self, size: int = 65536) -> bytes:
        """The next bytes; empty at the end; `reset` if the connection was reset."""
        try:
            data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.sock, size), 5)
        except ConnectionResetError:
            return b"reset"
        self.got += data
        return data

    async def more(self, size: int) -> None:
        """Take so many bytes more."""
        end = len(self.got) + size
        while len(self.got) < end:
            assert await self.some(end - len(self.got)) not in (b"", b"reset")

    async def until(self, mark: bytes, count: int = 1) -> bytearray:
        """Everything so far, once `mark` came `count` times."""
        while self.got.count(mark) < count:
            assert await self.some() not in (b"", b"reset"), self.got
        return self.got

    async def rest(self) -> bytearray:
        """Everything up to the connection's end."""
        while await self.some() not in (b"", b"reset"):
            pass
        return self.got

    def leave(self) -> None:
        self.sock.close()


@dataclass
class Stage:
    """A running server and what it runs on."""

    server: Server
    api: ToyApi
    held: Held
    clock: Clock
    listener: socket.socket
    clients: list[Client] = field(default_factory=list)

    async def client(self, **options: int) -> Client:
        sock = socket.socket(self.listener.family, socket.SOCK_STREAM)
        sock.setblocking(False)
        for name, value in options.items():
            sock.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        await asyncio.get_running_loop().sock_connect(sock, self.listener.getsockname())
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.clients.append(Client(sock))
        return self.clients[-1]

    async def ask(self, request: bytes) -> bytearray:
        """The whole answer to one request that ends its connection."""
        client = await self.client()
        await client.send(request)
        answer = await client.rest()
        client.leave()
        return answer

    @property
    def connection(self) -> Connection:
        """The only connection there is."""
        (only,) = self.server._shared.connections
        return cast("Connection", only)

    @property
    def fate(self) -> Fault | None:
        """What became of the first request's client."""
        return self.api.downs[0].gone if self.api.downs else None

    def pass_time(self, seconds: float) -> None:
        """Let time pass in small steps, with the sweeps that belong to them."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now = min(end, self.clock.now + 0.5)
            self.server.sweep()


async def settle(condition: Callable[[], object], seconds: float = 5.0) -> None:
    """Let the loop run until the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to be"
        await asyncio.sleep(0.001)


async def turns(count: int = 20) -> None:
    """Let the loop turn, so that whatever is ready happens."""
    for _ in range(count):
        await asyncio.sleep(0)


@asynccontextmanager
async def serving(
    answer: Handle = echo, *, held_bytes: int = 1 << 28, listener: socket.socket | None = None, **limits: Any
) -> AsyncIterator[Stage]:
    """Serve on loopback; afterwards nothing may be left: no connection, request, task or counted byte."""
    before = asyncio.all_tasks()
    clock = Clock()
    api = ToyApi(answer)
    held = Held(held_bytes)
    server = Server(api, replace(ServerLimits(), **limits), held, clock, lambda: 784111777.0)
    listener = listener or socket.create_server(("127.0.0.1", 0), backlog=512)
    await server.start([listener])
    stage = Stage(server, api, held, clock, listener)
    try:
        yield stage
    finally:
        for client in stage.clients:
            client.leave()
        server.drain()
        at_rest = await server.closed(5)
        listener.close()
    assert at_rest
    assert (server.connections, server.active, held.used) == (0, 0, 0)
    await settle(lambda: asyncio.all_tasks() == before)


def run(main: Coroutine[Any, Any, None], loop: str = "asyncio") -> None:
    """Run a test on a fresh loop of this kind; an error that only the loop has heard of fails it."""
    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    heard: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: heard.append(context))
        runner.run(main)
    assert not heard


def statuses(answer: bytes | bytearray) -> list[int]:
    """The statuses of all answers in these bytes."""
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


logging.getLogger("moongate.edge").setLevel(logging.CRITICAL)
