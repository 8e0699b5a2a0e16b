"""Who is let in. Stage A asks once a call, stage B once an attempt; both refuse before anything is paid.

Neither limits anything yet but the number of calls at once: the interfaces are here so that limits have their place.
"""

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Final, cast

from moongate.core.call import Call
from moongate.core.faults import Fault, refuse
from moongate.core.routing import Candidate


class _AtOnce:
    """An awaitable that is ready: nothing waits here yet, and a coroutine made for each call would cost more."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        return _NOTHING


_NOTHING: Final = cast("Generator[None, None, None]", iter(()))
_AT_ONCE: Final = _AtOnce()


class _Seat:
    """One place among the calls that run at once. A class, not a generator: it is entered for every call."""

    __slots__ = ("_admission",)

    def __init__(self, admission: "Admission") -> None:
        self._admission = admission

    def __aenter__(self) -> Awaitable[None]:
        self._admission.take()
        return _AT_ONCE

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Awaitable[None]:
        self._admission.in_flight -= 1
        return _AT_ONCE


class Lease:
    """The right to use one target's account for one attempt (stage B). Free of charge for now."""

    __slots__ = ("candidate",)

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate

    def __aenter__(self) -> Awaitable[None]:
        return _AT_ONCE

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Awaitable[None]:
        return _AT_ONCE


class Admission:
    """Counts the calls in flight against one cap. `most` None: no cap.

    `give_way` ends one call that nobody listens to any more, if there is one, and says whether there was.
    """

    def __init__(self, most: int | None, give_way: Callable[[], bool]) -> None:
        self.most = most
        self._give_way = give_way
        self.in_flight = 0
        self._seat = _Seat(self)

    def enter(self, call: Call) -> _Seat:  # noqa: ARG002 - limits by tenant and user will read it
        """Stage A. Entering raises `gateway_overloaded` when as many calls run as are allowed."""
        return self._seat

    def take(self) -> None:
        """Count one call in, or refuse it."""
        if self.most is not None and self.in_flight >= self.most and not self._give_way():
            raise refuse(Fault.GATEWAY_OVERLOADED, retry_after=1.0)
        self.in_flight += 1

    def lease(self, candidate: Candidate) -> Lease:
        """Stage B, inside the exchange."""
        return Lease(candidate)
