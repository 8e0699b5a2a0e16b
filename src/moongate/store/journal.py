"""The journal: where the ledger is durable first. One writer a process, append only, one write a loop tick.

`append` returns when the record is in the kernel's hands (`now=True`) or will be at the end of this loop
tick; a process that is killed loses nothing that was acknowledged. Against loss of power there is `fsync`
with `durable`. An unwritable disk is told at once to whoever must not go on (`JournalError`), and tried again
with every append; no restart is needed once it is writable again. Frames: `store/frames`. Owners and names:
`store/owners`.
"""

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from moongate.core.record import FORMAT, OwnerRecord, encode
from moongate.store import frames
from moongate.store.group_commit import GroupCommit
from moongate.store.owners import OwnerLock, segment_path

SEGMENT_BYTES: Final = 64 * 1024 * 1024
PENDING_BYTES: Final = 16 * 1024 * 1024
"""What may wait for a disk to become writable; buffered records beyond it are counted as lost."""

RETRY_SECONDS: Final = 1.0
"""How long after a failed write the journal tries by itself, if no append does so before."""


class JournalError(Exception):
    """The record is not in the journal and never will be: what it stands for must not be done."""


class Journal:
    """One owner's journal, made by `open`. Not thread-safe: it belongs to the thread of its loop.

    `lost` counts buffered records that could not be kept; each leaves a gap in the sequence. `written_bytes` counts
    what was written since its start.
    """

    def __init__(
        self,
        directory: Path,
        header: OwnerRecord,
        segment_bytes: int,
        loop: asyncio.AbstractEventLoop | None,
        commit: GroupCommit | None,
    ) -> None:
        self.owner = header.owner
        self.lost = 0
        self.written_bytes = 0
        self._directory = directory
        self._header = encode(header)
        self._seed = frames.seed(header.owner)
        self._segment_bytes = segment_bytes
        self._loop = loop
        self._commit = commit
        self._lock: OwnerLock | None = None
        self._file = -1
        self._size = 0
        self._torn = False
        self._sequence = 0
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._together: list[tuple[int, bytes, asyncio.Future[None]]] = []
        self._soon: asyncio.Handle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._writable = True
        self._closed = False

    @classmethod
    def open(
        cls,
        directory: Path,
        owner: str,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        fsync: bool = False,
        loop: asyncio.AbstractEventLoop | None = None,
        slot: int = 0,
        started: float = 0.0,
        on_dead: Callable[[OSError], None] | None = None,
    ) -> "Journal":
        """Start this owner's journal. A disk that cannot be written leaves it unavailable, not unmade.

        `slot` and `started` (wall-clock seconds) go into segment headers. `on_dead` is called once, with the
        error, when an fsync failed: nothing is taken from then on, since what reached the disk is unknown and
        another fsync would lie. Without a `loop`, buffered records wait for the next `append(now=True)`,
        `flush` or `close`. Raises `JournalError` if a living process holds the same owner, or if `fsync` is
        asked for without a loop.
        """
        commit = None
        if fsync:
            if loop is None:
                raise JournalError("fsync needs an event loop")
            commit = GroupCommit(loop, on_dead)
        header = OwnerRecord(FORMAT, owner, slot, os.getpid(), started)
        journal = cls(directory, header, segment_bytes, loop, commit)
        try:
            journal._take_lock()
        except BlockingIOError as error:
            raise JournalError(f"another process holds the journal of {owner}") from error
        except OSError:
            journal._writable = False
        return journal

    @property
    def available(self) -> bool:
        """Whether the last write went well and nothing ended the journal: whether paid work may start."""
        return self._writable and not self._closed and not self._dead

    @property
    def sequence(self) -> int:
        """The sequence of the last record taken."""
        return self._sequence

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait to be written."""
        return self._pending_bytes

    @property
    def _dead(self) -> bool:
        return self._commit is not None and self._commit.failed is not None

    def append(self, kind: int, payload: bytes, *, now: bool) -> None:
        """Take one record.

        `now`: everything pending and this record are written, in one write, before this returns;
        `JournalError` says that this record was not and will not be (what was pending stays so). Otherwise it
        is written at the end of the loop tick and this never raises: what cannot be kept is counted in `lost`
        and leaves a gap in the sequence.
        """
        self._sequence = sequence = self._sequence + 1
        frame = frames.pack(self._seed, sequence, kind, payload)
        if now:
            self._write_now(frame)
        elif self._closed or self._dead or self._pending_bytes + len(frame) > PENDING_BYTES:
            self.lost += 1
        else:
            self._pending.append(frame)
            self._pending_bytes += len(frame)
            if self._soon is None and self._loop is not None:
                self._soon = self._loop.call_soon(self.flush)

    async def append_with_others(self, kind: int, payload: bytes) -> None:
        """Take one record and return once it is written, in one write with all others of this loop turn.

        Raises `JournalError` if it could not be written: what it stands for must not be done. It may still be written
        once the disk is well again, so whoever asked must append how that ended.
        """
        assert self._loop is not None
        written = self._loop.create_future()
        self._together.append((kind, payload, written))
        if len(self._together) == 1:
            self._loop.call_soon(self._write_together)
        await written

    def _write_together(self) -> None:
        together, self._together = self._together, []
        lost: list[asyncio.Future[None]] = []
        for kind, payload, written in together[:-1]:
            before = self.lost
            self.append(kind, payload, now=False)
            if self.lost != before:
                lost.append(written)
        error: JournalError | None = None
        try:
            kind, payload, _ = together[-1]
            self.append(kind, payload, now=True)
        except JournalError as raised:
            error = raised
        for _, _, written in together:
            if written.done():  # whoever waited was cancelled
                continue
            if error is not None or written in lost:
                written.set_exception(error or JournalError("the journal holds as much as it can"))
            else:
                written.set_result(None)

    def flush(self) -> None:
        """Write what is pending now. Never raises: a failure shows in `available` and is tried again."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if not self._pending:
            return
        try:
            self._write()
        except OSError:
            self._try_later()

    @property
    def syncs(self) -> bool:
        """Whether `durable` has anything to wait for."""
        return self._commit is not None

    async def durable(self) -> None:
        """Wait until all that was written up to now is on stable storage; without `fsync` that is no wait.

        Raises `JournalError` if the storage failed.
        """
        if self._commit is not None and not await self._commit.durable():
            raise JournalError(f"the journal's storage failed: {self._commit.failed}")

    def close(self) -> None:
        """Write what is pending and let the owner go. Blocks for an fsync if there is `fsync`."""
        if self._closed:
            return
        self.flush()
        self.lost += len(self._pending)
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
        if self._commit is not None:
            self._commit.close()
        if self._file >= 0:
            os.close(self._file)
        if self._lock is not None:
            self._lock.release()

    def _write_now(self, frame: bytes) -> None:
        self._pending.append(frame)
        self._pending_bytes += len(frame)
        try:
            self._write()
        except OSError as error:
            self._pending.pop()
            self._pending_bytes -= len(frame)
            self._sequence -= 1
            self._try_later()
            raise JournalError(f"the journal cannot be written: {error}") from error

    def _try_later(self) -> None:
        self._writable = False
        if self._loop is None or not self._pending or self._retry is not None or self._closed or self._dead:
            return
        self._retry = self._loop.call_later(RETRY_SECONDS, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self.flush()

    def _write(self) -> None:
        """Write all that is pending, in one write; raises OSError and keeps what is not whole on disk."""
        if self._closed or self._dead:
            raise OSError(errno.EIO, "it takes no more records")
        if self._torn:
            self._mend()
        if self._file < 0 or (self._size and self._size + self._pending_bytes > self._segment_bytes):
            self._next_segment()
        pending = self._pending
        data = pending[0] if len(pending) == 1 else b"".join(pending)
        if not self._size:
            last = frames.sequence_of(pending[0]) - 1
            header = frames.pack(self._seed, last, frames.Kind.OWNER, self._header)
            data = header + data
        written = os.write(self._file, data)
        if written != len(data):
            self._keep_rest(data, written)
            raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes were taken")
        self._size += written
        self.written_bytes += written
        self._pending = []
        self._pending_bytes = 0
        self._writable = True
        if self._commit is not None:
            self._commit.written()

    def _keep_rest(self, data: bytes, written: int) -> None:
        """After a short write: whole frames are done; a torn one goes from the file and stays pending."""
        whole = len(data) - self._pending_bytes  # the header, if this began a segment
        if written < whole:
            whole = 0
        else:
            while whole + len(self._pending[0]) <= written:
                whole += len(self._pending[0])
                self._pending_bytes -= len(self._pending.pop(0))
        self._size += whole
        self._torn = True
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, self._size)
            self._torn = False

    def _mend(self) -> None:
        try:
            os.ftruncate(self._file, self._size)
        except OSError:
            self._next_segment()  # readers take a torn end for what it is
        self._torn = False

    def _next_segment(self) -> None:
        if self._lock is None:
            self._take_lock()
        path = segment_path(self._directory, self.owner, frames.sequence_of(self._pending[0]))
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if self._commit is not None:
            self._commit.switch(file, self._directory)
        elif self._file >= 0:
            os.close(self._file)
        self._file = file
        self._size = 0

    def _take_lock(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = OwnerLock.take(self._directory, self.owner)
