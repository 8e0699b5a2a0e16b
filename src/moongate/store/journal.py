"""The journal: where the ledger is durable first. One writer a process, append only, one write a loop tick.

`append` returns when the record is in the kernel's hands (`now=True`) or will be at the end of this loop
tick; a process that is killed loses nothing that was acknowledged. Against loss of power there is `fsync`
with `durable`. An unwritable disk is told at once to whoever must not go on (`JournalError`), and tried again
with every append that cannot wait, as long as that takes little time; no restart is needed once it is writable
again. What must not be lost waits in memory until then. Frames: `store/frames`. Owners and names: `store/owners`.
"""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from moongate.core.record import FORMAT, OwnerRecord, encode
from moongate.store import frames
from moongate.store.group_commit import GroupCommit
from moongate.store.segment import SegmentFile, close

SEGMENT_BYTES: Final = 64 * 1024 * 1024
PENDING_BYTES: Final = 16 * 1024 * 1024
"""What may wait for a disk to become writable; buffered records beyond it are counted as lost."""

ROOM_BYTES: Final = PENDING_BYTES // 4
"""As much of it is for records of calls that cost nothing (`has_room`); the rest is for what was paid."""

RETRY_SECONDS: Final = 1.0
"""How long after a failed write the journal tries by itself, if no append does so before."""

_IDLE: Final = 20.0
"""A disk that took a second to say no is left alone for so many: saying no shall not be what keeps us busy."""

_PIECE: Final = 256 * 1024
"""What is written at once of a backlog."""

_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
"""After these a file is as good as it was; after any other error the next record goes to another segment."""


