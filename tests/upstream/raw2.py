"""A raw HTTP/2 server of our own: each stream runs a script that says what the peer does.

The h2 library frames it; what the library would refuse to say goes out as crafted frames (`Link.raw`).
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, cast

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

WINDOW = 1 << 20


class Link(asyncio.Protocol):
    """The server's end of one connection, and its streams."""

    def __init__(self, server: "RawServer2") -> None:
        self.transport: asyncio.Transport
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(
                client_side=False, header_encoding=None, validate_outbound_headers=False
            )
        )
        self.h2.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: server.streams,
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: server.window,
            },
        )
        self.server = server
        self.open: dict[int, Stream] = {}
        self.gone = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()
        self.pings = 0
        self.is_deaf = False

    @property
    def sock(self) -> socket.socket:
        """The socket itself."""
        return cast("socket.socket", self.transport.get_extra_info("socket"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.server.links.append(self)
        self.server.opened += 1
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(WINDOW)
        self.flush()

    def data_received(self, data: bytes) -> None:
        if self.is_deaf:
            return
        try:
            happened = self.h2.receive_data(data)
        except h2.exceptions.ProtocolError as error:
            self.server.failures.append(error)
            self.transport.abort()
            return
        for event in happened:
            self._on(event)
        self.flush()

    def _on(self, event: h2.events.Event) -> None:
        number = getattr(event, "stream_id", 0) or 0
        stream = self.open.get(number)
        if isinstance(event, h2.events.RequestReceived):
            self.server.begin(self, number, list(event.headers or []))
        elif isinstance(event, h2.events.DataReceived) and stream is not None:
            stream.body += event.data or b""
            if self.server.gives and event.flow_controlled_length:
                self.h2.acknowledge_received_data(event.flow_controlled_length, number)
            stream.came.set()
        elif isinstance(event, h2.events.StreamEnded) and stream is not None:
            stream.whole.set()
        elif isinstance(event, h2.events.StreamReset) and stream is not None:
            stream.error = int(event.error_code or 0)
            stream.gone.set()
        elif isinstance(event, h2.events.PingAckReceived):
            self.pings += 1
        for each in self.open.values():
            each.moved.set()

    def flush(self) -> None:
        """Write what the library has ready."""
        data = self.h2.data_to_send()
        if data and not self.transport.is_closing():
            self.transport.write(data)

    def raw(self, data: bytes) -> None:
        """Write bytes that the library knows nothing of."""
        self.transport.write(data)

    def frame(self, kind: int, flags: int, stream: int, payload: bytes = b"") -> None:
        """Write a frame as it is told (RFC 9113, 4.1)."""
        self.raw(len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload)

    def goaway(self, last: int, error: int = 0) -> None:
        """Say that streams above `last` are not and will not be executed; the others go on."""
        self.frame(7, 0, 0, last.to_bytes(4, "big") + error.to_bytes(4, "big"))

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.writable.set()
        self.gone.set()
        for stream in self.open.values():
            stream.gone.set()
            stream.moved.set()


class Stream:
    """One exchange, seen from the server."""

    def __init__(self, link: Link, number: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.link = link
        self.number = number
        self.headers = headers
        self.body = b""
        self.error: int | None = None
        self.whole = asyncio.Event()
        self.gone = asyncio.Event()
        self.moved = asyncio.Event()
        self.came = asyncio.Event()

    async def request(self) -> bytes:
        """The body of the request, once it is whole."""
        waiting = [asyncio.ensure_future(each.wait()) for each in (self.whole, self.gone)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
        if not self.whole.is_set():
            raise ConnectionResetError
        return self.body

    async def head(self, status: int = 200, *headers: tuple[str, str], ends: bool = False) -> None:
        """Begin an answer of unknown length."""
        self._check()
        fields = [(":status", str(status)), *((name.lower(), value) for name, value in headers)]
        self.link.h2.send_headers(self.number, fields, end_stream=ends or status == 204)
        self.link.flush()

    async def piece(self, data: bytes) -> None:
        """Send body bytes now, as the windows allow."""
        while data:
            self._check()
            room = min(
                self.link.h2.local_flow_control_window(self.number), self.link.h2.max_outbound_frame_size
            )
            if room <= 0 or not self.link.writable.is_set():
                self.moved.clear()
                if room <= 0:
                    await self.moved.wait()
                else:
                    await self.link.writable.wait()
                continue
            self.link.h2.send_data(self.number, data[:room])
            self.link.flush()
            data = data[room:]

    async def end(self) -> None:
        """Finish the answer cleanly."""
        self._check()
        self.link.h2.end_stream(self.number)
        self.link.flush()

    def reset(self, error: int = 2) -> None:
        """Break off this stream."""
        self.link.h2.reset_stream(self.number, h2.errors.ErrorCodes(error))
        self.link.flush()

    def hang_up(self) -> None:
        """Close the connection without a word."""
        self.link.transport.close()

    async def left(self) -> None:
        """Wait until the client has given the exchange up."""
        await self.gone.wait()

    def _check(self) -> None:
        if self.gone.is_set():
            raise ConnectionResetError


Script2 = Callable[[Stream], Awaitable[None]]


@dataclass
class RawServer2:
    """Listens on loopback and runs `script` for each stream; `tls` with ALPN h2, else by prior knowledge.

    `window` of bytes for each stream's request; unless the server `gives`, no more ever.
    """

    script: Script2
    tls: ssl.SSLContext | None = None
    streams: int = 1000
    window: int = WINDOW
    gives: bool = True
    opened: int = 0
    links: list[Link] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    port: int = 0

    async def __aenter__(self) -> Self:
        self._tasks: set[asyncio.Task[None]] = set()
        if self.tls is not None:
            self.tls.set_alpn_protocols(["h2"])
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Link(self), "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def begin(self, link: Link, number: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Run the script for a stream."""
        stream = link.open[number] = Stream(link, number, headers)
        task = asyncio.get_running_loop().create_task(self._run(stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, stream: Stream) -> None:
        try:
            await self.script(stream)
        except (ConnectionError, h2.exceptions.ProtocolError):
            pass
        except Exception as error:  # noqa: BLE001 - shown by the test that started this server
            self.failures.append(error)
        finally:
            stream.link.open.pop(stream.number, None)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in self.links:
            link.transport.abort()
        await self._server.wait_closed()
        await asyncio.gather(*(link.gone.wait() for link in self.links))
        assert not self.failures, self.failures


async def answering(stream: Stream) -> None:
    """Answer `{}`."""
    await stream.request()
    await stream.head()
    await stream.piece(b"{}")
    await stream.end()
