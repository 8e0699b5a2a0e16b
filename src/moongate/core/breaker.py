"""A breaker: when a target gets no calls because of how its last ones ended, and how it comes back.

Only outcomes of calls open it (passive health). Source: DESIGN section 6; FAULTS, "Recommended algorithms".
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_MOST_DOUBLINGS: Final = 16


class State(StrEnum):
    """What a breaker lets through."""

    HEALTHY = "healthy"  # every call
    EJECTED = "ejected"  # calls that have no other target
    OPEN = "open"  # none
    PROBING = "probing"  # a few real calls, to find out


class Event(StrEnum):
    """What moves a breaker."""

    TRIPPED = "tripped"  # too many of its calls failed, or it cannot be connected to
    OUTLIER = "outlier"  # one failure after another, yet too few calls to judge
    RESTED = "rested"  # its time is over
    PROVEN = "proven"  # calls went well
    RELAPSED = "relapsed"  # a probe failed


TRANSITIONS: Final[Mapping[State, Mapping[Event, State]]] = {
    State.HEALTHY: {Event.TRIPPED: State.OPEN, Event.OUTLIER: State.EJECTED},
    State.EJECTED: {
        Event.TRIPPED: State.OPEN,
        Event.RESTED: State.HEALTHY,
        Event.PROVEN: State.HEALTHY,
    },
    State.OPEN: {Event.RESTED: State.PROBING},
    State.PROBING: {Event.PROVEN: State.HEALTHY, Event.RELAPSED: State.OPEN},
}


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """When a breaker opens, for how long, and how a target comes back. Times in seconds, shares from 0 to 1.

    It opens when `share` of at least `calls` calls failed within `window`, or after `connects` failures to connect
    in a row; `failures` of any kind in a row eject a target that is not its route's last. It stays open for `rest`,
    twice as long each time up to `longest`, give or take `jitter`; then `probes` calls must go well, and the share of
    its traffic grows from `first_share` to all of it over `slow_start`.
    """

    share: float = 0.5
    calls: int = 20
    window: float = 10.0
    connects: int = 5
    failures: int = 5
    rest: float = 5.0
    longest: float = 60.0
    jitter: float = 0.2
    probes: int = 3
    slow_start: float = 30.0
    first_share: float = 0.1


class Breaker:
    """One target's. `good` counts calls that went well: whoever sees one adds 1, which is all that it costs.

    The window begins with a failure and holds for `window` seconds; the next failure after it begins another.
    """

    __slots__ = (
        "_began",
        "_connects",
        "_failures",
        "_good_before",
        "_opened",
        "_round",
        "_rules",
        "_seen",
        "_started_again",
        "_well",
        "_window_failures",
        "early",
        "good",
        "probing",
        "state",
        "until",
    )

    def __init__(self, rules: BreakerRules) -> None:
        self._rules = rules
        self.state = State.HEALTHY
        self.good = 0
        self.until = self.early = 0.0
        self.probing = 0
        self._seen = 0  # `good` at the last failure: if it grew, that one was not the last call
        self._failures = self._connects = 0  # in a row
        self._began = -math.inf
        self._good_before = self._window_failures = 0
        self._opened = 0  # times in a row
        self._started_again = -math.inf
        self._round = self._well = 0

    def share(self, now: float) -> float:
        """The share of its traffic that it should get, above 0 and at most 1: less while it starts slowly."""
        rules = self._rules
        age = now - self._started_again
        if age >= rules.slow_start:
            return 1.0
        return rules.first_share + (1.0 - rules.first_share) * max(age, 0.0) / rules.slow_start

    def is_well(self, now: float) -> bool:
        """Whether it may be forgotten: everything goes through, at its full share."""
        return self.state is State.HEALTHY and now >= self._started_again + self._rules.slow_start

    @property
    def has_room(self) -> bool:
        """Whether a probing breaker takes one more probe."""
        return self.probing + self._well < self._rules.probes

    def wake(self, now: float, *, vouched: bool) -> bool:
        """Move on if its time is over; `vouched`: a free look finds the target well, then no rest is doubled."""
        if self.state is State.OPEN and (now >= self.until or (vouched and now >= self.early)):
            self._move(Event.RESTED)
            self._round += 1
            self.probing = self._well = 0
            return True
        if self.state is State.EJECTED and now >= self.until:
            self._heal(Event.RESTED, now)
            return True
        return False

    def enter(self) -> int:
        """Count an attempt in; returns its ticket, 0 where it is no probe."""
        if self.state is not State.PROBING:
            return 0
        self.probing += 1
        return self._round

    def leave(self, ticket: int) -> None:
        """Count a probe out, whatever became of it."""
        if ticket and ticket == self._round:
            self.probing -= 1

    def succeeded(self, now: float, ticket: int = 0) -> bool:
        """Take a call that went well; True: the breaker moved."""
        self.good += 1
        if self.state is State.EJECTED:
            self._heal(Event.PROVEN, now)
            return True
        if self.state is State.PROBING and ticket == self._round:
            self._well += 1
            if self._well >= self._rules.probes:
                self._heal(Event.PROVEN, now)
                return True
        return False

    def failed(self, now: float, draw: float, *, unconnected: bool, ticket: int = 0) -> bool:
        """Take a call that failed, `unconnected` before anything was sent; True: the breaker moved."""
        if self.state is State.PROBING:
            if ticket != self._round:
                return False
            self._rest(Event.RELAPSED, now, draw)
            return True
        if self.state is State.OPEN:
            return False
        self._count(now, unconnected=unconnected)
        rules = self._rules
        calls = self.good - self._good_before + self._window_failures
        if self._connects >= rules.connects or (
            calls >= rules.calls and self._window_failures >= rules.share * calls
        ):
            self._rest(Event.TRIPPED, now, draw)
            return True
        if self.state is State.HEALTHY and self._failures >= rules.failures:
            self._rest(Event.OUTLIER, now, draw)
            return True
        return False

    def _count(self, now: float, *, unconnected: bool) -> None:
        if self.good != self._seen:
            self._seen = self.good
            self._failures = self._connects = 0
        self._failures += 1
        self._connects = self._connects + 1 if unconnected else 0
        if now >= self._began + self._rules.window:
            self._began = now
            self._good_before = self.good
            self._window_failures = 0
        self._window_failures += 1

    def _move(self, event: Event) -> None:
        self.state = TRANSITIONS[self.state][event]

    def _heal(self, event: Event, now: float) -> None:
        self._move(event)
        self._started_again = now
        self._began = -math.inf
        self._failures = self._connects = 0

    def _rest(self, event: Event, now: float, draw: float) -> None:
        if self.is_well(now):
            self._opened = 0
        self._move(event)
        rules = self._rules
        shake = 1.0 + rules.jitter * (2.0 * draw - 1.0)
        self.early = now + rules.rest * shake
        self.until = now + min(rules.rest * 2.0 ** min(self._opened, _MOST_DOUBLINGS), rules.longest) * shake
        self._opened += 1
        self._began = -math.inf
        self._failures = self._connects = 0
