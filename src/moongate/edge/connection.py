"""One client's connection: reads requests, hands each to the API, and keeps order, bounds and time-outs.

One request is answered at a time. What the client sends meanwhile is read, so that its leaving is noticed, up to
the high-water mark; then reading pauses until the answer is done. After a refused request nothing is parsed.

The end of the client's sending side is taken for its leaving, also while its request is being answered: nginx does
the same before an upstream, and the two cannot be told apart before something is written. A client that half-closes
(`shutdown(SHUT_WR)`) and still waits for an answer gets none; the HTTP libraries of the SDKs, and curl, never do so.
"""

import asyncio
import logging
from typing import cast

from moongate.core.faults import FailedError, Failure, Fault
from moongate.core.heads import HeadReader, RequestHead
from moongate.core.stall import Motion
from moongate.core.wire import CONTINUE
from moongate.edge.contract import Shared
from moongate.edge.downstream import HttpDownstream
from moongate.edge.intake import Intake, is_whole
from moongate.edge.phase import ANSWER, BODY, DOUBT, HEAD, HELD_IN_DOUBT, Phase
from moongate.edge.sockets import reset_on_close, untaken

_log = logging.getLogger("moongate.edge")

_STEP = 0.25  # part of a stall's time after which progress is looked at again
_OUR_ERROR = Failure(Fault.GATEWAY_ERROR)


