"""Counts, percentiles, money and windows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.call import Usage
from moongate.core.pricing import PriceRow, PriceTable
from moongate.replay.ending import Answer
from moongate.replay.tally import Tally, percentile

PRICES = PriceTable(
    [PriceRow("kimi", "USD", "2026-01-01", hit=1_000_000, miss=10_000_000, output=20_000_000)]
)
DAY = 1_790_000_000.0


def tally() -> Tally:
    return Tally(PRICES, "USD", DAY)


def completed(first: float = 0.1, total: float = 1.0, **usage: int) -> Answer:
    return Answer("completed", first, total, Usage(**usage) if usage else None, "kimi")


@given(st.lists(st.floats(0, 1e6), min_size=1), st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]))
def test_a_percentile_is_the_smallest_value_that_covers_its_share(values: list[float], share: float) -> None:
    values.sort()
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    assert sum(value < found for value in values) < share * len(values)


def test_outcomes_tokens_and_cost_add_up() -> None:
    counted = tally()
    counted.add(0.0, 0.0, completed(input=1000, output=100, cached=600, reasoning=10))
    counted.add(1.0, 0.5, completed(input=500, output=50))
    counted.add(2.0, 0.0, completed())
    counted.add(3.0, 0.0, Answer("engine_overloaded", total=0.2))
    assert counted.outcomes == {"completed": 3, "engine_overloaded": 1}
    assert (counted.calls, counted.failed, counted.without_usage) == (4, 1, 1)
    assert counted.usage == Usage(1500, 150, 600, 10)
    assert counted.cost_micro == 600 * 1 + 900 * 10 + 150 * 20
    assert counted.firsts == [0.1, 0.1, 0.1]
    assert counted.totals == [1.0, 1.0, 1.0]
    assert max(counted.late) == 0.5


def test_a_model_without_a_price_makes_the_cost_incomplete_not_smaller() -> None:
    counted = tally()
    counted.add(0.0, 0.0, Answer("completed", 0.1, 0.2, Usage(1000, 1), "kimi-k9"))
    assert (counted.cost_micro, counted.unpriced) == (0, 1)


@given(st.lists(st.floats(0, 100), min_size=1), st.integers(1, 20))
def test_windows_hold_every_call_once(moments: list[float], count: int) -> None:
    counted = tally()
    for at in moments:
        counted.add(at, 0.0, completed())
    windows = counted.windows(count)
    assert len(windows) == count
    assert sum(window.calls for window in windows) == len(moments)


def test_a_window_says_what_happened_in_it() -> None:
    counted = tally()
    counted.add(0.0, 0.0, completed(0.1, input=100, cached=50))
    counted.add(1.0, 0.0, completed(0.3, input=100))
    counted.add(10.0, 0.0, Answer("timeout", total=5.0))
    early, late = counted.windows(2)
    assert (early.at, early.calls, early.failed, early.cached) == (0.0, 2, 0, 0.25)
    assert early.first == (0.1, 0.3, 0.3)
    assert (late.at, late.calls, late.failed, late.first, late.cached) == (5.0, 1, 1, None, None)


def test_nothing_played_has_no_windows() -> None:
    assert tally().windows(10) == []
    assert pytest.approx(tally().cost_micro) == 0
