"""Which of a host's addresses is tried when: the race of RFC 8305, section 5.

Pure: `now` is monotonic seconds, addresses are numbers from 0 in the order to try them.
"""

from typing import Final

HEAD_START: Final = 0.25
"""Seconds that one attempt has before the next address joins (RFC 8305, section 8: the recommended delay)."""


class Race:
    """One race. An address joins when the one before it failed, or has had its head start; none joins twice."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._joined = 0
        self._running = 0
        self._next_at = float("-inf")

    def due(self, now: float) -> int | None:
        """The address that joins now, which counts as joined; None: none does yet."""
        if self._joined == self._count or (self._running and now < self._next_at):
            return None
        self._joined += 1
        self._running += 1
        self._next_at = now + HEAD_START
        return self._joined - 1

    def failed(self) -> None:
        """Take it that one that had joined failed: the next need not wait."""
        self._running -= 1
        self._next_at = float("-inf")

    def wait(self, now: float) -> float | None:
        """Seconds until another joins if nothing happens; None: no other is left."""
        return None if self._joined == self._count else max(0.0, self._next_at - now)

    @property
    def is_lost(self) -> bool:
        """Whether all have joined and failed."""
        return self._joined == self._count and not self._running
