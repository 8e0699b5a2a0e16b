"""What an attempt is charged: by proof, by the provider's count, by ours as a floor, or not before it is clear."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.call import Usage
from moongate.core.charging import Charge, bill, charge, counted, is_charged, sum_up
from moongate.core.faults import Failure, Fault, Reach, Settle, rule
from moongate.core.ledger import FINAL, State
from moongate.core.record import AttemptRecord, CallRecord
from moongate.core.surface import Answer, ToolCall

USAGE = Usage(10, 5)
WITH, WITHOUT = Answer(usage=USAGE), Answer()
SUSPECT = Answer(usage=Usage(10, 0), usage_suspect=True)
EVERY = list(product(Fault, Reach))


def test_the_providers_usage_settles() -> None:
    assert charge(None, WITH) == Charge(State.SETTLED, USAGE)


@pytest.mark.parametrize(
    ("answer", "flag"), [(WITHOUT, "usage_missing"), (None, "usage_missing"), (SUSPECT, "usage_suspect")]
)
def test_a_whole_answer_without_sound_usage_is_counted_and_flagged(answer: Answer | None, flag: str) -> None:
    assert charge(None, answer) == Charge(State.SETTLED_EST, counted=True, flag=flag)


@pytest.mark.parametrize(("fault", "reach"), EVERY)
def test_a_failure_ends_as_the_fault_table_says_and_usage_is_proof(fault: Fault, reach: Reach) -> None:
    settle = rule(fault, reach).settle
    known, bare = charge(Failure(fault, reach), WITH), charge(Failure(fault, reach), WITHOUT)
    if settle is Settle.RELEASED:
        assert known == bare == Charge(State.RELEASED)
        return
    assert known == Charge(State.SETTLED, USAGE)
    ends = {
        Settle.AMBIGUOUS: State.AMBIGUOUS,
        Settle.ESTIMATED: State.SETTLED_EST,
        Settle.REPORTED: State.RELEASED,
    }
    assert bare.state is ends[settle]
    assert bare.usage is None
    left = fault is Fault.CLIENT_CLOSED and bare.state is State.AMBIGUOUS
    assert bare.counted == (left or bare.state is State.SETTLED_EST)
    assert charge(Failure(fault, reach), SUSPECT) == bare


def test_in_doubt_only_a_client_that_left_is_charged_at_once() -> None:
    charged = {
        fault
        for fault, reach in EVERY
        if (found := charge(Failure(fault, reach), None)).counted and found.state is State.AMBIGUOUS
    }
    assert charged == {Fault.CLIENT_CLOSED}


def test_each_piece_of_a_stream_is_a_token_at_least() -> None:
    assert counted(40, 0, Answer(text="one two", pieces=3)) == Usage(40, 3)
    assert counted(40, 0, Answer(text="one two three", reasoning="so so", pieces=1)) == Usage(40, 5, 0, 2)
    thought = Answer(reasoning="x" * 8, tool_calls=[ToolCall(0, name="f", arguments="{}1")], pieces=6)
    assert counted(40, 0, thought).output == 6
    called = Answer(tool_calls=[ToolCall(0, name="get_weather", arguments='{"city": "x"}')])
    assert counted(40, 0, called) == Usage(40, 4)


def test_letters_that_come_one_by_one_are_no_tokens() -> None:
    assert counted(40, 0, Answer(text="internationalisation", pieces=20)) == Usage(40, 3)
    assert counted(40, 0, Answer(text="internationalisation", pieces=11)) == Usage(40, 3)
    assert counted(40, 0, Answer(text="internationalisation", pieces=10)) == Usage(40, 10)


def test_hits_of_the_prompt_cache_are_taken_as_the_provider_told_them_within_the_prompt() -> None:
    assert counted(40, 30, None) == Usage(40, cached=30)
    assert counted(40, 50, None) == Usage(40, cached=40)
    assert counted(40, -1, WITHOUT) == Usage(40)


def attempt(state: State, cost: int | None, currency: str = "USD", tokens: int = 1) -> AttemptRecord:
    return AttemptRecord("c-1", "t", state=state, cost_micro=cost, currency=currency, input=tokens)


def billed(*attempts: AttemptRecord) -> int | None:
    record = CallRecord("c", attempts=list(attempts))
    sum_up(record)
    return record.billed_micro


def test_a_bill_is_the_sum_of_what_used_tokens() -> None:
    free, paid = attempt(State.RELEASED, None, tokens=0), attempt(State.SETTLED, 30)
    assert billed(paid) == 30
    assert billed(free) == 0
    assert billed(free, paid) == 30
    assert billed(paid, paid, free) == 60
    assert billed(attempt(State.SETTLED, None)) is None
    assert billed(paid, attempt(State.SETTLED, None)) is None
    assert is_charged(paid)
    assert not is_charged(free)


def test_a_bill_has_one_currency_that_of_the_last_attempt() -> None:
    assert billed(attempt(State.SETTLED, 700, "CNY"), attempt(State.SETTLED, 30)) == 30
    assert bill([attempt(State.SETTLED, 700, "CNY"), attempt(State.SETTLED, 30)], "CNY") == 700


def test_the_call_takes_its_tokens_and_its_model_from_its_last_attempt() -> None:
    record = CallRecord("c", attempts=[AttemptRecord("c-1"), AttemptRecord("c-2", "t", model="m", output=4)])
    sum_up(record)
    assert (record.source, record.model, record.usage) == ("upstream", "m", Usage(0, 4))


@given(st.lists(st.tuples(st.sampled_from(sorted(FINAL)), st.none() | st.integers(0, 99)), min_size=1))
def test_whatever_happened_before_no_attempt_is_billed_twice(ends: list[tuple[State, int | None]]) -> None:
    attempts = [attempt(state, cost) for state, cost in ends]
    total = billed(*attempts)
    costs = [cost for _, cost in ends]
    assert total == (None if None in costs else sum(cost for cost in costs if cost))
