"""Bytes that moongate holds in memory for its calls, under one bound for all of them."""


class Held:
    """A counter with a limit, shared by request bodies and plain answers (DESIGN section 1: 256 MB in all)."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def take(self, size: int) -> bool:
        """Count `size` bytes if they fit; whoever gets True must `give` them back in the same scope."""
        if self.used + size > self.limit:
            return False
        self.used += size
        return True

    def give(self, size: int) -> None:
        """Give back what was taken."""
        self.used -= size
