"""One SQLite file as this house uses it: WAL, short waits, seen when replaced, moved aside when corrupt."""

import contextlib
import errno
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from itertools import count, takewhile
from pathlib import Path
from typing import Final

MOST_ASIDES: Final = 9
"""Damaged files that are kept. When there are as many, something damages them faster than anybody looks."""


class LayoutError(sqlite3.DatabaseError):
    """What the file holds is sound for SQLite but not what this version wrote: it is treated as corrupt."""


def is_corrupt(error: sqlite3.Error) -> bool:
    """Whether this error says that the file's content is damaged, not that it is locked or full."""
    if isinstance(error, LayoutError):
        return True
    code = getattr(error, "sqlite_errorcode", 0)
    if code == sqlite3.SQLITE_IOERR_SHORT_READ:  # the file ends where it must not
        return True
    if code == sqlite3.SQLITE_ERROR:  # a table, a column or a record is not what our own questions ask for
        return True
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


_HEADER: Final = b"SQLite format 3\0"


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


class Database:
    """A connection, made when needed. `create` lays the tables; `patience`: seconds to wait for a lock.

    Not thread-safe: its owner serialises. Everything raises `sqlite3.Error` or OSError as it comes.
    """

    def __init__(self, path: Path, create: Callable[[sqlite3.Connection], None], *, patience: float) -> None:
        self.path = path
        self._create = create
        self._patience = patience
        self._db: sqlite3.Connection | None = None
        self._file = 0
        self._look = -1

    def connect(self) -> sqlite3.Connection:
        """The connection; a new one if the file was removed or replaced since the last was made."""
        if self._db is not None and self._file == _inode(self.path):
            if (
                os.pread(self._look, len(_HEADER), 0) != _HEADER
            ):  # the connection would not notice, others would
                raise LayoutError("its beginning was overwritten")
            return self._db
        self.close()
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.touch(mode=0o600)
        file = _inode(self.path)
        db = sqlite3.connect(self.path, timeout=self._patience, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA page_size = 8192")  # of a new file: half as many pages to sum up and write
            if not db.execute("PRAGMA page_count").fetchone()[
                0
            ]:  # once it has pages this would wait for writers
                db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # `give_back` needs it
            db.execute("PRAGMA journal_size_limit = 67108864")
            db.execute("PRAGMA wal_autocheckpoint = 2000")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            self._create(db)
        except sqlite3.Error:
            db.close()
            raise
        self._db, self._file = db, file
        # closed after the connection only: to close any descriptor of the file gives up the process's locks on it
        self._look = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        return db

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Hold the write lock; commit at the end, roll back whatever raises."""
        db = self.connect()
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
            db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            raise

    def give_back(self, pages: int) -> None:
        """Return free pages to the disk, so many at most."""
        self.connect().executescript(
            f"PRAGMA incremental_vacuum({pages})"
        )  # `execute` would stop at the first page

    def move_aside(self) -> Path | None:
        """Rename the corrupt file, its WAL with it, so that the next `connect` makes a new one.

        Returns the new name; None if another process did it first.
        """
        suspect = self._file or _inode(self.path)
        self.close()
        lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _inode(self.path) != suspect:
                return None
            if len(self.asides()) >= MOST_ASIDES:
                raise OSError(
                    errno.EEXIST, "damaged again and again; look why, then remove", f"{self.path}.corrupt-*"
                )
            aside = next(name for name in self._names() if not name.exists())
            for end in ("-wal", "-shm", ""):
                with contextlib.suppress(FileNotFoundError):
                    Path(f"{self.path}{end}").rename(f"{aside}{end}")
            return aside
        finally:
            os.close(lock)

    def asides(self) -> list[Path]:
        """The files that were moved aside and are still there, oldest first."""
        return list(takewhile(Path.exists, self._names()))

    def _names(self) -> Iterator[Path]:
        return (Path(f"{self.path}.corrupt-{number}") for number in count(1))

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._db is not None:
            self._db.close()
            os.close(self._look)
        self._db, self._file = None, 0
