"""Accounts, and models of accounts, that get no calls until somebody looks: who is one, why, and when to look.

A provider that says that the balance is spent, or that the key is bad, says so to every call; the first one parks the
account, or the account's model, in the control document, and others answer. Pure: `now` is monotonic seconds.
Source: DESIGN section 6.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from moongate.core.control import Parked
from moongate.core.faults import FACTS, Failure, Fault, Park, Reach
from moongate.core.routing import Candidate, Plan

LONGEST_WAIT: Final = 3600.0
"""Seconds between two looks at a balance, however often money was seen that the provider would not take."""


class Refused(NamedTuple):
    """What should be parked: an account or `account/model`, the fault's name, the target that told, and its words."""

    name: str
    fault: str
    target: str
    detail: str


def what_to_park(candidate: Candidate, fault: Fault) -> str:
    """The name under which this fault parks: an account, `account/model`, or empty for nothing."""
    match FACTS[fault].park:
        case Park.ACCOUNT:
            return candidate.account
        case Park.ACCOUNT_MODEL:
            return f"{candidate.account}/{candidate.model}"
        case _:
            return ""


def reason_of(parked: Parked) -> Fault:
    """The fault that a call gets for this park: the one that parked, or for an operator's own words the plain one."""
    try:
        fault = Fault(parked.reason)
    except ValueError:
        return Fault.KIMI_UNAVAILABLE
    return Fault.KIMI_UNAVAILABLE if FACTS[fault].park is Park.NOTHING else fault


class Parking:
    """What one worker leaves out of its plans: what the control document says, and what was refused since it came."""

    def __init__(self) -> None:
        self.names: Mapping[str, Fault] = {}
        self._untold: dict[str, Refused] = {}

    def follow(self, parked: Mapping[str, Parked]) -> None:
        """Take a control document's word. It is the last one: whoever was released is asked again."""
        self.names = {name: reason_of(entry) for name, entry in parked.items()}

    def refused(self, candidate: Candidate, failure: Failure) -> None:
        """Take a failure; if its fault parks, this worker does so at once and has it to tell."""
        name = what_to_park(candidate, failure.fault)
        if not name or name in self.names:
            return
        self.names = {**self.names, name: failure.fault}
        self._untold[name] = Refused(name, failure.fault.value, candidate.target, failure.detail)

    def take(self) -> list[Refused]:
        """What the supervisor should be told; each is handed out once."""
        untold, self._untold = list(self._untold.values()), {}
        return untold

    def open_of(self, plan: Plan) -> Plan:
        """The candidates of a plan that are not parked, in their order.

        None where those of the route's own model all are: a successor answers for a model that is gone, not for an
        account that may not use it.
        """
        left = tuple(one for one in plan if self._fault_of(one) is None)
        return left if left and left[0].generation == plan[0].generation else ()

    def refusal(self, plan: Plan) -> Failure:
        """Why a plan has no candidate left: the fault that parked its first one."""
        faults = (self._fault_of(one) for one in plan)
        fault = next((fault for fault in faults if fault is not None), Fault.KIMI_UNAVAILABLE)
        parked = ", ".join(dict.fromkeys(one.account for one in plan))
        return Failure(fault, Reach.NOTHING_SENT, detail=f"parked: {parked}")

    def _fault_of(self, candidate: Candidate) -> Fault | None:
        whole = self.names.get(candidate.account)
        return whole or self.names.get(f"{candidate.account}/{candidate.model}")


class BalanceLooks:
    """When the balance of each account is looked at that is parked for want of money.

    Every `every` seconds; twice as long each time that the account was released for its balance and then refused
    again, for then the balance is not what it lacks.
    """

    def __init__(self, every: float) -> None:
        self._every = every
        self._next: dict[str, float] = {}
        self._relapses: dict[str, int] = {}

    def follow(self, accounts: Iterable[str], now: float) -> None:
        """Take which accounts are parked for want of money now."""
        wanted = set(accounts)
        self._next = {name: at for name, at in self._next.items() if name in wanted}
        for name in wanted - self._next.keys():
            self._next[name] = now + self._wait(name)

    def due(self, now: float) -> list[str]:
        """The accounts to be looked at now; each is due again after its wait."""
        due = [name for name, at in self._next.items() if now >= at]
        for name in due:
            self._next[name] = now + self._wait(name)
        return due

    def released(self, name: str) -> None:
        """Take it that an account was released for its balance."""
        self._relapses[name] = self._relapses.get(name, 0) + 1

    def proven(self, name: str) -> None:
        """Take it that an account answered calls: its balance was what it lacked."""
        self._relapses.pop(name, None)

    def _wait(self, name: str) -> float:
        return min(self._every * 2.0 ** min(self._relapses.get(name, 0), 12), LONGEST_WAIT)
