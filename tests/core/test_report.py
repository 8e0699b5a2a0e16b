"""A report adds up to what the records say, whatever it is by, and never adds two currencies."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.ledger import State
from moongate.core.record import AttemptRecord, CallRecord
from moongate.core.report import BY, NOBODY, TOKENS, Report

NOV, DEC = 1_796_040_000.0, 1_796_126_400.0


def attempt(state: State = State.SETTLED, target: str = "alpha", **fields: Any) -> AttemptRecord:
    told: dict[str, Any] = {
        "model": "m",
        "input": 10,
        "output": 5,
        "cached": 4,
        "cost_micro": 7,
        "currency": "USD",
    }
    return AttemptRecord("c-1", target, state=state, **told | fields)


def call(*attempts: AttemptRecord, **fields: Any) -> CallRecord:
    told: dict[str, Any] = {"tenant": "acme", "created": NOV, "outcome": "completed"}
    return CallRecord("c", attempts=list(attempts), **told | fields)


def made(by: tuple[str, ...], *records: CallRecord) -> Report:
    report = Report(by)
    for record in records:
        report.add(record)
    return report


def counts(report: Report) -> dict[tuple[str, ...], int]:
    return {names: group.calls for names, group in report.rows()}


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("tenant", {("acme",): 2, ("beta",): 1}),
        ("user", {("u1",): 1, (NOBODY,): 2}),
        ("model", {("m",): 2, ("n",): 1}),
        ("target", {(NOBODY,): 1, ("alpha",): 2}),
        ("day", {("2026-11-30",): 2, ("2026-12-01",): 1}),
    ],
)
def test_calls_are_counted_by_each_name(by: str, expected: dict[tuple[str, ...], int]) -> None:
    records = [call(attempt(), user="u1"), call(attempt(), created=DEC), call(tenant="beta", model="n")]
    assert counts(made((by,), *records)) == expected


def test_two_names_make_pairs_in_order() -> None:
    report = made(("tenant", "day"), call(created=DEC), call(), call(tenant="a"))
    assert list(counts(report)) == [("a", "2026-11-30"), ("acme", "2026-11-30"), ("acme", "2026-12-01")]


def test_a_call_at_two_targets_is_a_call_at_both_and_one_in_all() -> None:
    report = made(
        ("target",), call(attempt(State.RELEASED, cost_micro=0, input=0, output=0), attempt(target="beta"))
    )
    assert counts(report) == {("alpha",): 1, ("beta",): 1}
    assert report.total.calls == 1
    twice = made(("target",), call(attempt(), attempt()))
    assert counts(twice) == {("alpha",): 1}
    assert twice.total.attempts == 2


def test_amounts_are_apart_by_how_sure_they_are() -> None:
    report = made(
        ("tenant",),
        call(
            attempt(),
            attempt(State.SETTLED_EST, cost_micro=3),
            attempt(State.AMBIGUOUS, cost_micro=2),
            attempt(State.AMBIGUOUS, cost_micro=0, input=0, output=0),
            attempt(cost_micro=None),
        ),
    )
    group = report.total
    money = group.money["USD"]
    assert (money.settled, money.counted, money.for_now, money.billed) == (7, 3, 2, 12)
    assert (group.in_doubt, group.counted, group.unpriced, group.attempts) == (2, 1, 1, 5)
    assert group.tokens == {"input": 40, "output": 20, "cached": 16, "reasoning": 0, "cache_write": 0}


def test_what_runs_is_open_and_costs_nothing_yet() -> None:
    report = made((), call(attempt(State.SENT, input=0, output=0, cost_micro=None), outcome=""))
    assert report.total.outcomes == {"open": 1}
    assert report.total.money == {}
    assert counts(report) == {(): 1}


def test_currencies_stand_side_by_side() -> None:
    report = made(("tenant",), call(attempt()), call(attempt(currency="CNY", cost_micro=50)))
    assert report.currencies == ["CNY", "USD"]
    [(_, group)] = report.rows()
    assert {name: money.billed for name, money in group.money.items()} == {"CNY": 50, "USD": 7}


STATES = st.sampled_from(list(State))
ATTEMPTS = st.lists(
    st.builds(
        attempt,
        STATES,
        st.sampled_from(["a", "b"]),
        model=st.sampled_from(["m", "n"]),
        currency=st.sampled_from(["USD", "CNY"]),
        cost_micro=st.none() | st.integers(0, 50),
        input=st.integers(0, 9),
    ),
    max_size=3,
)
CALLS = st.lists(
    st.builds(lambda tries, day: call(*tries, created=day), ATTEMPTS, st.sampled_from([NOV, DEC]))
)


@given(CALLS, st.lists(st.sampled_from(BY), max_size=3))
def test_the_groups_add_up_to_the_whole_and_the_whole_to_the_records(
    records: list[CallRecord], by: list[str]
) -> None:
    report = made(tuple(by), *records)
    groups = [group for _, group in report.rows()]
    tries = [one for record in records for one in record.attempts]
    assert report.total.calls == len(records)
    assert sum(group.attempts for group in groups) == report.total.attempts == len(tries)
    for currency in ("USD", "CNY"):
        billed = sum(group.money[currency].billed for group in groups if currency in group.money)
        ours = sum(one.cost_micro or 0 for one in tries if one.currency == currency)
        assert billed == ours
    tokens: Counter[str] = sum((group.tokens for group in groups), Counter())
    assert all(tokens[kind] == report.total.tokens[kind] for kind in TOKENS)
