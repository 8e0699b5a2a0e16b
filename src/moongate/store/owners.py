"""Who writes which journal segment, and whether that process still lives.

An owner is one life of one process (a boot id). It holds an exclusive `flock` on `<owner>.lock` from before
its first segment until it ends, however it ends; who can take that lock has proof that the owner is dead.
Segments are named `<owner>-<first sequence>.journal`, so that names sort in the order of writing.
"""

import contextlib
import fcntl
import os
from collections.abc import Container
from pathlib import Path
from typing import Final, NamedTuple

LOCK: Final = ".lock"
SEGMENT: Final = ".journal"


class OwnerLock:
    """The lock of a living owner; held until `release` or the end of the process."""

    __slots__ = ("_file", "path")

    def __init__(self, path: Path, file: int) -> None:
        self.path = path
        self._file = file

    @classmethod
    def take(cls, directory: Path, owner: str) -> "OwnerLock":
        """Make and hold the owner's lock file; raises OSError (`BlockingIOError`: somebody holds it)."""
        path = directory / (owner + LOCK)
        while True:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if path.stat().st_ino == os.fstat(file).st_ino:  # nobody removed it in between
                    return cls(path, file)
            except FileNotFoundError:
                pass
            except OSError:
                os.close(file)
                raise
            os.close(file)

    def release(self) -> None:
        """Let go: from now on the owner counts as dead."""
        os.close(self._file)


def is_dead(directory: Path, owner: str) -> bool:
    """Whether nobody holds the lock: True is proof and stays true. Raises OSError where it is unknown.

    Where somebody removed the lock of an owner that has segments, whoever has one of them open is its life.
    """
    try:
        file = os.open(directory / (owner + LOCK), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return not any(map(_is_open, directory.glob(f"{owner}-*{SEGMENT}")))
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two who ask do not hinder each other
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True


def _is_open(path: Path) -> bool:
    """Whether any process that we may look into has this file open. Slow: for what should not be."""
    wanted = path.resolve()
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            for link in folder.iterdir():
                with contextlib.suppress(OSError):
                    if link.readlink() == wanted:
                        return True
    return False


class Segment(NamedTuple):
    """One file of a journal."""

    path: Path
    owner: str
    first: int


def segment_path(directory: Path, owner: str, first: int) -> Path:
    """Where the segment lies whose first record bears this sequence."""
    return directory / f"{owner}-{first:016x}{SEGMENT}"


def segments(directory: Path) -> dict[str, list[Segment]]:
    """Every owner's segments in the order of writing, oldest owner first; other files are left out."""
    found: dict[str, list[Segment]] = {}
    for path in sorted(directory.glob("*" + SEGMENT)):
        owner, _, first = path.stem.rpartition("-")
        with contextlib.suppress(ValueError):
            found.setdefault(owner, []).append(Segment(path, owner, int(first, 16)))
    return found


def is_old(path: Path, before: float) -> bool:
    """Whether the file was last written before this moment (wall-clock seconds)."""
    return path.stat().st_mtime < before


def remove_locks(directory: Path, keep: Container[str], before: float) -> None:
    """Remove lock files of dead owners without segments, but no young ones: their owner may just start."""
    for path in directory.glob("*" + LOCK):
        if path.stem not in keep and is_dead(directory, path.stem) and is_old(path, before):
            path.unlink()
