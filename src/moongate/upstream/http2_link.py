"""One HTTP/2 connection: a multi handle of libcurl's, driven by the event loop.

A multi handle for each connection, and never more than one connection in it: the socket is dialed by us and given to
libcurl, which is refused a second one. Whoever it wanted that for is handed back, to be placed elsewhere.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Final, Protocol

import pycurl

from moongate.upstream.exchange import Exchange
from moongate.upstream.http2_stream import Stream

MOST_STREAMS: Final = 1000
_TIMER: Final = pycurl.SOCKET_TIMEOUT
_ESTABLISHED: Final = 1
"""TCP_ESTABLISHED of <netinet/tcp.h>."""


class Keeper(Protocol):
    """Who owns links: the pool."""

    def opened(self, link: "Link") -> None:
        """It takes streams from now on. Called from within libcurl."""

    def returned(self, link: "Link", stream: Stream, code: int, text: str) -> None:
        """A stream is out of libcurl's hands: `code` 0: it ended well."""


class Link:
    """A connection and its streams."""

    def __init__(self, keeper: Keeper, sock: socket.socket, clock: Callable[[], float]) -> None:
        self._keeper = keeper
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self.peer = str(sock.getpeername()[0])
        self._sock = sock  # libcurl works on a duplicate; this one tells how the connection fares
        self._is_given = False
        self._fd = -1
        self.streams: dict[pycurl.Curl, Stream] = {}
        self.most = MOST_STREAMS
        self.served = 0
        self.is_open = False
        self.is_retired = False
        self.is_inside = False
        self._is_closed = False
        self.idle_since = clock()
        self._watched: dict[int, int] = {}
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self._tended: list[Stream] = []
        self._dropped: list[Stream] = []
        self._multi = pycurl.CurlMulti()
        for option, value in (
            (pycurl.M_PIPELINING, pycurl.PIPE_MULTIPLEX),
            (pycurl.M_MAX_CONCURRENT_STREAMS, MOST_STREAMS),
            (pycurl.M_SOCKETFUNCTION, self._watch),
            (pycurl.M_TIMERFUNCTION, self._set_timer),
        ):
            self._multi.setopt(option, value)

    @property
    def has_room(self) -> bool:
        """Whether another stream may be begun, as far as we know."""
        if not self.is_open or self.is_retired or len(self.streams) >= self.most:
            return False
        if not self.streams and self.is_lost:
            self.is_retired = True
        return not self.is_retired

    def learn_most(self) -> int:
        """Take the streams that run for all that it carries: libcurl wanted another connection for the next one."""
        self.most = sum(stream.is_open for stream in self.streams.values())
        self.is_retired = self.is_retired or self.most == 0
        return self.most

    def begin(self, stream: Stream, exchange: Exchange) -> None:
        """Send the request of an exchange; not from within libcurl."""
        stream.begin(self, exchange)
        self.streams[stream.easy] = stream
        self.is_inside = True
        self._multi.add_handle(stream.easy)
        self.is_inside = False

    # -- a bearer of streams --

    def note_open(self) -> None:
        """The connection stands."""
        if not self.is_open:
            self.is_open = True
            self._keeper.opened(self)

    def take_socket(self) -> object:
        """The socket, once."""
        if self._is_given:
            return pycurl.SOCKET_BAD
        self._is_given = True
        return self._sock

    def tend(self, stream: Stream) -> None:
        """See to it after libcurl's turn, or now if it is not libcurl's."""
        self._tended.append(stream)
        if not self.is_inside:
            self._after()

    def drop(self, stream: Stream) -> None:
        """Take it out of libcurl's hands."""
        self._dropped.append(stream)
        if not self.is_inside:
            self._after()

    # -- the event loop --

    def _watch(self, what: int, fd: int, *_: object) -> None:
        loop, known = self._loop, self._watched.pop(fd, 0)
        if what == pycurl.POLL_REMOVE:
            what = 0
        else:
            self._watched[fd] = what
            if self._is_given:  # before, it is one of libcurl's own
                self._fd = fd
        for bit, add, remove in (
            (pycurl.POLL_IN, loop.add_reader, loop.remove_reader),
            (pycurl.POLL_OUT, loop.add_writer, loop.remove_writer),
        ):
            if what & bit and not known & bit:
                add(fd, self._act, fd, pycurl.CSELECT_IN if bit == pycurl.POLL_IN else pycurl.CSELECT_OUT)
            elif known & bit and not what & bit:
                remove(fd)

    def _set_timer(self, milliseconds: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if milliseconds == 0:
            self._timer = self._loop.call_soon(self._act, _TIMER, 0)
        elif milliseconds > 0:
            self._timer = self._loop.call_later(milliseconds / 1000, self._act, _TIMER, 0)

    def poke(self) -> None:
        """Have libcurl look at the connection: it notices only then that it has itself given it up as malformed."""
        if self._fd in self._watched:
            self._act(self._fd, pycurl.CSELECT_IN)

    def _act(self, fd: int, events: int) -> None:
        if fd == _TIMER:
            self._timer = None
        self.is_inside = True
        _, running = self._multi.socket_action(fd, events)
        self.is_inside = False
        if running < len(self.streams) or self._tended or self._dropped:
            self._after()

    def _after(self) -> None:
        """Do what may only be done when libcurl is not at work."""
        while self._tended or self._dropped:
            while self._dropped:
                self._remove(self._dropped.pop())
            if self._tended:
                self._tend(self._tended.pop())
        self._collect()

    def _tend(self, stream: Stream) -> None:
        exchange = stream.exchange
        if exchange is None or stream.easy not in self.streams:
            return
        if exchange.cut_by is not None:
            exchange.fail(*exchange.cut_by)
            return
        self.is_inside = True
        stream.tend()
        self.is_inside = False

    def _remove(self, stream: Stream) -> None:
        if self.streams.pop(stream.easy, None) is None:
            return
        self.is_inside = True
        self._multi.remove_handle(stream.easy)
        self.is_inside = False
        self._let_go(stream, -1, "given up")

    def _collect(self) -> None:
        """Take back what libcurl is through with."""
        while not self._is_closed:
            waiting, well, ill = self._multi.info_read()
            for easy in well:
                self._take_back(easy, 0, "")
            for easy, code, text in ill:
                self._take_back(easy, code, text)
            if not waiting:
                break
        if self._tended or self._dropped:
            self._after()

    def _take_back(self, easy: pycurl.Curl, code: int, text: str) -> None:
        stream = self.streams.pop(easy, None)
        if stream is None:
            return
        stream.note_written()
        self.is_inside = True
        self._multi.remove_handle(easy)
        self.is_inside = False
        self._let_go(stream, code, text)

    def _let_go(self, stream: Stream, code: int, text: str) -> None:
        stream.bearer = None
        if not self.streams:
            self.idle_since = self._clock()
        self._keeper.returned(self, stream, code, text)

    # -- the end --

    @property
    def is_lost(self) -> bool:
        """Whether the peer has closed its side, or the connection is broken."""
        return self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _ESTABLISHED

    def close(self) -> None:
        """Close the connection; whatever runs on it must have been dropped. Idempotent."""
        self.is_retired = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for fd in list(self._watched):
            self._watch(pycurl.POLL_REMOVE, fd)
        if not self._is_closed:
            self._is_closed = True
            self._multi.close()
            self._sock.close()
