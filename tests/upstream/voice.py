"""A scripted upstream that speaks in whole answers, whichever protocol carries them.

The contract of a transport is tested against `Voice`; each protocol brings a server that makes voices.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from moongate.upstream.transport import Transport
from tests.upstream.client import pool, pool2
from tests.upstream.raw import Peer, RawServer
from tests.upstream.raw2 import RawServer2, Stream


class Voice(Protocol):
    """One exchange, seen from the server."""

    async def request(self) -> bytes:
        """The body of the request, once it is whole."""

    async def head(self, status: int = 200, *headers: tuple[str, str]) -> None:
        """Begin an answer of unknown length."""

    async def piece(self, data: bytes) -> None:
        """Send body bytes now."""

    async def end(self) -> None:
        """Finish the answer cleanly."""

    def reset(self) -> None:
        """Break off hard."""

    def hang_up(self) -> None:
        """Close the connection without a word."""

    async def left(self) -> None:
        """Wait until the client has given the exchange up."""


EVENT = b'data: {"x":1}\n\n'
Speech = Callable[[Voice], Awaitable[None]]
Act = Callable[[Transport], Awaitable[None]]


class Play(Protocol):
    """Runs an act against a server that serves each exchange with a speech."""

    def __call__(self, speech: Speech, act: Act, **settings: Any) -> None:
        """Run; `settings` are the pool's."""


async def echo(voice: Voice) -> None:
    """Answer with what was asked."""
    body = await voice.request()
    await voice.head(200, ("Content-Type", "application/json"))
    await voice.piece(body)
    await voice.end()


class Protocoled(Protocol):
    """One protocol: a server that speaks it, and the transport under test.

    `frames`: whether the transport can tell the end of an answer of unknown length from a break.
    """

    frames: bool

    def server(self, speech: Speech) -> AbstractAsyncContextManager[int]:
        """Serve each exchange with this speech; gives the port."""

    def transport(self, port: int, **settings: Any) -> AbstractAsyncContextManager[Transport]:
        """The transport to that port, checked to be at rest afterwards."""


@dataclass
class Http1Voice:
    """Speaks HTTP/1.1, in chunks."""

    peer: Peer

    async def request(self) -> bytes:
        return (await self.peer.request())[1]

    async def head(self, status: int = 200, *headers: tuple[str, str]) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        await self.peer.send(f"HTTP/1.1 {status} Said\r\n{lines}Transfer-Encoding: chunked\r\n\r\n".encode())

    async def piece(self, data: bytes) -> None:
        await self.peer.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self) -> None:
        await self.peer.send(b"0\r\n\r\n")

    def reset(self) -> None:
        self.peer.reset()

    def hang_up(self) -> None:
        self.peer.writer.close()

    async def left(self) -> None:
        await self.peer.gone()


class Http1Protocol:
    """HTTP/1.1 over plain TCP; a connection serves one exchange after the other."""

    frames = True

    @asynccontextmanager
    async def server(self, speech: Speech) -> AsyncIterator[int]:
        async def script(peer: Peer) -> None:
            while True:
                await speech(Http1Voice(peer))

        async with RawServer(script) as server:
            yield server.port

    def transport(self, port: int, **settings: Any) -> AbstractAsyncContextManager[Transport]:
        return pool(port, **settings)


class Http2Protocol:
    """HTTP/2 over plain TCP, by prior knowledge; all exchanges share connections."""

    frames = False

    @asynccontextmanager
    async def server(self, speech: Speech) -> AsyncIterator[int]:
        async def script(stream: Stream) -> None:
            await speech(stream)

        async with RawServer2(script) as server:
            yield server.port

    def transport(self, port: int, **settings: Any) -> AbstractAsyncContextManager[Transport]:
        return pool2(port, **settings)