class Connection(asyncio.Protocol):
    """The protocol of one accepted connection; `peer` is the client's address as text, or `unix`."""

    # fmt: off
    __slots__ = (
        "_down", "_head", "_idle_until", "_intake", "_keep", "_last", "_motion", "_pending",
        "_phase", "_reader", "_reading_paused", "_screened", "_sent", "_shared", "_task",
        "_timing_head", "_transport", "due", "peer", "write_paused",
    )
    # fmt: on

    def __init__(self, shared: Shared, peer: str) -> None:
        self.peer = peer
        self.due = 0.0  # looked at by the next sweep, which alone reads the clock for most requests
        self._idle_until = 0.0  # told by the first sweep that finds it idle
        self.write_paused = False
        self._shared = shared
        self._phase = HEAD
        self._reader: HeadReader | None = None
        self._head: RequestHead | None = None
        self._screened: object = None
        self._keep = False
        self._intake: Intake | None = None
        self._pending = b""
        self._reading_paused = False
        self._down: HttpDownstream | None = None
        # the answer before, as long as its client may not have it all
        self._last: HttpDownstream | None = None
        self._task: asyncio.Task[None] | None = None
        self._sent = 0
        self._timing_head = False
        self._motion: Motion | None = None  # of what the client takes, while it is being watched

    # -- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection over."""
        self._transport = cast("asyncio.Transport", transport)
        self._shared.arriving -= 1
        self._shared.connections.add(self)
        if self._shared.limits.high_water_bytes != 65_536:
            self._transport.set_write_buffer_limits(high=self._shared.limits.high_water_bytes)

    def data_received(self, data: bytes) -> None:
        """Parse, or keep for later."""
        phase = self._phase
        if (phase is HEAD and not self.write_paused and not self._pending) or (
            phase is BODY and not self._pending
        ):
            self._take(data)
        elif phase is HEAD or phase is BODY or phase is ANSWER:
            self._keep_for_later(data)

    def eof_received(self) -> None:
        """The client sends no more, which is taken for its leaving; the transport closes itself."""
        self._leave(Fault.CLIENT_CLOSED)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Nothing can be read or written any more."""
        self._leave(Fault.CLIENT_CLOSED)
        self._shared.connections.discard(self)
        self._shared.rest()

    def pause_writing(self) -> None:
        """More than the high-water mark waits."""
        self.write_paused = True

    def resume_writing(self) -> None:
        """The client took enough."""
        self.write_paused = False
        if self._down is not None:
            self._down.resumed()
        elif self._phase is HEAD:
            self._go_on()

    # -- reading

    def _take(self, data: bytes) -> None:
        try:
            while data:
                if self._phase is HEAD:
                    if self.write_paused:
                        break
                    data = self._take_head(data)
                elif self._phase is BODY:
                    data = self._take_body(data)
                    if data and self._phase is BODY:
                        self._shared.loop.call_soon(self._go_on)
                        break
                else:
                    break
        except FailedError as error:
            self._refuse(error.failure)
        except Exception:  # noqa: BLE001 - an error in `screen` must not take the connection's neighbours along
            _log.exception("a request could not be read")
            self._refuse(_OUR_ERROR)
        if data and self._phase in (HEAD, BODY, ANSWER):
            self._keep_for_later(data)

    def _take_head(self, data: bytes) -> bytes:
        reader = self._reader
        if reader is None:
            limits = self._shared.limits
            reader = self._reader = HeadReader(limits.header_field_bytes, limits.header_bytes)
        end = reader.feed(data)
        head = reader.head
        if head is None:
            if not self._timing_head and reader.started:
                self._timing_head = True
                self.due = self._shared.clock() + self._shared.limits.header_seconds
            return b""
        self._timing_head = False
        return self._open(head, data[end:], reader)

    def _open(self, head: RequestHead, rest: bytes, reader: HeadReader) -> bytes:
        """Screen a request whose head is complete, then read its body or answer it; what is left of `rest`."""
        shared = self._shared
        self._head = head
        head.peer = self.peer
        self._keep = head.keep_alive
        try:
            self._screened = shared.api.screen(head)
        except FailedError as error:
            self._reader = None
            self._refuse(error.failure, keep=head.keep_alive and head.size == 0)
            return rest
        size = head.size
        body = rest if len(rest) == size else rest[:size] if size >= 0 else b""
        if not reader.pass_over(body):
            self._reader = None
        if size == 0 or is_whole(head, body, shared.limits.body_bytes, shared.held):
            self._launch(body, None)
            return rest[size:]
        now = shared.clock()
        self._intake = Intake(shared.held, shared.limits.body_bytes, head, now)
        self._phase = BODY
        self.due = now + min(shared.limits.body_seconds, shared.limits.slow_client_seconds) * _STEP
        if head.expects_continue and not rest:
            self.send(CONTINUE)
        return rest

    def _take_body(self, data: bytes) -> bytes:
        intake = self._intake
        assert intake is not None
        used = intake.feed(data)
        if intake.done:
            self._launch(b"", intake)
        return data[used:]

    def _keep_for_later(self, data: bytes) -> None:
        self._pending = self._pending + data if self._pending else data
        if len(self._pending) > self._shared.limits.high_water_bytes and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    def _go_on(self) -> None:
        data, self._pending = self._pending, b""
        self._read_on()
        if data:
            self._take(data)

    def _read_on(self) -> None:
        if self._reading_paused and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()

    # -- answering

    def _launch(self, body: bytes, intake: Intake | None) -> None:
        """Hand a request on: with a body that is counted in `held`, or with one that `intake` holds."""
        shared = self._shared
        self._phase = ANSWER
        self._intake = None
        self._motion = None
        shared.active += 1
        head = self._head
        assert head is not None
        down = self._down = HttpDownstream(self, head)
        self._task = shared.loop.create_task(self._answer(head, down, body, intake))

    async def _answer(
        self, head: RequestHead, down: HttpDownstream, body: bytes, intake: Intake | None
    ) -> None:
        shared = self._shared
        failure = _OUR_ERROR
        taken = len(body)
        try:
            if intake is not None:
                body = intake.whole() or await intake.unpacked(down)
            if down.gone is None:
                await shared.api.handle(head, self._screened, body, down)
        except FailedError as error:
            failure = error.failure
        except Exception:  # noqa: BLE001 - whatever it is, this client gets an answer and the others are served
            _log.exception("a request ended in an error of the gateway", extra={"path": head.path})
        finally:
            if intake is not None:
                intake.release()
            else:
                shared.held.give(taken)
            shared.active -= 1
            if not down.over:
                self._fail(down, failure)
            self._last = down if down.answered is not None and len(body) <= HELD_IN_DOUBT else None
            self._answered()
            if shared.draining:
                shared.rest()

    def _fail(self, down: HttpDownstream, failure: Failure) -> None:
        """End an answer that the API left unfinished."""
        if down.started:
            down.abort()
            return
        try:
            self._shared.api.refuse(failure, self._head, self._screened, down)
        except Exception:  # noqa: BLE001 - there is no answer to fall back on: the connection is cut
            _log.exception("a refusal could not be rendered")
            down.abort()

    def _answered(self) -> None:
        self._task = None
        self._down = None
        self._screened = None
        if self._phase is not ANSWER:
            return
        if self._keep and not self._shared.draining:
            self._wait_for_next()
            if self._pending or self._reading_paused:
                self._go_on()
        else:
            self._close(linger=bool(self._pending) or self._reading_paused)

    def _wait_for_next(self) -> None:
        self._phase = HEAD
        self._head = None
        self._motion = None
        self._idle_until = self.due = 0.0

    def _refuse(self, failure: Failure, *, keep: bool = False) -> None:
        """Answer without the API; unless `keep`, nothing that the client still sends is parsed."""
        refused = self._shared.refused
        refused[failure.fault] = refused.get(failure.fault, 0) + 1
        self._keep = keep and not self._shared.draining
        self._drop_request()
        down = HttpDownstream(self, self._head)
        self._fail(down, failure)
        self._screened = None
        if self._phase is Phase.CLOSING:
            return
        if self._keep:
            self._wait_for_next()
        else:
            self._close(linger=True)

    # -- what `HttpDownstream` asks for

    def send(self, data: bytes) -> None:
        """Write bytes now."""
        self._sent += len(data)
        self._transport.write(data)

    def send_both(self, first: bytes, second: bytes) -> None:
        """Write two buffers now; they leave together."""
        self._sent += len(first) + len(second)
        self._transport.writelines((first, second))

    def answer_lines(self, *, ends: bool = False) -> tuple[bytes, bytes]:
        """The Date and Connection lines; from here on it is decided whether the connection lives on."""
        shared = self._shared
        if ends or shared.draining:
            self._keep = False
        if not self._keep:
            return shared.date, b"Connection: close\r\n"
        if self._head is not None and self._head.version == "1.0":
            return shared.date, b"Connection: keep-alive\r\n"
        return shared.date, b""

    # -- ends

    def _close(self, *, linger: bool) -> None:
        """Close once everything is written.

        A socket closed with unread bytes in it resets the connection, which may destroy the answer on its way:
        with `linger` the client is given time to read and to stop sending.
        """
        limits = self._shared.limits
        now = self._shared.clock()
        self._last = None
        self._pending = b""
        self._motion = None
        self._idle_until = now + limits.linger_seconds
        self.due = now + limits.slow_client_seconds * _STEP
        if linger and not self._transport.is_closing():
            self._phase = Phase.LINGER
            self._read_on()
            self._transport.write_eof()
        else:
            self._phase = Phase.CLOSING
            self._transport.close()

    def cut_answer(self, *, reset: bool) -> None:
        """Close at once; what waits to be written is dropped."""
        self._phase = Phase.CLOSING
        if reset and not self._transport.is_closing():
            reset_on_close(self._transport)
        self._transport.abort()

    def _leave(self, fault: Fault) -> None:
        """The client is not there any more."""
        if self._phase is not Phase.CLOSING:
            limits = self._shared.limits
            self.due = self._shared.clock() + limits.slow_client_seconds * _STEP
            self._phase = Phase.CLOSING
        self._pending = b""
        self._drop_request()
        if self._down is not None:
            self._down.lost(fault)
        elif self._last is not None:
            last, self._last = self._last, None
            self._shared.api.forsaken(last.answered)

    def _drop_request(self) -> None:
        """Forget a request that was not handed on; one that was gives its bytes back itself."""
        self._reader = None
        if self._intake is not None:
            self._intake.release()
            self._intake = None

    # -- time

    def expire(self, now: float) -> None:
        """Act on whatever time-out is due; see `Swept`."""
        limits = self._shared.limits
        waiting = self._transport.get_write_buffer_size()
        if waiting:
            self.due = now + limits.slow_client_seconds * _STEP
            motion = self._motion = self._motion or Motion(now)
            taken = self._sent - waiting - untaken(self._transport)
            if motion.stands_for(taken, now, 1) >= limits.slow_client_seconds:
                self.cut(Fault.SLOW_CLIENT)
        elif self._phase is ANSWER:
            self._motion = None
            self.due = now + limits.slow_client_seconds * _STEP
        elif self._intake is not None:
            self.due = now + limits.body_seconds * _STEP
            if self._intake.stalls(now, limits.body_seconds):
                self._refuse(Failure(Fault.SLOW_REQUEST))
        elif self._reader is not None and self._reader.started:
            self._refuse(Failure(Fault.SLOW_REQUEST))
        elif self._phase is Phase.CLOSING:
            self._transport.abort()
        elif self._idle_until == 0.0:
            self._idle_until = now + limits.keep_alive_seconds
            self.due = min(self._idle_until, now + DOUBT)
        elif now < self._idle_until:
            self._last = None
            self.due = self._idle_until
        else:
            self._close(linger=False)

    def close_if_idle(self) -> None:
        """Close a connection on which no request has begun."""
        if self._phase is HEAD and (self._reader is None or not self._reader.started) and not self._pending:
            self._close(linger=False)

    def cut(self, fault: Fault) -> None:
        """End it now: whoever answers is told `fault`, what waits to be written is dropped."""
        self._leave(fault)
        self.cut_answer(reset=True)
