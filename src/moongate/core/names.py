"""What is known of a host's addresses, how long it holds, and in which order they are tried.

Pure: `now` is monotonic seconds. An answer counts for `ttl` seconds; when no newer one can be had, the last good one
counts for `stale` seconds more, whatever the name server says meanwhile: an API that answered an hour ago is more
likely to be where it was than to be gone (RFC 8767 says the same of resolvers). Source: FAULTS rows 8 to 10.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

PAUSE: Final = 1.0
"""Seconds after a failed lookup before the next one."""
SHUNNED: Final = 30.0
"""Seconds for which an address that did not answer is tried last."""
_KEPT_ANSWERS: Final = 2
_NEVER: Final = float("-inf")


class Address(NamedTuple):
    """An IP address as text; `scope` is the interface of a link-local IPv6 one, else 0."""

    text: str
    scope: int = 0

    @property
    def is_six(self) -> bool:
        """Whether it is IPv6."""
        return ":" in self.text


class Known(StrEnum):
    """What a dial may do now."""

    FRESH = "fresh"  # the addresses hold
    ASK = (
        "ask"  # look up and wait; where that takes too long, the last good addresses will do if there are any
    )
    STALE = "stale"  # the last good addresses hold for want of better; look up meanwhile, but do not wait
    NOTHING = "nothing"  # the last lookup failed just now, and there is nothing to fall back on


class Name:
    """One host name.

    `addresses` is the last good answer, `error` why the last lookup failed, None if it did not. `current` are the
    addresses, as text, to which connections may be kept: those of recent answers, not of the latest alone, for where a
    name has more addresses than fit an answer, each names others. It is a new object only when it changed.
    `changes` counts answers that differed from the one before.
    """

    def __init__(self, ttl: float, stale: float) -> None:
        self._ttl = ttl
        self._stale = stale
        self.addresses: tuple[Address, ...] = ()
        self.error: Exception | None = None
        self.current: frozenset[str] = frozenset()
        self.changes = 0
        self._answered_at = self._failed_at = _NEVER
        self._named: dict[Address, float] = {}
        self._shunned: dict[Address, float] = {}

    def answered(self, addresses: Iterable[Address], now: float) -> bool:
        """Take an answer, of at least one address; whether it names others than the one before."""
        unique = tuple(dict.fromkeys(addresses))
        changed = bool(self.addresses) and set(unique) != set(self.addresses)
        self.changes += changed
        self.addresses, self.error = unique, None
        self._answered_at, self._failed_at = now, _NEVER
        oldest = now - _KEPT_ANSWERS * self._ttl
        self._named = {address: at for address, at in self._named.items() if at > oldest}
        self._named |= dict.fromkeys(unique, now)
        self._shunned = {address: at for address, at in self._shunned.items() if address in self._named}
        current = frozenset(address.text for address in self._named)
        if current != self.current:
            self.current = current
        return changed

    def failed(self, error: Exception, now: float) -> None:
        """Take a lookup's failure."""
        self.error, self._failed_at = error, now

    def known(self, now: float) -> Known:
        """What to do for an address now."""
        if now < self._answered_at + self._ttl:
            return Known.FRESH
        if self.error is None:
            return Known.ASK
        if self.has_last_good(now):
            return Known.STALE
        return Known.NOTHING if now < self._failed_at + PAUSE else Known.ASK

    def has_last_good(self, now: float) -> bool:
        """Whether the last answer is young enough to be used for want of another."""
        return bool(self.addresses) and now < self._answered_at + self._ttl + self._stale

    def is_due(self, now: float) -> bool:
        """Whether a lookup makes sense now."""
        return now >= self._answered_at + self._ttl and now >= self._failed_at + PAUSE

    def met(self, address: Address, now: float, *, well: bool) -> None:
        """Take how a connection attempt to an address went."""
        if well:
            self._shunned.pop(address, None)
        elif address in self._named:
            self._shunned[address] = now

    def order(self, now: float) -> list[Address]:
        """The addresses in the order to try them: families in turn, those that just failed last."""
        recently = now - SHUNNED
        good = [one for one in self.addresses if self._shunned.get(one, _NEVER) <= recently]
        return interleaved(good) + interleaved([one for one in self.addresses if one not in good])


def interleaved(addresses: Sequence[Address]) -> list[Address]:
    """Families in turn, beginning with that of the first address; within a family as given (RFC 8305, section 4)."""
    if not addresses:
        return []
    first = [one for one in addresses if one.is_six is addresses[0].is_six]
    other = [one for one in addresses if one.is_six is not addresses[0].is_six]
    both = min(len(first), len(other))
    turns = [one for pair in zip(first, other, strict=False) for one in pair]
    return turns + first[both:] + other[both:]
