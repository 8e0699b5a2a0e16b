"""Exchanges that are read to their end although nobody listens any more: which, and how many.

They end for the client's retry, and hold at most a tenth of their account's concurrency, at least one. They give way:
none goes on while a live call waits for what it holds. Source: DESIGN section 6, "When the client leaves".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from moongate.core.call import Call
from moongate.core.faults import Fault
from moongate.core.routing import Candidate

SHARE: Final = 10
"""One in so many of the calls that an account may run at once may be a drain."""

Policy = Literal["cancel", "drain", "auto"]


class Drained(Protocol):
    """A flight, as its drain sees it."""

    call: Call
    candidate: Candidate | None

    def cut(self, fault: Fault) -> None:
        """End the exchange now."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What drains are bound by: how many calls an account may run at once, and what each route's policy is."""

    concurrency: Mapping[str, int]
    policies: Mapping[str, Policy]


class Drains:
    """Every drain of this process, the oldest first; empty at rest."""

    def __init__(self, bounds: Bounds) -> None:
        self.live: dict[Drained, str] = {}
        self.keep_streams = frozenset(name for name, policy in bounds.policies.items() if policy == "drain")
        """Routes whose streams are kept from their start, with a key or without: they too are drained."""
        self._policies = bounds.policies
        self._most = {name: max(1, most // SHARE) for name, most in bounds.concurrency.items()}

    def take(self, flight: Drained) -> bool:
        """Whether this flight, which nobody listens to any more, is read to its end; it counts as a drain then."""
        policy = self._policies.get(flight.call.route, "cancel")
        call = flight.call
        wanted = policy == "drain" or (policy == "auto" and (not call.stream or bool(call.idempotency_key)))
        if not wanted or flight.candidate is None:
            return False
        account = flight.candidate.account
        if sum(held == account for held in self.live.values()) >= self._most.get(account, 1):
            return False
        self.live[flight] = account
        return True

    def end(self, flight: Drained) -> None:
        """It has landed, or somebody listens again."""
        self.live.pop(flight, None)

    def give_way(self, account: str | None = None) -> bool:
        """End the oldest drain (of this account) for a live call that wants its place; whether there was one."""
        for flight, held in self.live.items():
            if account is None or held == account:
                del self.live[flight]
                flight.cut(Fault.CLIENT_CLOSED)
                return True
        return False
