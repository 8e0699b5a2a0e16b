"""fsync for the journal, in a thread: all records written while one fsync runs share the next."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def _sync(files: list[int], directory: Path | None) -> None:
    for file in files:
        os.fdatasync(file)
    if directory is not None:  # a new segment's name must outlive the power too
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class GroupCommit:
    """Runs at most one fsync at a time. The first that fails is the last: `failed` holds its error for good.

    After a failed fsync the kernel may have dropped the pages and report success to the next one, so it is
    never tried again. `on_dead` is called once, on the loop. Every file handed in stays the journal's but
    those retired.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_dead: Callable[[OSError], None] | None) -> None:
        self.failed: OSError | None = None
        self._loop = loop
        self._on_dead = on_dead
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="journal-fsync")
        self._file = -1
        self._retired: list[int] = []
        self._directory: Path | None = None
        self._written = 0
        self._synced = 0
        self._running: asyncio.Future[None] | None = None
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []

    def switch(self, file: int, directory: Path) -> None:
        """From now on this file is written; the one before is synced once more, then closed here."""
        if self._file >= 0 and self._file != file:
            self._retired.append(self._file)
        self._file = file
        self._directory = directory

    def written(self) -> None:
        """Something was written: have it synced, unless that failed once."""
        self._written += 1
        if self._running is None and self.failed is None:
            self._start()

    async def durable(self) -> bool:
        """Wait until what was written up to now is synced; False: it never will be."""
        if self._synced < self._written and self.failed is None:
            waiter = self._loop.create_future()
            self._waiters.append((self._written, waiter))
            await waiter
        return self.failed is None

    def close(self) -> None:
        """Sync what is left, blocking, and end the thread."""
        self._pool.shutdown(wait=True)
        if self.failed is None and self._file >= 0:
            try:
                _sync([*self._retired, self._file], self._directory)
            except OSError as error:
                self._fail(error)
        for file in self._retired:
            os.close(file)
        self._retired = []
        self._synced = self._written
        self._wake()

    def _start(self) -> None:
        target, retired, directory = self._written, self._retired, self._directory
        self._retired, self._directory = [], None
        running = self._loop.run_in_executor(self._pool, _sync, [*retired, self._file], directory)
        running.add_done_callback(lambda done: self._ended(done, target, retired))
        self._running = running

    def _ended(self, done: "asyncio.Future[None]", target: int, retired: list[int]) -> None:
        self._running = None
        for file in retired:
            os.close(file)
        error = None if done.cancelled() else done.exception()
        if isinstance(error, OSError):
            self._fail(error)
        elif error is not None:
            raise error
        else:
            self._synced = max(self._synced, target)
            if self._synced < self._written:
                self._start()
        self._wake()

    def _fail(self, error: OSError) -> None:
        self.failed = error
        if self._on_dead is not None:
            self._on_dead(error)

    def _wake(self) -> None:
        still: list[tuple[int, asyncio.Future[None]]] = []
        for target, waiter in self._waiters:
            if target > self._synced and self.failed is None:
                still.append((target, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        self._waiters = still
