"""What became of the calls of a replay: counts, times, tokens, money. Pure, and a few dozen bytes a call."""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from moongate.core.call import Usage
from moongate.core.pricing import PriceTable, cost
from moongate.replay.ending import COMPLETED, Answer

SHARES: Final = (0.5, 0.9, 0.99)
"""The percentiles that are shown."""


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a replay, beginning at `at` seconds of the trace.

    `first` are the percentiles (as in `SHARES`) of seconds to the first event, None where nothing came; `cached` is the
    share of input tokens that the provider had in its cache, None where no usage was told.
    """

    at: float
    calls: int
    failed: int
    first: tuple[float, ...] | None
    cached: float | None


class Tally:
    """Adds up the calls of one replay. Prices are those of `currency` on the day of `wall` (seconds since 1970)."""

    def __init__(self, prices: PriceTable, currency: str, wall: float) -> None:
        self.outcomes: Counter[str] = Counter()
        self.usage = Usage()
        self.currency = currency
        self.cost_micro = 0
        self.unpriced = 0
        self.without_usage = 0
        self.left_out = 0
        self.late = array("d")
        self._prices = prices
        self._wall = wall
        self._at = array("d")
        self._first = array("d")
        self._total = array("d")
        self._input = array("q")
        self._cached = array("q")
        self._completed = array("b")

    @property
    def calls(self) -> int:
        """Calls that have ended."""
        return len(self._at)

    @property
    def failed(self) -> int:
        """Of these, how many were not completed."""
        return self.calls - self.outcomes[COMPLETED]

    @property
    def firsts(self) -> list[float]:
        """Seconds to the first event of every call that saw one."""
        return [first for first in self._first if first >= 0]

    @property
    def totals(self) -> list[float]:
        """Seconds that every completed call took."""
        return [total for total, completed in zip(self._total, self._completed, strict=True) if completed]

    def add(self, at: float, late: float, answer: Answer) -> None:
        """Count a call that was due at `at` seconds of the trace, was sent `late` seconds after that, and has ended."""
        completed = answer.outcome == COMPLETED
        usage = answer.usage
        self.outcomes[answer.outcome] += 1
        self.late.append(late)
        self._at.append(at)
        self._first.append(answer.first)
        self._total.append(answer.total)
        self._completed.append(completed)
        self._input.append(usage.input if usage else 0)
        self._cached.append(usage.cached if usage else 0)
        if usage is None:
            self.without_usage += completed
            return
        self.usage = self.usage.plus(usage)
        micro = cost(usage, self._prices.row(answer.model, self.currency, self._wall))
        if micro is None:
            self.unpriced += 1
        else:
            self.cost_micro += micro

    def windows(self, count: int) -> list[Window]:
        """The replay cut into `count` stretches of the trace's time, equally long."""
        if not self._at:
            return []
        width = max(self._at) / count or 1.0
        rows: list[list[int]] = [[] for _ in range(count)]
        for row, at in enumerate(self._at):
            rows[min(int(at / width), count - 1)].append(row)
        return [self._window(number * width, chosen) for number, chosen in enumerate(rows)]

    def _window(self, at: float, rows: list[int]) -> Window:
        firsts = sorted(self._first[row] for row in rows if self._first[row] >= 0)
        tokens = sum(self._input[row] for row in rows)
        cached = sum(self._cached[row] for row in rows)
        return Window(
            at,
            len(rows),
            sum(not self._completed[row] for row in rows),
            tuple(percentile(firsts, share) for share in SHARES) if firsts else None,
            cached / tokens if tokens else None,
        )


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all values does not exceed (nearest rank)."""
    return ordered[max(ceil(share * len(ordered)), 1) - 1]
