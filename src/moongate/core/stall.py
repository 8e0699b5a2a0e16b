"""Telling a stall from slow motion, by looking now and then."""


class Motion:
    """A growing amount that should not stand still: bytes received, bytes taken by a reader."""

    __slots__ = ("_mark", "_moved_at")

    def __init__(self, now: float) -> None:
        self._mark = 0
        self._moved_at = now

    def stands_for(self, amount: int, now: float, least: int) -> float:
        """Seconds since the amount, `amount` now, last grew by `least` or more from one look to a later one."""
        if amount - self._mark >= least:
            self._mark = amount
            self._moved_at = now
        return now - self._moved_at
