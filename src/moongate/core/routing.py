"""Which targets may answer a call, and in which order."""

from dataclasses import dataclass

from moongate.core.faults import Next


@dataclass(frozen=True, slots=True)
class Candidate:
    """One place a call may go to: a target, the account that pays there, the model id it is asked for.

    `generation` 0: the route's own model, under whatever name the target knows it; n: its n-th declared successor.
    """

    target: str
    account: str
    model: str
    generation: int = 0


Plan = tuple[Candidate, ...]
"""Candidates in the order in which they are tried."""


@dataclass(frozen=True, slots=True)
class Route:
    """One model name that clients may ask for, and what lies behind it."""

    name: str
    candidates: Plan
    tries: int
    may_pay_twice: bool
    resumes: int = 0


def following(plan: Plan, at: int, step: Next, *, may_pay_twice: bool, again: bool) -> int | None:
    """Return the index of the candidate to try after the one at `at` failed, or None where the call must end.

    `step` is what the fault table allows; `again`: this candidate has already had a second try. A successor answers
    only where the model asked for is gone: it has other prices and other answers. An account that was refused is not
    asked again.
    """
    failed = plan[at]
    if step in (Next.AT_ONCE, Next.ONCE) and not again:
        return at
    if step in (Next.NEVER, Next.RESUME, Next.ONCE) or (step is Next.PAY_TWICE and not may_pay_twice):
        return None
    for index in range(at + 1, len(plan)):
        other = plan[index]
        if step is Next.SUCCESSOR:
            fits = other.generation > failed.generation
        else:
            fits = other.generation == failed.generation
            fits = fits and (step is not Next.OTHER or other.account != failed.account)
        if fits:
            return index
    return None
