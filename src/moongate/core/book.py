"""A provider's book of executions, and which attempt of ours each of them was.

The simulator keeps such a book (`GET /_sim/book`). An execution bears the id of its answer, which the attempt has too
if anything of the answer came; else the request id, the model and the time tell.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from moongate.core.ledger import State
from moongate.core.record import AttemptRecord, CallRecord

SLACK: Final = 2.0
"""Seconds by which the clocks of provider and gateway may differ, and that a request may be under way."""


class BookError(ValueError):
    """What was given is no book."""


class Execution(
    msgspec.Struct, frozen=True, gc=False, rename={"input": "input_tokens", "output": "output_tokens"}
):
    """One run of the model as the provider charges it. Times are wall-clock seconds; `ended` None: it still runs.

    `how` is how it ended there, `fault` what was scripted for it, `emitted` the tokens that were sent.
    """

    id: str
    request_id: str = ""
    model: str = ""
    started: float = 0.0
    ended: float | None = None
    how: str = ""
    fault: str | None = None
    input: int = 0
    output: int = 0
    cached: int = msgspec.field(default=0, name="cached_tokens")
    emitted: int = msgspec.field(default=0, name="tokens_emitted")
    cost_micro: int = 0
    currency: str = ""


class _Book(msgspec.Struct):
    executions: list[Execution]


_book: Final = msgspec.json.Decoder(_Book)


def read_book(document: bytes) -> list[Execution]:
    """The executions of a book as the simulator writes it; raises `BookError`."""
    try:
        return _book.decode(document).executions
    except (ValueError, RecursionError) as error:
        raise BookError(f"this is no book of executions: {error}") from error


class Tried(NamedTuple):
    """An attempt with the call it belongs to."""

    record: CallRecord
    attempt: AttemptRecord


@dataclass(frozen=True, slots=True)
class Matches:
    """Which execution each attempt was, by attempt id; `strangers` are executions that no attempt accounts for."""

    by_attempt: dict[str, Execution]
    strangers: list[Execution]


def matched(executions: Iterable[Execution], tried: Iterable[Tried]) -> Matches:
    """Find for each execution the attempt that caused it. No attempt is given two, no execution to two."""
    open_ones: dict[str, list[Tried]] = defaultdict(list)
    by_answer: dict[str, Tried] = {}
    for one in tried:
        if one.attempt.answer_id:
            by_answer[one.attempt.answer_id] = one
        open_ones[one.record.request_id].append(one)
    found: dict[str, Execution] = {}
    left: list[Execution] = []
    for execution in executions:
        known = by_answer.get(execution.id)
        if known is None or known.attempt.attempt_id in found:
            left.append(execution)
        else:
            found[known.attempt.attempt_id] = execution
    strangers: list[Execution] = []
    for execution in sorted(left, key=lambda one: one.started):
        nearest = _nearest(execution, open_ones.get(execution.request_id, ()), found)
        if nearest is None:
            strangers.append(execution)
        else:
            found[nearest.attempt.attempt_id] = execution
    return Matches(found, strangers)


def _nearest(execution: Execution, group: Sequence[Tried], taken: dict[str, Execution]) -> Tried | None:
    """The attempt without an answer's id that ran when this execution began, and began nearest to it.

    One in doubt may have ended before: a provider that is busy takes up a request after its client has left.
    """
    possible = [
        one
        for one in group
        if one.attempt.attempt_id not in taken
        and not one.attempt.answer_id
        and one.attempt.model == execution.model
        and one.attempt.started - SLACK <= execution.started <= _latest(one.attempt)
    ]
    return min(possible, key=lambda one: abs(one.attempt.started - execution.started), default=None)


def _latest(attempt: AttemptRecord) -> float:
    """When its execution may have begun at the latest; one in doubt, or whose end nobody saw, at any time."""
    if attempt.ended < 0 or attempt.state == State.AMBIGUOUS:
        return float("inf")
    return attempt.started + attempt.ended + SLACK
