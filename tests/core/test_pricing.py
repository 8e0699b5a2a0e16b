"""Prices hold from a day on, sums are exact integers, and what is not known is not free."""

from dataclasses import replace
from datetime import UTC, date, datetime
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.call import Usage
from moongate.core.pricing import (
    MILLION,
    PRICES,
    UNKNOWN,
    PriceRow,
    PriceTable,
    cost,
    over,
    own_rows,
    prices_of,
    shown,
    unknown,
)
from moongate.core.section import Price
from moongate.core.settings import Settings


def at(day: str) -> float:
    """The first second of a day in UTC."""
    return datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()


TABLE = PriceTable(PRICES)
NOV = at("2026-11-30")
ROW = PriceRow("m", "USD", "2026-01-01", hit=100_000, miss=600_000, output=3_000_000)
K3 = TABLE.row("kimi-k3", "USD", NOV)
COUNTS = st.integers(0, 2_000_000)


@pytest.mark.parametrize(
    ("model", "currency", "usage", "micro"),
    [
        ("kimi-k2.5", "USD", Usage(input=1_000_000), 600_000),
        ("kimi-k2.5", "USD", Usage(input=1_000_000, cached=1_000_000), 100_000),
        ("kimi-k2.5", "USD", Usage(output=1_000_000), 3_000_000),
        ("kimi-k2.5", "CNY", Usage(1_000_000, 1_000_000), 25_000_000),
        ("kimi-k2.6", "USD", Usage(93, 54, cached=93, reasoning=38), 231),  # 14.88 + 216
        ("kimi-k2.6", "CNY", Usage(1000, 100), 9_200),
        ("kimi-k2.7-code", "USD", Usage(100, 10, cached=50), 97),  # 9.5 + 47.5 + 40
        ("kimi-k2.7-code-highspeed", "CNY", Usage(10, 10), 670),
        ("kimi-k3", "CNY", Usage(10, 10, cached=5), 1_110),
        ("kimi-k3", "USD", Usage(1000, 0, cache_write=1000), 3_000),
        ("kimi-k3.1-pro", "USD", Usage(10, 10), 120),
        ("kimi-k3.1-pro-highspeed", "USD", Usage(100, 100, cached=50), 2_210),
        ("kimi-k2-thinking", "CNY", Usage(100, 100), 2_000),
        ("kimi-k2-thinking-turbo", "USD", Usage(100, 100), 915),
        ("moonshot-v1-8k", "USD", Usage(1000, 1000, cached=500), 2_200),
        ("moonshot-v1-128k", "USD", Usage(10, 10), 70),
    ],
)
def test_list_prices(model: str, currency: str, usage: Usage, micro: int) -> None:
    assert cost(usage, TABLE.row(model, currency, NOV)) == micro


def test_a_price_that_is_not_known_is_none_and_not_zero() -> None:
    assert TABLE.row("gpt-4o", "USD", NOV) is None
    assert TABLE.row("kimi-k3.1-pro", "CNY", NOV) is None
    assert TABLE.row("kimi-k3", "USD", at("2026-08-31")) is None, "not known before its first day"
    assert cost(Usage(1, 1), None) is None
    assert cost(Usage(), ROW) == 0


def test_a_row_holds_from_its_first_second_to_the_next_rows() -> None:
    later = PriceRow("m", "USD", "2026-06-01", 1, 2, 3)
    table = PriceTable([later, ROW, PriceRow("m", "CNY", "2026-01-01", 7, 8, 9)])
    start, change = at("2026-01-01"), at("2026-06-01")
    assert table.row("m", "USD", start - 0.001) is None
    assert table.row("m", "USD", start) == ROW
    assert table.row("m", "USD", change - 0.001) == ROW
    assert table.row("m", "USD", change) == later
    assert table.row("m", "USD", change + 1e9) == later


def test_an_operators_own_row_wins_from_its_first_day_on_even_over_later_ones() -> None:
    own = PriceRow("kimi-k2.6", "USD", "2026-10-01", 1, 2, 3, own=True)
    old = PriceRow("kimi-k2.6", "USD", "2026-02-01", 4, 5, 6, own=True)
    table = PriceTable(over(PRICES, [own]))
    assert table.row("kimi-k2.6", "USD", NOV) == own
    assert table.row("kimi-k2.6", "USD", at("2026-09-30")) == TABLE.row("kimi-k2.6", "USD", NOV)
    assert table.row("kimi-k2.6", "CNY", NOV) == TABLE.row("kimi-k2.6", "CNY", NOV)
    assert PriceTable(over(PRICES, [own, old])).row("kimi-k2.6", "USD", at("2026-09-30")) == old


