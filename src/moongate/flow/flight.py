"""One upstream exchange and those who listen to it.

The flight owns the exchange, not whoever asked first: a caller may leave, another may attach, an answer may be read
to its end with nobody there. It pushes to listeners below their high-water mark without waiting and holds the
upstream back only while every listener is above it; without listeners it never waits (DESIGN section 1).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from moongate.core.call import Call
from moongate.core.faults import FailedError, Failure, Fault, Reach, refuse
from moongate.core.kept import Kept, Numbered, rest_after
from moongate.core.routing import Candidate
from moongate.core.surface import Answer
from moongate.flow.drains import Drains
from moongate.flow.reply import Reply, Told
from moongate.upstream.transport import Valve

_log = logging.getLogger("moongate.flight")

HISTORY_BYTES: Final = 4 * 1024 * 1024
"""Most of a stream that is kept for listeners who attach late."""

NO_SUCH_EVENT: Final = "The Last-Event-ID is of no event that can be continued; leave it out to start anew."


class Listener:
    """One reply that a flight feeds. It is its downstream's watcher."""

    __slots__ = ("_flight", "reply")

    def __init__(self, flight: "Flight", reply: Reply) -> None:
        self._flight = flight
        self.reply = reply

    def downstream_ready(self) -> None:
        """Let the flight read on."""
        self._flight.release()

    def downstream_gone(self) -> None:
        """Leave the flight."""
        self._flight.leave(self)

    def land(self) -> None:
        """The flight has no more for this listener."""
        self.reply.down.watch(None)


class Follower(Listener):
    """A listener that did not open the flight: its call waits for `landed`."""

    __slots__ = ("landed",)

    def __init__(self, flight: "Flight", reply: Reply, landed: "asyncio.Future[None]") -> None:
        super().__init__(flight, reply)
        self.landed = landed

    def land(self) -> None:
        """Let its call end."""
        super().land()
        if not self.landed.done():
            self.landed.set_result(None)


