"""The simulated provider's HTTP/1.1 side: an own protocol on httptools.

One connection answers its requests one after another, pipelined ones in order. When the peer leaves, whatever
is running for it is cancelled at once and the book closes it as aborted.
"""

import asyncio
import contextlib
import socket
import struct
import time
from collections import deque
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast

import httptools

from moongate.sim.play import play, play_at_once
from moongate.sim.reply import Act, Framing, Header, Reply, Request

if TYPE_CHECKING:
    from moongate.sim.host import Exchange, Host

_STATUS: Final = {
    code.value: b"HTTP/1.1 %d %b\r\n" % (code.value, code.phrase.encode()) for code in HTTPStatus
}
_LINGER_NONE: Final = struct.pack("ii", 1, 0)
_H2_PREFACE: Final = b"PRI * HTTP/2.0"
_MAX_BODY: Final = 256 * 1024 * 1024
_MAX_PIPELINED: Final = 64


class Http1(asyncio.Protocol):
    """One connection. Also the `Wire` of the answer that is being sent on it."""

    def __init__(self, host: "Host") -> None:
        self.paused = False
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[tuple[Request, bool]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._writable: asyncio.Event | None = None
        self._doomed = False
        self._fresh = True
        self._closing = False
        self._chunked = False
        self._transport: asyncio.Transport
        self._write = self._lost
        self.on_message_begin()

    # the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; hand the connection to HTTP/2 if TLS agreed on it."""
        self._transport = cast("asyncio.Transport", transport)
        self._write = self._transport.write
        self._host.connected(self)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() == "h2":
            self._to_h2(b"")

    def data_received(self, data: bytes) -> None:
        """Parse; complete requests join the queue."""
        if self._doomed:
            self._transport.abort()
            return
        if self._fresh:
            self._fresh = False
            if data.startswith(_H2_PREFACE) and self._host.config.http2:
                self._to_h2(data)
                return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._closing = True
        except httptools.HttpParserCallbackError:
            raise  # a mistake of ours, not of the peer
        except httptools.HttpParserError:
            self._write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel what runs for the peer, drop what it queued."""
        del exc
        self._write = self._lost
        self._queue.clear()
        if self._writable is not None:
            self._writable.set()
        if self._task is not None:
            self._task.cancel()
        self._host.disconnected(self)

    def pause_writing(self) -> None:
        """The peer reads too slowly."""
        self.paused = True
        self._writable = asyncio.Event()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self.paused = False
        if self._writable is not None:
            self._writable.set()
            self._writable = None

    def _to_h2(self, data: bytes) -> None:
        from moongate.sim.http2 import Http2  # noqa: PLC0415 - the h2 library is wanted only where HTTP/2 is

        self._host.disconnected(self)
        protocol = Http2(self._host)
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        if data:
            protocol.data_received(data)

    def _lost(self, data: bytes) -> None:
        """Stand in for a transport that is gone."""

    # httptools' callbacks

    def on_message_begin(self) -> None:
        """Make room for the next request."""
        self._target = b""
        self._headers: list[Header] = []
        self._body: list[bytes] = []
        self._size = 0
        self._ended_headers = False

    def on_url(self, url: bytes) -> None:
        """Collect the target; it may come in parts."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header; trailers are dropped."""
        if not self._ended_headers:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Let a client that waits for permission go on."""
        self._ended_headers = True
        for name, value in self._headers:
            if len(name) == 6 and name.lower() == b"expect" and self._task is None:
                if value.lower() == b"100-continue":
                    self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
                break

    def on_body(self, body: bytes) -> None:
        """Collect the body."""
        self._size += len(body)
        if self._size > _MAX_BODY:
            self._transport.abort()
            return
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Queue the request and start on it if nothing runs."""
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        request = Request(
            self._parser.get_method().decode("latin-1"),
            self._target.decode("latin-1"),
            self._headers,
            body,
            time.time(),
            self._parser.get_http_version(),
        )
        self._queue.append((request, self._parser.should_keep_alive()))
        if self._task is None:
            self._next()
        elif len(self._queue) > _MAX_PIPELINED:
            self._transport.pause_reading()

    # answering

    def _next(self) -> None:
        while self._queue:
            request, keep = self._queue.popleft()
            exchange = self._host.begin(request)
            reply = exchange.reply
            reply.close |= not keep
            if request.version == "1.0" and reply.framing is Framing.CHUNKED:
                reply.framing = Framing.CLOSE
            if exchange.turn is None and play_at_once(reply, self, exchange):
                self._host.finish(exchange, complete=True)
                continue
            self._task = self._loop.create_task(self._answer(exchange))
            return

    async def _answer(self, exchange: "Exchange") -> None:
        complete = None
        try:
            if exchange.turn is not None:
                await exchange.turn
            complete = await play(exchange.reply, self, exchange)
        finally:
            self._host.finish(exchange, complete=complete)
            self._task = None
        if self._write is self._lost:
            return
        with contextlib.suppress(RuntimeError):
            self._transport.resume_reading()
        self._next()

    # the wire

    def head(self, reply: Reply) -> None:
        """Write the head."""
        parts = [_STATUS.get(reply.status) or b"HTTP/1.1 %d Unknown\r\n" % reply.status]
        for name, value in reply.headers:
            parts.append(b"%b: %b\r\n" % (name, value))
        self._chunked = reply.framing is Framing.CHUNKED
        if self._chunked:
            parts.append(b"Transfer-Encoding: chunked\r\n")
        elif reply.framing is Framing.LENGTH:
            parts.append(b"Content-Length: %d\r\n" % reply.length)
        if reply.close or reply.framing is Framing.CLOSE:
            reply.close = True
            parts.append(b"Connection: close\r\n")
        parts.append(b"\r\n")
        self._write(b"".join(parts))

    def data(self, data: bytes) -> None:
        """Write a part of the body."""
        if not self._chunked:
            self._write(data)
        elif data:  # a chunk of no bytes would be the last one
            self._write(b"%x\r\n%b\r\n" % (len(data), data))

    def raw(self, data: bytes) -> None:
        """Write bytes as they are."""
        self._write(data)

    def speak(self, act: Act) -> bool:
        """Say nothing: HTTP/1.1 has no words for it."""
        del act
        return False

    def end(self, reply: Reply) -> None:
        """Write the last chunk; close if the reply says so."""
        if self._chunked:
            self._write(b"0\r\n\r\n")
        if reply.close or self._closing:
            self._queue.clear()
            self._transport.close()

    def close(self) -> None:
        """Close after what was written."""
        self._queue.clear()
        self._transport.close()

    def reset(self) -> None:
        """Close with a TCP reset."""
        self._queue.clear()
        sock = self._transport.get_extra_info("socket")
        if sock is not None:  # there is none any more on a connection that is closing
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
        self._transport.abort()

    def doom(self) -> None:
        """Close when the next request arrives."""
        self._doomed = True

    async def drain(self) -> None:
        """Wait while the peer reads too slowly."""
        if self._writable is not None:
            await self._writable.wait()
