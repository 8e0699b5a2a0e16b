"""A call as a story: its record line by line, each with the moment, and with the function that decided it.

Everything told stands in the record; nothing is guessed. Where a record does not say something, neither does the story.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from moongate.core.charging import is_charged
from moongate.core.faults import Fault, Reach, rule
from moongate.core.ledger import State
from moongate.core.record import CRASHED, AttemptRecord, CallRecord, Outcome

PriceOf = Callable[[str], str]
"""What the price row of that name says, for people; empty where it is not known any more."""

_FAULTS: Final = {fault.value for fault in Fault}
_REACHES: Final = {reach.label: reach for reach in Reach}
_MILLION: Final = 1e6


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that happened. `at`: seconds after the call's arrival, None where it has no moment of its own.

    `part` says what it belongs to; lines of the same part follow each other. `decided` names the function that decided
    it and what it came to, empty where nothing was decided.
    """

    part: str
    what: str
    at: float | None = None
    decided: str = ""


def story(record: CallRecord, price_of: PriceOf) -> list[Line]:
    """The lines of a call, in the order in which things happened."""
    lines = [*_asked(record), *_way_in(record)]
    before: AttemptRecord | None = None
    for number, attempt in enumerate(record.attempts, 1):
        lines += _attempt(record, attempt, f"attempt {number}", before)
        lines += _money(record, attempt, f"attempt {number}", price_of)
        before = attempt
    lines += _end(record)
    lines += _corrections(record)
    return lines


def _asked(record: CallRecord) -> Iterator[Line]:
    kind = "a stream" if record.stream else "a whole answer"
    user = f", user {record.user}" if record.user else ""
    peer = f" from {record.peer}" if record.peer else ""
    yield Line("asked", when(record.created), 0.0)
    who = f"tenant {record.tenant}{user}{peer}"
    yield Line("", who, decided=f"edge/api.Api.screen -> {record.key_id or 'no key'}")
    asked = f"{record.model_asked or 'no model'} as {kind}"
    yield Line("", asked, decided=f"edge/api.Api.handle -> route {record.route or 'none'}")
    if record.session:
        yield Line("", f"conversation {record.session}")
    if record.retry_of:
        yield Line("", f"again, for {record.retry_of}")
    if record.collapsed_with:
        yield Line("", f"answered with the exchange of {record.collapsed_with}")


def _way_in(record: CallRecord) -> Iterator[Line]:
    refused = record.outcome == Outcome.REFUSED
    answer = record.code if refused else "let in"
    yield Line(
        "admission", answer, decided=f"flow/admission.Admission.enter -> {answer}" if not refused else ""
    )
    yield Line("cache", "off")
    if record.attempts:
        places = [f"{one.target} ({one.model})" for one in record.attempts]
        yield Line("plan", ", then ".join(places), decided="core/routing.following")
    if record.edits:
        yield Line("edits", ", ".join(record.edits), decided="upstream/target.Target.prepare")


def _attempt(
    record: CallRecord, attempt: AttemptRecord, part: str, before: AttemptRecord | None
) -> Iterator[Line]:
    start = attempt.started - record.created
    if before is not None and before.ended >= 0:
        waited = attempt.started - before.started - before.ended
        if waited >= 0.001:
            yield Line(part, f"after a wait of {waited:.3f} s", start)
    connection = "a kept connection" if attempt.reused else "a new connection"
    account = f", account {attempt.account}" if attempt.account != attempt.target else ""
    what = f"{attempt.target}{account}, {attempt.model}: {attempt.request_bytes:,} bytes over {connection}"
    yield Line(part, what, start, "flow/ledger.Entry.sent -> in the journal before its first byte")
    points = (
        ("connected", attempt.connected),
        ("sent", attempt.sent),
        (f"head, status {attempt.status}", attempt.head),
        ("first event", attempt.first_event),
    )
    for what, after in points:
        if after >= 0 and not (what == "connected" and attempt.reused):
            yield Line(part, what, start + after)
    end = start + attempt.ended if attempt.ended >= 0 else None
    yield Line(part, _how(attempt), end, _ruled(attempt))
    for name, given in (
        ("provider's request id", attempt.provider_request_id),
        ("provider's trace id", attempt.provider_trace_id),
        ("answer's id", attempt.answer_id),
    ):
        if given:
            yield Line(part, f"{name} {given}")


def _how(attempt: AttemptRecord) -> str:
    if not attempt.cause:
        whole = f"whole, {attempt.response_bytes:,} bytes" if attempt.ended >= 0 else "under way"
        return f"{whole} ({attempt.detail})" if attempt.detail else whole
    code = f" (told as {attempt.code})" if attempt.code not in ("", attempt.cause) else ""
    phase = f" in phase {attempt.phase}" if attempt.phase else ""
    reach = f", reach {attempt.reach}" if attempt.reach else ""
    detail = f": {attempt.detail}" if attempt.detail else ""
    return f"{attempt.cause}{code}{phase}{reach}{detail}"


