"""Which call holds a key, for workers that share a state directory: `claims.db` there.

One worker needs none of this, for it knows what it runs and reads the rest from the ledger. Of two workers that are
asked for the same key at once, one holds it: the other looks in the ledger what became of the call that does.
SQLite runs in a thread of its own.
"""

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from moongate.store.database import Database, LayoutError, is_corrupt

_log = logging.getLogger("moongate.claims")

FILE: Final = "claims.db"
_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS claims (place BLOB PRIMARY KEY, call_id TEXT NOT NULL, until REAL NOT NULL)"
    " WITHOUT ROWID"
)
_INDEX: Final = "CREATE INDEX IF NOT EXISTS claims_until ON claims (until)"
_TAKE: Final = (
    "INSERT INTO claims (place, call_id, until) VALUES (?1, ?2, ?3) ON CONFLICT (place) DO UPDATE"
    " SET call_id = ?2, until = ?3 WHERE claims.until <= ?4 OR claims.call_id = ?5"
)
_HOLDER: Final = "SELECT call_id FROM claims WHERE place = ? AND until > ?"


class Claims:
    """The claims of one state directory. `wall` is seconds since 1970, `patience` seconds to wait for another worker.

    Where the file cannot be used, every claim is granted, and an error line says so: calls go on, and only this
    worker's own memory keeps a key from being executed twice.
    """

    def __init__(self, state: Path, wall: Callable[[], float], *, patience: float = 1.0) -> None:
        self._wall = wall
        self._database = Database(state / FILE, _create, patience=patience)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="claims")

    async def take(self, place: bytes, call_id: str, until: float, instead_of: str = "") -> str:
        """Claim a place until then, unless it is held by another call than `instead_of`; returns who holds it now."""
        return await self._run(self._take, place, call_id, until, instead_of)

    async def holder(self, place: bytes) -> str:
        """Who holds a place; empty: nobody."""
        return await self._run(self._holder, place)

    def note(self, place: bytes, call_id: str, until: float) -> None:
        """Let the place be held by this call, whoever held it; returns at once."""
        self._thread.submit(self._note, place, call_id, until)

    def close(self) -> None:
        """Write what waits; blocks as long as the disk does."""
        self._thread.submit(self._database.close)
        self._thread.shutdown(wait=True)

    async def _run(self, act: Callable[..., str], *given: object) -> str:
        return await asyncio.get_running_loop().run_in_executor(self._thread, act, *given)

    def _take(self, place: bytes, call_id: str, until: float, instead_of: str) -> str:
        try:
            now = self._wall()
            with self._database.transaction() as db:
                db.execute("DELETE FROM claims WHERE until <= ?", (now,))
                db.execute(_TAKE, (place, call_id, until, now, instead_of))
                return str(db.execute(_HOLDER, (place, now)).fetchone()[0])
        except (sqlite3.Error, OSError) as error:
            self._complain(error)
            return call_id

    def _note(self, place: bytes, call_id: str, until: float) -> None:
        try:
            with self._database.transaction() as db:
                db.execute("INSERT OR REPLACE INTO claims VALUES (?, ?, ?)", (place, call_id, until))
        except (sqlite3.Error, OSError) as error:
            self._complain(error)

    def _holder(self, place: bytes) -> str:
        try:
            row = self._database.connect().execute(_HOLDER, (place, self._wall())).fetchone()
        except (sqlite3.Error, OSError) as error:
            self._complain(error)
            return ""
        return "" if row is None else str(row[0])

    def _complain(self, error: Exception) -> None:
        _log.error("page: workers cannot see each other's idempotency keys: %s", error)
        if isinstance(error, sqlite3.Error) and is_corrupt(error):
            with contextlib.suppress(sqlite3.Error, OSError):
                self._database.move_aside()


def _create(db: sqlite3.Connection) -> None:
    db.execute(_TABLE)
    if {row[1] for row in db.execute("PRAGMA table_info(claims)")} != {"place", "call_id", "until"}:
        raise LayoutError("its table is that of another version")
    db.execute(_INDEX)
