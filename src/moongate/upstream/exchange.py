"""One request on its way and its answer coming back: phase, timers, reach, and how it ended."""

import asyncio
from typing import Protocol

from moongate.core.faults import Fault, Reach
from moongate.upstream.transport import Ended, Outbound, Phase, Sink

_FIRST_BODY_PHASES = (Phase.FIRST_EVENT, Phase.IDLE)


class Carrier(Protocol):
    """The connection (or stream) that carries an exchange."""

    def close(self) -> None:
        """Cut it at once. Idempotent."""

    def pause(self) -> None:
        """Stop reading."""

    def resume(self) -> None:
        """Read on, and push what was held back."""

    @property
    def is_feeding(self) -> bool:
        """Whether it is just now pushing what it read: whoever cuts then lets it finish the read."""


class Clock(Protocol):
    """Where monotonic seconds come from."""

    def __call__(self) -> float:
        """Now."""


class Exchange:
    """The state of one exchange, and the `Valve` that its sink holds.

    Timers are instants that a sweeper compares with the clock (`due`); nothing is scheduled for one exchange alone.
    """

    __slots__ = (
        "_clock",
        "_paused_at",
        "beaten",
        "carrier",
        "connected_at",
        "cut_by",
        "dialing",
        "due",
        "ends",
        "framed",
        "future",
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

    def __init__(self, outbound: Outbound, sink: Sink, clock: Clock, future: "asyncio.Future[Ended]") -> None:
        now = clock()
        self.outbound = outbound
        self.sink = sink
        self.future = future
        self.carrier: Carrier | None = None
        self.dialing: asyncio.Task[object] | None = None
        self.phase = Phase.CONNECT
        self.reach = Reach.NOTHING_SENT
        self.ends = min(now + outbound.timeouts.total, outbound.deadline)
        self.due = self.ends
        self.beaten = False
        self.is_paused = False
        self.is_over = False
        self.cut_by: tuple[Fault | None, str] | None = None
        self.reused = False
        self.framed = True
        self.connected_at = self.sent_at = self.head_at = 0.0
        self._clock = clock
        self._paused_at = 0.0

    @property
    def is_wanted(self) -> bool:
        """Whether somebody still waits for it: a cancelled caller must not cost a request."""
        return not self.is_over and not self.future.done()

    # -- phases ------------------------------------------------------------------------------------------------

    def enter(self, phase: Phase) -> None:
        """Begin a phase: its time-out runs from now."""
        self.phase = phase
        self._arm()

    def carry(self, carrier: Carrier, *, reused: bool) -> None:
        """Note the connection that will carry it."""
        self.carrier = carrier
        self.reused = reused
        self.connected_at = self._clock()

    def note_sent(self, reach: Reach) -> None:
        """Note how much of the request the kernel has accepted; a head that came early counts for more."""
        if reach <= self.reach:
            return
        self.reach = reach
        if reach is Reach.SENT:
            self.enter(Phase.HEAD)
            self.sent_at = self._clock()

    def note_head(self) -> None:
        """Note that the final head is there."""
        self.reach = Reach.HEAD
        self.head_at = self._clock()
        self.enter(Phase.FIRST_EVENT)

    def _arm(self) -> None:
        timeouts = self.outbound.timeouts
        self.due = min(self._clock() + float(getattr(timeouts, self.phase.value)), self.ends)

    def sweep(self, now: float) -> bool:
        """Look at the timers; True: one ran out. Called every few dozen milliseconds, so beats cost almost nothing."""
        if self.beaten:
            self.beaten = False
            if not self.is_paused:
                self._arm()
        return now >= self.due

    def expire(self, now: float) -> None:
        """End it for the timer that ran out, and close what carried it."""
        if now < self.ends:
            self.fail(Fault.KIMI_NETWORK_TIMEOUT, f"{self.phase.value} time-out")
            return
        by_deadline = self.ends >= self.outbound.deadline
        self.phase = Phase.TOTAL
        self.fail(Fault.KIMI_NETWORK_TIMEOUT, "deadline" if by_deadline else "total time-out")

    # -- the sink's valve --------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stop reading; only the call's deadline still runs."""
        if self.is_over or self.is_paused or self.carrier is None:
            return
        self.is_paused = True
        self._paused_at = self._clock()
        self.due = self.outbound.deadline
        self.carrier.pause()

    def resume(self) -> None:
        """Read on; what the pause took is given back to the total."""
        if self.is_over or not self.is_paused or self.carrier is None:
            return
        self.is_paused = False
        self.ends = min(self.ends + self._clock() - self._paused_at, self.outbound.deadline)
        self._arm()
        self.carrier.resume()

    def beat(self) -> None:
        """Count a data event; the sweeper restarts the timer."""
        self.phase = Phase.IDLE
        self.beaten = True

    def cut(self, fault: Fault | None, detail: str = "") -> None:
        """End with this fault. While a read is being pushed, the carrier ends it: the read may hold the answer's end."""
        if self.is_over or self.cut_by is not None:
            return
        if self.carrier is not None and self.carrier.is_feeding:
            self.cut_by = (fault, detail)
        else:
            self.fail(fault, detail)

    # -- the end -----------------------------------------------------------------------------------------------

    def fail(self, fault: Fault | None, detail: str = "") -> None:
        """End, and close whatever carried it."""
        carrier, dialing = self.carrier, self.dialing
        self.end(fault, detail)
        if carrier is not None:
            carrier.close()
        if dialing is not None:
            dialing.cancel()

    def end(self, fault: Fault | None, detail: str = "") -> None:
        """End; the carrier, if any, is free again. Idempotent."""
        if self.is_over:
            return
        self.is_over = True
        self.carrier = self.dialing = None
        if self.future.done():
            return
        self.future.set_result(
            Ended(
                self.reach,
                fault,
                self.phase,
                detail,
                self.reused,
                self.framed,
                self.connected_at,
                self.sent_at,
                self.head_at,
                self._clock(),
            )
        )
