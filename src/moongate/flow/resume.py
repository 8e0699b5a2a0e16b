"""Going on with a stream that broke off: where the rest is asked for, and how the parts are joined."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from moongate.core.call import Call, Usage
from moongate.core.chat_resume import ResumedReader
from moongate.core.faults import Failure, Next, Settle
from moongate.core.ledger import State
from moongate.core.record import CallRecord
from moongate.core.resume import Means, obstacle
from moongate.core.routing import Candidate, Route
from moongate.core.surface import Answer, Classify, StreamReader
from moongate.flow.flight import Flight

PAUSE: Final = 0.1
"""Seconds before the second request for the same rest, doubled with each further one; the first goes at once."""


class Resumption:
    """The attempts that continue one answer.

    `first` is the failure that it broke off with, which the client is told of if it cannot be continued.
    """

    def __init__(
        self, route: Route, broke_at: Candidate, first: Failure, sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        self.first = first
        self.so_far = Answer()
        self._used = Usage()
        self._sleep = sleep
        self._left = route.resumes
        places = [one for one in route.candidates if one.generation == broke_at.generation]
        at = places.index(broke_at) if broke_at in places else 0
        self._places = [*places[at:], *places[:at]]
        self._parts = 0
        self._vain = 0
        self._over = False

    async def next(
        self, call: Call, flight: Flight, record: CallRecord, means: Callable[[Candidate], Means | None]
    ) -> Candidate | None:
        """Where to ask for the rest, None if that may not or cannot be; then `first` says why in its detail."""
        broken = flight.broken
        if broken is None or self._over or not self._left or flight.cut_by is not None:
            return None
        if broken is not self.so_far:
            self.so_far, self._used, self._vain = broken, _used(record), 0
            self._parts += 1
        place = self._places[self._vain % len(self._places)]
        reason = obstacle(call.body, self.so_far, means(place))
        if reason:
            self.first = replace(
                self.first, detail=f"{self.first.detail}; not resumed: {reason}".lstrip("; ")
            )
            return None
        if self._vain:
            await self._sleep(PAUSE * 2 ** (self._vain - 1))
        self._left -= 1
        return place

    def failed(self, failure: Failure) -> None:
        """An attempt to go on failed as well: with more of the answer, with nothing paid, or for good."""
        step = failure.rule
        if step.next is Next.RESUME:
            return
        self._vain += 1
        self._over = step.settle is not Settle.RELEASED

    def reader(self, make: Callable[[Classify], StreamReader]) -> Callable[[Classify], StreamReader]:
        """The same reader, for the rest of an answer."""
        return lambda classify: ResumedReader(make(classify), self.so_far, self._used, self._parts)


def _used(record: CallRecord) -> Usage:
    """What the parts so far are counted with: the first one's prompt, the output of all."""
    parts = [attempt.usage for attempt in record.attempts if attempt.state == State.SETTLED_EST]
    if not parts:
        return Usage()
    return Usage(
        parts[0].input,
        sum(part.output for part in parts),
        parts[0].cached,
        sum(part.reasoning for part in parts),
    )
