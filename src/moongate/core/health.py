"""How the targets and accounts of one worker are, as its calls find them: breakers, what is set aside, what is told.

A client that left says nothing of a target, and a provider that throttles is well: its account is paced, its breaker
stays shut. Source: DESIGN section 6.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from moongate.core.breaker import Breaker, BreakerRules, State
from moongate.core.faults import Failure, Fault, Health, Next, Park, Reach

ASIDE_SECONDS: Final = 60.0
"""How long a worker leaves alone, of itself, what was refused for good; the control document may park it for longer."""


class Change(NamedTuple):
    """A breaker that moved: for the log. `rest` is the time in seconds until it is looked at again, 0 for none."""

    target: str
    before: State
    after: State
    why: str
    rest: float


class Aside(NamedTuple):
    """An account, or an account's model, that gets no calls until then, and the fault it gave as the reason."""

    until: float
    fault: Fault


class Standing:
    """What one worker knows of its targets and accounts. `now` is monotonic seconds, `draw` in [0, 1).

    Written from outside, each a plain value that replaces the one before: `parked` (from the control document):
    accounts, or `account/model`, that get no calls; `load` (from gauges of self-hosted replicas): target -> how busy
    it is, 0 for idle, no upper bound, lower is better; `vouched` (from free looks at the targets, not from calls):
    targets that look well now.

    `unwell` False: nothing of all this asks for a thought, so that a call need not look.
    """

    def __init__(self, targets: Iterable[str], rules: BreakerRules | None = None) -> None:
        rules = rules or BreakerRules()
        self.breakers = {target: Breaker(rules) for target in targets}
        self.vouched: frozenset[str] = frozenset()
        self.unwell = False
        self.changes: list[Change] = []
        self.bad_waits: dict[str, int] = {}
        self.moves: dict[tuple[str, State], int] = {}
        self._parked: frozenset[str] = frozenset()
        self._load: Mapping[str, float] = {}
        self._aside: dict[str, Aside] = {}

    @property
    def parked(self) -> frozenset[str]:
        """Accounts, or `account/model`, that an operator or a refusal has parked."""
        return self._parked

    @parked.setter
    def parked(self, names: frozenset[str]) -> None:
        self._parked = names
        self.unwell = True

    @property
    def load(self) -> Mapping[str, float]:
        """How busy self-hosted replicas are."""
        return self._load

    @load.setter
    def load(self, load: Mapping[str, float]) -> None:
        self._load = load
        self.unwell = True

    def wake(self, now: float) -> None:
        """Let rests end and forget what is over. Whoever plans calls this first, unless nothing is `unwell`."""
        unwell = bool(self._parked or self._load)
        for target, breaker in self.breakers.items():
            before = breaker.state
            if before is not State.HEALTHY and breaker.wake(now, vouched=target in self.vouched):
                self._note(target, before, "its rest is over", now)
            unwell = unwell or not breaker.is_well(now)
        for name in [name for name, aside in self._aside.items() if now >= aside.until]:
            del self._aside[name]
        self.unwell = unwell or bool(self._aside)

    def aside(self, account: str, model: str) -> Aside | None:
        """Why this account, or this model of it, gets no calls now; the longer of two waits."""
        known = [self._aside[name] for name in (account, f"{account}/{model}") if name in self._aside]
        return max(known, default=None)

    def is_parked(self, account: str, model: str) -> bool:
        """Whether the control document says so."""
        return account in self._parked or f"{account}/{model}" in self._parked

    def set_aside(self, name: str, until: float, fault: Fault) -> None:
        """Give no calls to this account, or `account/model`, until then; a longer wait that holds is kept."""
        known = self._aside.get(name)
        if known is None or known.until < until:
            self._aside[name] = Aside(until, fault)
        self.unwell = True

    def succeeded(self, target: str, now: float, ticket: int = 0) -> None:
        """Take a call that went well; for one whose target is not healthy, or that was a probe."""
        breaker = self.breakers[target]
        before = breaker.state
        if breaker.succeeded(now, ticket):
            self._note(target, before, "calls went well", now)

    def failed(
        self,
        target: str,
        failure: Failure,
        now: float,
        *,
        account: str,
        model: str,
        draw: float,
        ticket: int = 0,
    ) -> str:
        """Take a failure; returns the name of what should be parked, empty for nothing."""
        rule = failure.rule
        breaker = self.breakers[target]
        before = breaker.state
        if rule.facts.health is Health.FAILURE:
            unconnected = failure.reach is Reach.NOTHING_SENT
            if breaker.failed(now, draw, unconnected=unconnected, ticket=ticket):
                self._note(target, before, failure.fault.value, now)
        elif rule.facts.health is Health.THROTTLED:
            self.succeeded(target, now, ticket)
        self.unwell = self.unwell or breaker.state is not State.HEALTHY
        name = f"{account}/{model}"
        if rule.facts.park is not Park.NOTHING:
            name = account if rule.facts.park is Park.ACCOUNT else name
            self.set_aside(name, now + ASIDE_SECONDS, failure.fault)
            return name
        if rule.next is Next.SUCCESSOR:
            self.set_aside(name, now + ASIDE_SECONDS, failure.fault)
        elif failure.fault is Fault.KIMI_QUOTA_DAILY:
            self.set_aside(account, now + (failure.retry_after or ASIDE_SECONDS), failure.fault)
        elif rule.next is Next.PACED and failure.retry_after is not None:
            self.set_aside(account, now + failure.retry_after, failure.fault)
        return ""

    def waited_badly(self, target: str) -> None:
        """Count a Retry-After that could not be taken as it was told."""
        self.bad_waits[target] = self.bad_waits.get(target, 0) + 1

    def _note(self, target: str, before: State, why: str, now: float) -> None:
        breaker = self.breakers[target]
        rests = breaker.state in (State.OPEN, State.EJECTED)
        rest = breaker.until - now if rests else 0.0
        self.changes.append(Change(target, before, breaker.state, why, rest))
        key = (target, breaker.state)
        self.moves[key] = self.moves.get(key, 0) + 1
        self.unwell = True
