"""LRU-K: what to keep in a bounded store, judged by the last K references and not by the last alone.

Source: O'Neil, O'Neil and Weikum, "The LRU-K Page Replacement Algorithm" (SIGMOD 1993). An entry's K-distance is the
time of its K-th last uncorrelated reference; the entry whose K-distance lies furthest back is evicted first, and one
with fewer than K references lies further back than any with K. So what is asked for once never displaces what is
asked for again and again. Where K-distances are equal, as those of all with fewer than K references are, the
(K-1)-distance decides and so on, and at last the last reference: the paper leaves this choice open.

Two departures from the paper, both for a store that is filled after a miss: a newcomer may itself be the victim, and an
entry inside its correlated period is not protected, for a burst of newcomers must not push out the regulars.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

import msgspec
from sortedcontainers import SortedList  # type: ignore[import-untyped] # it has no types of its own

SHARDS: Final = 256
"""Dictionaries that share the keys: one of a million entries would stand still for long when it grows."""

ENTRY_BYTES: Final = 560
"""What an entry costs beside its key and value, measured over a million entries on CPython 3.11."""

HISTORY_BYTES: Final = 420
"""What the history of an evicted key costs beside the key."""

_SWEPT: Final = 8
_NEVER: Final = float("-inf")

V = TypeVar("V")
Rank = tuple[object, ...]


class Policy(msgspec.Struct, frozen=True):
    """How a store decides. All periods are seconds.

    `capacity`: accounted bytes of all entries; `retained_bytes`: of the histories of evicted keys, beside them.
    `k`: references that count. `correlated_period`: references closer together than this count as one (a retry, a
    double click). `retained_period`: how long the history of an evicted key is kept. `ttl`: how long an entry may be
    used, counted anew by every hit once it has had more than `hot_hits`; `max_age`: how long in any case.
    """

    capacity: int
    retained_bytes: int
    k: int = 3
    correlated_period: float = 5.0
    retained_period: float = 86_400.0
    ttl: float = 7_200.0
    max_age: float = 86_400.0
    hot_hits: int = 10


class History(msgspec.Struct, gc=False):
    """When a key was referenced: `times` newest first, at most K and uncorrelated; `last` with correlated ones."""

    times: tuple[float, ...]
    last: float


class Entry(msgspec.Struct, Generic[V], gc=False):
    """One kept value. `size` is its accounted bytes, `created` and `expires` are the clock's seconds."""

    key: bytes
    value: V
    size: int
    created: float
    expires: float
    history: History
    number: int
    hits: int = 0

    def rank(self, k: int) -> Rank:
        """Its place in the order of eviction, first to go first: K-distance, (K-1)-distance, ..., last reference."""
        times = self.history.times
        known = (*times[:0:-1], self.history.last, self.number, self.key)
        return known if len(times) == k else (_NEVER,) * (k - len(times)) + known


def referenced(history: History | None, now: float, policy: Policy) -> History:
    """The history after a reference at `now`. Correlated references move the older ones along (section 2.1.1)."""
    if history is None:
        return History((now,), now)
    if now - history.last <= policy.correlated_period:
        return History(history.times, now)
    span = history.last - history.times[0]
    earlier = tuple(at + span for at in history.times[: policy.k - 1])
    return History((now, *earlier), now)


