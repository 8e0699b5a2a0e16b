"""Each execution of a provider's book belongs to one attempt at most, and each attempt to one execution."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.book import BookError, Execution, Tried, matched, read_book
from moongate.core.ledger import State
from moongate.core.record import AttemptRecord, CallRecord


def ran(name: str, started: float = 10.0, request: str = "r", model: str = "m") -> Execution:
    return Execution(name, request, model, started, started + 1)


def tried(
    name: str, started: float = 10.0, *, answer: str = "", request: str = "r", ended: float = 1.0
) -> Tried:
    attempt = AttemptRecord(name, model="m", started=started, ended=ended, answer_id=answer)
    return Tried(CallRecord(name[0], request, attempts=[attempt]), attempt)


def test_a_book_is_read_as_the_simulator_writes_it() -> None:
    row = {
        "id": "chatcmpl-1", "request_id": "r", "model": "m", "started": 1.5, "ended": None, "how": "running",
        "fault": None, "input_tokens": 9, "output_tokens": 8, "cached_tokens": 7, "tokens_emitted": 6,
        "cost_micro": 5, "currency": "USD", "host": "kimi", "body_digest": "x",
    }  # fmt: skip
    [one] = read_book(json.dumps({"executions": [row]}).encode())
    assert one == Execution("chatcmpl-1", "r", "m", 1.5, None, "running", None, 9, 8, 7, 6, 5, "USD")


@pytest.mark.parametrize("document", [b"", b"[]", b"{}", b'{"executions":[{}]}', b"[" * 5000])
def test_what_is_no_book_is_refused(document: bytes) -> None:
    with pytest.raises(BookError, match="no book"):
        read_book(document)


def test_the_answers_id_tells_whatever_the_times_are() -> None:
    first, second = tried("a-1", 10.0, answer="x"), tried("b-1", 10.0, answer="y")
    found = matched([ran("y", 99.0), ran("x", 99.0)], [first, second])
    assert {name: one.id for name, one in found.by_attempt.items()} == {"a-1": "x", "b-1": "y"}
    assert found.strangers == []


def test_without_it_request_model_and_time_tell() -> None:
    early, late = tried("a-1", 10.0), tried("a-2", 20.0)
    found = matched([ran("q", 20.1), ran("p", 10.1)], [early, late])
    assert {name: one.id for name, one in found.by_attempt.items()} == {"a-1": "p", "a-2": "q"}


@pytest.mark.parametrize(
    "execution",
    [ran("z", request="other"), ran("z", model="other"), ran("z", 13.5), ran("z", 7.5)],
    ids=["request", "model", "after its end", "before its start"],
)
def test_an_execution_that_no_attempt_caused_is_a_stranger(execution: Execution) -> None:
    assert matched([execution], [tried("a-1")]).strangers == [execution]


def test_an_attempt_in_doubt_may_have_been_taken_up_after_it_ended() -> None:
    late = tried("a-1")
    late.attempt.state = State.AMBIGUOUS
    assert matched([ran("z", 500.0)], [late]).strangers == []
    assert matched([ran("z", 7.5)], [late]).strangers == [ran("z", 7.5)]


def test_an_attempt_whose_end_nobody_saw_may_have_run_at_any_time_after_its_start() -> None:
    assert matched([ran("z", 500.0)], [tried("a-1", ended=-1.0)]).strangers == []


def test_an_attempt_that_has_an_answer_is_given_no_other_execution() -> None:
    found = matched([ran("x"), ran("y")], [tried("a-1", answer="x")])
    assert [one.id for one in found.strangers] == ["y"]
    assert matched([ran("y")], [tried("a-1", answer="x")]).strangers == [ran("y")]
    assert matched([ran("x"), ran("x", 11.0)], [tried("a-1", answer="x")]).strangers == [ran("x", 11.0)]


TIMES = st.lists(st.floats(0, 50, allow_nan=False), max_size=6)


@given(TIMES, TIMES, st.lists(st.booleans(), min_size=6, max_size=6))
def test_nothing_is_matched_twice_and_nothing_is_lost(
    starts: list[float], attempts: list[float], answered: list[bool]
) -> None:
    executions = [ran(f"e{at}", start) for at, start in enumerate(starts)]
    tries = [
        tried(f"c-{at}", start, answer=f"e{at}" if answered[at] else "") for at, start in enumerate(attempts)
    ]
    found = matched(executions, tries)
    given = [one.id for one in found.by_attempt.values()]
    assert len(set(given)) == len(given)
    assert sorted([*given, *(one.id for one in found.strangers)]) == [one.id for one in executions]