class Flight:
    """An exchange under way, in the task that opened it: that task outlives its caller.

    `keeps`: what it brings is to be kept for a retry, once it has landed. `drains`: nobody listens, and it is read to
    its end all the same. `candidate` is where the attempt under way went, `broken` what the client had when a stream
    broke off.
    """

    keeps = False
    drains = False
    candidate: Candidate | None = None
    broken: Answer | None = None
    _ended = False
    _body: bytes | None = None

    def __init__(self, flights: "Flights", call: Call) -> None:
        self.call = call
        self.told = Told()
        self.valve: Valve | None = None
        self.cut_by: Fault | None = None
        self.listeners: list[Listener] = []
        self._flights = flights
        self._task = asyncio.current_task(flights.loop)
        self._started = False
        self._landed = False
        self._paused = False

    async def fly(self, exchange: "Awaitable[Failure | None]") -> None:
        """Let the exchange run and see every listener to its end.

        Raises nothing but a cancellation that was not asked for here.
        """
        failure: Failure | None
        try:
            failure = await exchange
        except FailedError as error:
            failure = error.failure
        except asyncio.CancelledError:
            if self.cut_by is None or self._task is None:
                self._land(Failure(Fault.GATEWAY_DRAINING))
                raise
            self._task.uncancel()
            failure = Failure(self.cut_by)
        except Exception:  # noqa: BLE001 - a call must end and be recorded even when we erred
            _log.exception("a flight failed by an error of the gateway's own")
            failure = Failure(Fault.GATEWAY_ERROR, Reach.SENT)
        self._land(failure)

    def _land(self, failure: Failure | None) -> None:
        self._landed = True
        for listener in self.listeners:
            if failure is not None:
                listener.reply.fail(failure, self.told)
            listener.land()
        self.listeners.clear()

    def join(self, reply: Reply) -> None:
        """Add the first listener."""
        listener = Listener(self, reply)
        self.listeners.append(listener)
        down = reply.down
        down.watch(listener)
        if down.gone is not None:
            self.leave(listener)

    def can_be_followed(self) -> bool:
        """Whether one more listener could have the answer from its start."""
        return self.cut_by is None and not self._started

    def follow(self, reply: Reply, last_event_id: str = "") -> "asyncio.Future[None]":
        """Add a listener late; it gets a stream from its start, or after the event with this id, or not at all.

        The future is done when the flight has no more for it. Raises FailedError: `idempotency_in_progress` where the
        start is no longer there, `idempotency_expired` where there is no such event.
        """
        if self.cut_by is not None:
            raise refuse(Fault.IDEMPOTENCY_IN_PROGRESS, retry_after=1.0)
        missed = self._missed(last_event_id)
        if self.drains:
            self.drains = False
            self._flights.drains.end(self)
        if self._started:
            reply.start(self.told)
            if missed:
                reply.write(missed)
        follower = Follower(self, reply, self._flights.loop.create_future())
        if self._ended:
            reply.end()
            follower.land()
        else:
            self.listeners.append(follower)
            reply.down.watch(follower)
            if reply.down.gone is not None:
                self.leave(follower)
        return follower.landed

    def _missed(self, last_event_id: str) -> bytes:
        if self._started:
            raise refuse(Fault.IDEMPOTENCY_IN_PROGRESS, retry_after=1.0)
        if last_event_id:
            raise refuse(Fault.IDEMPOTENCY_EXPIRED, NO_SUCH_EVENT)
        return b""

    def leave(self, listener: Listener) -> None:
        """Take a listener away; what becomes of the exchange when the last one leaves is the route's policy."""
        if listener in self.listeners:
            self.listeners.remove(listener)
            listener.land()
            if self.listeners:
                self._balance()
            elif not listener.reply.ended:
                self._abandon(listener.reply.down.gone or Fault.CLIENT_CLOSED)

    def _abandon(self, fault: Fault) -> None:
        """Nobody listens any more. What was not sent yet is not sent: nothing was paid that a retry could want."""
        if self.valve is None or self._landed or not self._flights.drains.take(self):
            self.cut(fault)
        else:
            self.drains = self.keeps = True
            self.release()

    def cut(self, fault: Fault) -> None:
        """End the exchange now, in whichever phase it is; what was delivered stays delivered."""
        if self.cut_by is None and not self._landed:
            self.cut_by = fault
            # in the next turn: whoever asks may be this flight's own task, or a callback of its exchange
            self._flights.loop.call_soon(self._strike, fault)

    def _strike(self, fault: Fault) -> None:
        if self.valve is not None:
            self.valve.cut(fault)
        elif not self._landed and self._task is not None:
            self._task.cancel()

    def start(self) -> None:
        """Begin a stream for every listener."""
        self._started = True
        for listener in self.listeners:
            listener.reply.start(self.told)

    def write(self, data: bytes) -> None:
        """Push whole events to every listener; hold upstream back if none keeps up."""
        listeners = self.listeners
        for listener in listeners:
            listener.reply.write(data)
        if len(listeners) == 1:
            if not listeners[0].reply.down.ready:
                self._hold()
        elif listeners:
            self._balance()

    def end(self) -> None:
        """End the stream cleanly for every listener."""
        self._ended = True
        for listener in self.listeners:
            listener.reply.end()

    def respond(self, body: bytes) -> None:
        """Give every listener the whole plain answer."""
        for listener in self.listeners:
            listener.reply.respond(self.told, body)
        if self.keeps:
            self._body = body

    def kept(self) -> Kept | None:
        """What a retry may be given, now that it has landed; None: nothing that could be given whole."""
        return None if self._body is None else self._kept(self._body, stream=False)

    def _kept(self, body: bytes, *, stream: bool) -> Kept:
        told = self.told
        return Kept(body, stream, told.model, list(told.edits), told.attempts)

    def release(self) -> None:
        """Read on: some listener has room again."""
        if self._paused:
            self._paused = False
            if self.valve is not None:
                self.valve.resume()

    def _hold(self) -> None:
        if not self._paused and self.valve is not None:
            self._paused = True
            self.valve.pause()

    def _balance(self) -> None:
        if any(listener.reply.down.ready for listener in self.listeners):
            self.release()
        else:
            self._hold()


