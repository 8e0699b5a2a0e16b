"""What a cache would have saved: policies side by side on traces, the sums, and what is said of them."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from moongate.core.lruk import ENTRY_BYTES
from moongate.core.pricing import PriceRow
from moongate.replay.caching import (
    LRU,
    SHIPPED_K,
    TOKEN_BYTES,
    Known,
    Observer,
    Plan,
    Result,
    Study,
    observe,
    recommended,
)
from moongate.replay.caching_run import SHARES, Question, findings, simulate, size
from moongate.replay.trace import Arrival, read
from tests.recorded import DATA, needs_data

ROW = PriceRow("kimi-k2.5", "USD", "2026-01-01", hit=100_000, miss=600_000, output=3_000_000)
MARCH = 1_772_323_200.0
ONE = 100 * TOKEN_BYTES + 16 + ENTRY_BYTES
"""Accounted bytes of an answer of 100 tokens."""


def arrival(name: int, at: float = 0.0, *, blocks: int = 2, output: int = 100) -> Arrival:
    return Arrival(at, blocks * 512, output, range(name * 100, name * 100 + blocks))


def study(names: list[int], *plans: Plan, most_known: int = 1000) -> Study:
    return observe(
        (arrival(name, at * 10.0) for at, name in enumerate(names)), Observer(plans, ROW, most_known)
    )


def test_repeats_are_hits_where_there_is_room() -> None:
    found = study([1, 2, 1, 1, 3, 2], Plan(LRU, 10 * ONE), Plan(3, 10 * ONE))
    assert [result.hits for result in found.results] == [3, 3]
    assert (found.calls, found.repeats, found.distinct_bytes) == (6, 3, 3 * ONE)
    one = (1024 * 600_000 + 100 * 3_000_000 + 500_000) // 1_000_000
    assert found.repeats_saved_micro == found.results[0].saved_micro == 3 * one
    assert found.spent_micro == 6 * one


def test_plain_lru_forgets_what_was_used_longest_ago() -> None:
    assert study([1, 2, 3, 1, 2, 3], Plan(LRU, 2 * ONE)).results[0].hits == 0
    assert study([1, 2, 1, 3, 1, 2], Plan(LRU, 2 * ONE)).results[0].hits == 2


def test_what_is_larger_than_the_cache_is_never_in_it() -> None:
    assert [r.hits for r in study([1, 1], Plan(LRU, ONE - 1), Plan(2, ONE - 1)).results] == [0, 0]


@pytest.mark.parametrize(("ttl", "hits"), [(10.0, 0), (10.1, 1), (None, 2)])
def test_answers_expire(ttl: float | None, hits: int) -> None:
    calls = [arrival(1, at) for at in (0.0, 10.0, 1e6)]
    found = observe(calls, Observer([Plan(LRU, 10 * ONE, ttl), Plan(3, 10 * ONE, ttl)], ROW))
    assert [result.hits for result in found.results] == [hits, hits]


def test_a_prompt_cache_knows_beginnings_only() -> None:
    calls = [
        Arrival(0.0, 1024, 1, [1, 2]),
        Arrival(1.0, 1536, 1, [1, 2, 3]),
        Arrival(2.0, 1024, 1, [9, 2]),
        Arrival(3.0, 700, 1, [1, 2]),
    ]
    found = observe(calls, Observer((), ROW))
    assert found.block_tokens == 1024 + 0 + 700
    assert found.block_saved_micro == (1024 * 500_000 + 500_000) // 1_000_000 + 700 // 2
    assert found.repeats == 0


def test_calls_without_tokens_are_left_out() -> None:
    found = observe([Arrival(0.0, 0, 0, []), arrival(1)], Observer((), ROW))
    assert (found.calls, found.left_out) == (1, 1)


def test_without_a_price_nothing_is_told_in_money() -> None:
    found = observe([arrival(1), arrival(1)], Observer([Plan(2, 10 * ONE)], None))
    assert (found.results[0].hits, found.results[0].saved_micro, found.block_saved_micro) == (1, 0, 0)
    question = Question(Path("t"), [2], [], [None], "kimi-x", "USD")
    assert any("No price is known for kimi-x in USD" in said for said in findings(found, question, None))


def test_memory_has_an_end_and_the_study_says_so() -> None:
    names = [*range(50), *range(50)]
    assert study(names).repeats == 50
    forgetful = study(names, most_known=20)
    assert (forgetful.repeats, forgetful.bounded) == (0, True)
    question = Question(Path("t"), [], [], [None], "kimi-k2.5", "USD")
    assert any("repeats far apart are missing" in said for said in findings(forgetful, question, ROW))


@given(st.lists(st.integers(0, 20)), st.integers(1, 30))
def test_what_is_known_is_what_came_among_the_newest(numbers: list[int], most: int) -> None:
    known = Known(most)
    for at, number in enumerate(numbers):
        newest = list(dict.fromkeys(reversed(numbers[:at])))[:most]
        assert known.meet(number) == (number in newest)


@pytest.mark.parametrize(
    ("hits", "best"),
    [
        ({0: 99, 1: 3, 2: 5, 3: 5}, SHIPPED_K),
        ({0: 9, 2: 6, 3: 5, 4: 6}, 2),
        ({0: 9, 1: 7}, 1),
        ({0: 9}, None),
        ({2: 0, 3: 0}, None),
    ],
)
def test_the_k_with_most_hits_is_recommended(hits: dict[int, int], best: int | None) -> None:
    assert recommended([Result(Plan(k, 1), count) for k, count in hits.items()]) == best


@needs_data
@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_the_shipped_policy_is_never_below_lru_on_real_traffic(name: str) -> None:
    path = DATA / "traces" / f"mooncake_{name}_trace.jsonl"
    with path.open("rb") as lines:
        arrivals = list(read(lines))
    whole = observe(arrivals, Observer((), ROW)).distinct_bytes
    budgets = [int(whole * share) for share in SHARES]
    plans = [Plan(k, budget) for budget in budgets for k in (LRU, SHIPPED_K)]
    results = observe(arrivals, Observer(plans, ROW)).results
    pairs = list(zip(results[::2], results[1::2], strict=True))
    assert len(pairs) == 6
    assert all(mine.hits >= lru.hits for lru, mine in pairs), pairs
    assert any(mine.hits > lru.hits for lru, mine in pairs)


@needs_data
def test_real_traffic_rarely_repeats_and_the_prompt_cache_is_where_the_money_is() -> None:
    path = DATA / "traces/mooncake_conversation_trace.jsonl"
    said = run(Question(path, [LRU, 2, 3], [1 << 20], [None], "kimi-k2.5", "USD"))
    assert "Exact repeats are rare here (0.98% of the calls)" in said
    assert "37.4% of the input tokens" in said
    assert "Recommended for this trace: K = " in said


def run(question: Question) -> str:
    console = Console(width=200, file=io.StringIO(), record=True)
    assert simulate(question, console, MARCH) == 0
    return console.export_text()


def trace(folder: Path, names: list[int]) -> Path:
    path = folder / "trace.jsonl"
    rows: list[dict[str, Any]] = [
        {"timestamp": at * 1000, "input_length": 1000, "output_length": 100, "hash_ids": [name, name + 1000]}
        for at, name in enumerate(names)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_budgets_follow_from_the_trace_unless_they_are_named(tmp_path: Path) -> None:
    path = trace(tmp_path, [*range(100), *range(100)])
    said = run(Question(path, [LRU, 3], [], [None, 60.0], "kimi-k2.5", "USD"))
    assert [line for line in said.splitlines() if "for ever" in line].__len__() == len(SHARES)
    assert [line for line in said.splitlines() if "60 s" in line].__len__() == len(SHARES)
    assert "100 (50.00%)" in run(Question(path, [LRU], [1 << 20], [None], "kimi-k2.5", "USD"))
    assert "hits of 150 calls" in run(Question(path, [3], [1 << 20], [None], "kimi-k2.5", "USD", limit=150))


def test_where_nothing_repeats_no_k_is_recommended(tmp_path: Path) -> None:
    said = run(Question(trace(tmp_path, list(range(50))), [2, 3], [1 << 20], [None], "kimi-k2.5", "USD"))
    assert "No cache of these had a hit" in said


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    path = trace(tmp_path, [*range(30), *range(30)])
    picture = tmp_path / "hits.png"
    said = run(Question(path, [LRU, 3], [], [None, 5.0], "kimi-k2.5", "USD", plot=picture))
    assert f"picture: {picture}" in said.replace("\n", "")
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("bytes_", "said"), [(512, "512 B"), (20_480, "20 KB"), (64 << 20, "64 MB"), (12 << 30, "12,288 MB")]
)
def test_sizes_are_said_as_people_say_them(bytes_: int, said: str) -> None:
    assert size(bytes_) == said
