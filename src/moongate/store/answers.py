"""Answers kept for retries: encrypted, bounded, in `answers.db` of the state directory; else in memory.

A cache, never the truth: whatever happens to the file, calls go on, and an answer that cannot be read is one that is
gone. SQLite and the cipher run in a thread of their own; several workers share the file. Each body is AES-256-GCM
under one key with a nonce of its own, bound to its call id, so that a row moved to another call is no answer.
Without the package `cryptography` (extra `answers`) nothing is written: answers live as long as their worker.
"""

import asyncio
import contextlib
import logging
import os
import sqlite3
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Protocol

import msgspec

from moongate.core.kept import LARGEST, Kept
from moongate.store.database import Database, LayoutError, is_corrupt
from moongate.world import World

_log = logging.getLogger("moongate.answers")

FILE: Final = "answers.db"
KEY_FILE: Final = "answers.key"
ALL_BYTES: Final = 256 * 1024 * 1024
PENDING_BYTES: Final = 16 * 1024 * 1024
"""What may wait for the disk; more is not kept."""

MEMORY_BYTES: Final = 64 * 1024 * 1024

_NONCE: Final = 12
_ROOM: Final = 64
"""What is there is summed up after each 64th part of the bound, which is the most that it is exceeded by a worker."""
_KEY: Final = 32
_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS answers (call_id TEXT PRIMARY KEY, until REAL NOT NULL, size INTEGER NOT NULL,"
    " sealed BLOB NOT NULL)"
)
_INDEXES: Final = (
    "CREATE INDEX IF NOT EXISTS answers_until ON answers (until)",
    "CREATE INDEX IF NOT EXISTS answers_size ON answers (size)",
)
_OLDEST: Final = "SELECT rowid, size FROM answers ORDER BY rowid"


def key_of(state: Path, secret: str | None) -> bytes:
    """The 32 bytes that seal answers: made of the operator's secret, else those of a file that is made when missing.

    Raises OSError.
    """
    if secret is not None:
        return sha256(b"moongate answers\n" + secret.encode()).digest()
    path = state / KEY_FILE
    with contextlib.suppress(FileExistsError):
        _write_key(path)
    key = path.read_bytes()
    if len(key) != _KEY:
        path.unlink(missing_ok=True)
        _write_key(path)
        key = path.read_bytes()
    return key


