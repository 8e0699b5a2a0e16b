"""One exchange on a stream of HTTP/2: libcurl's easy handle, and what it tells us.

libcurl must never send an executed request a second time by itself. The body is given by a read function without a
seek function, so that it cannot be read again (with POSTFIELDS it would be), redirects and `Expect` are off, and a
second start of the same request is refused.
"""

from collections.abc import Callable
from typing import Final, Protocol

import pycurl

from moongate.core.faults import Fault, Reach
from moongate.upstream.answer_heads import BadAnswerError, field_of, unpacker
from moongate.upstream.exchange import Exchange
from moongate.upstream.gunzip import BadGzipError, Gunzip
from moongate.upstream.origin import Origin
from moongate.upstream.transport import Phase

MOST_HEAD: Final = 64 * 1024
MOST_FIELDS: Final = 1000
MOST_INTERIM: Final = 10
NARROW: Final = 512 * 1024
"""Bytes, and bytes a second, up to which an answer is held back. libcurl gives each stream a window of 10 MB, which
a paused reader would fill, but none beyond what a limit of the speed lets through; a model never writes so fast. An
answer of which a quarter of that was taken is read well, and the rest may come as it will.
"""
_READ_WELL: Final = NARROW // 4
_FIRST_FINAL: Final = 200
_GO_ON: Final = 0
_STOP: Final = 1
_MICRO: Final = 1e-6
_NOTHING_SENT: Final = Reach.NOTHING_SENT
_HEAD: Final = Reach.HEAD
_BODILESS: Final = (b"GET", b"HEAD")


class Bearer(Protocol):
    """The connection that carries streams."""

    served: int
    """Requests that it has carried."""
    is_inside: bool
    """Whether libcurl is at work just now: then it may not be asked for anything."""

    def note_open(self) -> None:
        """A request is about to be written."""

    def take_socket(self) -> object:
        """The connected socket that libcurl asks for, or `pycurl.SOCKET_BAD`."""

    def tend(self, stream: "Stream") -> None:
        """See to a stream as soon as libcurl is not at work."""

    def drop(self, stream: "Stream") -> None:
        """Take it out of libcurl's hands: the peer is told at once."""