OnChange = Callable[[OSError | None], None]
"""Told when the journal cannot be written any more, with the error, and when it can again, with None."""


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
        *,
        clock: Callable[[], float] | None,
        on_change: OnChange | None,
    ) -> None:
        self.owner = header.owner
        self.lost = 0
        self.written_bytes = 0
        self._header = encode(header)
        self._seed = frames.seed(header.owner)
        self._segment_bytes = segment_bytes
        self._loop = loop
        self._commit: GroupCommit | None = None
        self._clock = clock
        self._on_change = on_change
        self._segment = SegmentFile(directory, header.owner)
        self._trouble = False
        self._partly = False
        self._error: OSError | None = None
        self._began = 0.0
        self._not_before = 0.0
        self._sequence = 0
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._together: list[tuple[int, bytes, asyncio.Future[None]]] = []
        self._soon: asyncio.Handle | None = None
        self._retry: asyncio.TimerHandle | None = None
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
        on_change: OnChange | None = None,
        clock: Callable[[], float] | None = None,
    ) -> "Journal":
        """Start this owner's journal. A disk that cannot be written leaves it unavailable, not unmade.

        `slot` and `started` (wall-clock seconds) go into segment headers. `on_dead` is called once, with the
        error, when an fsync failed: no `append(now=True)` goes well from then on, since what reached the disk is
        unknown and another fsync would lie; how calls ended that run already is still written down, in another
        segment. `clock` (monotonic seconds) is read only while the disk fails, to see how long it takes for that.
        Without a `loop`, buffered records wait for the next `append(now=True)`,
        `flush` or `close`. Raises `JournalError` if a living process holds the same owner, or if `fsync` is
        asked for without a loop.
        """
        header = OwnerRecord(FORMAT, owner, slot, os.getpid(), started)
        journal = cls(directory, header, segment_bytes, loop, clock=clock, on_change=on_change)
        if fsync:
            if loop is None:
                raise JournalError("fsync needs an event loop")

            def die(error: OSError) -> None:
                journal._trouble = True
                journal._segment.wear_out()
                if on_dead is not None:
                    on_dead(error)

            journal._commit = GroupCommit(loop, die)
        try:
            journal._segment.take_lock()
        except BlockingIOError as error:
            raise JournalError(f"another process holds the journal of {owner}") from error
        except OSError as error:
            journal._fail(error)
        return journal

    @property
    def available(self) -> bool:
        """Whether the last write went well and nothing ended the journal: whether paid work may start."""
        return self._error is None and not self._closed and not self._dead

    @property
    def has_room(self) -> bool:
        """Whether the record of a call that cost nothing may wait here too; if not, `skip` it."""
        return self._pending_bytes < ROOM_BYTES

    def skip(self) -> None:
        """Count a record as lost; readers will see that one is missing."""
        self._sequence += 1
        self.lost += 1

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
            self._write_now([frame])
        elif self._closed or self._pending_bytes + len(frame) > PENDING_BYTES:
            self.lost += 1
        else:
            self._pending.append(frame)
            self._pending_bytes += len(frame)
            if self._soon is None and self._loop is not None:
                self._soon = self._loop.call_soon(self.flush)

    async def append_with_others(self, kind: int, payload: bytes) -> None:
        """Take one record and return once it is written, in one write with all others of this loop turn.

        Raises `JournalError` if it was not and will not be written: what it stands for must not be done.
        """
        assert self._loop is not None
        written = self._loop.create_future()
        self._together.append((kind, payload, written))
        if len(self._together) == 1:
            self._loop.call_soon(self._write_together)
        await written

    def _write_together(self) -> None:
        together, self._together = self._together, []
        error: JournalError | None = None
        refused = 0
        sequence = self._sequence
        packed = [
            frames.pack(self._seed, sequence + number, kind, payload)
            for number, (kind, payload, _) in enumerate(together, 1)
        ]
        self._sequence = sequence + len(packed)
        try:
            self._write_now(packed)
        except JournalError as raised:
            error = raised
            refused = sequence + len(packed) - self._sequence
        for number, (_, _, written) in enumerate(together, 1):
            if written.done():  # whoever waited was cancelled
                continue
            if error is not None and number > len(together) - refused:
                written.set_exception(error)
            else:
                written.set_result(None)

    def look(self) -> bool:
        """Look, once in a while, whether the segment is still in its directory; False: it was not, and is again.

        Raises OSError if it cannot be brought back.
        """
        if not self._segment.rescue():
            return True
        self._trouble = True
        return False

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
        self._closed = self._trouble = True
        if self._retry is not None:
            self._retry.cancel()
        if self._commit is not None:
            self._commit.close()
        self._segment.leave()

    def _write_now(self, packed: list[bytes]) -> None:
        """Write what is pending and these; raises `JournalError` and forgets those of them that are not on disk."""
        pending = self._pending
        pending += packed
        self._pending_bytes += sum(map(len, packed))
        try:
            self._write(paid=True)
        except OSError as error:
            pending = self._pending
            refused = min(len(packed), len(pending))
            self._pending_bytes -= sum(map(len, pending[-refused:]))
            del pending[-refused:]
            self._sequence -= refused
            self._try_later()
            raise JournalError(f"the journal cannot be written: {error}") from error

    def _try_later(self) -> None:
        if self._loop is None or not self._pending or self._retry is not None or self._closed:
            return
        self._retry = self._loop.call_later(RETRY_SECONDS, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._not_before = 0.0
        self.flush()

    def _write(self, *, paid: bool = False) -> None:
        """Write all that is pending, in one write; raises OSError and keeps what is not whole on disk.

        `paid`: something that costs will be done on the strength of it.
        """
        if self._trouble:
            self._overcome(paid=paid)
        segment, pending = self._segment, self._pending
        if segment.file < 0 or (segment.size and segment.size + self._pending_bytes > self._segment_bytes):
            self._next_segment()
        data = pending[0] if len(pending) == 1 else b"".join(pending)
        if not segment.size:
            last = frames.sequence_of(pending[0]) - 1
            data = frames.pack(self._seed, last, frames.Kind.OWNER, self._header) + data
        try:
            written = os.write(segment.file, data)
        except OSError as error:
            self._fail(error)
            raise
        self.written_bytes += written
        if written != len(data):
            self._keep_rest(data, written)
            raise self._fail(OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes were taken"))
        segment.size += written
        self._pending = []
        self._pending_bytes = 0
        if self._error is not None:
            self._recover()
        if self._commit is not None:
            self._commit.written()

    def _next_segment(self) -> None:
        try:
            former = self._segment.begin(frames.sequence_of(self._pending[0]))
        except OSError as error:
            self._fail(error)
            raise
        if self._commit is not None and not self._dead:
            self._commit.switch(self._segment.file, self._segment.directory)
        else:
            close(former)

    def _keep_rest(self, data: bytes, written: int) -> None:
        """After a short write: whole frames are done; a torn one goes from the file and stays pending."""
        whole = len(data) - self._pending_bytes  # the header, if this began a segment
        if written < whole:
            whole = 0
        else:
            while whole + len(self._pending[0]) <= written:
                whole += len(self._pending[0])
                self._pending_bytes -= len(self._pending.pop(0))
        self._segment.keep(whole)

    def _fail(self, error: OSError) -> OSError:
        """Note that the disk does not take what it should."""
        self._trouble = True
        if error.errno not in _FULL:
            self._segment.wear_out()
        if self._clock is not None and self._began:
            now = self._clock()
            self._not_before = now + min(_IDLE * (now - self._began), RETRY_SECONDS)
        before, self._error = self._error, error
        if before is None and self._on_change is not None:
            self._on_change(error)
        return error

    def _recover(self) -> None:
        """What was pending is written; unless that was a part of it, the disk is well again."""
        if self._partly:
            return
        self._error = None
        self._began = self._not_before = 0.0
        if self._on_change is not None:
            self._on_change(None)

    def _overcome(self, *, paid: bool) -> None:
        """Make the segment fit for the next write and write most of a backlog; raises OSError where that fails."""
        if self._closed or (paid and self._dead):
            raise OSError(errno.EIO, "its storage failed" if self._dead else "it takes no more records")
        if self._clock is not None:
            self._began = self._clock()
            if self._error is not None and self._began < self._not_before:
                raise OSError(self._error.errno, f"{self._error.strerror} (a moment ago)")
        if not self._segment.is_fit:
            self._next_segment()
        self._trouble = self._dead
        self._partly = True
        try:
            while self._pending_bytes > _PIECE and len(self._pending) > 1:
                self._write_piece()
        finally:
            self._partly = False

    def _write_piece(self) -> None:
        whole, end, size = self._pending, 0, 0
        while end < len(whole) - 1 and size < _PIECE:
            size += len(whole[end])
            end += 1
        rest = self._pending_bytes - size
        self._pending, self._pending_bytes = whole[:end], size
        try:
            self._write()
        finally:
            self._pending += whole[end:]
            self._pending_bytes += rest
