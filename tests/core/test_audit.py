"""What `ledger verify` counts, and that it finds each thing that must not be, and nothing else."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.audit import PATIENCE, Comparison, Count, compare
from moongate.core.book import Execution
from moongate.core.ledger import OPEN, State
from moongate.core.record import AttemptRecord, CallRecord, Correction

NOW = 1000.0


def attempt(state: str = State.SETTLED, **fields: Any) -> AttemptRecord:
    told: dict[str, Any] = {
        "model": "kimi-k2.6", "started": 10.0, "ended": 1.0, "input": 7, "output": 5, "cost_micro": 30,
        "currency": "USD", "cause": "kimi_bad_response" if state == State.AMBIGUOUS else "",
    }  # fmt: skip
    if state in (State.RELEASED, State.AMBIGUOUS, *OPEN):
        told |= {"input": 0, "output": 0, "cost_micro": 0}
    return AttemptRecord("c-1", "t", state=state, **told | fields)


def call(*attempts: AttemptRecord, **fields: Any) -> CallRecord:
    told: dict[str, Any] = {"outcome": "completed", "billed_micro": 30, "currency": "USD", "created": 10.0}
    return CallRecord("c", "r", attempts=list(attempts), **told | fields)


def ran(**fields: Any) -> Execution:
    told: dict[str, Any] = {
        "request_id": "r", "model": "kimi-k2.6", "started": 10.1, "ended": 10.9, "how": "completed",
        "input": 7, "output": 5, "cost_micro": 30, "currency": "USD",
    }  # fmt: skip
    return msgspec.structs.replace(Execution("e"), **told | fields)


def counted(*records: CallRecord, dead: frozenset[str] = frozenset()) -> Count:
    count = Count(NOW, dead)
    for record in records:
        count.add(record)
    return count


def kinds(*records: CallRecord, dead: frozenset[str] = frozenset()) -> list[str]:
    return [finding.kind for finding in counted(*records, dead=dead).findings()]


def test_a_sound_ledger_has_no_findings() -> None:
    running = call(attempt(State.SENT), outcome="", deadline=NOW + 5)
    late = call(attempt(State.SENT), outcome="", deadline=NOW - PATIENCE + 1)
    good = [call(attempt(state)) for state in State if state not in OPEN]
    count = counted(running, late, *good)
    assert count.findings() == []
    assert count.calls == {"open": 2, "completed": 5}
    assert sum(count.states.values()) == 7


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        (call(attempt(State.SENT), outcome="", deadline=NOW - PATIENCE - 1), "overdue"),
        (call(attempt(State.FIRST_EVENT)), "left_open"),
        (call(attempt(State.AMBIGUOUS, cause="")), "unnamed"),
        (call(outcome="", owner="dead"), "unclosed"),
        (call(attempt(cost_micro=None)), "unpriced"),
        (call(attempt("lost")), "balance"),
    ],
)
def test_each_broken_invariant_is_found_and_named(record: CallRecord, kind: str) -> None:
    assert kinds(record, dead=frozenset({"dead"})) == [kind]


def test_what_has_no_price_is_said_with_the_reason() -> None:
    known = call(attempt(cost_micro=None, model="kimi-k3.1-pro", currency="CNY"))
    own = call(attempt(cost_micro=None, model="own", currency=""))
    first, second = counted(known, known, own).findings()
    assert first.what.startswith(
        "2 attempts of kimi-k3.1-pro have no price in CNY: no price in CNY was found"
    )
    assert second.what == "1 attempts of own have no price in any currency: write `prices` for it"
    assert counted(call(attempt(cost_micro=None, input=0, output=0))).findings() == []


def test_what_is_charged_for_now_counted_by_us_and_corrected_is_counted_apart() -> None:
    left = attempt(State.AMBIGUOUS, input=7, cost_micro=4, cause="client_closed")
    suspect = attempt(State.SETTLED_EST, detail="usage_missing")
    count = counted(call(left), call(suspect), call(attempt(), corrections=(Correction("c-1"),)))
    assert (count.provisional, count.suspect, count.corrected) == (1, 1, 1)


def compared(
    record: CallRecord, *executions: Execution, asked: float = NOW, begin: float | None = None
) -> Comparison:
    return compare(executions, [record], asked=asked, begin=begin)


def test_a_settled_attempt_agrees_with_the_book_to_the_last_token() -> None:
    made = compared(call(attempt()), ran())
    assert made.findings == []
    assert (made.executions, made.settled) == (1, 1)
    assert made.billed == made.charged == {"USD": 30}


@pytest.mark.parametrize("name", ["input", "output", "cached", "cost_micro", "currency"])
def test_any_difference_of_a_settled_attempt_is_found(name: str) -> None:
    made = compared(call(attempt()), ran(**{name: "CNY" if name == "currency" else 99}))
    assert "settled_differs" in [finding.kind for finding in made.findings]


@pytest.mark.parametrize(
    ("ours", "theirs", "kind"),
    [
        ({}, {}, ""),
        ({"output": 3, "cost_micro": 20}, {}, ""),
        ({"output": 6}, {}, "estimated_above"),
        ({"cost_micro": 31}, {}, "estimated_above"),
        ({"cost_micro": None}, {}, ""),
    ],
)
def test_what_we_counted_is_never_above_the_book(
    ours: dict[str, Any], theirs: dict[str, Any], kind: str
) -> None:
    made = compared(call(attempt(State.SETTLED_EST, **ours)), ran(**theirs))
    assert [finding.kind for finding in made.findings] == ([kind] if kind else [])
    [difference] = made.differences
    assert difference.output_theirs == 5


@pytest.mark.parametrize(
    ("cause", "theirs", "found"),
    [
        ("kimi_bad_response", {}, ["no_event"]),
        ("kimi_bad_response", {"fault": "empty_200"}, []),
        ("kimi_bad_response", {"how": "aborted"}, []),
        ("client_closed", {}, []),
        ("gateway_crash", {}, []),
        ("kimi_network_timeout", {}, []),
    ],
)
def test_what_is_ambiguous_has_an_event(cause: str, theirs: dict[str, Any], found: list[str]) -> None:
    made = compared(call(attempt(State.AMBIGUOUS, cause=cause)), ran(**theirs))
    assert [finding.kind for finding in made.findings] == found
    assert (made.ambiguous, made.ambiguous_charged) == (1, 1)


def test_a_released_attempt_cost_nothing() -> None:
    assert compared(call(attempt(State.RELEASED), billed_micro=0), ran(cost_micro=0)).findings == []
    made = compared(call(attempt(State.RELEASED), billed_micro=0), ran())
    assert [finding.kind for finding in made.findings] == ["released_charged"]


def test_a_written_off_attempt_may_have_been_charged() -> None:
    assert compared(call(attempt(State.WRITTEN_OFF, input=0, output=0), billed_micro=0), ran()).findings == []


@pytest.mark.parametrize(
    ("state", "found"),
    [
        (State.SETTLED, ["not_in_book"]),
        (State.SETTLED_EST, ["not_in_book"]),
        (State.AMBIGUOUS, []),
        (State.RELEASED, []),
    ],
)
def test_what_was_charged_is_in_the_book(state: State, found: list[str]) -> None:
    made = compared(call(attempt(state)), begin=0.0)
    assert [finding.kind for finding in made.findings] == found
    assert made.ambiguous == (state is State.AMBIGUOUS)


def test_the_book_is_held_only_to_the_time_it_tells_of() -> None:
    assert compared(call(attempt()), begin=500.0).findings == [], "before the book begins"
    assert compared(call(attempt()), asked=10.5, begin=0.0).findings == [], "it ended after the book was read"
    assert compared(call(attempt())).findings == [], "an empty book tells of nothing"
    assert compared(call(attempt()), ran(started=3.0), begin=5.0).executions == 0


def test_an_execution_that_no_record_knows_is_found() -> None:
    made = compared(call(attempt()), ran(), ran(id="x", request_id="other"))
    assert [(finding.kind, finding.about) for finding in made.findings] == [("stranger", "x")]


def test_what_still_runs_is_not_judged() -> None:
    made = compared(call(attempt(output=1)), ran(ended=None, cost_micro=0))
    assert made.findings == []
    assert made.running == 1


def test_a_bill_above_the_providers_is_found_but_not_one_that_is_for_now() -> None:
    made = compared(call(attempt(), billed_micro=31), ran())
    assert [finding.kind for finding in made.findings] == ["billed_above"]
    left = attempt(State.AMBIGUOUS, input=7, cost_micro=31, cause="client_closed")
    assert compared(call(left, billed_micro=31), ran()).findings == []
    again = msgspec.structs.replace(attempt(), attempt_id="c-2", started=20.0)
    both = compared(call(left, again, billed_micro=61), ran(), ran(id="f", started=20.1))
    assert both.findings == [], "one of the two is in doubt"
    assert compared(call(attempt(), billed_micro=None), ran()).findings == []


def test_two_charged_executions_of_one_call_are_counted() -> None:
    doubt = attempt(State.AMBIGUOUS)
    again = msgspec.structs.replace(attempt(), attempt_id="c-2", started=20.0)
    made = compared(call(doubt, again), ran(how="aborted"), ran(id="f", started=20.1))
    assert (made.paid_twice, made.findings) == (1, [])


STATES = st.sampled_from([state for state in State if state not in OPEN])


@given(st.lists(STATES, max_size=5), st.lists(st.integers(0, 60), max_size=5))
def test_every_reservation_is_somewhere(states: list[State], costs: list[int]) -> None:
    record: Callable[[State], CallRecord] = lambda state: call(attempt(state))  # noqa: E731 - one use
    count = counted(*map(record, states))
    assert sum(count.states.values()) == len(states)
    made = compare([ran(id=f"e{at}", cost_micro=cost) for at, cost in enumerate(costs)], [], asked=NOW)
    assert len([finding for finding in made.findings if finding.kind == "stranger"]) == len(costs)