class Stream:
    """An easy handle and the exchange that it carries: a `Carrier`. Used again and again, by one exchange at a time."""

    def __init__(self, origin: Origin, clock: Callable[[], float]) -> None:
        self.easy = _easy(self, origin)
        self._origin = origin
        self._clock = clock
        self._base = _base(origin)
        self._asked = (b"", b"")
        self.bearer: Bearer | None = None
        self.exchange: Exchange | None = None
        self.is_feeding = False
        self._is_wide = False
        self._clear()

    def _clear(self) -> None:
        self.is_open = False
        self.is_refused = False  # libcurl wanted another connection for it, and there was none
        self.is_unwanted = False
        self.is_whole = False
        self._is_held = False
        self._is_timed = False
        self._taken = 0
        self._at = 0
        self._began = 0.0
        self._status = 0
        self._size = 0
        self._interim = 0
        self._fields: list[tuple[bytes, bytes]] = []
        self._gunzip: Gunzip | None = None

    def begin(self, bearer: Bearer, exchange: Exchange) -> None:
        """Make the handle ready for an exchange."""
        self._clear()
        outbound = exchange.outbound
        easy = self.easy
        if self._asked != (outbound.method, outbound.path):
            self._asked = (outbound.method, outbound.path)
            easy.setopt(pycurl.URL, self._base + outbound.path.decode("latin-1"))
            easy.setopt(pycurl.NOBODY, outbound.method == b"HEAD")
            easy.setopt(pycurl.CUSTOMREQUEST, outbound.method.decode("ascii"))
        if outbound.body or outbound.method not in _BODILESS:
            easy.setopt(pycurl.POST, 1)
            easy.setopt(pycurl.POSTFIELDSIZE_LARGE, len(outbound.body))
        elif outbound.method == b"GET":
            easy.setopt(pycurl.HTTPGET, 1)
        if self._is_wide:
            self._is_wide = False
            easy.setopt(pycurl.MAX_RECV_SPEED_LARGE, NARROW)
        lines = outbound.headers.decode("latin-1").split("\r\n")
        lines[-1] = f"Host: {self._origin.authority}"
        easy.setopt(pycurl.HTTPHEADER, [*lines, *_UNSENT])
        self.bearer = bearer
        self.exchange = exchange
        exchange.carrier = self
        self._began = self._clock()

    # -- what the exchange asks --

    def close(self) -> None:
        """Give it up at once: RST_STREAM, if anything was sent. Idempotent."""
        self.exchange = None
        if self.bearer is not None:
            self.bearer.drop(self)

    def pause(self) -> None:
        """Take no more, and have libcurl give the peer no more window."""
        if not self._is_held and self.bearer is not None:
            self.bearer.tend(self)

    def resume(self) -> None:
        """Push what was held back, then read on."""
        if self.is_feeding:
            return
        exchange, bearer = self.exchange, self.bearer
        if exchange is not None and self._gunzip is not None:
            self._push(exchange, b"")
            if self.is_whole and not exchange.is_over:
                self.finish_whole()
                return
        if self._is_held and bearer is not None:
            bearer.tend(self)

    def tend(self) -> None:
        """Have libcurl hold or go on, as the exchange is now."""
        exchange = self.exchange
        if exchange is None:
            return
        if not self._is_wide and self._taken > _READ_WELL:
            self._is_wide = True
            self.easy.setopt(pycurl.MAX_RECV_SPEED_LARGE, 0)
        if exchange.is_paused == self._is_held:
            return
        self._is_held = exchange.is_paused
        self.easy.pause(pycurl.PAUSE_RECV if self._is_held else pycurl.PAUSE_CONT)

    def note_written(self) -> None:
        """See whether the request has gone out whole; nobody else says so."""
        exchange = self.exchange
        bearer = self.bearer
        if (
            exchange is None
            or self._is_timed
            or exchange.reach is _NOTHING_SENT
            or bearer is None
            or bearer.is_inside
        ):
            return
        if micro := self.easy.getinfo(pycurl.POSTTRANSFER_TIME_T):
            self._is_timed = True
            exchange.note_sent()
            at = self._began + micro * _MICRO
            latest = exchange.head_at or exchange.sent_at
            exchange.sent_at = min(max(at, exchange.connected_at), latest)

    # -- what libcurl tells --

    def on_start(self, *_: object) -> int:
        """The connection stands and the request is about to be written."""
        exchange, bearer = self.exchange, self.bearer
        if exchange is None or bearer is None or self.is_open:
            return _STOP
        self.is_open = True
        exchange.reused = bearer.served > 0
        bearer.served += 1
        bearer.note_open()
        exchange.connected_at = self._clock()
        self.is_feeding = True
        try:
            exchange.sink.open(exchange)
        except Exception as error:  # noqa: BLE001 - what libcurl calls must not raise
            exchange.cut(Fault.GATEWAY_ERROR, f"the sink raised {error!r}")
        self.is_feeding = False
        if exchange.is_over or exchange.cut_by is not None:
            return _STOP
        exchange.reach = Reach.PARTLY_SENT
        exchange.enter(Phase.WRITE)
        return _GO_ON

    def on_socket(self, *_: object) -> object:
        """Libcurl wants a connection of its own."""
        given = pycurl.SOCKET_BAD if self.bearer is None else self.bearer.take_socket()
        self.is_refused = given == pycurl.SOCKET_BAD
        return given

    def on_read(self, size: int) -> bytes:
        """Give the next piece of the request's body."""
        exchange = self.exchange
        if exchange is None:
            return b""
        body, at = exchange.outbound.body, self._at
        self._at = at + size
        return body if at == 0 and len(body) <= size else body[at : at + size]

    def on_line(self, line: bytes) -> None:
        """Take a line of a head; those that come after the body are trailers, and nobody asked for any."""
        exchange = self.exchange
        if exchange is None or exchange.reach >= _HEAD or exchange.cut_by is not None:
            return
        self.is_feeding = True
        try:
            self._take_line(exchange, line)
        except BadAnswerError as error:
            exchange.cut(Fault.KIMI_BAD_RESPONSE, str(error))
        except Exception as error:  # noqa: BLE001 - what libcurl calls must not raise
            exchange.cut(Fault.GATEWAY_ERROR, f"the sink raised {error!r}")
        self.is_feeding = False
        self._see_to_cut(exchange)

    def _take_line(self, exchange: Exchange, line: bytes) -> None:
        if line == b"\r\n":
            if self._status < _FIRST_FINAL:
                self._interim += 1
                if self._interim > MOST_INTERIM:
                    raise BadAnswerError(f"more than {MOST_INTERIM} interim answers")
                return
            fields, self._fields = self._fields, []
            if any(name == b"content-encoding" for name, _ in fields):
                self._gunzip = unpacker(fields)
            exchange.note_head()
            # libcurl does not tell an end of the stream from a reset without an error
            exchange.framed = any(name == b"content-length" for name, _ in fields)
            exchange.sink.head(self._status, fields)
        elif line.startswith(b"HTTP/"):
            if self._at >= len(exchange.outbound.body):
                exchange.note_sent()  # at the latest; `note_written` knows it better
            self._status = int(line.split(b" ", 2)[1])
            self._fields = []
            self._size = 0
        else:
            self._size += len(line)
            if self._size > MOST_HEAD or len(self._fields) >= MOST_FIELDS:
                raise BadAnswerError(f"more than {MOST_HEAD} bytes or {MOST_FIELDS} headers")
            self._fields.append(field_of(line[:-2]))

    def on_data(self, chunk: bytes) -> object:
        """Take body bytes, or leave them where they are for now."""
        exchange = self.exchange
        if exchange is None or exchange.cut_by is not None:
            return None
        if exchange.is_paused:
            self._is_held = True
            return pycurl.WRITEFUNC_PAUSE
        self._taken += len(chunk)
        if self._taken > _READ_WELL and not self._is_wide and self.bearer is not None:
            self.bearer.tend(self)
        self._push(exchange, chunk)
        return None

    def _push(self, exchange: Exchange, chunk: bytes) -> None:
        self.is_feeding = True
        try:
            if self._gunzip is None:
                exchange.sink.data(chunk)
            else:
                self._unpack(exchange, self._gunzip, chunk)
        except BadGzipError as error:
            exchange.cut(Fault.KIMI_BAD_RESPONSE, str(error))
        except Exception as error:  # noqa: BLE001 - what libcurl calls must not raise
            exchange.cut(Fault.GATEWAY_ERROR, f"the sink raised {error!r}")
        self.is_feeding = False
        self._see_to_cut(exchange)

    def _see_to_cut(self, exchange: Exchange) -> None:
        if exchange.cut_by is None:
            return
        if self.bearer is not None:
            self.bearer.tend(self)
        else:
            exchange.fail(*exchange.cut_by)

    @staticmethod
    def _unpack(exchange: Exchange, gunzip: Gunzip, chunk: bytes) -> None:
        if chunk:
            gunzip.feed(chunk)
        while not exchange.is_paused and exchange.cut_by is None and (piece := gunzip.piece()):
            exchange.sink.data(piece)

    # -- the end --

    def finish_whole(self) -> None:
        """End it well, as soon as the sink has taken everything."""
        exchange = self.exchange
        if exchange is None:
            return
        self.is_whole = True
        if exchange.reach < _HEAD:
            exchange.end(Fault.KIMI_BAD_RESPONSE, "an end without a head")
        elif exchange.cut_by is not None:
            exchange.end(*exchange.cut_by)
        elif self._gunzip is None:
            exchange.end(None)
        elif not self._gunzip.is_drained:
            return  # the sink is paused; `resume` comes back here
        elif not self._gunzip.is_whole:
            exchange.end(Fault.KIMI_STREAM_TRUNCATED, "the gzip body is cut short")
        else:
            exchange.end(None)
        self.exchange = None


