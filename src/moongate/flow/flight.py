"""One upstream exchange and those who listen to it.

The flight owns the exchange, not whoever asked first: a caller may leave, another may attach, an answer may be read
to its end with nobody there. It pushes to listeners below their high-water mark without waiting and holds the
upstream back only while every listener is above it; without listeners it never waits (DESIGN section 1).
"""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final

from moongate.core.faults import FailedError, Failure, Fault, Reach
from moongate.flow.reply import Reply, Told
from moongate.upstream.transport import Valve

_log = logging.getLogger("moongate.flight")

HISTORY_BYTES: Final = 4 * 1024 * 1024
"""Most of a stream that is kept for listeners who attach late."""


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


class Flight:
    """An exchange under way, in the task that opened it: that task outlives its caller.

    `keep`: hold the stream's history (at most 4 MB), so that a later listener can have it from the start.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, keep: bool = False) -> None:
        self.told = Told()
        self.valve: Valve | None = None
        self.cut_by: Fault | None = None
        self.listeners: list[Listener] = []
        self._loop = loop
        self._task = asyncio.current_task(loop)
        self._started = False
        self._landed = False
        self._paused = False
        self._history: list[bytes] | None = [] if keep else None
        self._kept = 0

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

    def join(self, reply: Reply) -> Listener:
        """Add a listener; it gets the stream from its start or not at all.

        Raises FailedError `idempotency_in_progress` where the start is no longer kept.
        """
        listener = Listener(self, reply)
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
        if self.cut_by is None and not self._landed:
            self.cut_by = fault
            # in the next turn: whoever asks may be this flight's own task, or a callback of its exchange
            self._loop.call_soon(self._strike, fault)

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


class Flights:
    """Every flight of this process; empty at rest."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.live: set[Flight] = set()
        self._loop = loop
        self._resting: asyncio.Future[None] | None = None

    def open(self, reply: Reply) -> Flight:
        """Open a flight with its first listener; whoever opens it closes it."""
        flight = Flight(self._loop)
        self.live.add(flight)
        flight.join(reply)
        return flight

    def close(self, flight: Flight) -> None:
        """It has landed, whoever is still there."""
        self.live.discard(flight)
        if self._resting is not None and not self.live and not self._resting.done():
            self._resting.set_result(None)

    async def rest(self, seconds: float) -> int:
        """Wait until no flight is live, at most so long; returns how many are."""
        if self.live:
            self._resting = self._loop.create_future()
            await asyncio.wait((self._resting,), timeout=seconds)
        return len(self.live)

    def cut_all(self, fault: Fault) -> None:
        """End every flight, for a shutdown whose grace is over."""
        for flight in list(self.live):
            flight.cut(fault)
