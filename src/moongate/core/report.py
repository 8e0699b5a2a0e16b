"""What was used and billed, added up by tenant, user, model, target or day; amounts by currency, never across them.

Money and tokens are those of attempts, so that each target and model has its own. A call that made attempts at two
targets counts as a call at both.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from moongate.core.charging import is_charged
from moongate.core.ledger import State
from moongate.core.reconcile import day_of
from moongate.core.record import AttemptRecord, CallRecord

BY: Final = ("tenant", "user", "model", "target", "day")
TOKENS: Final = ("input", "cached", "cache_write", "output", "reasoning")
NOBODY: Final = "-"
"""Stands for a user, model or target that a call has not."""

_NONE: Final = AttemptRecord("")


@dataclass(slots=True)
class Money:
    """Amounts of one currency in millionths, by how sure they are: `settled` by the provider's word, `counted` by us.

    `for_now`: charged to clients that left, until it is reconciled.
    """

    settled: int = 0
    counted: int = 0
    for_now: int = 0

    @property
    def billed(self) -> int:
        """All of it."""
        return self.settled + self.counted + self.for_now


@dataclass(slots=True)
class Group:
    """What belongs to one name, or one pair of names. `in_doubt` and `unpriced` are numbers of attempts."""

    outcomes: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    in_doubt: int = 0
    counted: int = 0
    unpriced: int = 0
    tokens: Counter[str] = field(default_factory=Counter)
    money: dict[str, Money] = field(default_factory=dict)

    @property
    def calls(self) -> int:
        """How many calls."""
        return sum(self.outcomes.values())

    def take(self, attempt: AttemptRecord) -> None:
        """Add one attempt."""
        self.attempts += 1
        doubtful = attempt.state == State.AMBIGUOUS
        self.in_doubt += doubtful
        if not is_charged(attempt):
            return
        for kind in TOKENS:
            self.tokens[kind] += getattr(attempt, kind)
        by_us = attempt.state != State.SETTLED
        self.counted += by_us and not doubtful
        if attempt.cost_micro is None:
            self.unpriced += 1
            return
        money = self.money.setdefault(attempt.currency, Money())
        if doubtful:
            money.for_now += attempt.cost_micro
        elif by_us:
            money.counted += attempt.cost_micro
        else:
            money.settled += attempt.cost_micro


class Report:
    """Adds up calls, one after the other, by some of `BY`."""

    def __init__(self, by: Sequence[str]) -> None:
        self.by = tuple(by)
        self.groups: dict[tuple[str, ...], Group] = {}
        self.total = Group()

    @property
    def currencies(self) -> list[str]:
        """All that anything was billed in."""
        return sorted(self.total.money)

    def add(self, record: CallRecord) -> None:
        """Add one call with its attempts."""
        outcome = record.outcome or "open"
        touched: set[tuple[str, ...]] = set()
        for attempt in record.attempts or (_NONE,):
            key = tuple(_name(record, attempt, by) for by in self.by)
            group = self.groups.get(key)
            if group is None:
                group = self.groups[key] = Group()
            if key not in touched:
                touched.add(key)
                group.outcomes[outcome] += 1
            if attempt is not _NONE:
                group.take(attempt)
                self.total.take(attempt)
        self.total.outcomes[outcome] += 1

    def rows(self) -> list[tuple[tuple[str, ...], Group]]:
        """The groups by name; a day is older than the next."""
        return sorted(self.groups.items())


def _name(record: CallRecord, attempt: AttemptRecord, by: str) -> str:
    if by == "tenant":
        name = record.tenant
    elif by == "user":
        name = record.user
    elif by == "day":
        name = day_of(record.created)
    elif by == "target":
        name = attempt.target
    else:
        name = attempt.model or record.model
    return name or NOBODY
