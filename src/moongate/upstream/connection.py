"""One HTTP/1.1 connection: writes a request, checks the framing of the answer, pushes it into a sink.

Strictness is llhttp's, plus what it lets pass: a transfer coding other than `chunked`, versions other than 1.0 and
1.1, odd statuses, and sizes. RFC 9112 sections 6 and 9 hold for framing and reuse.
"""

import asyncio
import socket
from enum import IntEnum
from typing import Final, Protocol, cast

import httptools

from moongate.core.faults import Fault, Reach
from moongate.upstream.answer_heads import BadAnswerError, field_of, unpacker
from moongate.upstream.exchange import Exchange
from moongate.upstream.gunzip import BadGzipError, Gunzip
from moongate.upstream.transport import Phase

MOST_HEAD: Final = 64 * 1024
MOST_FIELDS: Final = 1000
MOST_INTERIM: Final = 10
_JOINED_WRITE: Final = 256 * 1024
_SURELY_OPEN: Final = 0.02
"""Seconds since its last use for which the kernel is not asked: under load that question costs more than all else."""
_SWITCHING: Final = 101
_FIRST_FINAL: Final = 200
_VERSIONS: Final = ("1.1", "1.0")
_CURRENT: Final = b"HTTP/1.1 "
_END: Final = b"\r\n\r\n"


class Stage(IntEnum):
    """How far an answer has come."""

    HEAD = 0
    BODY = 1
    WHOLE = 2


# members of an enum cost four times what a global does, and these are read for every piece
_HEAD: Final = Stage.HEAD
_BODY: Final = Stage.BODY
_WHOLE: Final = Stage.WHOLE
_WRITE: Final = Phase.WRITE


class Keeper(Protocol):
    """Who owns connections: the pool."""

    def take_back(self, connection: "Connection") -> None:
        """It is whole and free for another exchange."""

    def forget(self, connection: "Connection") -> None:
        """It is closed or about to be; called once."""

    def bury(self, connection: "Connection") -> None:
        """Its socket is closed; called once, after `forget`."""