def _write_key(path: Path) -> None:
    """Make the file whole or not at all: another worker may be about to read it. Raises FileExistsError."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - its import costs 50 ms

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file, draft = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)  # nobody else's to read
    try:
        os.write(file, AESGCM.generate_key(_KEY * 8))
        os.link(draft, path)
    finally:
        os.close(file)
        Path(draft).unlink()


class Seal:
    """Encrypts and decrypts answers. `nonce` gives 12 bytes that never come twice under the key."""

    def __init__(self, key: bytes, nonce: Callable[[], bytes]) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - as above

        self._cipher = AESGCM(key)
        self._nonce = nonce
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(Kept).decode

    def close(self, call_id: str, kept: Kept) -> bytes:
        """The answer as it may lie on a disk."""
        nonce = self._nonce()
        return nonce + self._cipher.encrypt(nonce, self._encode(kept), call_id.encode())

    def open(self, call_id: str, sealed: bytes) -> Kept | None:
        """The answer; None for bytes that were not sealed for this call under this key."""
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - as above

        try:
            plain = self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], call_id.encode())
            return self._decode(plain)
        except (InvalidTag, ValueError, msgspec.MsgspecError):
            return None


class Answers(Protocol):
    """Where the flow keeps answers. Used from one event loop; nothing here raises."""

    def keep(self, call_id: str, kept: Kept, until: float) -> bool:
        """Keep an answer until then (wall-clock seconds); returns at once.

        False: it is too large, or too much waits already.
        """

    async def find(self, call_id: str) -> Kept | None:
        """The kept answer of a call; None: it is not there, or not any more."""

    def close(self) -> None:
        """Write what waits; blocks as long as the disk does."""


def open_answers(
    state: Path, world: World, *, secret: str | None = None, largest: int = LARGEST, most: int = ALL_BYTES
) -> Answers:
    """Answers in the state directory's file, or in memory where the cipher is not installed.

    `largest` and `most` are bytes of one body and of all.
    """
    if find_spec("cryptography") is None:
        _log.info(
            "answers for retries are kept in memory only; the extra `answers` lets them survive a restart"
        )
        return MemoryAnswers(world.wall, largest=largest, most=min(most, MEMORY_BYTES))
    return SealedAnswers(state, world, secret=secret, largest=largest, most=most)


class MemoryAnswers:
    """Answers that end with their worker; the oldest go first."""

    def __init__(
        self, wall: Callable[[], float], *, largest: int = LARGEST, most: int = MEMORY_BYTES
    ) -> None:
        self._wall = wall
        self._largest = largest
        self._most = most
        self._held: dict[str, tuple[Kept, float]] = {}
        self.bytes = 0

    def keep(self, call_id: str, kept: Kept, until: float) -> bool:
        """As in `Answers`."""
        if len(kept.body) > self._largest:
            return False
        self._drop(call_id)
        self._held[call_id] = kept, until
        self.bytes += len(kept.body)
        while self.bytes > self._most:
            self._drop(next(iter(self._held)))
        return True

    async def find(self, call_id: str) -> Kept | None:
        """As in `Answers`."""
        kept, until = self._held.get(call_id, (None, 0.0))
        if kept is not None and until <= self._wall():
            self._drop(call_id)
            return None
        return kept

    def close(self) -> None:
        """As in `Answers`."""
        self._held.clear()
        self.bytes = 0

    def _drop(self, call_id: str) -> None:
        kept, _ = self._held.pop(call_id, (None, 0.0))
        if kept is not None:
            self.bytes -= len(kept.body)


class SealedAnswers:
    """The kept answers of one state directory. `patience`: seconds to wait for another worker that writes."""

    def __init__(
        self,
        state: Path,
        world: World,
        *,
        secret: str | None = None,
        largest: int = LARGEST,
        most: int = ALL_BYTES,
        patience: float = 1.0,
    ) -> None:
        self._state = state
        self._wall = world.wall
        self._secret_bits = world.new_secret
        self._secret = secret
        self._largest = largest
        self._most = most
        self._database = Database(state / FILE, _create, patience=patience)
        self._thread: ThreadPoolExecutor | None = None
        self._seal: Seal | None = None
        self._pending: dict[str, Kept] = {}
        self._pending_bytes = 0
        self._unchecked = most  # a file may be full from before
        self._complained = ""

    @property
    def waiting(self) -> int:
        """Answers that wait to be written."""
        return len(self._pending)

    def keep(self, call_id: str, kept: Kept, until: float) -> bool:
        """As in `Answers`."""
        size = len(kept.body)
        if size > self._largest or self._pending_bytes + size > PENDING_BYTES:
            return False
        self._pending[call_id] = kept
        self._pending_bytes += size
        writing = asyncio.get_running_loop().run_in_executor(self._pool(), self._put, call_id, kept, until)
        writing.add_done_callback(lambda _: self._written(call_id, size))
        return True

    async def find(self, call_id: str) -> Kept | None:
        """As in `Answers`."""
        waiting = self._pending.get(call_id)
        if waiting is not None:
            return waiting
        return await asyncio.get_running_loop().run_in_executor(self._pool(), self._get, call_id)

    def close(self) -> None:
        """As in `Answers`."""
        if self._thread is not None:
            self._thread.submit(self._database.close)
            self._thread.shutdown(wait=True)
            self._thread = None

    def _pool(self) -> ThreadPoolExecutor:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="answers")
        return self._thread

    def _written(self, call_id: str, size: int) -> None:
        self._pending_bytes -= size
        self._pending.pop(call_id, None)

    # -- in the thread

    def _put(self, call_id: str, kept: Kept, until: float) -> None:
        try:
            sealed = self._sealed_with().close(call_id, kept)
            with self._database.transaction() as db:
                db.execute("DELETE FROM answers WHERE until <= ?", (self._wall(),))
                db.execute(
                    "INSERT OR REPLACE INTO answers (call_id, until, size, sealed) VALUES (?, ?, ?, ?)",
                    (call_id, until, len(sealed), sealed),
                )
                self._unchecked += len(sealed)
                if self._unchecked >= self._most // _ROOM:
                    self._make_room(db)
                    self._unchecked = 0
        except (sqlite3.Error, OSError) as error:
            self._complain(error)

    def _make_room(self, db: sqlite3.Connection) -> None:
        over = db.execute("SELECT ifnull(sum(size), 0) FROM answers").fetchone()[0] - self._most
        gone: list[tuple[int]] = []
        for row, size in db.execute(_OLDEST) if over > 0 else ():
            if over <= 0:
                break
            gone.append((row,))
            over -= size
        db.executemany("DELETE FROM answers WHERE rowid = ?", gone)

    def _get(self, call_id: str) -> Kept | None:
        try:
            row = (
                self._database.connect()
                .execute(
                    "SELECT sealed FROM answers WHERE call_id = ? AND until > ?", (call_id, self._wall())
                )
                .fetchone()
            )
            return None if row is None else self._sealed_with().open(call_id, row[0])
        except (sqlite3.Error, OSError) as error:
            self._complain(error)
            return None

    def _sealed_with(self) -> Seal:
        if self._seal is None:
            self._seal = Seal(key_of(self._state, self._secret), self._nonce)
        return self._seal

    def _nonce(self) -> bytes:
        return sha256(self._secret_bits().encode()).digest()[:_NONCE]

    def _complain(self, error: Exception) -> None:
        """Say once what is the matter; a damaged file gives way to a new one: what it held is gone either way."""
        if str(error) != self._complained:
            self._complained = str(error)
            _log.warning("answers cannot be kept or read for now: %s", error)
        if isinstance(error, sqlite3.Error) and is_corrupt(error):
            with contextlib.suppress(sqlite3.Error, OSError):
                aside = self._database.move_aside()
                for end in ("", "-wal", "-shm") if aside is not None else ():
                    Path(f"{aside}{end}").unlink(missing_ok=True)


def _create(db: sqlite3.Connection) -> None:
    db.execute(_TABLE)
    if {row[1] for row in db.execute("PRAGMA table_info(answers)")} != {"call_id", "until", "size", "sealed"}:
        raise LayoutError("its table is that of another version")
    for index in _INDEXES:
        db.execute(index)
