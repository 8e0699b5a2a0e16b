"""`Downstream` over HTTP/1.1: one answer on one connection."""

import asyncio
from enum import Enum
from typing import Protocol

from moongate.core.faults import Fault
from moongate.core.heads import RequestHead
from moongate.core.wire import LAST_CHUNK, response_head
from moongate.flow.downstream import Head, Watcher

_JOIN_BELOW = 16_384  # bytes of body below which copying is cheaper than handing over two buffers


class Wire(Protocol):
    """The connection, as an answer sees it."""

    write_paused: bool

    def send(self, *pieces: bytes) -> None:
        """Write bytes now; they leave together."""

    def answer_lines(self, *, ends: bool = False) -> tuple[bytes, bytes]:
        """The Date and Connection lines of an answer whose head leaves now; `ends`: the connection ends with it."""

    def cut_answer(self, *, reset: bool) -> None:
        """Close without finishing the answer; `reset`: so that it cannot be taken for an end."""


class _Framing(Enum):
    CHUNKED = b"Transfer-Encoding: chunked\r\n"
    TO_THE_END = b""


class HttpDownstream:
    """One answer to one request; see `flow.downstream.Downstream` for what it promises.

    HEAD gets the headers of GET and no body. Streams are chunked for HTTP/1.1, each `write` one chunk, and delimited
    by the connection's end for HTTP/1.0. Once `end`, `respond` or `abort` was called, `gone` no longer changes and
    the watcher hears nothing more.
    """

    __slots__ = (
        "_bodiless",
        "_framing",
        "_head",
        "_over",
        "_waiters",
        "_watcher",
        "_wire",
        "gone",
        "started",
    )

    def __init__(self, wire: Wire, request: RequestHead | None) -> None:
        self.gone: Fault | None = None
        self.started = False
        self._wire = wire
        self._bodiless = request is not None and request.method == "HEAD"
        old = request is not None and request.version == "1.0"
        self._framing = _Framing.TO_THE_END if old else _Framing.CHUNKED
        self._head: Head | None = None
        self._over = False
        self._watcher: Watcher | None = None
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def ready(self) -> bool:
        """Whether less than the high-water mark waits to be taken."""
        return not self._wire.write_paused

    @property
    def over(self) -> bool:
        """Whether the answer is finished, cut, or wanted by nobody any more."""
        return self._over

    def watch(self, watcher: Watcher | None) -> None:
        """Tell this watcher from now on; what happened before is in `gone` and `ready`."""
        self._watcher = watcher

    def start(self, head: Head) -> None:
        """Hold the head until the first `write` or `end`."""
        self._head = head

    def write(self, data: bytes) -> None:
        """Send one chunk; an empty one is nothing, for an empty chunk would end the stream."""
        if self._over or not data:
            return
        head = self._head
        if head is None and not self.started:
            raise RuntimeError("write before start")
        if head is not None:
            self._head = None
            first = self._format(head)
        else:
            first = b""
        if self._bodiless:
            if first:
                self._wire.send(first)
        elif self._framing is _Framing.CHUNKED:
            self._wire.send(b"%b%x\r\n%b\r\n" % (first, len(data), data))
        else:
            self._wire.send(first + data)

    def end(self) -> None:
        """Finish the stream; a stream without a single write is a head and an empty body."""
        if self._over:
            return
        self._over = True
        head, self._head = self._head, None
        first = b"" if head is None else self._format(head)
        last = LAST_CHUNK if self._framing is _Framing.CHUNKED and not self._bodiless else b""
        if first or last:
            self._wire.send(first + last)

    def respond(self, head: Head, body: bytes) -> None:
        """Send a whole answer at once."""
        if self._over:
            return
        self._over = True
        self._head = None
        self.started = True
        date, connection = self._wire.answer_lines()
        if head.status < 200 or head.status in (204, 304):  # RFC 9110 section 8.6: neither body nor length
            self._wire.send(response_head(head.status, head.headers, date, b"", connection))
            return
        length = b"Content-Length: %d\r\n" % len(body)
        first = response_head(head.status, head.headers, date, length, connection)
        if self._bodiless:
            self._wire.send(first)
        elif len(body) < _JOIN_BELOW:
            self._wire.send(first + body)
        else:
            self._wire.send(first, body)

    def abort(self) -> None:
        """Cut the connection; where only its end would mark the answer's end, with a reset."""
        if self._over:
            return
        self._over = True
        self._wire.cut_answer(reset=self._framing is _Framing.TO_THE_END)

    async def drain(self) -> None:
        """Wait until `ready` or `gone`; at once when the answer is over."""
        while self._wire.write_paused and not self._over:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)

    def resumed(self) -> None:
        """The connection fell below its low-water mark."""
        if self._over:
            return
        self._wake()
        if self._watcher is not None:
            self._watcher.downstream_ready()

    def lost(self, fault: Fault) -> None:
        """Nobody reads any more."""
        if self._over:
            return
        self._over = True
        self.gone = fault
        self._wake()
        if self._watcher is not None:
            self._watcher.downstream_gone()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _format(self, head: Head) -> bytes:
        self.started = True
        date, connection = self._wire.answer_lines(ends=self._framing is _Framing.TO_THE_END)
        return response_head(head.status, head.headers, date, self._framing.value, connection)
