"""One request on its way and its answer coming back: phase, timers, reach, and how it ended."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

from moongate.core.faults import Fault, Reach
from moongate.upstream.transport import Ended, Outbound, Phase, Sink

# members of an enum cost four times what a global does, and these are read several times a call
_NOTHING_SENT: Final = Reach.NOTHING_SENT
_CONNECT: Final = Phase.CONNECT
_HEAD_REACH: Final = Reach.HEAD
_SENT: Final = Reach.SENT
_HEAD: Final = Phase.HEAD
_FIRST_EVENT: Final = Phase.FIRST_EVENT
_IDLE: Final = Phase.IDLE


class Carrier(Protocol):
    """The connection (or stream) that carries an exchange."""

    is_feeding: bool
    """Whether it is just now pushing what it read: whoever cuts then lets it finish that read."""

    def close(self) -> None:
        """Cut it at once. Idempotent."""

    def pause(self) -> None:
        """Stop reading."""

    def resume(self) -> None:
        """Push what was held back, then read on."""

    def note_written(self) -> None:
        """See whether the request has gone out whole."""


class Exchange:
    """The state of one exchange, and the `Valve` that its sink holds.

    Timers are instants that a sweeper compares with the clock (`due`); nothing is scheduled for one exchange
    alone. A phase notes when it began; the sweeper makes `due` of that, which most phases do not live to see.
    `ends` is the instant at which `total` or the call's deadline is reached.
    """

    __slots__ = (
        "_beaten",
        "_clock",
        "_future",
        "_paused_at",
        "_since",
        "carrier",
        "connected_at",
        "cut_by",
        "dialing",
        "due",
        "ends",
        "framed",
        "head_at",
        "is_over",
        "is_paused",
        "outbound",
        "phase",
        "reach",
        "reused",
        "sent_at",
        "sink",
    )

    def __init__(
        self,
        outbound: Outbound,
        sink: Sink,
        future: "asyncio.Future[Ended]",
        clock: Callable[[], float],
        now: float,
    ) -> None:
        self.outbound = outbound
        self.sink = sink
        self._future = future
        self._clock = clock
        ends, deadline = now + outbound.timeouts.total, outbound.deadline
        self.ends = ends if ends < deadline else deadline  # noqa: FURB136 - a third of the cost, each call
        self.due = self.ends
        self.carrier: Carrier | None = None
        self.dialing: asyncio.Future[Any] | None = None
        self.phase = _CONNECT
        self.reach = _NOTHING_SENT
        self.is_over = False
        self.is_paused = False
        self.cut_by: tuple[Fault | None, str] | None = None
        self.reused = False
        self.framed = True
        self.connected_at = self.sent_at = self.head_at = 0.0
        self._since = 0.0
        self._beaten = False
        self._paused_at = 0.0

    @property
    def is_wanted(self) -> bool:
        """Whether somebody still waits for it: a cancelled caller must not cost a request."""
        return not self.is_over and not self._future.done()

    # -- phases --

    def enter(self, phase: Phase) -> None:
        """Begin a phase: its time-out runs from now."""
        self.phase = phase
        self._since = self._clock()

    def note_sent(self) -> None:
        """Note that the kernel has accepted the whole request; a head that came early counts for more."""
        if self.reach < _SENT:
            self.reach = _SENT
            self.phase = _HEAD
            self.sent_at = self._since = self._clock()
        elif self.sent_at == 0.0:
            self.sent_at = self._clock()

    def note_head(self) -> None:
        """Note that the final head is there."""
        self.reach = _HEAD_REACH
        self.phase = _FIRST_EVENT
        self.head_at = self._since = self._clock()

    def sweep(self, now: float) -> bool:
        """Look at the timers; True: one ran out. Called every few dozen milliseconds."""
        if self._beaten:
            self._beaten = False
            self._since = now
        elif self.phase is Phase.WRITE and self.carrier is not None:
            self.carrier.note_written()
        if self._since:
            if not self.is_paused:
                self.due = min(self._since + getattr(self.outbound.timeouts, self.phase), self.ends)
            self._since = 0.0
        return now >= self.due

    def expire(self, now: float) -> None:
        """End it for the timer that ran out, and close what carried it."""
        detail = f"{self.phase} time-out"
        if now >= self.ends or self.is_paused:
            detail = "deadline" if now >= self.outbound.deadline else "total time-out"
            self.phase = Phase.TOTAL
        self.fail(Fault.KIMI_NETWORK_TIMEOUT, detail)

    # -- the sink's valve --

    def pause(self) -> None:
        """Stop reading; only the call's deadline still runs."""
        if self.is_over or self.is_paused or self.carrier is None:
            return
        self.is_paused = True
        self._paused_at = self._clock()
        self._since = 0.0
        self.due = self.outbound.deadline
        self.carrier.pause()

    def resume(self) -> None:
        """Read on; the phase starts anew, and what the pause took is given back to the total."""
        if self.is_over or not self.is_paused or self.carrier is None:
            return
        self.is_paused = False
        self._beaten = False
        self.ends = min(self.ends + self._clock() - self._paused_at, self.outbound.deadline)
        self.enter(self.phase)
        self.carrier.resume()

    def beat(self) -> None:
        """Count a data event; the sweeper restarts the timer."""
        self.phase = _IDLE
        self._beaten = True

    def cut(self, fault: Fault | None, detail: str = "") -> None:
        """End with this fault. In the midst of a read the carrier does it, for the read may hold the end."""
        if self.is_over or self.cut_by is not None:
            return
        if self.carrier is not None and self.carrier.is_feeding:
            self.cut_by = (fault, detail)
        else:
            self.fail(fault, detail)

    # -- the end --

    def fail(self, fault: Fault | None, detail: str = "") -> None:
        """End, and close whatever carried it."""
        carrier, dialing = self.carrier, self.dialing
        self.end(fault, detail)
        if carrier is not None:
            carrier.close()
        if dialing is not None:
            dialing.cancel()

    def end(self, fault: Fault | None, detail: str = "") -> float:
        """End; whatever carried it is free again. Idempotent. Returns the time."""
        now = self._clock()
        if self.is_over:
            return now
        self.is_over = True
        self.carrier = self.dialing = None
        del self.sink  # it holds this valve: a cycle that only the collector would free
        if not self._future.done():
            ended = Ended(
                self.reach,
                fault,
                self.phase,
                detail,
                self.reused,
                self.framed,
                self.connected_at,
                self.sent_at,
                self.head_at,
                now,
            )
            self._future.set_result(ended)
        return now
