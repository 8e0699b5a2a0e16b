"""Attempts in doubt, and what proof can be found of them: decided here, acted on elsewhere.

Proof is the provider's own word: a book of executions, or its statement. Without proof an attempt is written off when
it is old enough. Each change is a step of the attempt's life (`core/ledger.step`) and leaves a correction in the
record; the bill follows. Source: DESIGN section 7.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

from moongate.core.book import Execution, Tried, matched
from moongate.core.call import Usage
from moongate.core.charging import is_charged, sum_up
from moongate.core.ledger import Event, State, step
from moongate.core.pricing import PriceTable, cost
from moongate.core.record import AttemptRecord, CallRecord, Correction, TokensSource
from moongate.core.statement import Charged, Statement

DAY: Final = 86_400.0
LATE: Final = 60.0
"""Seconds after which a provider takes up no request any more whose client has left."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What became of an attempt in doubt, and how that is known.

    `usage` None: its tokens are not known. `cost_micro` is what the provider charges, in `currency`; None: it is to be
    counted from the tokens.
    """

    event: Event
    why: str
    usage: Usage | None = None
    cost_micro: int | None = None
    currency: str = ""


def doubtful(records: Iterable[CallRecord]) -> list[Tried]:
    """The attempts that are in doubt."""
    return [
        Tried(record, attempt)
        for record in records
        for attempt in record.attempts
        if attempt.state == State.AMBIGUOUS
    ]


def from_book(
    executions: Sequence[Execution],
    records: Sequence[CallRecord],
    *,
    asked: float,
    begin: float | None = None,
    late: float = LATE,
) -> dict[str, Proof]:
    """Proofs by attempt id from a provider's book, which has every execution since `begin` (None: since its first).

    `records` are all calls of that time, for those that are in no doubt account for executions too. `asked`: when the
    book was read. What ended less than `late` seconds before may yet come into it and is left alone, as is what runs.
    """
    if begin is None:
        begin = min((one.started for one in executions), default=asked)
    tried = [Tried(record, attempt) for record in records for attempt in record.attempts]
    found = matched(executions, tried).by_attempt
    proofs: dict[str, Proof] = {}
    for _, attempt in doubtful(records):
        execution = found.get(attempt.attempt_id)
        if execution is not None:
            if execution.ended is not None:
                proofs[attempt.attempt_id] = _of_execution(execution)
        elif begin <= attempt.started and attempt.started + max(attempt.ended, 0.0) < asked - late:
            proofs[attempt.attempt_id] = Proof(Event.RELEASE, "the provider's book has no such execution")
    return proofs


def _of_execution(execution: Execution) -> Proof:
    if not execution.cost_micro and not execution.input:
        return Proof(Event.RELEASE, f"the provider's book charges nothing for {execution.id}")
    usage = Usage(execution.input, execution.output, execution.cached)
    why = f"the provider's book has it as {execution.id}, {execution.how}"
    return Proof(Event.SETTLE, why, usage, execution.cost_micro, execution.currency)


def from_statement(statement: Statement, records: Sequence[CallRecord]) -> dict[str, Proof]:
    """Proofs by attempt id from a provider's statement; `records` are all calls of its days.

    A row with the attempt's id settles it. An attempt whose id the provider told, but that a statement of single
    requests lacks though it has days before and after, was not charged. Nor was any of a day and model of which the
    statement sums up no more than what is settled already.
    """
    by_id = {row.request_id: row for row in statement.rows if row.request_id}
    days = sorted({row.day for row in statement.rows})
    full = _full_groups(statement, records) if not statement.by_request else frozenset()
    proofs: dict[str, Proof] = {}
    for _, attempt in doubtful(records):
        names = (attempt.provider_request_id, attempt.provider_trace_id, attempt.answer_id)
        row = next((by_id[name] for name in names if name in by_id), None)
        day = day_of(attempt.started)
        if row is not None:
            proofs[attempt.attempt_id] = _of_row(row)
        elif statement.by_request and any(names) and days[0] < day < days[-1]:
            proofs[attempt.attempt_id] = Proof(Event.RELEASE, "the statement of those days does not have it")
        elif (day, attempt.model, attempt.currency) in full:
            why = f"the statement has no more of {attempt.model} on {day} than is settled"
            proofs[attempt.attempt_id] = Proof(Event.RELEASE, why)
    return proofs


def _of_row(row: Charged) -> Proof:
    if not row.cost_micro:
        return Proof(Event.RELEASE, f"the statement of {row.day} charges nothing for {row.request_id}")
    usage = Usage(row.input, row.output, row.cached) if row.input or row.output else None
    why = f"the statement of {row.day} has it as {row.request_id}"
    return Proof(Event.SETTLE, why, usage, row.cost_micro, row.currency)


def _full_groups(statement: Statement, records: Iterable[CallRecord]) -> frozenset[tuple[str, str, str]]:
    """Days and models of which the statement's sum is reached by what is settled."""
    theirs: Counter[tuple[str, str, str]] = Counter()
    for row in statement.rows:
        theirs[row.day, row.model, row.currency] += row.cost_micro
    ours: dict[tuple[str, str, str], int] = defaultdict(int)
    for record in records:
        for one in record.attempts:
            if one.state in (State.SETTLED, State.SETTLED_EST):
                ours[day_of(one.started), one.model, one.currency] += one.cost_micro or 0
    return frozenset(key for key, micro in theirs.items() if key[1] and micro <= ours[key])


