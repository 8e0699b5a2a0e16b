"""A raw server of our own: each connection runs a script that says, byte by byte, what the peer does."""

import asyncio
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self


class Peer:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def request(self) -> tuple[bytes, bytes]:
        """Read one whole request: head (its empty line included) and body."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        size = int(lengths[0].split(b":")[1]) if lengths else 0
        return head, await self._reader.readexactly(size)

    async def byte(self) -> None:
        """Wait for the first byte of whatever comes."""
        await self._reader.readexactly(1)

    async def send(self, data: bytes) -> None:
        """Write, and wait until the kernel has most of it."""
        if self.writer.transport.is_closing():
            raise ConnectionResetError
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, body: bytes = b"{}", status: bytes = b"200 OK", headers: bytes = b"") -> None:
        """Answer with a length."""
        await self.send(b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, headers, len(body), body))

    def reset(self) -> None:
        """Send RST: linger on, zero seconds."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def gone(self) -> None:
        """Wait until the client has closed its end."""
        with suppress(ConnectionError, ssl.SSLError):
            while await self._reader.read(65536):
                pass


Script = Callable[[Peer], Awaitable[None]]


@dataclass
class RawServer:
    """Listens on loopback, on a port of the kernel's choice if none is named, and runs `script` for each connection."""

    script: Script
    tls: ssl.SSLContext | None = None
    receive_buffer: int = 0
    opened: int = 0
    failures: list[BaseException] = field(default_factory=list)
    port: int = 0
    host: str = "127.0.0.1"

    async def __aenter__(self) -> Self:
        self._tasks: set[asyncio.Task[None]] = set()
        listening = socket.socket()
        if self.receive_buffer:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer)
        listening.bind((self.host, self.port))
        self.port = listening.getsockname()[1]
        self._server = await asyncio.start_server(self._met, sock=listening, ssl=self.tls, limit=1 << 20)
        return self

    def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        task = asyncio.get_running_loop().create_task(self._run(Peer(reader, writer)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, peer: Peer) -> None:
        try:
            await self.script(peer)
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            pass
        except Exception as error:  # noqa: BLE001 - shown by the test that started this server
            self.failures.append(error)
        finally:
            peer.writer.transport.abort() if self.tls else peer.writer.close()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()
        assert not self.failures


async def serving(peer: Peer) -> None:
    """Answer every request with `{}`, for as long as they come."""
    while True:
        await peer.request()
        await peer.answer()
