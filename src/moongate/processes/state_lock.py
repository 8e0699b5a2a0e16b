"""One supervisor for each state folder: a lock that the kernel drops when its holder dies."""

import fcntl
import os
from pathlib import Path
from typing import Self


class StateLockedError(Exception):
    """Another living supervisor holds this state; the text says who and what to do."""


class StateLock:
    """An flock(2) on `state/lock`, whose text is the holder's process id.

    The descriptor is not inherited by workers: they must not keep a dead supervisor's lock alive.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.identity = _identity(fd)

    @classmethod
    def take(cls, state: Path) -> Self:
        """Make the folder (mode 0700) if need be and lock it. Raises `StateLockedError`, `OSError`."""
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        state.chmod(0o700)
        fd = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode().strip() or "unknown"
            os.close(fd)
            raise StateLockedError(
                f"The state in {state} is in use by another moongate (process {holder}). "
                "Stop that one, or give this one a folder of its own with --state."
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return cls(fd)

    def release(self) -> None:
        """Let the next supervisor in."""
        os.close(self.fd)


def is_held_by(path: Path, identity: str, pid: int) -> bool:
    """Whether this very lock names this process as its holder: who else says so is not our supervisor."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return _identity(fd) == identity and os.pread(fd, 32, 0).strip() == str(pid).encode()
    finally:
        os.close(fd)


def _identity(fd: int) -> str:
    about = os.fstat(fd)
    return f"{about.st_dev:x}-{about.st_ino:x}"
