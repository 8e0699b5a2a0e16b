"""The only place that reads a clock, sleeps, throws dice or makes ids.

Everything else is handed a `World` (effects) or plain numbers (decisions), so that a test can hand in its own.
"""

import asyncio
import os
import random
import time
from typing import Protocol


class World(Protocol):
    """Time, dice and ids, as the rest of moongate may have them."""

    def clock(self) -> float:
        """Monotonic seconds: for deadlines and durations, never for show."""

    def wall(self) -> float:
        """Seconds since 1970, UTC: for records, never for arithmetic that must not go backwards."""

    async def sleep(self, seconds: float) -> None:
        """Wait; the event loop's timers are the only other thing that may."""

    def draw(self) -> float:
        """A number in [0, 1), for jitter and sampling; never for secrets."""

    def new_id(self) -> str:
        """A new id: 28 lower-case hex digits that sort by the time they were made."""

    def new_secret(self) -> str:
        """256 unguessable bits as 43 URL-safe characters."""


class RealWorld:
    """The machine's own clocks and dice."""

    def __init__(self) -> None:
        self._dice = random.Random(os.urandom(16))  # noqa: S311 - ids and jitter; secrets use os.urandom
        self.clock = time.monotonic
        self.wall = time.time
        self.draw = self._dice.random

    async def sleep(self, seconds: float) -> None:
        """Wait on the event loop."""
        await asyncio.sleep(seconds)

    def new_id(self) -> str:
        """Milliseconds since 1970 (12 digits), then 64 random bits: unique without asking anyone."""
        return f"{int(time.time() * 1000):012x}{self._dice.getrandbits(64):016x}"

    def new_secret(self) -> str:
        """256 bits from the operating system, base64url without padding."""
        import secrets  # noqa: PLC0415 - a worker never makes secrets; its start should not pay for it

        return secrets.token_urlsafe(32)
