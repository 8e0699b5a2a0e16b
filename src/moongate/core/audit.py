"""Whether the books balance: what must hold over every attempt, and against the provider's own book.

Source: DESIGN section 7, `moongate ledger verify`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from moongate.core.book import Execution, Tried, matched
from moongate.core.charging import SUSPECT, is_charged
from moongate.core.faults import Fault
from moongate.core.ledger import OPEN, State, Tally, broken_invariants
from moongate.core.pricing import unknown
from moongate.core.record import CRASHED, AttemptRecord, CallRecord

PATIENCE: Final = 10.0
"""Seconds after its call's deadline that an attempt may still be open: it is being ended then."""

LISTED: Final = 1000
"""Most findings, and most differences, that are told one by one."""

_OURS: Final = frozenset(
    {
        CRASHED,
        Fault.GATEWAY_ERROR,
        Fault.GATEWAY_DRAINING,
        Fault.GATEWAY_OVERLOADED,
        Fault.DEADLINE_EXCEEDED,
        Fault.CLIENT_CLOSED,
        Fault.SLOW_CLIENT,
        Fault.KIMI_NETWORK_TIMEOUT,
    }
)
"""Causes of doubt that the provider's book need not know of: it may have done all that was asked."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must not be: of which kind, about which attempt, call or execution, in one sentence."""

    kind: str
    about: str
    what: str


@dataclass(slots=True)
class Count:
    """Counts over records, one after the other. `now` is wall-clock seconds, `dead` are owners proved dead."""

    now: float
    dead: frozenset[str] = frozenset()
    calls: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    unpriced: Counter[tuple[str, str]] = field(default_factory=Counter)
    provisional: int = 0
    suspect: int = 0
    corrected: int = 0
    overdue: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    unclosed: list[str] = field(default_factory=list)
    left_open: list[str] = field(default_factory=list)

    def add(self, record: CallRecord) -> None:
        """Count one call and its attempts."""
        self.calls[record.outcome or "open"] += 1
        self.corrected += bool(record.corrections)
        if not record.outcome and record.owner in self.dead:
            self.unclosed.append(record.call_id)
        for attempt in record.attempts:
            self.states[attempt.state] += 1
            self._judge(record, attempt)

    def _judge(self, record: CallRecord, attempt: AttemptRecord) -> None:
        if attempt.state in OPEN:
            if record.outcome:
                self.left_open.append(attempt.attempt_id)
            elif 0 < record.deadline < self.now - PATIENCE:
                self.overdue.append(attempt.attempt_id)
        elif attempt.state == State.AMBIGUOUS:
            if not attempt.cause:
                self.unnamed.append(attempt.attempt_id)
            self.provisional += is_charged(attempt)
        elif is_charged(attempt):
            self.suspect += attempt.detail in SUSPECT
            if attempt.cost_micro is None:
                self.unpriced[attempt.model, attempt.currency] += 1

    def findings(self) -> list[Finding]:
        """What does not hold, kind by kind."""
        known = {state.value: state for state in State}
        tally = Tally(
            reservations=sum(self.states.values()),
            by_state={known[name]: number for name, number in self.states.items() if name in known},
        )
        found = [Finding("balance", "", sentence) for sentence in broken_invariants(tally)]
        for kind, names, sentence in (
            ("overdue", self.overdue, "is open past its call's deadline"),
            ("left_open", self.left_open, "is open, but its call has ended"),
            ("unnamed", self.unnamed, "is ambiguous and names no cause"),
            ("unclosed", self.unclosed, "belongs to a dead owner and has no outcome"),
        ):
            found += [Finding(kind, name, f"{name} {sentence}") for name in names]
        for (model, currency), number in sorted(self.unpriced.items()):
            why = unknown(model, currency)
            reason = why.why if why else "write `prices` for it"
            sentence = f"{number} attempts of {model} have no price in {currency or 'any currency'}: {reason}"
            found.append(Finding("unpriced", model, sentence))
        return found


@dataclass(frozen=True, slots=True)
class Difference:
    """Tokens of an attempt that we counted, ours and the provider's."""

    attempt_id: str
    input: int
    input_theirs: int
    output: int
    output_theirs: int


