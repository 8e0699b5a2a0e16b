"""Work that the supervisor repeats beside its loop: folding journals, and the like."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from moongate.ops.metrics import Row

log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Chore:
    """`act` is called every so many seconds, always in the same thread, which is the chore's own.

    It is called a last time when the supervisor ends, after the last worker. What it raises is logged, and it is
    called again when its time comes. `rows` and `checks` are what it has for metrics and `/healthz`; they are called on
    the loop.
    """

    name: str
    seconds: float
    act: Callable[[], object]
    rows: Callable[[], list[Row]] = list
    checks: Callable[[], dict[str, str]] = dict


class Chores:
    """Runs chores; `start`, then `finish`."""

    def __init__(self, chores: Sequence[Chore]) -> None:
        self._chores = chores
        self._ending = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin; each chore is done at once, then again and again."""
        self._tasks = [asyncio.create_task(self._repeat(chore)) for chore in self._chores]

    async def finish(self) -> None:
        """Do every chore once more and return when all are done."""
        self._ending.set()
        await asyncio.gather(*self._tasks)

    async def _repeat(self, chore: Chore) -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, thread_name_prefix=chore.name) as thread:
            last = False
            while not last:
                last = self._ending.is_set()
                try:
                    await loop.run_in_executor(thread, chore.act)
                except Exception:
                    log.exception("%s failed", chore.name)
                if not last:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._ending.wait(), chore.seconds)