_UNSENT: Final = ("Expect:", "Accept:", "User-Agent:")
"""What libcurl would add by itself and is not to."""


def _base(origin: Origin) -> str:
    """Scheme and authority of every URL. The name that is checked stands there; nothing is looked up."""
    host = (origin.server_name or origin.host) if origin.tls else origin.host
    host = f"[{host}]" if ":" in host else host
    return f"{'https' if origin.tls else 'http'}://{host}:{origin.port}"


def _easy(stream: Stream, origin: Origin) -> pycurl.Curl:
    easy = pycurl.Curl()
    host = (origin.server_name or origin.host) if origin.tls else origin.host
    for option, value in (
        (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_2TLS if origin.tls else _PRIOR),
        (pycurl.PIPEWAIT, 1),
        (pycurl.RESOLVE, [f"{host}:{origin.port}:127.0.0.1"]),  # never dialed: sockets are given to it
        (pycurl.NOSIGNAL, 1),
        (pycurl.NOPROGRESS, 1),
        (pycurl.PROXY, ""),
        (pycurl.NOPROXY, "*"),
        (pycurl.NETRC, pycurl.NETRC_IGNORED),
        (pycurl.FOLLOWLOCATION, 0),
        (pycurl.HTTP_CONTENT_DECODING, 0),
        (pycurl.TCP_NODELAY, 1),
        (pycurl.MAX_RECV_SPEED_LARGE, NARROW),
        (pycurl.CONNECTTIMEOUT_MS, _NEVER),  # our own sweeper looks after time
        (pycurl.SSLVERSION, pycurl.SSLVERSION_TLSv1_2),
        (pycurl.SSL_VERIFYPEER, 1),
        (pycurl.SSL_VERIFYHOST, 2),
        (pycurl.OPENSOCKETFUNCTION, stream.on_socket),
        (pycurl.SOCKOPTFUNCTION, lambda *_: pycurl.SOCKOPT_ALREADY_CONNECTED),
        (pycurl.PREREQFUNCTION, stream.on_start),
        (pycurl.READFUNCTION, stream.on_read),
        (pycurl.HEADERFUNCTION, stream.on_line),
        (pycurl.WRITEFUNCTION, stream.on_data),
    ):
        easy.setopt(option, value)
    if origin.tls:
        easy.setopt(pycurl.CAINFO, origin.ca_file or _system_authorities())
    return easy


_PRIOR: Final = pycurl.CURL_HTTP_VERSION_2_PRIOR_KNOWLEDGE
_NEVER: Final = 24 * 3600 * 1000


def _system_authorities() -> str:
    import ssl  # noqa: PLC0415 - only who has no CA file of his own asks

    found = ssl.get_default_verify_paths()
    return found.cafile or found.openssl_cafile
