"""The control document in SQLite: `control.db` in the state directory, readable by its owner only.

The command line and a running supervisor open the same file. Every change is one transaction that also writes one row
of the audit log, and the document's version is the number of that row. The supervisor asks `changed()` now and then,
so that a change takes effect without a restart.
"""

import json
import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from moongate.core.control import DEMO_PREFIX, KEY_PREFIX, Control, KeyEntry, Parked, digest_of
from moongate.core.mistakes import known_instead

__all__ = ["Change", "Control", "ControlError", "ControlStore", "KeyEntry", "Parked"]

FILE: Final = "control.db"
FORMAT: Final = 1
"""Raised with every change of the tables."""

_APPLICATION: Final = 0x6D6F6F6E  # "moon", in the file's header: tells our file from any other SQLite file
_TABLES: Final = """
CREATE TABLE keys (id TEXT PRIMARY KEY, digest TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, label TEXT NOT NULL,
    routes TEXT, created REAL NOT NULL, revoked REAL, demo INTEGER NOT NULL) STRICT;
CREATE TABLE parked (name TEXT PRIMARY KEY, since REAL NOT NULL, reason TEXT NOT NULL) STRICT;
CREATE TABLE switches (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE audit (version INTEGER PRIMARY KEY, at REAL NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL,
    subject TEXT NOT NULL, detail TEXT NOT NULL) STRICT;
"""
_SECRET: Final = re.compile(r"[A-Za-z0-9_-]{43}")
_TENANT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_LABEL: Final = re.compile(r"[^\x00-\x1f\x7f]{0,200}")

T = TypeVar("T")


class ControlError(Exception):
    """The document cannot be read or changed so; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Change:
    """One row of the audit log; `at` is seconds since 1970, `version` the document's after it."""

    version: int
    at: float
    who: str
    what: str
    subject: str
    detail: str