class LruK(Generic[V]):
    """A store of at most `policy.capacity` accounted bytes. Time is an argument and never goes back.

    Every operation takes O(log n) time; expired entries go a few at a time. Keys are hashes: 16 bytes or more, evenly
    spread. Reading one has no side effect but the reference.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.bytes = 0
        self.retained_bytes = 0
        self.evicted = 0
        self.expired = 0
        self._entries: list[dict[bytes, Entry[V]]] = [{} for _ in range(SHARDS)]
        self._order = SortedList()
        self._retained: list[dict[bytes, History]] = [{} for _ in range(SHARDS)]
        self._forget: deque[tuple[float, bytes, float]] = deque()
        self._expiring: deque[tuple[float, bytes, int]] = deque()
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._order)

    def get(self, key: bytes, now: float) -> Entry[V] | None:
        """The entry, if it may still be used; that is a hit and a reference."""
        entry = self._entries[key[0]].get(key)
        if entry is None:
            return None
        if now >= entry.expires:
            self._expire(entry, now)
            return None
        entry.hits += 1
        if entry.hits > self.policy.hot_hits:
            self._extend(entry, now)
        self._order.remove(entry.rank(self.policy.k))
        entry.history = referenced(entry.history, now, self.policy)
        self._order.add(entry.rank(self.policy.k))
        return entry

    def peek(self, key: bytes, now: float) -> Entry[V] | None:
        """The entry, if it may still be used, without a reference: for operators."""
        entry = self._entries[key[0]].get(key)
        return entry if entry is not None and now < entry.expires else None

    def put(self, key: bytes, value: V, size: int, now: float, *, ttl: float | None = None) -> bool:
        """Keep a value of `size` bytes, for at most `ttl` seconds; whether it was kept. Evicts what has to go.

        A newcomer that ranks lowest is not kept, but its history is: it ranks higher when it comes again.
        """
        self.sweep(now)
        before = self._entries[key[0]].get(key)
        known = self._retained[key[0]].pop(key, None) if before is None else before.history
        if before is not None:
            self._remove(before)
        size += len(key) + ENTRY_BYTES
        history = referenced(known, now, self.policy)
        if size > self.policy.capacity:
            self._retain(key, history, now)
            return False
        self._numbers += 1
        life = min(self.policy.ttl if ttl is None else ttl, self.policy.max_age)
        entry = Entry(key, value, size, now, now + life, history, self._numbers)
        self._entries[key[0]][key] = entry
        self._order.add(entry.rank(self.policy.k))
        self._expiring.append((entry.expires, key, entry.number))
        self.bytes += size
        while self.bytes > self.policy.capacity:
            self._evict(now)
        return key in self._entries[key[0]]

    def delete(self, key: bytes) -> bool:
        """Drop an entry and forget its key; whether there was one."""
        self._retained[key[0]].pop(key, None)
        entry = self._entries[key[0]].get(key)
        if entry is None:
            return False
        self._remove(entry)
        return True

    def shard(self, number: int) -> Iterator[Entry[V]]:
        """The entries of one of `SHARDS` parts, so that a walk over all can pause between them."""
        return iter(list(self._entries[number].values()))

    def sweep(self, now: float) -> None:
        """Drop a few of what has expired: entries first, then histories."""
        for _ in range(_SWEPT):
            if not self._expiring or self._expiring[0][0] > now:
                break
            _, key, number = self._expiring.popleft()
            entry = self._entries[key[0]].get(key)
            if entry is None or entry.number != number:
                continue
            if now >= entry.expires:
                self._expire(entry, now)
            else:
                self._expiring.append((entry.expires, key, number))
        for _ in range(_SWEPT):
            if not self._forget or self._forget[0][0] > now:
                break
            self._drop_history()

    def _extend(self, entry: Entry[V], now: float) -> None:
        entry.expires = max(entry.expires, min(now + self.policy.ttl, entry.created + self.policy.max_age))

    def _evict(self, now: float) -> None:
        key: bytes = self._order[0][-1]
        entry = self._entries[key[0]][key]
        self._remove(entry)
        self.evicted += 1
        self._retain(entry.key, entry.history, now)

    def _expire(self, entry: Entry[V], now: float) -> None:
        self._remove(entry)
        self.expired += 1
        self._retain(entry.key, entry.history, now)

    def _remove(self, entry: Entry[V]) -> None:
        del self._entries[entry.key[0]][entry.key]
        self._order.remove(entry.rank(self.policy.k))
        self.bytes -= entry.size

    def _retain(self, key: bytes, history: History, now: float) -> None:
        """Keep an evicted key's history; the oldest ones make room."""
        if self.policy.k > 1:
            self._retained[key[0]][key] = history
            self._forget.append((now + self.policy.retained_period, key, history.last))
            self.retained_bytes += len(key) + HISTORY_BYTES
            while self.retained_bytes > self.policy.retained_bytes:
                self._drop_history()

    def _drop_history(self) -> None:
        _, key, last = self._forget.popleft()
        self.retained_bytes -= len(key) + HISTORY_BYTES
        history = self._retained[key[0]].get(key)
        if history is not None and history.last == last:
            del self._retained[key[0]][key]
