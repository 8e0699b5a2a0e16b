"""The segment that a journal writes now: how it comes to be, is mended and is let go, on a disk that may fail."""

import contextlib
import os
import shutil
from pathlib import Path

from moongate.store.owners import OwnerLock, segment_path


class SegmentFile:
    """One owner's open segment and its lock, which goes with the first. Everything raises OSError as it comes.

    `file` is its descriptor, -1: none; `size` the bytes that the journal wrote to it and that are whole records.
    """

    __slots__ = ("_base", "_directory", "_lock", "_owner", "_path", "_torn", "_worn", "file", "size")

    def __init__(self, directory: Path, owner: str) -> None:
        self.file = -1
        self.size = 0
        self._directory = directory
        self._owner = owner
        self._lock: OwnerLock | None = None
        self._path = directory
        self._base = 0
        self._torn = False
        self._worn = False

    @property
    def directory(self) -> Path:
        """Where all segments lie."""
        return self._directory

    @property
    def is_fit(self) -> bool:
        """Whether it can take the next record, torn ends mended. If not, begin another."""
        if self._torn and not self._worn:
            try:
                self._cut()
            except OSError:
                self._worn = True  # readers take a torn end for what it is
        return self.file >= 0 and not self._worn

    def wear_out(self) -> None:
        """Write no more to this file: what it does with what it is given is unknown."""
        self._worn = True

    def rescue(self) -> bool:
        """Bring the file back if somebody removed it, and wear it out then; returns whether that was so.

        What was written to it since is in no directory, and gone with this process.
        """
        if self.file < 0 or self._worn or os.fstat(self.file).st_nlink:
            return False
        self._worn = True
        self.take_lock()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with (
            contextlib.suppress(FileExistsError),
            os.fdopen(os.open(self._path, flags, 0o600), "wb") as back,
            Path(f"/proc/self/fd/{self.file}").open("rb") as removed,
        ):
            shutil.copyfileobj(removed, back)
        return True

    def keep(self, size: int) -> None:
        """After a short write: so many bytes more are whole records, what follows them goes as soon as it can."""
        self.size += size
        self._torn = True
        with contextlib.suppress(OSError):
            self._cut()

    def _cut(self) -> None:
        os.ftruncate(self.file, self._base + self.size)
        self._torn = False

    def begin(self, first: int) -> int:
        """Open the segment whose first record bears this sequence; returns the file before it, for the caller to close.

        It is there already if no record came to be whole in it; then it is written on, behind what is torn.
        """
        if self._lock is None:
            self.take_lock()
        path = segment_path(self._directory, self._owner, first)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            file = os.open(path, flags, 0o600)
        except FileNotFoundError:  # somebody removed the directory, and our lock with it
            self.take_lock()
            file = os.open(path, flags, 0o600)
        former, self.file, self._path = self.file, file, path
        self._base, self.size = os.fstat(file).st_size, 0
        self._torn = self._worn = False
        return former if former != file else -1  # that one was closed behind our back

    def take_lock(self) -> None:
        """Hold the owner's lock from now on; `BlockingIOError`: another process does."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        former, self._lock = self._lock, OwnerLock.take(self._directory, self._owner)
        if former is not None:
            former.release()

    def leave(self) -> None:
        """Close the file and let the owner go: from now on it counts as dead."""
        close(self.file)
        self.file = -1
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def close(file: int) -> None:
    """Close it, if it is one. It may be what is broken: nothing is written to it any more, so that hurts nobody."""
    if file >= 0:
        with contextlib.suppress(OSError):
            os.close(file)