class ControlStore:
    """An open control database. For one thread at a time; other processes may have it open too."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._seen = -1
        self._changed = True

    @classmethod
    def open(cls, state: Path, *, create: bool = True, patience: float = 5.0) -> "ControlStore":
        """Open the database in a state directory; make both if `create`, with modes 0700 and 0600.

        `patience` is how many seconds to wait for another process that is writing. Raises `ControlError` if there is
        none, if it is damaged, locked for longer, from a newer version, or not ours.
        """
        path = state / FILE
        with _explained(path):
            if create:
                state.mkdir(mode=0o700, parents=True, exist_ok=True)
            elif not path.exists():
                raise ControlError(
                    f"there is no control database {path}; name the right --state, or add a key first"
                )
            _own(path)
            connection = sqlite3.connect(
                path, timeout=patience, isolation_level=None, check_same_thread=False
            )
            try:
                _prepare(path, connection)
            except BaseException:
                connection.close()
                raise
        return cls(path, connection)

    def close(self) -> None:
        """Give the file back. Idempotent."""
        self._connection.close()

    def changed(self) -> bool:
        """Whether the document may have changed since `read`, whoever changed it; costs microseconds."""
        with _explained(self.path):
            return self._changed or self._data_version() != self._seen

    def read(self) -> Control:
        """The document as it stands."""
        with _explained(self.path):
            seen = self._data_version()
            control = _transact(self._connection, "BEGIN", self._document)
            self._seen, self._changed = seen, False
        return control

    def to_json(self) -> bytes:
        """The document as it stands, for workers."""
        return self.read().to_json()

    def list_keys(self) -> list[KeyEntry]:
        """All keys, revoked ones included, oldest first."""
        return sorted(self.read().keys.values(), key=lambda entry: (entry.created, entry.id))

    def audit(self, most: int = 100) -> list[Change]:
        """The latest changes, newest first."""
        with _explained(self.path):
            rows = self._connection.execute(
                "SELECT version, at, who, what, subject, detail FROM audit ORDER BY version DESC LIMIT ?",
                (most,),
            )
            return [Change(*row) for row in rows]

    def add_key(
        self,
        tenant: str,
        label: str,
        routes: Sequence[str] | None,
        secret: str,
        *,
        now: float,
        who: str,
    ) -> tuple[str, KeyEntry]:
        """Make a key of 43 secret characters (`World.new_secret`) and return it: it cannot be shown again.

        `routes` None: every route. `now` is seconds since 1970. Raises `ControlError` for names that cannot be.
        """
        if not _TENANT.fullmatch(tenant):
            raise ControlError(
                f'"{tenant}" cannot be a tenant; use up to 64 letters, digits and any of . _ @ -'
            )
        if not _LABEL.fullmatch(label):
            raise ControlError("a label has at most 200 characters and no control characters; shorten it")
        if routes is not None and not routes:
            raise ControlError("a key for no route opens nothing; name a route, or none at all for every one")
        return self._add(
            KEY_PREFIX,
            secret,
            KeyEntry("", tenant, label, None if routes is None else tuple(routes), now),
            who,
        )

    def add_demo_key(self, secret: str, *, now: float, who: str) -> tuple[str, KeyEntry]:
        """Make the demo key of tenant `demo`, for loopback only; the one before it is forgotten."""
        return self._add(DEMO_PREFIX, secret, KeyEntry("", "demo", "demo", None, now, demo=True), who)

    def _add(self, prefix: str, secret: str, draft: KeyEntry, who: str) -> tuple[str, KeyEntry]:
        if not _SECRET.fullmatch(secret):
            raise ControlError("a key needs 43 URL-safe characters, 256 bits; take World.new_secret")
        key = prefix + secret
        digest = digest_of(key)
        entry = msgspec.structs.replace(draft, id=f"k_{digest[:12]}")
        routes = None if entry.routes is None else json.dumps(entry.routes)

        def change() -> None:
            if entry.demo:
                self._connection.execute("DELETE FROM keys WHERE demo")
            self._connection.execute(
                "INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, NULL, ?)",
                (entry.id, digest, entry.tenant, entry.label, routes, entry.created, entry.demo),
            )
            self._note(entry.created, who, "add_key", entry.id, f"tenant {entry.tenant}")

        self._write(change)
        return key, entry

    def revoke(self, key_id: str, *, now: float, who: str) -> KeyEntry:
        """Make a key worthless from now on; one that already is stays as it is. Raises `ControlError` if unknown."""

        def change() -> KeyEntry:
            entries = {entry.id: entry for entry in self._document().keys.values()}
            entry = entries.get(key_id)
            if entry is None:
                raise ControlError(f'there is no key "{key_id}"; {known_instead(key_id, list(entries))}')
            if entry.revoked is not None:
                return entry
            self._connection.execute("UPDATE keys SET revoked = ? WHERE id = ?", (now, key_id))
            self._note(now, who, "revoke", key_id, f"tenant {entry.tenant}")
            return msgspec.structs.replace(entry, revoked=now)

        return self._write(change)

    def park(self, name: str, reason: str, *, now: float, who: str) -> bool:
        """Set an account, or `account/model`, aside; False: it already was, and the first reason stays."""

        def change() -> bool:
            done = self._connection.execute(
                "INSERT OR IGNORE INTO parked VALUES (?, ?, ?)", (name, now, reason)
            )
            if done.rowcount:
                self._note(now, who, "park", name, reason)
            return bool(done.rowcount)

        return self._write(change)

    def unpark(self, name: str, *, now: float, who: str, detail: str = "") -> None:
        """Take an account, or `account/model`, back into use. Raises `ControlError` if it is not parked."""

        def change() -> None:
            if not self._connection.execute("DELETE FROM parked WHERE name = ?", (name,)).rowcount:
                raise ControlError(
                    f'"{name}" is not parked; {known_instead(name, list(self._document().parked))}'
                )
            self._note(now, who, "unpark", name, detail)

        self._write(change)

    def switch(self, name: str, value: str | None, *, now: float, who: str) -> None:
        """Set a switch, or with None put it back to what it is without being set."""

        def change() -> None:
            self._connection.execute("DELETE FROM switches WHERE name = ?", (name,))
            if value is not None:
                self._connection.execute("INSERT INTO switches VALUES (?, ?)", (name, value))
            self._note(now, who, "switch", name, "unset" if value is None else value)

        self._write(change)

    def _document(self) -> Control:
        execute = self._connection.execute
        (version,) = execute("SELECT coalesce(max(version), 0) FROM audit").fetchone()
        keys = {
            digest: KeyEntry(
                key_id,
                tenant,
                label,
                None if routes is None else tuple(json.loads(routes)),
                created,
                revoked,
                bool(demo),
            )
            for digest, key_id, tenant, label, routes, created, revoked, demo in execute(
                "SELECT digest, id, tenant, label, routes, created, revoked, demo FROM keys"
            )
        }
        parked = {name: Parked(*rest) for name, *rest in execute("SELECT name, since, reason FROM parked")}
        return Control(version, keys, parked, dict(execute("SELECT name, value FROM switches")))

    def _note(self, at: float, who: str, what: str, subject: str, detail: str) -> None:
        row = (at, who, what, subject, detail)
        self._connection.execute(
            "INSERT INTO audit (at, who, what, subject, detail) VALUES (?, ?, ?, ?, ?)", row
        )

    def _write(self, change: Callable[[], T]) -> T:
        with _explained(self.path):
            done = _transact(self._connection, "BEGIN IMMEDIATE", change)
            self._changed = True
        return done

    def _data_version(self) -> int:
        """A number that another connection's commits change (https://sqlite.org/pragma.html#pragma_data_version)."""
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])


