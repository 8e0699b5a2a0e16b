"""Memory held for calls has one bound, and what is taken comes back."""

from hypothesis import given
from hypothesis import strategies as st

from moongate.core.held import Held


def test_what_fits_is_taken_and_what_does_not_changes_nothing() -> None:
    held = Held(10)
    assert held.take(6)
    assert held.take(4), "the limit itself still fits"
    assert not held.take(1)
    assert held.used == 10
    held.give(4)
    assert held.take(3)
    assert held.used == 9


@given(st.integers(0, 100), st.lists(st.integers(0, 40)))
def test_never_above_the_limit_and_nothing_once_all_is_given_back(limit: int, sizes: list[int]) -> None:
    held = Held(limit)
    taken = [size for size in sizes if held.take(size)]
    assert held.used == sum(taken) <= limit
    for size in taken:
        held.give(size)
    assert held.used == 0
