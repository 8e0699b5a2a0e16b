"""LRU-K against a model that remembers everything, and what its users count on."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from moongate.core.lruk import ENTRY_BYTES, HISTORY_BYTES, SHARDS, History, LruK, Policy, referenced

UNIT = 1000
"""Accounted bytes of one entry in these tests."""


def key(name: object) -> bytes:
    return str(name).encode().rjust(16, b".")


def store(entries: int = 3, **given: Any) -> LruK[str]:
    """Room for so many entries of one unit, and for as many histories as come."""
    return LruK(
        Policy(**({"capacity": entries * UNIT, "retained_bytes": 10**9, "retained_period": 1e9} | given))
    )


def put(into: LruK[str], name: object, now: float, **given: Any) -> bool:
    return into.put(key(name), f"value of {name}", UNIT - ENTRY_BYTES - 16, now, **given)


def names(of: LruK[str]) -> set[str]:
    return {entry.key.decode().strip(".") for number in range(SHARDS) for entry in of.shard(number)}


def test_what_was_put_is_found_until_it_expires() -> None:
    of = store(ttl=100.0)
    assert put(of, "a", 0.0)
    entry = of.get(key("a"), 99.0)
    assert entry is not None
    assert (entry.value, entry.hits, entry.expires) == ("value of a", 1, 100.0)
    assert of.get(key("a"), 100.0) is None
    assert (len(of), of.bytes, of.expired) == (0, 0, 1)
    assert of.get(key("b"), 0.0) is None


def test_peeking_is_no_reference() -> None:
    of = store(ttl=100.0)
    put(of, "a", 0.0)
    entry = of.peek(key("a"), 50.0)
    assert entry is not None
    assert (entry.hits, entry.history) == (0, History((0.0,), 0.0))
    assert of.peek(key("a"), 100.0) is None
    assert of.peek(key("b"), 0.0) is None


def test_one_timers_never_displace_regulars() -> None:
    of = store(3)
    for at in range(3):
        for name in "abc":
            put(of, name, at * 10.0) if at == 0 else of.get(key(name), at * 10.0)
    for at in range(1000):
        put(of, f"once {at}", 30.0 + at)
    assert names(of) == {"a", "b", "c"}


def test_what_came_twice_outlives_what_came_once() -> None:
    of = store(3)
    for at, name in enumerate("aabcde"):
        put(of, name, at * 10.0)
    assert names(of) == {"a", "d", "e"}


def test_newcomers_displace_each_other_oldest_first() -> None:
    of = store(3)
    for at, name in enumerate("abcd"):
        assert put(of, name, at * 10.0)
    assert names(of) == {"b", "c", "d"}
    assert of.evicted == 1


def test_an_evicted_key_comes_back_with_its_history() -> None:
    of = store(8, k=2, ttl=1e9, max_age=1e9)
    for at, name in enumerate("abcdefghi"):
        put(of, name, at * 10.0)
    assert "a" not in names(of)
    put(of, "a", 100.0)
    entry = of.peek(key("a"), 100.0)
    assert entry is not None
    assert entry.history.times == (100.0, 0.0)


def test_a_history_is_forgotten_after_its_period() -> None:
    of = store(8, k=2, ttl=1e9, max_age=1e9, retained_period=50.0)
    for at, name in enumerate("abcdefghi"):
        put(of, name, float(at))
    assert of.retained_bytes == HISTORY_BYTES + 16
    of.sweep(59.0)
    assert of.retained_bytes == 0
    put(of, "a", 60.0)
    entry = of.peek(key("a"), 60.0)
    assert entry is not None
    assert entry.history.times == (60.0,)


def test_a_stale_note_of_forgetting_does_not_hit_a_newer_history() -> None:
    of = store(16, k=3, ttl=1e9, max_age=1e9, retained_period=1000.0)
    for at in range(17):
        put(of, at, at * 10.0)
    assert "0" not in names(of)
    put(of, 0, 500.0)
    for at in range(1, 18):
        put(of, at, 600.0 + at * 10.0)
    assert "0" not in names(of)
    of.sweep(1170.0)
    put(of, 0, 1180.0)
    entry = of.peek(key(0), 1180.0)
    assert entry is not None
    assert len(entry.history.times) == 3


def test_histories_are_bounded_and_accounted() -> None:
    of = store(20, ttl=1e9, max_age=1e9, retained_bytes=5 * (HISTORY_BYTES + 16) + 1)
    for at in range(200):
        put(of, at, at * 10.0)
    assert (of.bytes, of.retained_bytes) == (20 * UNIT, 5 * (HISTORY_BYTES + 16))
    put(of, 179, 3000.0)
    put(of, 170, 3010.0)
    known = [of.peek(key(name), 3010.0) for name in (179, 170)]
    assert [len(entry.history.times) for entry in known if entry is not None] == [2, 1]


def test_without_k_no_histories_are_kept() -> None:
    of = store(2, k=1)
    for at in range(20):
        put(of, at, at * 10.0)
    assert names(of) == {"18", "19"}
    for _ in range(3):
        of.sweep(1e6)
    assert (len(of), of.bytes, of.retained_bytes) == (0, 0, 0)


def test_a_hot_entry_lives_longer_but_not_for_ever() -> None:
    of = store(ttl=100.0, max_age=250.0, hot_hits=2, correlated_period=0.0)
    put(of, "a", 0.0)
    lives = []
    for at in (10.0, 20.0, 90.0, 180.0, 240.0):
        entry = of.get(key("a"), at)
        assert entry is not None
        lives.append(entry.expires)
    assert lives == [100.0, 100.0, 190.0, 250.0, 250.0]
    assert of.get(key("a"), 250.0) is None


def test_a_shorter_life_can_be_asked_for_and_no_longer_one_than_the_maximum_age() -> None:
    of = store(max_age=50.0)
    put(of, "a", 0.0, ttl=5.0)
    put(of, "b", 0.0, ttl=500.0)
    assert of.peek(key("a"), 5.0) is None
    assert of.peek(key("b"), 49.0) is not None
    assert of.peek(key("b"), 50.0) is None


def test_a_hot_entry_with_a_short_life_is_never_cut_shorter() -> None:
    of = store(ttl=5.0, max_age=100.0, hot_hits=0)
    put(of, "a", 0.0, ttl=50.0)
    entry = of.get(key("a"), 1.0)
    assert entry is not None
    assert entry.expires == 50.0


def test_expired_entries_leave_without_being_asked_for() -> None:
    of = store(100, ttl=10.0)
    for at in range(50):
        put(of, at, 0.0)
    for at in range(10):
        of.sweep(10.0 + at)
    assert (len(of), of.bytes, of.expired) == (0, 0, 50)


def test_an_extended_entry_is_swept_when_its_new_life_ends() -> None:
    of = store(3, ttl=10.0, hot_hits=0)
    put(of, "a", 0.0)
    of.get(key("a"), 8.0)
    of.sweep(10.0)
    assert names(of) == {"a"}
    of.sweep(18.0)
    assert names(of) == set()


def test_putting_a_key_again_replaces_its_value_and_is_a_reference() -> None:
    of = store(correlated_period=0.0)
    put(of, "a", 0.0)
    assert of.put(key("a"), "new", 100, 10.0)
    entry = of.peek(key("a"), 10.0)
    assert entry is not None
    assert (entry.value, entry.history.times, of.bytes) == ("new", (10.0, 0.0), 100 + 16 + ENTRY_BYTES)


def test_what_is_larger_than_the_store_is_not_kept_and_drives_nothing_out() -> None:
    of = store(3)
    put(of, "a", 0.0)
    assert not of.put(key("big"), "x", 4 * UNIT, 1.0)
    assert names(of) == {"a"}


def test_deleting_forgets_entry_and_history() -> None:
    of = store(8, ttl=1e9, max_age=1e9)
    for at, name in enumerate("abcdefghi"):
        put(of, name, at * 10.0)
    assert of.delete(key("b"))
    assert not of.delete(key("b"))
    assert not of.delete(key("a"))
    put(of, "a", 200.0)
    entry = of.peek(key("a"), 200.0)
    assert entry is not None
    assert entry.history.times == (200.0,)


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (5.0, History((3.0, 1.0), 5.0)),
        (5.1, History((5.1, 3.1, 1.1), 5.1)),
        (20.0, History((20.0, 3.1, 1.1), 20.0)),
    ],
)
def test_correlated_references_count_as_one(at: float, expected: History) -> None:
    policy = Policy(0, 0, k=3, correlated_period=1.9)
    found = referenced(History((3.0, 1.0), 3.1), at, policy)
    assert found.last == expected.last
    assert found.times == pytest.approx(expected.times)


def test_only_k_references_are_kept() -> None:
    policy, history = Policy(0, 0, k=2, correlated_period=0.0), None
    for at in range(5):
        history = referenced(history, at, policy)
    assert history == History((4.0, 3.0), 4.0)


class Model(RuleBasedStateMachine):
    """The paper's definition over whole histories: each key's references are kept for ever and ranked anew."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = Policy(
            20 * UNIT,
            10**9,
            correlated_period=2.0,
            ttl=60.0,
            max_age=200.0,
            retained_period=1e9,
            hot_hits=2,
        )
        self.real: LruK[str] = LruK(self.policy)
        self.now = 0.0
        self.references: dict[str, list[float]] = {}
        self.kept: dict[str, list[float]] = {}  # expires, created, hits, number
        self.puts = 0

    def history(self, name: str) -> History:
        found = None
        for at in self.references[name]:
            found = referenced(found, at, self.policy)
        assert found is not None
        return found

    def rank(self, name: str) -> tuple[float, ...]:
        found = self.history(name)
        third, second = (found.times[at] if len(found.times) > at else float("-inf") for at in (2, 1))
        return (third, second, found.last, self.kept[name][3])

    @rule(seconds=st.sampled_from([0.0, 1.0, 3.0, 10.0, 70.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for _ in range(10):
            self.real.sweep(self.now)
        for name, (expires, *_) in list(self.kept.items()):
            if self.now >= expires:
                del self.kept[name]

    @rule(name=st.sampled_from("abcdefgh"))
    def ask(self, name: str) -> None:
        entry = self.real.get(key(name), self.now)
        assert (entry is not None) == (name in self.kept)
        if name in self.kept:
            self.references[name].append(self.now)
            mine = self.kept[name]
            mine[2] += 1
            if mine[2] > 2:
                mine[0] = max(mine[0], min(self.now + 60.0, mine[1] + 200.0))

    @rule(name=st.sampled_from("abcdefgh"), units=st.integers(1, 12))
    def keep(self, name: str, units: int) -> None:
        self.real.put(key(name), name, units * UNIT - ENTRY_BYTES - 16, self.now)
        if name in self.kept:
            del self.kept[name]
        self.references.setdefault(name, []).append(self.now)
        self.puts += 1
        self.kept[name] = [self.now + 60.0, self.now, 0, self.puts, units * UNIT]
        while sum(entry[4] for entry in self.kept.values()) > 20 * UNIT:
            del self.kept[min(self.kept, key=self.rank)]

    @rule(name=st.sampled_from("abcdefgh"))
    def drop(self, name: str) -> None:
        assert self.real.delete(key(name)) == (name in self.kept)
        self.kept.pop(name, None)
        self.references.pop(name, None)

    @invariant()
    def the_same_is_kept(self) -> None:
        assert names(self.real) == set(self.kept)
        assert self.real.bytes <= self.policy.capacity


Model.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestModel = Model.TestCase


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=200))
def test_the_accounts_are_right_whatever_happens(steps: list[tuple[int, int]]) -> None:
    of = store(5, ttl=20.0, retained_period=40.0, correlated_period=1.0)
    for now, (name, what) in enumerate(steps):
        if what == 3:
            of.delete(key(name))
        elif what == 2:
            of.get(key(name), now)
        else:
            put(of, name, now)
        held = sum(entry.size for number in range(SHARDS) for entry in of.shard(number))
        assert held == of.bytes <= of.policy.capacity
        assert of.retained_bytes % (HISTORY_BYTES + 16) == 0


def test_histories_are_forgotten_a_few_at_a_time() -> None:
    of = store(1, retained_period=10.0)
    for at in range(21):
        put(of, at, 0.0)
    of.sweep(20.0)
    assert of.retained_bytes == 12 * (HISTORY_BYTES + 16)
