"""Which targets may answer a call, and in which order."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from moongate.core.faults import Next


@dataclass(frozen=True, slots=True)
class Candidate:
    """One place a call may go to: a target, the account that pays there, the model id it is asked for."""

    target: str
    account: str
    model: str


Plan = tuple[Candidate, ...]
"""Candidates in the order in which they are tried."""


@dataclass(frozen=True, slots=True)
class Route:
    """One model name that clients may ask for, and what lies behind it."""

    name: str
    candidates: Plan
    tries: int
    may_pay_twice: bool


def following(plan: Plan, at: int, step: Next, *, may_pay_twice: bool, again: bool) -> int | None:
    """Return the index of the candidate to try after the one at `at` failed, or None where the call must end.

    `step` is what the fault table allows; `again`: this candidate has already had a second try. An account that was
    refused is not asked again under another model; a model that is gone is not asked for again.
    """
    failed = plan[at]
    if step in (Next.AT_ONCE, Next.ONCE) and not again:
        return at
    fits: Callable[[Candidate], bool]
    if step in (Next.NEVER, Next.RESUME, Next.ONCE) or (step is Next.PAY_TWICE and not may_pay_twice):
        return None
    if step is Next.OTHER:
        fits = lambda other: other.account != failed.account  # noqa: E731 - three one-line conditions side by side
    elif step is Next.SUCCESSOR:
        fits = lambda other: other.model != failed.model  # noqa: E731 - the same
    else:
        fits = lambda _: True  # noqa: E731 - the same
    return _first(index for index in range(at + 1, len(plan)) if fits(plan[index]))


def _first(indexes: Iterable[int]) -> int | None:
    return next(iter(indexes), None)