class Connection(asyncio.Protocol):
    """One connection. It carries one exchange at a time and is a `Carrier` for it."""

    def __init__(self, keeper: Keeper, sock: socket.socket) -> None:
        self._keeper = keeper
        self._sock = sock
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport
        self._plain: asyncio.Transport
        self._exchange: Exchange | None = None
        self.is_gone = False
        self.is_feeding = False
        self.served = 0
        self.idle_since = 0.0
        self._stage = _HEAD
        self._raw = b""  # of the head that is coming
        self._silent = 0
        self._interim = 0
        self._moved = False
        self._keep = False
        self._is_framed = False
        self._gunzip: Gunzip | None = None

    # -- life --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the plain transport; over TLS `secure` brings the one to write to."""
        self._plain = self._transport = cast("asyncio.Transport", transport)
        # what the kernel has not taken must show in `get_write_buffer_size` at once: reach depends on it
        self._plain.set_write_buffer_limits(high=0)

    def secure(self, transport: asyncio.Transport) -> None:
        """Take the transport that encrypts."""
        self._transport = transport
        transport.set_write_buffer_limits(high=0)

    @property
    def peer(self) -> str:
        """The IP address at the other end; empty if there is none any more."""
        try:
            return str(self._sock.getpeername()[0])
        except OSError:
            return ""

    def retire(self, keeper: Keeper) -> None:
        """Have another keeper for what remains."""
        self._keeper = keeper

    def is_usable(self, now: float) -> bool:
        """Whether the peer has left it open and silent: as the kernel knows, or as the loop has seen just now."""
        if self.is_gone or self._transport.is_closing():
            return False
        if now - self.idle_since < _SURELY_OPEN:
            return True
        try:
            seen = self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        # over TLS the bytes may be session tickets; plain ones nobody asked for
        return bool(seen) and self._transport is not self._plain

    def close(self) -> None:
        """Cut it at once, in whatever state. Idempotent."""
        self._transport.abort()
        self._exchange = None
        if not self.is_gone:
            self.is_gone = True
            self._keeper.forget(self)

    def pause(self) -> None:
        """Stop reading."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Push what was held back, then read on."""
        if self.is_feeding:
            return
        exchange = self._exchange
        if exchange is not None and self._gunzip is not None:
            self.is_feeding = True
            broken = self._decode(exchange, self._gunzip)
            self.is_feeding = False
            self._step(exchange, broken, 0)
        if (exchange is None or not exchange.is_paused) and not self._transport.is_closing():
            self._transport.resume_reading()

    # -- writing --

    def begin(self, exchange: Exchange, head: bytes, now: float) -> None:
        """Write the request of an exchange."""
        self._stage = _HEAD
        self._silent = self._interim = 0
        self._moved = False
        self._gunzip = None
        self._exchange = exchange
        exchange.carrier = self
        exchange.reused = self.served > 0
        exchange.connected_at = now
        self.served += 1
        exchange.sink.open(exchange)
        if exchange.is_over:
            return
        exchange.phase = _WRITE
        transport = self._transport
        body = exchange.outbound.body
        if len(body) <= _JOINED_WRITE:
            transport.write(head + body)
        else:
            transport.write(head)
            if not transport.is_closing() and self._waiting == 0:
                exchange.reach = Reach.PARTLY_SENT
            transport.write(body)
        # a transport that turns closing inside its first `write` got nothing accepted
        if transport.is_closing():
            return
        waiting = transport.get_write_buffer_size() if transport is self._plain else self._waiting
        if waiting == 0:
            exchange.note_sent()
            return
        if waiting < len(head) + len(body) or transport is not self._plain:
            exchange.reach = Reach.PARTLY_SENT
        exchange.enter(Phase.WRITE)

    @property
    def _waiting(self) -> int:
        """Bytes that the kernel has not taken yet (over TLS: those of both layers)."""
        size = self._plain.get_write_buffer_size()
        return size if self._transport is self._plain else size + self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        """Note that nothing waits any more to be written."""
        self.note_written()

    def note_written(self) -> None:
        """See whether the request has gone out whole; over TLS nobody else says so."""
        exchange = self._exchange
        if exchange is not None and not self._transport.is_closing() and self._waiting == 0:
            exchange.note_sent()

    # -- reading --

    def data_received(self, data: bytes) -> None:
        """Push what came as far as it goes."""
        exchange = self._exchange
        if exchange is None:  # unasked: what follows could be taken for the next answer
            self.close()
            return
        broken: BaseException | None = None
        if self._stage is _HEAD:
            self._raw = self._raw + data if self._raw else data
        self.is_feeding = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            broken = error.__context__ or error
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            broken = BadAnswerError(f"malformed: {error}")
        if self._gunzip is not None and broken is None:
            broken = self._decode(exchange, self._gunzip)
        self.is_feeding = False
        if exchange.is_over:  # ended by what the sink did elsewhere, a pool's close or such
            return
        if broken is None and exchange.cut_by is None and self._gunzip is None:
            if self._stage is _WHOLE:
                self._release(exchange)
                return
            if self._moved and self._stage is _BODY:
                self._moved = False
                self._silent = 0
                return
        self._step(exchange, broken, len(data))

    def _step(self, exchange: Exchange, broken: BaseException | None, size: int) -> None:
        """Decide what follows from a read that was more than body bytes."""
        if exchange.cut_by is not None:
            fault, detail = exchange.cut_by
            if fault is None and broken is None and self._stage is _WHOLE:
                self._release(exchange)
            else:
                exchange.fail(fault, detail)
        elif isinstance(broken, BadAnswerError | BadGzipError):
            late = "bytes after the end of the answer; " if self._stage is _WHOLE else ""
            exchange.fail(Fault.KIMI_BAD_RESPONSE, f"{late}{broken}")
        elif broken is not None:
            exchange.fail(Fault.GATEWAY_ERROR, f"the sink raised {broken!r}")
        elif self._stage is _WHOLE:
            self._finish(exchange)
        else:
            self._silent = 0 if self._moved else self._silent + size
            self._moved = False
            if self._silent > MOST_HEAD:
                exchange.fail(Fault.KIMI_BAD_RESPONSE, f"more than {MOST_HEAD} bytes of head or framing")

    def _decode(self, exchange: Exchange, gunzip: Gunzip) -> BaseException | None:
        try:
            while not exchange.is_paused and exchange.cut_by is None and (piece := gunzip.piece()):
                exchange.sink.data(piece)
        except Exception as error:  # noqa: BLE001 - a sink that raises must not tear down the event loop's callback
            return error
        return None

    def _finish(self, exchange: Exchange) -> None:
        if self._gunzip is not None:
            if not self._gunzip.is_drained:
                return  # the sink is paused; `resume` comes back here
            if not self._gunzip.is_whole:
                exchange.fail(Fault.KIMI_STREAM_TRUNCATED, "the gzip body is cut short")
                return
        self._release(exchange)

    def _release(self, exchange: Exchange) -> None:
        """End the exchange well; the connection is kept where both sides may use it again (RFC 9112, 9.3)."""
        was_paused = exchange.is_paused
        keep = self._keep and exchange.sent_at > 0 and not self._transport.is_closing()
        self._exchange = None
        self.idle_since = exchange.end(None, exchange.cut_by[1] if exchange.cut_by is not None else "")
        if not keep:
            self.close()
            return
        if was_paused:
            self._transport.resume_reading()
        self._keeper.take_back(self)

    def eof_received(self) -> None:
        """Take the end of the connection for the end of the answer only where nothing else could say it."""
        exchange = self._exchange
        if exchange is not None and self._stage is _BODY and not self._is_framed:
            self._stage = _WHOLE
            self._keep = False
            exchange.framed = False
            self._finish(exchange)

    def connection_lost(self, exc: Exception | None) -> None:
        """Say how far the exchange had come."""
        if not self.is_gone:
            self.is_gone = True
            self._keeper.forget(self)
        self._keeper.bury(self)
        del self._parser  # breaks the cycle with its callbacks
        exchange = self._exchange
        if exchange is None or exchange.is_over or self._stage is _WHOLE:
            return
        self._exchange = None
        why = f"connection lost: {exc}" if exc is not None else "closed by upstream"
        if self._stage is _BODY:
            exchange.end(Fault.KIMI_STREAM_TRUNCATED, f"{why} within the body")
        elif self._raw:
            exchange.end(Fault.KIMI_STREAM_TRUNCATED, f"{why} within the head")
        elif exchange.reach is Reach.NOTHING_SENT and exchange.reused:
            exchange.end(Fault.KIMI_STALE_CONNECTION, f"{why} before the request")
        else:
            exchange.end(Fault.KIMI_NETWORK_UNREACHABLE, f"{why} before an answer")

    # -- the parser's callbacks --

    def on_message_begin(self) -> None:
        """Refuse a second answer."""
        if self._stage is _WHOLE:
            raise BadAnswerError("another answer")

    def on_headers_complete(self) -> None:
        """Check the head and pass it on."""
        status = self._parser.get_status_code()
        lines, version = self._lines(status)
        if version not in _VERSIONS or not 100 <= status <= 599 or status == _SWITCHING:
            raise BadAnswerError(f"HTTP/{version} {status}")
        if status < _FIRST_FINAL:
            self._interim += 1
            if self._interim > MOST_INTERIM:
                raise BadAnswerError(f"more than {MOST_INTERIM} interim answers")
            return
        exchange = self._exchange
        if exchange is None:
            return
        headers = list(map(field_of, lines))
        of_name = dict(headers)
        self._is_framed = b"content-length" in of_name
        if b"transfer-encoding" in of_name:
            self._check_coding(headers, version)
        if b"content-encoding" in of_name:
            self._gunzip = unpacker(headers)
        exchange.note_head()
        self._stage = _BODY
        exchange.sink.head(status, headers)
        if exchange.outbound.method == b"HEAD":
            self._stage = _WHOLE  # the parser cannot know that no body follows, so the connection is not kept
            self._keep = False

    def _lines(self, status: int) -> tuple[list[bytes], str]:
        """The header lines of the head that llhttp has just found whole and well-formed, and the HTTP version."""
        raw = self._raw
        version = "1.1"
        if not raw.startswith(_CURRENT):
            raw = raw.lstrip(b"\r\n")  # the parser passes over blank lines before an answer
            version = self._parser.get_http_version()
        end = raw.find(_END)
        if end < 0:
            raise BadAnswerError("a head without an end")
        lines = raw[:end].split(b"\r\n")
        self._raw = raw[end + 4 :] if status < _FIRST_FINAL else b""
        del lines[0]
        if len(lines) > MOST_FIELDS or end > MOST_HEAD:
            raise BadAnswerError(f"more than {MOST_HEAD} bytes or {MOST_FIELDS} headers")
        return lines, version

    def _check_coding(self, headers: list[tuple[bytes, bytes]], version: str) -> None:
        codings = [value for name, value in headers if name == b"transfer-encoding"]
        if codings[0].lower() != b"chunked" or len(codings) > 1 or self._is_framed or version == "1.0":
            raise BadAnswerError(f"transfer coding {b', '.join(codings)[:32]!r}")
        self._is_framed = True

    def on_body(self, body: bytes) -> None:
        """Pass body bytes on."""
        self._moved = True
        exchange = self._exchange
        if exchange is None or exchange.cut_by is not None:
            return
        if self._gunzip is None:
            exchange.sink.data(body)
        else:
            self._gunzip.feed(body)

    def on_message_complete(self) -> None:
        """Note the end of an answer, or of an interim one."""
        if self._stage is _HEAD:  # a 1xx; what is left of `_raw` belongs to the next head
            self._moved = True
        else:
            self._stage = _WHOLE
            self._keep = self._parser.should_keep_alive()
