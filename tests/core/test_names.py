"""What is known of a host's addresses: how long an answer counts, what stands in for none, who is tried first."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.names import PAUSE, SHUNNED, Address, Known, Name, interleaved

A, B, C = Address("192.0.2.1"), Address("192.0.2.2"), Address("192.0.2.3")
SIX, SEVEN = Address("2001:db8::6"), Address("fe80::7", 3)
FAILED = OSError("SERVFAIL")

texts = st.integers(1, 9).map(lambda number: Address(f"192.0.2.{number}"))
sixes = st.integers(1, 9).map(lambda number: Address(f"2001:db8::{number}"))
lists = st.lists(texts | sixes, unique=True)


def known_at(*addresses: Address) -> Name:
    """A name that was answered for at second 100, for 30 seconds, and an hour more in need."""
    name = Name(30.0, 3600.0)
    name.answered(addresses or (A, B), 100.0)
    return name


def test_an_answer_counts_for_its_time_and_is_then_asked_for_anew() -> None:
    name = known_at()
    assert (name.known(100.0), name.known(129.9)) == (Known.FRESH, Known.FRESH)
    assert not name.is_due(129.9)
    assert name.known(130.0) is Known.ASK
    assert name.is_due(130.0)


def test_who_knows_nothing_asks() -> None:
    name = Name(30.0, 3600.0)
    assert name.known(0.0) is Known.ASK
    assert name.is_due(0.0)
    assert not name.has_last_good(0.0)
    assert name.order(0.0) == []


def test_the_last_good_answer_stands_in_for_an_hour() -> None:
    name = known_at()
    name.failed(FAILED, 131.0)
    assert name.known(131.0) is Known.STALE
    assert name.known(130.0 + 3599.9) is Known.STALE
    assert name.has_last_good(130.0 + 3599.9)
    assert name.known(130.0 + 3600.0) is Known.ASK
    assert not name.has_last_good(130.0 + 3600.0)
    name.failed(FAILED, 4000.0)
    assert name.known(4000.0) is Known.NOTHING


def test_a_failure_is_not_asked_about_again_at_once() -> None:
    name = Name(30.0, 3600.0)
    name.failed(FAILED, 10.0)
    assert name.known(10.0 + PAUSE - 0.01) is Known.NOTHING
    assert not name.is_due(10.0 + PAUSE - 0.01)
    assert name.known(10.0 + PAUSE) is Known.ASK
    assert name.is_due(10.0 + PAUSE)
    assert name.error is FAILED


def test_a_good_answer_ends_the_need() -> None:
    name = known_at()
    name.failed(FAILED, 131.0)
    assert not name.answered((A, B), 132.0)
    assert name.error is None
    assert name.known(132.0) is Known.FRESH
    assert name.known(162.0) is Known.ASK


def test_another_answer_is_a_change_and_another_order_is_none() -> None:
    name = known_at(A, B)
    assert not name.answered((B, A), 130.0)
    assert name.order(130.0) == [B, A]
    assert name.changes == 0
    assert name.answered((B, C), 160.0)
    assert name.changes == 1


def test_connections_are_kept_to_what_one_of_the_last_two_answers_named() -> None:
    name = known_at(A, B)
    before = name.current
    assert before == {A.text, B.text}
    name.answered((A, B), 130.0)
    assert name.current is before
    name.answered((C,), 160.0)
    assert name.current == {A.text, B.text, C.text}
    name.answered((C,), 190.0)
    assert name.current == {C.text}


def test_an_address_that_failed_is_tried_last_for_a_while() -> None:
    name = known_at(A, SIX, B)
    assert name.order(100.0) == [A, SIX, B]
    name.met(A, 100.0, well=False)
    assert name.order(100.0) == [SIX, B, A]
    assert name.order(100.0 + SHUNNED) == [A, SIX, B]
    name.met(A, 101.0, well=False)
    name.met(A, 102.0, well=True)
    assert name.order(102.0) == [A, SIX, B]


def test_what_was_forgotten_is_not_held_against_an_address() -> None:
    name = known_at(A, B)
    name.met(A, 100.0, well=False)
    name.met(C, 100.0, well=False)
    name.answered((B,), 110.0)
    name.answered((B, C), 125.0)
    assert name.order(125.0) == [B, C]
    name = Name(1.0, 3600.0)
    name.answered((A, B), 100.0)
    name.met(A, 100.0, well=False)
    name.answered((B,), 110.0)
    name.answered((A, B), 111.0)
    assert name.order(111.0) == [A, B]


@pytest.mark.parametrize(
    ("given", "order"),
    [
        ([], []),
        ([A, B], [A, B]),
        ([SIX, SEVEN, A, B], [SIX, A, SEVEN, B]),
        ([A, B, C, SIX], [A, SIX, B, C]),
    ],
)
def test_families_take_turns(given: list[Address], order: list[Address]) -> None:
    assert interleaved(given) == order


@given(lists)
def test_turns_lose_nobody_and_keep_the_order_within_a_family(addresses: list[Address]) -> None:
    order = interleaved(addresses)
    for six in (True, False):
        assert [one for one in order if one.is_six is six] == [one for one in addresses if one.is_six is six]
    assert order[:1] == addresses[:1]
    both = min(sum(one.is_six for one in addresses), sum(not one.is_six for one in addresses))
    turns = [one.is_six for one in order[: 2 * both]]
    assert all(before is not after for before, after in pairwise(turns))


@given(lists, st.sets(texts | sixes), st.floats(0, 100))
def test_every_address_is_tried_whatever_is_held_against_it(
    addresses: list[Address], failed: set[Address], now: float
) -> None:
    name = Name(30.0, 3600.0)
    name.answered(addresses, 0.0)
    for address in failed:
        name.met(address, 0.0, well=False)
    order = name.order(now)
    assert sorted(order) == sorted(addresses)
    held = [address in failed and now < SHUNNED for address in order]
    assert held == sorted(held)
