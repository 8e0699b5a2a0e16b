"""One upstream exchange and those who listen to it.

The flight owns the exchange, not whoever asked first: a caller may leave, another may attach, an answer may be read
to its end with nobody there. It pushes to listeners below their high-water mark without waiting and holds the
upstream back only while every listener is above it; without listeners it never waits (DESIGN section 1).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final

from moongate.core.faults import FailedError, Failure, Fault, Reach
from moongate.flow.reply import Reply, Told
from moongate.upstream.transport import Valve

_log = logging.getLogger("moongate.flight")

HISTORY_BYTES: Final = 4 * 1024 * 1024
"""Most of a stream that is kept for listeners who attach late."""


class Listener:
    """One reply that a flight feeds. It is its downstream's watcher."""

    __slots__ = ("_flight", "landed", "reply")

    def __init__(self, flight: "Flight", reply: Reply, landed: "asyncio.Future[None]") -> None:
        self._flight = flight
        self.reply = reply
        self.landed = landed

    def downstream_ready(self) -> None:
        """Let the flight read on."""
        self._flight.release()

    def downstream_gone(self) -> None:
        """Leave the flight."""
        self._flight.leave(self)

    def land(self) -> None:
        """The flight has no more for this listener."""
        if not self.landed.done():
            self.reply.down.watch(None)
            self.landed.set_result(None)


class Flight:
    """An exchange under way. `run` makes it and returns how it failed, if it did.

    `keep`: hold the stream's history (at most 4 MB), so that a later listener can have it from the start.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, run: "Run", *, keep: bool = False) -> None:
        self.told = Told()
        self.valve: Valve | None = None
        self.cut_by: Fault | None = None
        self.listeners: list[Listener] = []
        self._loop = loop
        self._started = False
        self._paused = False
        self._history: list[bytes] | None = [] if keep else None
        self._kept = 0
        self.landed: asyncio.Future[None] = loop.create_future()
        self.task = loop.create_task(self._fly(run))

    async def _fly(self, run: "Run") -> None:
        failure: Failure | None
        try:
            failure = await run(self)
        except FailedError as error:
            failure = error.failure
        except asyncio.CancelledError:
            failure = Failure(self.cut_by or Fault.GATEWAY_DRAINING)
        except Exception:  # noqa: BLE001 - a call must end and be recorded even when we erred
            _log.exception("a flight failed by an error of the gateway's own")
            failure = Failure(Fault.GATEWAY_ERROR, Reach.SENT)
        for listener in self.listeners:
            if failure is not None:
                listener.reply.fail(failure, self.told)
            listener.land()
        self.listeners.clear()
        self.landed.set_result(None)

    def join(self, reply: Reply) -> Listener:
        """Add a listener; it gets the stream from its start or not at all.

        Raises FailedError `idempotency_in_progress` where the start is no longer kept.
        """
        listener = Listener(self, reply, self._loop.create_future())
        if self._started:
            if self._history is None:
                raise FailedError(Failure(Fault.IDEMPOTENCY_IN_PROGRESS, retry_after=1.0))
            reply.start(self.told)
            for piece in self._history:
                reply.write(piece)
        self.listeners.append(listener)
        reply.down.watch(listener)
        if reply.down.gone is not None:
            self.leave(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        """Take a listener away; the last one to leave ends the exchange (policy `cancel`)."""
        if listener in self.listeners:
            self.listeners.remove(listener)
            listener.land()
            if self.listeners:
                self._balance()
            elif not listener.reply.ended:
                self.cut(listener.reply.down.gone or Fault.CLIENT_CLOSED)

    def cut(self, fault: Fault) -> None:
        """End the exchange now, in whichever phase it is; what was delivered stays delivered."""
        if self.cut_by is None and not self.landed.done():
            self.cut_by = fault
            # in the next turn: a task that was never entered cannot say how it ended
            self._loop.call_soon(self._strike, fault)

    def _strike(self, fault: Fault) -> None:
        if self.valve is not None:
            self.valve.cut(fault)
        elif not self.landed.done():
            self.task.cancel()

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
        if self._history is not None:
            self._remember(data)
        if len(listeners) == 1:
            if not listeners[0].reply.down.ready:
                self._hold()
        elif listeners:
            self._balance()

    def end(self) -> None:
        """End the stream cleanly for every listener."""
        for listener in self.listeners:
            listener.reply.end()

    def respond(self, body: bytes) -> None:
        """Give every listener the whole plain answer."""
        for listener in self.listeners:
            listener.reply.respond(self.told, body)

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

    def _remember(self, data: bytes) -> None:
        assert self._history is not None
        self._kept += len(data)
        if self._kept > HISTORY_BYTES:
            self._history = None
        else:
            self._history.append(data)


Run = Callable[[Flight], Awaitable[Failure | None]]


class _Boarding:
    """The scope of a flight's opener: it ends when the flight has landed, never before."""

    __slots__ = ("_flight", "_flights")

    def __init__(self, flights: "Flights", flight: Flight) -> None:
        self._flights = flights
        self._flight = flight

    async def __aenter__(self) -> Flight:
        return self._flight

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        flight = self._flight
        try:
            if error is not None:
                flight.cut(Fault.GATEWAY_ERROR)
            await asyncio.shield(flight.landed)
        finally:
            self._flights.live.discard(flight)


class Flights:
    """Every flight of this process; empty at rest."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.live: set[Flight] = set()
        self._loop = loop

    def open(self, reply: Reply, run: Run) -> _Boarding:
        """Start a flight with its first listener."""
        flight = Flight(self._loop, run)
        self.live.add(flight)
        flight.join(reply)
        return _Boarding(self, flight)

    def cut_all(self, fault: Fault) -> None:
        """End every flight, for a shutdown whose grace is over."""
        for flight in list(self.live):
            flight.cut(fault)
