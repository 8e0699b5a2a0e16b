"""What is parked, what remains of a plan, and when a balance is looked at."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.control import Parked
from moongate.core.faults import FACTS, Failure, Fault, Park
from moongate.core.parking import LONGEST_WAIT, BalanceLooks, Parking, Refused, reason_of, what_to_park
from moongate.core.routing import Candidate

A = Candidate("a1", "a", "kimi-k2.5")
A_TOO = Candidate("a2", "a", "kimi-k2.5")
B = Candidate("b1", "b", "kimi-k2.5")
A_NEXT = Candidate("a1", "a", "kimi-k2.6", 1)
B_NEXT = Candidate("b1", "b", "kimi-k2.6", 1)
PLAN = (A, A_TOO, B, A_NEXT, B_NEXT)
BROKE, BAD_KEY, DENIED = Fault.KIMI_QUOTA_MONTHLY, Fault.KIMI_AUTH_FAILED, Fault.KIMI_PERMISSION_DENIED


def parked(**reasons: str) -> dict[str, Parked]:
    return {name.replace("__", "/"): Parked(1.0, reason) for name, reason in reasons.items()}


def test_money_and_keys_are_the_accounts_and_a_right_is_the_models() -> None:
    assert what_to_park(A, BROKE) == what_to_park(A, BAD_KEY) == "a"
    assert what_to_park(A, DENIED) == "a/kimi-k2.5"
    assert what_to_park(A, Fault.KIMI_UNAVAILABLE) == ""


def test_every_parking_fault_is_told_under_its_own_name() -> None:
    for fault in Fault:
        told = reason_of(Parked(0.0, fault.value))
        assert told is (Fault.KIMI_UNAVAILABLE if FACTS[fault].park is Park.NOTHING else fault)
    assert reason_of(Parked(0.0, "we moved to another contract")) is Fault.KIMI_UNAVAILABLE


def test_a_parked_account_is_left_out_with_all_its_targets() -> None:
    parking = Parking()
    assert parking.open_of(PLAN) == PLAN
    parking.follow(parked(a=BROKE.value))
    assert parking.open_of(PLAN) == (B, B_NEXT)


def test_a_parked_model_leaves_the_others_of_its_account() -> None:
    parking = Parking()
    parking.follow({"a/kimi-k2.6": Parked(1.0, DENIED.value)})
    assert parking.open_of(PLAN) == (A, A_TOO, B, B_NEXT)


def test_a_successor_does_not_answer_for_an_account() -> None:
    parking = Parking()
    parking.follow({"a/kimi-k2.5": Parked(1.0, DENIED.value), "b": Parked(1.0, BROKE.value)})
    assert parking.open_of(PLAN) == ()


def test_when_all_are_parked_the_call_ends_with_what_parked_the_first() -> None:
    parking = Parking()
    parking.follow({"a/kimi-k2.5": Parked(1.0, DENIED.value), "b": Parked(1.0, BROKE.value)})
    failure = parking.refusal(PLAN)
    assert failure.fault is DENIED
    assert failure.detail == "parked: a, b"
    assert not failure.should_retry
    parking.follow(parked(a="for the audit", b=BROKE.value))
    assert parking.refusal(PLAN).fault is Fault.KIMI_UNAVAILABLE
    parking.follow({})
    assert parking.refusal(PLAN).fault is Fault.KIMI_UNAVAILABLE


def test_a_refusal_parks_at_once_and_is_told_once() -> None:
    parking = Parking()
    parking.refused(A, Failure(Fault.KIMI_SERVER_ERROR))
    assert parking.take() == []
    parking.refused(A, Failure(BROKE, detail="no money"))
    parking.refused(A_TOO, Failure(BAD_KEY))
    assert parking.open_of(PLAN) == (B, B_NEXT)
    assert parking.take() == [Refused("a", BROKE.value, "a1", "no money")]
    assert parking.take() == []


def test_the_control_document_is_the_last_word() -> None:
    parking = Parking()
    parking.refused(A, Failure(BROKE))
    parking.follow({})
    assert parking.open_of(PLAN) == PLAN
    parking.refused(A, Failure(BROKE))
    assert len(parking.take()) == 1
    parking.follow(parked(a=BROKE.value))
    parking.refused(A, Failure(BROKE))
    assert parking.take() == []


names = st.sampled_from(["a", "b", "a/kimi-k2.5", "b/kimi-k2.5", "a/kimi-k2.6", "b/kimi-k2.6", "c"])
plans = st.lists(st.sampled_from(PLAN), unique=True).map(tuple)


@given(st.sets(names), plans)
def test_what_remains_is_what_was_there_less_what_is_parked(
    parked_names: set[str], plan: tuple[Candidate, ...]
) -> None:
    parking = Parking()
    parking.follow({name: Parked(1.0, BROKE.value) for name in parked_names})
    left = parking.open_of(plan)
    free = [one for one in plan if not parked_names & {one.account, f"{one.account}/{one.model}"}]
    assert left in (tuple(free), ())
    if free and free[0] == plan[0]:
        assert left == tuple(free)
    if left:
        assert left[0].generation == plan[0].generation


def test_a_balance_is_looked_at_every_so_often_while_the_account_is_parked() -> None:
    looks = BalanceLooks(60.0)
    looks.follow(["a"], 100.0)
    assert looks.due(159.9) == []
    assert looks.due(160.0) == ["a"]
    looks.follow(["a"], 170.0)
    assert looks.due(219.9) == []
    assert looks.due(220.0) == ["a"]
    looks.follow([], 230.0)
    assert looks.due(1e9) == []


@pytest.mark.parametrize(
    ("relapses", "wait"), [(0, 60.0), (1, 120.0), (3, 480.0), (6, LONGEST_WAIT), (99, 3600.0)]
)
def test_money_that_did_not_help_is_trusted_less(relapses: int, wait: float) -> None:
    looks = BalanceLooks(60.0)
    for _ in range(relapses):
        looks.released("a")
    looks.follow(["a"], 0.0)
    assert looks.due(wait - 0.1) == []
    assert looks.due(wait) == ["a"]


def test_an_account_that_answered_is_trusted_again() -> None:
    looks = BalanceLooks(60.0)
    looks.released("a")
    looks.proven("a")
    looks.proven("never parked")
    looks.follow(["a"], 0.0)
    assert looks.due(60.0) == ["a"]