def _own(path: Path) -> None:
    """Make the file if need be, and nobody else's to read; SQLite gives its side files the same mode."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(descriptor).st_mode & 0o077:
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def _prepare(path: Path, connection: sqlite3.Connection) -> None:
    """Make the tables in an empty file; refuse one that is not ours or that is newer."""
    if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        connection.execute("PRAGMA journal_mode = WAL")
    _transact(connection, "BEGIN IMMEDIATE", lambda: _found_or_made(path, connection))


def _found_or_made(path: Path, connection: sqlite3.Connection) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if not tables:
        for statement in _TABLES.strip().split(";\n"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {_APPLICATION}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
    elif application != _APPLICATION:
        raise ControlError(f"{path} is a database of something else; name another --state")
    elif version > FORMAT:
        raise ControlError(f"{path} was written by a newer moongate (format {version}); run that one")


def _transact(connection: sqlite3.Connection, begin: str, work: Callable[[], T]) -> T:
    connection.execute(begin)
    try:
        done = work()
        connection.execute("COMMIT")
    finally:
        if (
            connection.in_transaction
        ):  # SQLite itself has rolled back after some errors, a full disk among them
            connection.execute("ROLLBACK")
    return done


_TEXTS: Final = {
    sqlite3.SQLITE_BUSY: "is being written by another process; try again in a moment",
    sqlite3.SQLITE_LOCKED: "is being written by another process; try again in a moment",
    sqlite3.SQLITE_NOTADB: "is not a control database; move it away and add the keys anew, or restore a copy",
    sqlite3.SQLITE_CORRUPT: "is damaged; restore a copy, or move it away and add the keys anew",
    sqlite3.SQLITE_READONLY: "may not be written by this user; run as the gateway's user",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; check that the directory is there and belongs to this user",
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full; make room",
}


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what SQLite and the file system say into `ControlError`."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code of an extended one
        text = _TEXTS.get(code, f"cannot be used ({error}); check the disk and the file's rights")
        raise ControlError(f"{path} {text}") from error
    except OSError as error:
        text = f"cannot be opened ({error.strerror}); name a --state that this user may write"
        raise ControlError(f"{path} {text}") from error
