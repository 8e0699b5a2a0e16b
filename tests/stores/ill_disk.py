"""A disk that fails as told, at the border of the operating system's file calls; only journal segments are ill."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

KINDS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EBADF, errno.ESTALE)


class IllDisk:
    """`error` 0: well. `room`: bytes that a write still takes before it fails; `fixed`: nothing can be cut off.

    `deaf`: not even a close goes well. `unsynced`: what is written stays off the plates. `writes` counts the tries,
    `tried` their bytes, `syncs` the times that fdatasync was asked for.
    """

    def __init__(self) -> None:
        self.error = 0
        self.room = 0
        self.fixed = False
        self.deaf = False
        self.writes = 0
        self.tried = 0
        self.unsynced = False
        self.syncs = 0
        self._sync = os.fdatasync
        self._write, self._open, self._cut, self._close = os.write, os.open, os.ftruncate, os.close

    def fall_ill(self, error: int, room: int = 0, *, fixed: bool = False, deaf: bool = False) -> None:
        self.error, self.room, self.fixed, self.deaf = error, room, fixed, deaf

    def recover(self) -> None:
        self.fall_ill(0)

    def _raise(self) -> None:
        raise OSError(self.error, os.strerror(self.error))

    def write(self, file: int, data: bytes) -> int:
        self.writes += 1
        self.tried += len(data)
        if not self.error:
            return self._write(file, data)
        taken = min(self.room, len(data))
        self.room -= taken
        if not taken:
            self._raise()
        return self._write(file, data[:taken])

    def open(self, path: str | Path, flags: int, mode: int = 0o777) -> int:
        if self.error and flags & os.O_CREAT and not self.room:
            self._raise()
        return self._open(path, flags, mode)

    def ftruncate(self, file: int, size: int) -> None:
        if self.error and self.fixed:
            self._raise()
        self._cut(file, size)

    def fdatasync(self, file: int) -> None:
        self.syncs += 1
        if self.unsynced:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._sync(file)

    def close(self, file: int) -> None:
        self._close(file)
        if self.error and self.deaf:
            self._raise()


@contextmanager
def ill_disk() -> Iterator[IllDisk]:
    """Every write, creation, truncation and close of this process meets this disk."""
    disk = IllDisk()
    os.write, os.open, os.ftruncate, os.close = disk.write, disk.open, disk.ftruncate, disk.close  # type: ignore[assignment]
    os.fdatasync = disk.fdatasync  # type: ignore[assignment]
    try:
        yield disk
    finally:
        os.write, os.open, os.ftruncate, os.close = disk._write, disk._open, disk._cut, disk._close
        os.fdatasync = disk._sync
