"""What a response cache would have saved on a trace: policies and budgets side by side, over one reading.

Two kinds of sharing are counted apart. A whole request that comes again could be answered from moongate's cache. A
prompt that merely begins like an earlier one is cheaper at the provider, whose prompt cache works on blocks of the
beginning. On real traffic the second is most of it.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from moongate.core.call import Usage
from moongate.core.lruk import ENTRY_BYTES, LruK, Policy
from moongate.core.pricing import PriceRow, cost
from moongate.replay.trace import BLOCK_TOKENS, Arrival

TOKEN_BYTES: Final = 4
SHIPPED_K: Final = Policy.__struct_defaults__[0]
"""The K that the gateway uses unless told."""

LRU: Final = 0
"""Stands for plain LRU where a K is named."""

_FOR_EVER: Final = 1e12
_KEY_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Plan:
    """One cache to try: K (0: plain LRU), bytes, seconds that an answer may be used (None: for ever)."""

    k: int
    budget: int
    ttl: float | None = None

    @property
    def name(self) -> str:
        """As tables call it."""
        return f"LRU-{self.k}" if self.k else "LRU"


@dataclass(slots=True)
class Result:
    """What one plan saved: answers given from the cache, and what they would have cost, in millionths."""

    plan: Plan
    hits: int = 0
    saved_micro: int = 0


@dataclass(slots=True)
class Study:
    """A whole trace: its repeats, whatever the cache, and a result for each plan.

    `repeats`: calls equal to an earlier one. `block_tokens`: input tokens that an endless prompt cache of the provider
    would have known, `block_saved_micro` their discount. `distinct_bytes`: all answers, each kept once. `bounded`: more
    different calls or blocks came than were remembered, so that repeats over long distances are missing.
    """

    results: list[Result]
    calls: int = 0
    left_out: int = 0
    input: int = 0
    output: int = 0
    repeats: int = 0
    repeats_saved_micro: int = 0
    block_tokens: int = 0
    block_saved_micro: int = 0
    spent_micro: int = 0
    distinct_bytes: int = 0
    bounded: bool = False


class _Cache(Protocol):
    def ask(self, key: bytes, size: int, now: float) -> bool:
        """Whether this was a hit; a miss is answered and kept."""


class _Lru:
    """The last-used-stays cache that the others are held against."""

    def __init__(self, budget: int, ttl: float | None) -> None:
        self._budget, self._ttl, self._bytes = budget, ttl or _FOR_EVER, 0
        self._entries: OrderedDict[bytes, tuple[int, float]] = OrderedDict()

    def ask(self, key: bytes, size: int, now: float) -> bool:
        found = self._entries.pop(key, None)
        if found is not None and now < found[1]:
            self._entries[key] = found
            return True
        if found is not None:
            self._bytes -= found[0]
        size += _KEY_BYTES + ENTRY_BYTES
        if size <= self._budget:
            self._entries[key] = (size, now + self._ttl)
            self._bytes += size
        while self._bytes > self._budget:
            self._bytes -= self._entries.popitem(last=False)[1][0]
        return False


class _LruK:
    """The gateway's own store."""

    def __init__(self, plan: Plan) -> None:
        life = plan.ttl or _FOR_EVER
        self._store: LruK[None] = LruK(
            Policy(
                plan.budget,
                plan.budget // 8,
                k=plan.k,
                ttl=life,
                max_age=12 * life,
                retained_period=_FOR_EVER,
            )
        )

    def ask(self, key: bytes, size: int, now: float) -> bool:
        if self._store.get(key, now) is not None:
            return True
        self._store.put(key, None, size, now)
        return False


class Known(OrderedDict[int, None]):
    """The newest `most` numbers that were met: a set whose memory has an end. About 120 bytes each."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self.forgot = False

    def meet(self, number: int) -> bool:
        """Whether it was known; it is from now on."""
        known = number in self
        self[number] = None
        if known:
            self.move_to_end(number)
        elif len(self) > self._most:
            self.popitem(last=False)
            self.forgot = True
        return known


@dataclass(slots=True)
class Observer:
    """Takes the arrivals of a trace one by one. `row` None: nothing is known in money."""

    plans: Sequence[Plan]
    row: PriceRow | None
    most_known: int = 2_000_000
    study: Study = field(init=False)
    _caches: list[_Cache] = field(init=False)
    _calls: Known = field(init=False)
    _blocks: Known = field(init=False)

    def __post_init__(self) -> None:
        """Make the caches."""
        self.study = Study([Result(plan) for plan in self.plans])
        self._caches = [_LruK(plan) if plan.k else _Lru(plan.budget, plan.ttl) for plan in self.plans]
        self._calls, self._blocks = Known(self.most_known), Known(self.most_known)

    def take(self, arrival: Arrival) -> None:
        """Count one call in."""
        study = self.study
        if arrival.input <= 0:
            study.left_out += 1
            return
        key = key_of(arrival)
        size = arrival.output * TOKEN_BYTES
        price = cost(Usage(arrival.input, arrival.output), self.row) or 0
        study.calls += 1
        study.input += arrival.input
        study.output += arrival.output
        study.spent_micro += price
        if self._calls.meet(int.from_bytes(key[:8], "big")):
            study.repeats += 1
            study.repeats_saved_micro += price
        else:
            study.distinct_bytes += size + _KEY_BYTES + ENTRY_BYTES
        self._count_blocks(arrival)
        study.bounded = self._calls.forgot or self._blocks.forgot
        for result, cache in zip(study.results, self._caches, strict=True):
            if cache.ask(key, size, arrival.at):
                result.hits += 1
                result.saved_micro += price

    def _count_blocks(self, arrival: Arrival) -> None:
        """The beginning that is known counts: a prompt cache finds nothing behind the first block that is new."""
        known, whole = 0, True
        for block in arrival.blocks:
            whole = self._blocks.meet(block) and whole
            known += whole
        tokens = min(known * BLOCK_TOKENS, arrival.input)
        self.study.block_tokens += tokens
        if self.row is not None:
            self.study.block_saved_micro += (cost(Usage(tokens), self.row) or 0) - (
                cost(Usage(tokens, cached=tokens), self.row) or 0
            )


def key_of(arrival: Arrival) -> bytes:
    """Equal for equal requests: as far as a trace tells, those with the same blocks and lengths of input."""
    said = b"%d:%b" % (arrival.input, b",".join(b"%d" % block for block in arrival.blocks))
    return hashlib.sha256(said).digest()[:_KEY_BYTES]


def observe(arrivals: Iterable[Arrival], observer: Observer) -> Study:
    """Take a whole trace."""
    for arrival in arrivals:
        observer.take(arrival)
    return observer.study


def recommended(results: Iterable[Result]) -> int | None:
    """The K with the most hits over all budgets and lives; of equals the shipped one, else the smallest.

    None where no plan had a hit, or none of the plans has a K.
    """
    hits: dict[int, int] = {}
    for result in results:
        if result.plan.k:
            hits[result.plan.k] = hits.get(result.plan.k, 0) + result.hits
    if not any(hits.values()):
        return None
    most = max(hits.values())
    best = sorted(k for k, count in hits.items() if count == most)
    return SHIPPED_K if SHIPPED_K in best else best[0]