@dataclass(slots=True)
class Comparison:
    """The ledger against a provider's book. `paid_twice`: calls with more than one charged execution."""

    executions: int = 0
    running: int = 0
    settled: int = 0
    estimated: int = 0
    ambiguous: int = 0
    ambiguous_charged: int = 0
    paid_twice: int = 0
    billed: Counter[str] = field(default_factory=Counter)
    charged: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def compare(
    executions: Sequence[Execution],
    records: Iterable[CallRecord],
    *,
    asked: float,
    begin: float | None = None,
) -> Comparison:
    """Hold the ledger against the book. `asked`: when the book was read, before the ledger was (wall-clock seconds).

    `begin`: the book is whole from then on; None: from its first execution on. Attempts that ended after the book was
    read are compared only if they stand in it.
    """
    if begin is None:
        begin = min((one.started for one in executions), default=asked)
    tried = [
        Tried(record, attempt)
        for record in records
        for attempt in record.attempts
        if attempt.started >= begin - 1
    ]
    matches = matched((one for one in executions if one.started >= begin), tried)
    made = Comparison(len(matches.by_attempt) + len(matches.strangers))
    for stranger in matches.strangers:
        what = f"execution {stranger.id} of request {stranger.request_id} is in no record"
        made.findings.append(Finding("stranger", stranger.id, what))
    calls: dict[str, list[Tried]] = defaultdict(list)
    for one in tried:
        calls[one.record.call_id].append(one)
        execution = matches.by_attempt.get(one.attempt.attempt_id)
        if execution is not None and execution.ended is None:
            made.running += 1
        elif execution is not None:
            _judge(made, one.attempt, execution)
        elif one.attempt.started >= begin and one.attempt.started + one.attempt.ended < asked:
            _miss(made, one.attempt)
    for attempts in calls.values():
        _bill(made, attempts, matches.by_attempt)
    return made


def _judge(made: Comparison, attempt: AttemptRecord, execution: Execution) -> None:
    name = attempt.attempt_id
    ours = (attempt.input, attempt.output, attempt.cached, attempt.cost_micro, attempt.currency)
    theirs = (execution.input, execution.output, execution.cached, execution.cost_micro, execution.currency)
    if attempt.state == State.SETTLED:
        made.settled += 1
        if ours != theirs:
            what = f"{name} was settled with {_told(ours)}, the book has {_told(theirs)}"
            made.findings.append(Finding("settled_differs", name, what))
    elif attempt.state == State.SETTLED_EST:
        made.estimated += 1
        made.differences.append(
            Difference(name, attempt.input, execution.input, attempt.output, execution.output)
        )
        if attempt.output > execution.output or (attempt.cost_micro or 0) > execution.cost_micro:
            what = f"{name} was counted as {_told(ours)}, the book has only {_told(theirs)}"
            made.findings.append(Finding("estimated_above", name, what))
    elif attempt.state == State.AMBIGUOUS:
        made.ambiguous += 1
        made.ambiguous_charged += execution.cost_micro > 0
        if not execution.fault and execution.how == "completed" and attempt.cause not in _OURS:
            what = f"{name} is ambiguous ({attempt.cause}), but the book knows of no event"
            made.findings.append(Finding("no_event", name, what))
    elif attempt.state == State.RELEASED and execution.cost_micro:
        what = f"{name} was released, but the book charges {execution.cost_micro} for {execution.id}"
        made.findings.append(Finding("released_charged", name, what))


def _told(figures: tuple[int, int, int, int | None, str]) -> str:
    given, output, cached, cost, currency = figures
    return f"in {given} out {output} cached {cached} cost {cost} {currency}"


def _miss(made: Comparison, attempt: AttemptRecord) -> None:
    """An attempt that the book does not have."""
    if attempt.state in (State.SETTLED, State.SETTLED_EST):
        what = f"{attempt.attempt_id} is {attempt.state}, but the book has no such execution"
        made.findings.append(Finding("not_in_book", attempt.attempt_id, what))
    elif attempt.state == State.AMBIGUOUS:
        made.ambiguous += 1


def _bill(made: Comparison, attempts: Sequence[Tried], found: dict[str, Execution]) -> None:
    """A call's bill never exceeds what the provider charges for it; a provisional charge may, until it is corrected."""
    record = attempts[0].record
    executions = [found[one.attempt.attempt_id] for one in attempts if one.attempt.attempt_id in found]
    made.paid_twice += sum(one.cost_micro > 0 for one in executions) > 1
    unsure = any(one.attempt.state in (*OPEN, State.AMBIGUOUS) for one in attempts)
    if not executions or unsure or any(one.ended is None for one in executions):
        return
    charged: Counter[str] = Counter()
    for execution in executions:
        charged[execution.currency] += execution.cost_micro
    billed = record.billed_micro or 0
    made.billed[record.currency] += billed
    made.charged.update(charged)
    if billed > charged[record.currency]:
        what = (
            f"{record.call_id} is billed {billed} {record.currency}, the book has {charged[record.currency]}"
        )
        made.findings.append(Finding("billed_above", record.call_id, what))