class KeptFlight(Flight):
    """A flight whose stream is kept, at most 4 MB of it, for listeners who come late and for retries after its end.

    `numbered`: each event gets an id, by which a client can say how much it has.
    """

    keeps = True
    _failure: Failure | None = None

    def __init__(self, flights: "Flights", call: Call, *, numbered: bool) -> None:
        super().__init__(flights, call)
        self._numbered = Numbered(call.call_id) if numbered else None
        self._history: list[bytes] | None = []
        self._size = 0

    def can_be_followed(self) -> bool:
        """As in `Flight`; also later, as long as the whole stream is there."""
        return self.cut_by is None and self._history is not None

    def write(self, data: bytes) -> None:
        """As in `Flight`, and keep it."""
        if self._numbered is not None:
            data = self._numbered.mark(data)
        super().write(data)
        if self._history is not None:
            self._size += len(data)
            if self._size > HISTORY_BYTES:
                self._history = None
            else:
                self._history.append(data)

    def kept(self) -> Kept | None:
        """As in `Flight`; a stream that broke is what came of it, and why it broke."""
        if not self._started:
            return super().kept()
        if self._history is None or self.cut_by in (Fault.CLIENT_CLOSED, Fault.SLOW_CLIENT):
            return None
        kept = self._kept(b"".join(self._history), stream=True)
        if self._failure is not None:
            kept.broken_by, kept.phase = self._failure.fault.value, self._failure.phase
        return kept

    def _land(self, failure: Failure | None) -> None:
        self._failure = failure
        super()._land(failure)

    def _missed(self, last_event_id: str) -> bytes:
        if self._history is None:
            raise refuse(Fault.IDEMPOTENCY_IN_PROGRESS, retry_after=1.0)
        if len(self._history) > 1:
            self._history[:] = [b"".join(self._history)]
        history = self._history[0] if self._history else b""
        if not last_event_id:
            return history
        missed = rest_after(history, self.call.call_id, last_event_id)
        if missed is None:
            raise refuse(Fault.IDEMPOTENCY_EXPIRED, NO_SUCH_EVENT)
        return missed


class Flights:
    """Every flight of this process; empty at rest.

    `on_keyed` is told of each that opens for a call with a key, `on_kept` of each that landed with an answer to keep.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, drains: Drains) -> None:
        self.live: set[Flight] = set()
        self.loop = loop
        self.drains = drains
        self.on_kept: Callable[[Flight], None] = _nobody
        self.on_keyed: Callable[[Flight], None] = _nobody
        self._resting: asyncio.Future[None] | None = None

    def open(self, reply: Reply) -> Flight:
        """Open a flight with its first listener; whoever opens it closes it."""
        call = reply.call
        if call.idempotency_key or (call.stream and call.route in self.drains.keep_streams):
            flight: Flight = KeptFlight(self, call, numbered=bool(call.idempotency_key))
            if call.idempotency_key:
                self.on_keyed(flight)
        else:
            flight = Flight(self, call)
        self.live.add(flight)
        flight.join(reply)
        return flight

    def close(self, flight: Flight) -> None:
        """It has landed, whoever is still there."""
        self.live.discard(flight)
        if flight.keeps:
            self.drains.end(flight)
            self.on_kept(flight)
        if self._resting is not None and not self.live and not self._resting.done():
            self._resting.set_result(None)

    async def rest(self, seconds: float) -> int:
        """Wait until no flight is live, at most so long; returns how many are."""
        if self.live:
            self._resting = self.loop.create_future()
            await asyncio.wait((self._resting,), timeout=seconds)
        return len(self.live)

    def cut_all(self, fault: Fault) -> None:
        """End every flight, for a shutdown whose grace is over."""
        for flight in list(self.live):
            flight.cut(fault)


def _nobody(_flight: Flight) -> None:
    """Nobody wants to know."""