def day_of(moment: float) -> str:
    """The day (UTC) of a wall-clock second."""
    return datetime.fromtimestamp(moment, UTC).date().isoformat()


def too_old(records: Iterable[CallRecord], now: float, days: float) -> dict[str, Proof]:
    """Attempts in doubt for so many days that no proof will come."""
    why = f"no proof was found in {days:g} days"
    old = [one for one in doubtful(records) if one.attempt.started < now - days * DAY]
    return {one.attempt.attempt_id: Proof(Event.WRITE_OFF, why) for one in old}


@dataclass(frozen=True, slots=True)
class Desk:
    """Who corrects, when (wall-clock seconds), and by which prices; `currency_of` tells a target's currency."""

    who: str
    at: float
    prices: PriceTable
    currency_of: Callable[[str], str] = lambda _target: ""


def amended(record: CallRecord, proofs: Mapping[str, Proof], desk: Desk) -> CallRecord | None:
    """The record with all that these proofs and the prices known now change in it; None if that is nothing."""
    attempts: list[AttemptRecord] = []
    changed: list[tuple[AttemptRecord, AttemptRecord, str]] = []
    for attempt in record.attempts:
        made, why = _settled(attempt, proofs.get(attempt.attempt_id), desk)
        attempts.append(made)
        if why:
            changed.append((attempt, made, why))
    if not changed:
        return None
    after = msgspec.structs.replace(record, attempts=attempts)
    sum_up(after)
    corrections = tuple(
        Correction(
            one.attempt_id,
            desk.at,
            desk.who,
            why,
            one.state,
            made.state,
            record.billed_micro,
            after.billed_micro,
        )
        for one, made, why in changed
    )
    return msgspec.structs.replace(after, corrections=(*record.corrections, *corrections))


def _settled(attempt: AttemptRecord, proof: Proof | None, desk: Desk) -> tuple[AttemptRecord, str]:
    """The attempt as the proof leaves it, and why; an empty reason: it stays as it is."""
    if proof is None or attempt.state != State.AMBIGUOUS:
        return _priced(attempt, desk)
    state = step(State.AMBIGUOUS, proof.event)
    made = msgspec.structs.replace(attempt, state=state)
    if state is State.RELEASED:
        made.count(Usage(), TokensSource.NONE)
        made.cost_micro = 0
    elif state is State.SETTLED:
        _charge(made, proof, desk)
    return made, proof.why


def _charge(made: AttemptRecord, proof: Proof, desk: Desk) -> None:
    if proof.usage is not None:
        made.count(proof.usage, TokensSource.PROVIDER)
    made.currency = proof.currency or made.currency or desk.currency_of(made.target)
    row = desk.prices.row(made.model, made.currency, made.started, made.target)
    made.price_row = row.id if row else ""
    made.cost_micro = proof.cost_micro
    if made.cost_micro is None:
        made.cost_micro = cost(made.usage, row)


def _priced(attempt: AttemptRecord, desk: Desk) -> tuple[AttemptRecord, str]:
    """The attempt with its cost, where that was not known when it ended and is now."""
    if attempt.cost_micro is not None or not is_charged(attempt):
        return attempt, ""
    currency = attempt.currency or desk.currency_of(attempt.target)
    row = desk.prices.row(attempt.model, currency, attempt.started, attempt.target)
    micro = cost(attempt.usage, row)
    if row is None or micro is None:
        return attempt, ""
    made = msgspec.structs.replace(attempt, price_row=row.id, cost_micro=micro, currency=currency)
    return made, f"its price is known now: {row.id}"