def test_a_target_with_prices_has_no_others_and_one_row_may_hold_for_all_its_models() -> None:
    url = Settings().targets["kimi"].url
    own = replace(Settings().targets["kimi"], url=url, currency="EUR", prices=(Price(30, 40),))
    settings = replace(
        Settings(),
        targets={"kimi": Settings().targets["kimi"], "gpu": own},
        prices=(Price(1, 2, model="kimi-k3.1-pro", currency="CNY", since="2026-10-01"),),
    )
    table = prices_of(settings)
    row = table.row("anything", "EUR", 0.0, "gpu")
    assert row is not None
    assert (row.hit, row.miss, row.output, row.model) == (30, 30, 40, "*")
    assert table.row("kimi-k2.6", "USD", NOV, "gpu") is None
    assert table.row("kimi-k2.6", "USD", NOV, "kimi") == TABLE.row("kimi-k2.6", "USD", NOV)
    assert table.row("anything", "EUR", 0.0, "kimi") is None
    filled = table.row("kimi-k3.1-pro", "CNY", NOV, "kimi")
    assert filled is not None
    assert filled.own


def test_an_own_rows_name_changes_with_its_figures() -> None:
    [first] = own_rows([Price(1, 2, model="m", currency="USD")])
    [second] = own_rows([Price(1, 3, model="m", currency="USD")])
    assert first.id.startswith("m/USD/1970-01-01#")
    assert first.id != second.id
    assert own_rows([Price(1, 2, model="m")], "USD") == [first]


def test_what_the_list_lacks_is_named_with_the_reason_and_never_priced() -> None:
    for each in UNKNOWN:
        assert unknown(each.model, each.currency) is each
        assert TABLE.row(each.model, each.currency, NOV) is None
        assert each.why
    assert unknown("kimi-k2.6", "CNY") is None


def test_a_row_is_shown_in_units_of_its_currency() -> None:
    assert shown(ROW) == "hit 0.1, miss 0.6, output 3 USD a million tokens"
    assert K3 is not None
    assert shown(K3).endswith("cache write 3, cache write, an hour 6 USD a million tokens")


def test_cache_writes_for_an_hour_have_their_own_price_or_none() -> None:
    written = Usage(1000, 0, cache_write=400)
    assert cost(written, K3, hour_cache=True) == 400 * 6 + 600 * 3
    assert cost(written, TABLE.row("kimi-k3", "CNY", NOV), hour_cache=True) is None
    assert cost(Usage(1000, 0), ROW, hour_cache=True) == 600, "nothing written, nothing unknown"
    assert cost(written, ROW) == 600, "where writes are not charged apart they are misses"


def test_reasoning_may_have_its_own_price() -> None:
    row = PriceRow("m", "USD", "2026-01-01", 0, 0, 2 * MILLION, reasoning=5 * MILLION)
    assert cost(Usage(0, 10, reasoning=4), row) == 6 * 2 + 4 * 5


@pytest.mark.parametrize(("tokens", "micro"), [(1, 0), (4, 0), (5, 1), (14, 1), (15, 2)])
def test_it_is_rounded_once_and_half_up(tokens: int, micro: int) -> None:
    assert cost(Usage(tokens, 0, cached=tokens), ROW) == micro  # a tenth of a millionth each


@given(COUNTS, COUNTS, COUNTS, COUNTS, COUNTS)
def test_the_price_is_the_exact_sum_by_kind(
    miss: int, hit: int, write: int, answer: int, thought: int
) -> None:
    usage = Usage(miss + hit + write, answer + thought, hit, thought, write)
    row = PriceRow("m", "USD", "2026-01-01", 100_001, 600_003, 3_000_007, 700_009, None, 2_000_011)
    exact = miss * 600_003 + hit * 100_001 + write * 700_009 + answer * 3_000_007 + thought * 2_000_011
    micro = cost(usage, row)
    assert micro is not None
    assert Fraction(-1, 2) < micro - Fraction(exact, MILLION) <= Fraction(1, 2)


ANY = st.integers(-(10**6), 10**6)


@given(ANY, ANY, ANY, ANY, ANY)
def test_counts_that_contradict_themselves_never_pay_back(
    whole: int, out: int, hit: int, thought: int, write: int
) -> None:
    micro = cost(Usage(whole, out, hit, thought, write), ROW)
    assert micro is not None
    assert 0 <= micro <= max(whole, 0) + max(out, 0) * 3, "never more than all at the dearest price"


def test_a_token_is_paid_once_even_if_it_is_said_to_be_both_found_and_written() -> None:
    assert cost(Usage(100, 0, cached=100, cache_write=100), K3) == 30


@pytest.mark.parametrize("row", PRICES, ids=lambda row: row.id)
def test_every_row_is_plausible(row: PriceRow) -> None:
    assert date(2025, 1, 1) < date.fromisoformat(row.since) <= date(2026, 11, 30)
    assert 0 < row.hit <= row.miss < row.output
    assert row.currency in {"USD", "CNY"}
    assert row.origin
    assert row.id == f"{row.model}/{row.currency}/{row.since}"


def test_row_names_are_unique() -> None:
    assert len({row.id for row in PRICES}) == len(PRICES)
