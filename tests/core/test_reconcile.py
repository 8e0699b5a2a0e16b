"""Doubt ends by proof or by age, once, with a reason; what is settled already is never touched; bills follow."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.book import Execution
from moongate.core.call import Usage
from moongate.core.ledger import FINAL, OPEN, Event, State
from moongate.core.pricing import PriceRow, PriceTable
from moongate.core.reconcile import (
    DAY,
    LATE,
    Desk,
    Proof,
    amended,
    day_of,
    doubtful,
    from_book,
    from_statement,
    too_old,
)
from moongate.core.record import AttemptRecord, CallRecord
from moongate.core.statement import Charged, Statement

NOON = 1_796_040_000.0  # 2026-11-30 12:00 UTC
DESK = Desk("me", NOON + 99, PriceTable([PriceRow("m", "USD", "2026-01-01", 100_000, 1_000_000, 2_000_000)]))


def attempt(number: int = 1, state: State = State.AMBIGUOUS, **fields: Any) -> AttemptRecord:
    told: dict[str, Any] = {
        "model": "m",
        "started": NOON,
        "ended": 1.0,
        "currency": "USD",
        "cost_micro": 0,
    }
    if state in (State.SETTLED, State.SETTLED_EST):
        told |= {"input": 10, "output": 5, "cost_micro": 20}
    return AttemptRecord(f"c-{number}", "t", state=state, **told | fields)


def call(*attempts: AttemptRecord, **fields: Any) -> CallRecord:
    told: dict[str, Any] = {"outcome": "failed", "created": NOON, "billed_micro": 0, "currency": "USD"}
    return CallRecord("c", "r", attempts=list(attempts), **told | fields)


def left() -> AttemptRecord:
    """In doubt, and charged for now: its client left."""
    return attempt(input=10, cost_micro=10, cause="client_closed", tokens_source="counted")


def ran(**fields: Any) -> Execution:
    told: dict[str, Any] = {
        "request_id": "r", "model": "m", "started": NOON + 0.1, "ended": NOON + 0.5, "how": "aborted", "input": 8,
        "output": 4, "cost_micro": 16, "currency": "USD",
    }  # fmt: skip
    return msgspec.structs.replace(Execution("e"), **told | fields)


def settle(**fields: Any) -> Proof:
    told: dict[str, Any] = {"usage": Usage(8, 4), "cost_micro": 16, "currency": "USD"}
    return Proof(Event.SETTLE, "seen", **told | fields)


RELEASE, OFF = Proof(Event.RELEASE, "not there"), Proof(Event.WRITE_OFF, "too old")


def corrected(record: CallRecord, proof: Proof, desk: Desk = DESK) -> CallRecord:
    made = amended(record, {"c-1": proof}, desk)
    assert made is not None
    return made


def test_a_proof_settles_with_the_providers_figures_and_the_bill_follows() -> None:
    before = call(attempt())
    made = corrected(before, settle())
    [one] = made.attempts
    assert (one.state, one.usage, one.cost_micro, one.tokens_source) == (
        "settled",
        Usage(8, 4),
        16,
        "provider",
    )
    assert one.price_row == "m/USD/2026-01-01"
    assert (made.billed_micro, made.usage) == (16, Usage(8, 4))
    [correction] = made.corrections
    assert (correction.who, correction.at, correction.why) == ("me", NOON + 99, "seen")
    assert (correction.before, correction.after) == ("ambiguous", "settled")
    assert (correction.billed_before, correction.billed_after) == (0, 16)
    assert before.attempts[0].state == "ambiguous", "the record itself is left as it was"


def test_where_the_provider_tells_no_cost_it_is_counted_and_where_no_tokens_ours_stay() -> None:
    assert corrected(call(attempt()), settle(cost_micro=None)).billed_micro == 16
    made = corrected(call(left(), billed_micro=10), settle(usage=None, cost_micro=33))
    assert (made.attempts[0].input, made.billed_micro) == (10, 33)
    bare = corrected(call(attempt(currency="")), settle(usage=None, currency=""), DESK)
    assert (bare.billed_micro, bare.attempts[0].price_row) == (16, "")
    told = corrected(
        call(attempt(currency="")), settle(currency=""), Desk("me", 0.0, DESK.prices, lambda _: "USD")
    )
    assert told.attempts[0].price_row == "m/USD/2026-01-01"


def test_a_release_takes_back_what_was_charged_for_now() -> None:
    made = corrected(call(left(), billed_micro=10), RELEASE)
    assert (made.attempts[0].state, made.attempts[0].usage, made.billed_micro) == ("released", Usage(), 0)
    assert made.corrections[0].billed_before == 10


def test_what_is_written_off_keeps_what_was_charged_for_now_and_costs_nothing_else() -> None:
    assert corrected(call(left(), billed_micro=10), OFF).billed_micro == 10
    assert corrected(call(attempt()), OFF).billed_micro == 0


def test_a_bill_of_several_attempts_is_their_sum() -> None:
    made = corrected(call(attempt(), attempt(2, State.SETTLED), billed_micro=20), settle())
    assert (made.billed_micro, len(made.corrections)) == (36, 1)


@pytest.mark.parametrize("state", [*OPEN, *FINAL])
@pytest.mark.parametrize("proof", [settle(), RELEASE, OFF])
def test_what_is_in_no_doubt_is_never_touched(state: State, proof: Proof) -> None:
    assert amended(call(attempt(state=state)), {"c-1": proof}, DESK) is None
    assert amended(call(attempt(state=state)), {}, DESK) is None


def test_a_state_of_a_later_version_is_left_alone() -> None:
    odd = attempt()
    odd.state = "from the future"
    assert amended(call(odd), {"c-1": settle()}, DESK) is None


def test_corrections_are_kept_in_order() -> None:
    first = corrected(call(attempt(), attempt(2)), settle())
    second = amended(first, {"c-2": OFF}, DESK)
    assert second is not None
    assert [one.attempt_id for one in second.corrections] == ["c-1", "c-2"]


def test_a_price_that_became_known_is_filled_in() -> None:
    unpriced = attempt(state=State.SETTLED, cost_micro=None, currency="")
    desk = Desk("me", 1.0, DESK.prices, lambda _target: "USD")
    made = amended(call(unpriced, billed_micro=None), {}, desk)
    assert made is not None
    assert (made.billed_micro, made.attempts[0].price_row) == (20, "m/USD/2026-01-01")
    assert made.corrections[0].why == "its price is known now: m/USD/2026-01-01"
    assert made.corrections[0].before == made.corrections[0].after == "settled"
    assert amended(call(unpriced, billed_micro=None), {}, DESK) is None, "its currency is not known"


def test_a_book_settles_what_ran_and_releases_what_did_not() -> None:
    record = call(attempt(), attempt(2, started=NOON + 60))
    proofs = from_book([ran(), ran(id="old", request_id="x", started=NOON - 9)], [record], asked=NOON + 199)
    assert proofs["c-1"].event is Event.SETTLE
    assert (proofs["c-1"].usage, proofs["c-1"].cost_micro) == (Usage(8, 4), 16)
    assert proofs["c-2"] == Proof(Event.RELEASE, "the provider's book has no such execution")


def test_a_book_proves_nothing_about_what_runs_ended_later_or_came_before_it() -> None:
    record = call(attempt())
    assert from_book([ran(ended=None)], [record], asked=NOON + 199) == {}
    assert from_book([], [record], asked=NOON + 0.5, begin=0.0, late=0.0) == {}
    assert from_book([], [record], asked=NOON + LATE, begin=0.0) == {}, "a busy provider may take it up yet"
    assert from_book([ran(request_id="x", started=NOON + 50)], [record], asked=NOON + 199) == {}
    assert from_book([], [record], asked=NOON + 199) == {}
    assert list(from_book([], [record], asked=NOON + 199, begin=0.0)) == ["c-1"]


def test_an_execution_that_was_charged_nothing_releases() -> None:
    proofs = from_book([ran(input=0, output=0, cost_micro=0)], [call(attempt())], asked=NOON + 199)
    assert proofs["c-1"].event is Event.RELEASE


def row(day: str, request_id: str = "", micro: int = 20, **fields: Any) -> Charged:
    told: dict[str, Any] = {"model": "m", "currency": "USD", "request_id": request_id}
    return Charged(day, cost_micro=micro, **told | fields)


BEFORE, DAY_OF, AFTER = "2026-11-29", "2026-11-30", "2026-12-01"


@pytest.mark.parametrize("name", ["provider_request_id", "provider_trace_id", "answer_id"])
def test_a_statements_row_settles_the_attempt_whose_id_it_bears(name: str) -> None:
    doubtful_one = attempt()
    setattr(doubtful_one, name, "x")
    record = call(doubtful_one)
    proofs = from_statement(Statement((row(DAY_OF, "x", input=8, output=4),)), [record])
    assert (proofs["c-1"].event, proofs["c-1"].usage, proofs["c-1"].cost_micro) == (
        Event.SETTLE,
        Usage(8, 4),
        20,
    )
    bare = from_statement(Statement((row(DAY_OF, "x"),)), [record])
    assert bare["c-1"].usage is None
    free = from_statement(Statement((row(DAY_OF, "x", 0),)), [record])
    assert free["c-1"].event is Event.RELEASE


def test_a_statement_of_requests_with_days_around_it_releases_what_it_lacks() -> None:
    rows = (row(BEFORE, "a"), row(AFTER, "b"))
    known, unknown = call(attempt(provider_request_id="x")), call(attempt())
    assert from_statement(Statement(rows), [known])["c-1"].event is Event.RELEASE
    assert from_statement(Statement(rows), [unknown]) == {}, "without an id nothing can be missed"
    assert from_statement(Statement(rows[:1]), [known]) == {}, "the statement may not be whole"
    assert from_statement(Statement((row(DAY_OF, "a"), row(AFTER, "b"))), [known]) == {}, "nor its first day"
    assert from_statement(Statement((row(BEFORE, "a"), row(DAY_OF, "b"))), [known]) == {}, "nor its last"
    assert from_statement(Statement((*rows, row(DAY_OF))), [known]) == {}, "not every row is a request"


@pytest.mark.parametrize(("micro", "released"), [(20, True), (19, True), (21, False)])
def test_a_days_sum_that_is_reached_by_what_is_settled_leaves_nothing_for_doubt(
    micro: int, released: bool
) -> None:
    record = call(attempt(), attempt(2, State.SETTLED))
    proofs = from_statement(Statement((row(DAY_OF, micro=micro),)), [record])
    assert list(proofs) == (["c-1"] if released else [])
    other = from_statement(Statement((row(DAY_OF, micro=micro, model=""),)), [record])
    assert other == {}, "without models a sum says nothing of one"


def test_age_writes_off() -> None:
    record = call(attempt())
    assert too_old([record], NOON + 14 * DAY, 14) == {}
    assert too_old([record], NOON + 14 * DAY + 1, 14)["c-1"].event is Event.WRITE_OFF
    assert too_old([call(attempt(state=State.SETTLED))], NOON + 99 * DAY, 14) == {}
    assert day_of(NOON) == DAY_OF


EVENTS = st.sampled_from([settle(), RELEASE, OFF, None])


@given(
    st.lists(st.sampled_from(list(State)), min_size=1, max_size=4), st.lists(EVENTS, min_size=4, max_size=4)
)
def test_a_second_look_changes_nothing_and_no_attempt_is_lost(
    states: list[State], words: list[Proof | None]
) -> None:
    record = call(*(attempt(number, state) for number, state in enumerate(states, 1)))
    proofs = {f"c-{number}": word for number, word in enumerate(words, 1) if word is not None}
    made = amended(record, proofs, DESK) or record
    assert [one.attempt_id for one in made.attempts] == [one.attempt_id for one in record.attempts]
    assert amended(made, proofs, DESK) is None
    still = [one.attempt.attempt_id for one in doubtful([made])]
    assert not set(still) & set(proofs)
    charged = sum(one.cost_micro or 0 for one in made.attempts if one.input or one.output)
    assert made is record or made.billed_micro == charged
