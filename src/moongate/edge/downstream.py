"""`Downstream` over HTTP/1.1: one answer on one connection."""

import asyncio
from typing import Final, Protocol

from moongate.core.faults import Fault
from moongate.core.heads import RequestHead
from moongate.core.wire import LAST_CHUNK, response, response_head
from moongate.flow.downstream import Head, Watcher

_BODILESS: Final = (204, 304)
_JOIN_BELOW = 16_384  # bytes of body below which copying is cheaper than handing over two buffers


class Wire(Protocol):
    """The connection, as an answer sees it."""

    write_paused: bool

    def send(self, data: bytes) -> None:
        """Write bytes now."""

    def send_both(self, first: bytes, second: bytes) -> None:
        """Write two buffers now; they leave together."""

    def answer_lines(self, *, ends: bool = False) -> tuple[bytes, bytes]:
        """The Date and Connection lines of an answer whose head leaves now; `ends`: the connection ends with it."""

    def cut_answer(self, *, reset: bool) -> None:
        """Close without finishing the answer; `reset`: so that it cannot be taken for an end."""


_CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"


class HttpDownstream:
    """One answer to one request; see `flow.downstream.Downstream` for what it promises.

    HEAD gets the headers of GET and no body. Streams are chunked for HTTP/1.1, each `write` one chunk, and delimited
    by the connection's end for HTTP/1.0. Once `end`, `respond` or `abort` was called, `gone` no longer changes and
    the watcher hears nothing more.
    """

    __slots__ = (
        "_bodiless",
        "_head",
        "_to_the_end",
        "_waiters",
        "_watcher",
        "_wire",
        "answered",
        "gone",
        "over",
        "started",
    )

    def __init__(self, wire: Wire, request: RequestHead | None) -> None:
        self.gone: Fault | None = None
        self.answered: object = None
        self.started = False
        self.over = False
        """Whether the answer is finished, cut, or wanted by nobody any more."""
        self._wire = wire
        self._bodiless = request is not None and request.method == "HEAD"
        self._to_the_end = request is not None and request.version == "1.0"
        self._head: Head | None = None
        self._watcher: Watcher | None = None
        self._waiters: list[asyncio.Future[None]] | None = None

    @property
    def ready(self) -> bool:
        """Whether less than the high-water mark waits to be taken."""
        return not self._wire.write_paused

    def watch(self, watcher: Watcher | None) -> None:
        """Tell this watcher from now on; what happened before is in `gone` and `ready`."""
        self._watcher = watcher

    def start(self, head: Head) -> None:
        """Hold the head until the first `write` or `end`."""
        self._head = head

    def write(self, data: bytes) -> None:
        """Send one chunk; an empty one is nothing, for an empty chunk would end the stream."""
        if self.over or not data:
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
        elif self._to_the_end:
            self._wire.send(first + data)
        else:
            self._wire.send(b"%b%x\r\n%b\r\n" % (first, len(data), data))

    def end(self) -> None:
        """Finish the stream; a stream without a single write is a head and an empty body."""
        if self.over:
            return
        self.over = True
        head, self._head = self._head, None
        first = b"" if head is None else self._format(head)
        last = b"" if self._to_the_end or self._bodiless else LAST_CHUNK
        if first or last:
            self._wire.send(first + last)

    def respond(self, head: Head, body: bytes) -> None:
        """Send a whole answer at once."""
        if self.over:
            return
        self.over = True
        self._head = None
        self.started = True
        date, connection = self._wire.answer_lines()
        status = head.status
        if status < 200 or status in _BODILESS:  # RFC 9110 section 8.6: neither body nor length
            self._wire.send(response_head(status, head.headers, date, b"", connection))
            return
        size = len(body)
        sent = b"" if self._bodiless or size >= _JOIN_BELOW else body
        whole = response(status, head.headers, date + connection, size, sent)
        if sent is body or self._bodiless:
            self._wire.send(whole)
        else:
            self._wire.send_both(whole, body)

    def abort(self) -> None:
        """Cut the connection; where only its end would mark the answer's end, with a reset."""
        if self.over:
            return
        self.over = True
        self._wire.cut_answer(reset=self._to_the_end)

    async def drain(self) -> None:
        """Wait until `ready` or `gone`; at once when the answer is over."""
        while self._wire.write_paused and not self.over:
            waiter = asyncio.get_running_loop().create_future()
            if self._waiters is None:
                self._waiters = []
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if self._waiters is not None and waiter in self._waiters:
                    self._waiters.remove(waiter)

    def resumed(self) -> None:
        """The connection fell below its low-water mark."""
        if self.over:
            return
        self._wake()
        if self._watcher is not None:
            self._watcher.downstream_ready()

    def lost(self, fault: Fault) -> None:
        """Nobody reads any more."""
        if self.over:
            return
        self.over = True
        self.gone = fault
        self._wake()
        if self._watcher is not None:
            self._watcher.downstream_gone()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def _format(self, head: Head) -> bytes:
        self.started = True
        date, connection = self._wire.answer_lines(ends=self._to_the_end)
        return response_head(
            head.status, head.headers, date, b"" if self._to_the_end else _CHUNKED, connection
        )