def _ruled(attempt: AttemptRecord) -> str:
    """The row of the fault table that said what may follow."""
    if attempt.cause == CRASHED:
        return "store/view.close_orphans -> its process died"
    if attempt.cause not in _FAULTS:
        return ""
    reach = _REACHES.get(attempt.reach, Reach.NOTHING_SENT)
    follows = rule(Fault(attempt.cause), reach).next.value
    return f"core/faults.rule({attempt.cause}, {reach.label}) -> {follows}"


def _money(record: CallRecord, attempt: AttemptRecord, part: str, price_of: PriceOf) -> Iterator[Line]:
    first = next(
        (one.before for one in record.corrections if one.attempt_id == attempt.attempt_id), attempt.state
    )
    decided = "" if attempt.cause == CRASHED else f"core/charging.charge -> {first}"
    corrected = "" if first == attempt.state else f", corrected later to {attempt.state}"
    yield Line(part, f"ends {first}{corrected}", decided=decided)
    if not is_charged(attempt):
        return
    kinds = [("in", attempt.input), ("cached", attempt.cached), ("cache write", attempt.cache_write)]
    kinds += [("out", attempt.output), ("reasoning", attempt.reasoning)]
    tokens = ", ".join(f"{name} {number:,}" for name, number in kinds if number or name in ("in", "out"))
    by_us = attempt.tokens_source == "counted"
    yield Line(part, f"tokens {tokens}; source {attempt.tokens_source}", decided=_COUNTED if by_us else "")
    if attempt.cost_micro is None:
        yield Line(part, f"no price of {attempt.model} in {attempt.currency or 'its currency'} is known")
        return
    row = price_of(attempt.price_row)
    figures = f" ({row})" if row else ""
    what = f"price {attempt.price_row}{figures}"
    yield Line(part, what, decided=f"core/pricing.cost -> {amount(attempt.cost_micro, attempt.currency)}")


_COUNTED: Final = "core/charging.counted"


def _end(record: CallRecord) -> Iterator[Line]:
    if not record.outcome:
        until = f", until {when(record.deadline)} at most" if record.deadline else ""
        yield Line("now", f"it runs{until}")
        return
    end = record.duration if record.duration >= 0 else None
    told = f"status {record.status}, {record.delivered_bytes:,} bytes delivered"
    yield Line("end", f"{record.outcome}: {told}", end, f"flow/ledger.Entry -> {record.outcome}")
    if record.code:
        cause = f" ({record.cause})" if record.cause not in ("", record.code) else ""
        told_already = any(one.detail == record.detail for one in record.attempts)
        detail = f": {record.detail}" if record.detail and not told_already else ""
        yield Line("end", f"{record.code}{cause}{detail}", decided=_told(record))
    if record.retry_after >= 0:
        yield Line("end", f"told to wait {record.retry_after:g} s")
    if record.billed_micro is None:
        yield Line("bill", f"not known: a price is missing, tenant {record.tenant}")
        return
    doubt = any(one.state == State.AMBIGUOUS and is_charged(one) for one in record.attempts)
    currency = record.currency or ""
    what = f"{amount(record.billed_micro, currency)} to tenant {record.tenant}"
    yield Line("bill", what + (", for now" if doubt else ""), decided="core/charging.sum_up")


def _told(record: CallRecord) -> str:
    """What the client was told, and by which rule."""
    if record.cause not in _FAULTS:
        return ""
    last = record.attempts[-1] if record.attempts else None
    reach = last.reach if last is not None and last.cause == record.cause else Reach.NOTHING_SENT.label
    made = rule(Fault(record.cause), _REACHES.get(reach, Reach.NOTHING_SENT))
    retry = "true" if made.should_retry else "false"
    return f"core/faults.rule({record.cause}, {reach or 'nothing_sent'}) -> x-should-retry {retry}"


def _corrections(record: CallRecord) -> Iterator[Line]:
    for one in record.corrections:
        what = f"{one.attempt_id}: {one.before} becomes {one.after} by {one.who}: {one.why}"
        yield Line("corrected", f"{when(one.at)}, {what}", decided=f"core/reconcile.amended -> {one.after}")
        if one.billed_before != one.billed_after:
            before = _or_unknown(one.billed_before, record.currency)
            yield Line(
                "corrected", f"the bill was {before}, now {_or_unknown(one.billed_after, record.currency)}"
            )


def _or_unknown(micro: int | None, currency: str) -> str:
    return "not known" if micro is None else amount(micro, currency)


def amount(micro: int, currency: str) -> str:
    """An amount for people: units with six decimals, or two where nothing smaller is in it."""
    return f"{micro / _MILLION:,.{2 if micro % 10_000 == 0 else 6}f} {currency}".rstrip()


def when(moment: float) -> str:
    """A wall-clock second for people, in UTC."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"
