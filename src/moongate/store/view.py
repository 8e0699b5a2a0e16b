"""The ledger's tables in SQLite: how words from the journals go in and how records come out.

The columns of `calls` and `attempts` are the fields of `CallRecord` and `AttemptRecord`, in order, `edits`
as JSON; `writer`, `sequence` and `rank` say which word of which journal a row stands for. Nothing here opens,
commits or locks: `store/records` does.
"""

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import msgspec

from moongate.core.faults import FACTS, Fault
from moongate.core.ledger import OPEN, Event, State, Tally, step
from moongate.core.record import CRASHED, AttemptRecord, CallRecord, Outcome
from moongate.store.reader import OPEN_RANK, RECOVERED_RANK, Entry, Hole

_LARGEST: Final = (1 << 63) - 1
_EXTRA: Final = ("writer", "sequence", "rank")


def _columns(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Each field's SQL type; numbers get an affinity so that sums are sums."""
    affinity = {int: "INTEGER", bool: "INTEGER", float: "REAL", int | None: "INTEGER"}
    return {
        field.name: affinity.get(field.type, "TEXT")
        for field in msgspec.structs.fields(kind)
        if field.name != "attempts"
    }


def _counts(kind: type[msgspec.Struct]) -> Callable[[Any], tuple[int, ...]]:
    """Takes the whole numbers out of a record's fields."""
    fields = msgspec.structs.fields(kind)
    return itemgetter(*(place for place, field in enumerate(fields) if field.type is int))


CALL_COLUMNS: Final = _columns(CallRecord)
ATTEMPT_COLUMNS: Final = _columns(AttemptRecord)
_ATTEMPTS_AT: Final = CallRecord.__struct_fields__.index("attempts")
_EDITS_AT: Final = CallRecord.__struct_fields__.index("edits")
_CALL_COUNTS: Final = _counts(CallRecord)
_ATTEMPT_COUNTS: Final = _counts(AttemptRecord)
_OWNER_AT: Final = CallRecord.__struct_fields__.index("owner") - 1  # once `attempts` is taken out


def _table(name: str, columns: dict[str, str], more: str) -> str:
    """The first column is the key."""
    (key, *_), fields = columns, ", ".join(f"{column} {kind}" for column, kind in columns.items())
    return f"CREATE TABLE IF NOT EXISTS {name} ({fields}, {more}, PRIMARY KEY ({key})) WITHOUT ROWID"


_TABLES: Final = (
    _table("calls", CALL_COLUMNS, "writer TEXT, sequence INTEGER, rank INTEGER"),
    _table("attempts", ATTEMPT_COLUMNS, "call_id TEXT"),
    (
        "CREATE TABLE IF NOT EXISTS checkpoints (owner TEXT PRIMARY KEY, segment TEXT, offset INTEGER,"
        " sequence INTEGER, done INTEGER) WITHOUT ROWID"
    ),
    (
        "CREATE TABLE IF NOT EXISTS holes (segment TEXT, offset INTEGER, size INTEGER, missing INTEGER,"
        " what TEXT, PRIMARY KEY (segment, offset)) WITHOUT ROWID"
    ),
    "CREATE TABLE IF NOT EXISTS salvaged (name TEXT PRIMARY KEY) WITHOUT ROWID",
)
_INDEXES: Final = (
    "calls_request ON calls (request_id)",
    "calls_session ON calls (session) WHERE session <> ''",
    "calls_created ON calls (created)",
    "calls_open ON calls (writer) WHERE rank = 0",
    "attempts_call ON attempts (call_id)",
    "attempts_provider ON attempts (provider_request_id) WHERE provider_request_id <> ''",
    "attempts_trace ON attempts (provider_trace_id) WHERE provider_trace_id <> ''",
)


def create(db: sqlite3.Connection) -> None:
    """Make what is missing: tables, columns for fields that came with a later version, indexes."""
    for table in _TABLES:
        db.execute(table)
    for name, columns in (("calls", CALL_COLUMNS), ("attempts", ATTEMPT_COLUMNS)):
        there = {row[1] for row in db.execute(f"PRAGMA table_info({name})")}
        for column, kind in columns.items():
            if column not in there:
                db.execute(f"ALTER TABLE {name} ADD COLUMN {column} {kind}")
    for index in _INDEXES:
        db.execute(f"CREATE INDEX IF NOT EXISTS {index}")


def _insert(verb: str, table: str, columns: list[str]) -> str:
    marks = ", ".join("?" * len(columns))
    return f"{verb} INTO {table} ({', '.join(columns)}) VALUES ({marks})"


_CALL_INSERT: Final = (
    _insert("INSERT", "calls", [*CALL_COLUMNS, *_EXTRA])
    + " ON CONFLICT (call_id) DO UPDATE SET "
    + ", ".join(f"{column} = excluded.{column}" for column in (*CALL_COLUMNS, *_EXTRA))
    + " WHERE (excluded.rank, excluded.writer, excluded.sequence)"
    + " > (calls.rank, calls.writer, calls.sequence)"
)
_CALL_FRESH: Final = _insert("INSERT", "calls", [*CALL_COLUMNS, *_EXTRA])
_AT_ONCE: Final = 500
"""Calls looked up in one question: well below the number of marks that SQLite takes."""

_ATTEMPT_INSERT: Final = _insert("INSERT OR REPLACE", "attempts", [*ATTEMPT_COLUMNS, "call_id"])


def put(db: sqlite3.Connection, entries: Iterable[Entry]) -> int:
    """Take these words where they are newer than what is there; returns how many were."""
    taken = 0
    attempts: list[tuple[Any, ...]] = []
    latest = list(entries)
    while latest:
        some, latest = latest[:_AT_ONCE], latest[_AT_ONCE:]
        known = _known(db, [entry.record.call_id for entry in some])
        fresh = {entry.record.call_id: entry for entry in some if entry.record.call_id not in known}
        db.executemany(_CALL_FRESH, [_call_row(entry) for entry in fresh.values()])
        newer = list(fresh.values())
        for entry in some:
            if (
                entry is not fresh.get(entry.record.call_id)
                and db.execute(_CALL_INSERT, _call_row(entry)).rowcount
            ):
                db.execute("DELETE FROM attempts WHERE call_id = ?", (entry.record.call_id,))
                newer.append(entry)
        attempts += [
            (*_storable(a, _ATTEMPT_COUNTS), e.record.call_id) for e in newer for a in e.record.attempts
        ]
        taken += len(newer)
    db.executemany(_ATTEMPT_INSERT, attempts)
    return taken


def _known(db: sqlite3.Connection, call_ids: list[str]) -> set[str]:
    """Which of these calls the view has already."""
    query = f"SELECT call_id FROM calls WHERE call_id IN ({', '.join('?' * len(call_ids))})"  # noqa: S608 - marks only
    return {row[0] for row in db.execute(query, call_ids)}


def _call_row(entry: Entry) -> tuple[Any, ...]:
    record = entry.record
    row = list(_storable(record, _CALL_COUNTS))
    row[_EDITS_AT] = json.dumps(record.edits) if record.edits else "[]"
    del row[_ATTEMPTS_AT]
    row[_OWNER_AT] = record.owner or entry.writer
    return (*row, entry.writer, entry.sequence, entry.rank)


def _storable(
    record: CallRecord | AttemptRecord, counts: Callable[[Any], tuple[int, ...]]
) -> tuple[Any, ...]:
    """The fields; integers too large for SQLite become its largest: one odd record stops no fold."""
    fields = msgspec.structs.astuple(record)
    if max(counts(fields)) > _LARGEST or (_money(record) or 0) > _LARGEST:
        return tuple(min(field, _LARGEST) if type(field) is int else field for field in fields)
    return fields


def _money(record: CallRecord | AttemptRecord) -> int | None:
    return record.billed_micro if isinstance(record, CallRecord) else record.cost_micro


def put_holes(db: sqlite3.Connection, holes: Iterable[Hole]) -> None:
    """Remember what the journals lack."""
    db.executemany(
        "INSERT OR IGNORE INTO holes VALUES (?, ?, ?, ?, ?)",
        [(hole.segment, hole.offset, hole.size, hole.missing, hole.what) for hole in holes],
    )


def close_orphans(db: sqlite3.Connection, writer: str) -> int:
    """Close what a dead owner left open; returns how many calls. A second time there is nothing to do."""
    code = FACTS[Fault.GATEWAY_ERROR].code
    for state in sorted(OPEN):
        db.execute(
            "UPDATE attempts SET state = ?, cause = iif(cause = '', ?, cause), code = iif(code = '', ?, code)"
            " WHERE state = ? AND call_id IN (SELECT call_id FROM calls WHERE writer = ? AND rank = ?)",
            (step(state, Event.OWNER_DIED), CRASHED, code, state, writer, OPEN_RANK),
        )
    return db.execute(
        "UPDATE calls SET outcome = ?, cause = ?, code = ?, rank = ?, billed_micro = ifnull(billed_micro, 0)"
        " WHERE writer = ? AND rank = ?",
        (Outcome.FAILED, CRASHED, code, RECOVERED_RANK, writer, OPEN_RANK),
    ).rowcount


def _entries(db: sqlite3.Connection, query: str, values: tuple[Any, ...] = ()) -> Iterator[Entry]:
    """The calls that this query on `calls` selects, each with its attempts."""
    cursor = db.execute(query, values)
    names = [column[0] for column in cursor.description]
    for row in cursor:
        fields = _present(names, row)
        rank, writer, sequence = fields["rank"], fields["writer"], fields["sequence"]
        fields = {name: value for name, value in fields.items() if name in CALL_COLUMNS}
        fields["edits"] = json.loads(fields["edits"])
        fields["stream"] = bool(fields["stream"])
        fields["attempts"] = _attempts(db, fields["call_id"])
        yield Entry(rank, writer, sequence, CallRecord(**fields))


def _attempts(db: sqlite3.Connection, call_id: str) -> list[AttemptRecord]:
    query = "SELECT * FROM attempts WHERE call_id = ? ORDER BY length(attempt_id), attempt_id"
    cursor = db.execute(query, (call_id,))
    names = [column[0] for column in cursor.description]
    found: list[AttemptRecord] = []
    for row in cursor:
        fields = {name: value for name, value in _present(names, row).items() if name in ATTEMPT_COLUMNS}
        fields["reused"] = bool(fields["reused"])
        found.append(AttemptRecord(**fields))
    return found


def _present(names: list[str], row: tuple[Any, ...]) -> dict[str, Any]:
    """What the row holds; a column that was added after it was written takes the field's default."""
    return {name: value for name, value in zip(names, row, strict=True) if value is not None}


_FIND: Final = (
    "SELECT * FROM calls WHERE call_id = ?1 OR request_id = ?1 OR (session = ?1 AND session <> '')"
    " OR call_id IN (SELECT call_id FROM attempts WHERE attempt_id = ?1"
    " UNION SELECT call_id FROM attempts WHERE provider_request_id = ?1 AND provider_request_id <> ''"
    " UNION SELECT call_id FROM attempts WHERE provider_trace_id = ?1 AND provider_trace_id <> '')"
    " ORDER BY call_id"
)


def find(db: sqlite3.Connection, name: str) -> list[CallRecord]:
    """The calls that bear this name: call, request, session, attempt or one of the provider's ids."""
    return [entry.record for entry in _entries(db, _FIND, (name,))] if name else []


def outcomes(db: sqlite3.Connection) -> dict[str, int]:
    """How many calls ended how; those that still run under `open`."""
    return dict(db.execute("SELECT iif(outcome = '', 'open', outcome), count(*) FROM calls GROUP BY 1"))


def holes(db: sqlite3.Connection) -> list[Hole]:
    """What the journals lack, as far as they were read."""
    query = "SELECT segment, offset, size, missing, what FROM holes ORDER BY segment, offset"
    return [Hole(*row) for row in db.execute(query)]


_OVERDUE: Final = (
    "SELECT count(*) FROM attempts JOIN calls USING (call_id)"
    " WHERE state IN ('reserved', 'sent', 'first_event') AND deadline > 0 AND deadline < ?"
)
_UNNAMED: Final = "SELECT count(*) FROM attempts WHERE state = 'ambiguous' AND cause = ''"
_UNPRICED: Final = (
    "SELECT count(*) FROM attempts"
    " WHERE state IN ('settled', 'settled_est') AND cost_micro IS NULL AND input + output > 0"
)
_UNCLOSED: Final = "SELECT count(*) FROM calls WHERE writer = ? AND rank = 0"


def tally(db: sqlite3.Connection, now: float, dead: Iterable[str]) -> Tally:
    """Count what `broken_invariants` judges. `now`: wall-clock seconds; `dead`: owners proved dead."""

    def count(query: str, *values: object) -> int:
        number: int = db.execute(query, values).fetchone()[0]
        return number

    known = {state.value: state for state in State}
    by_state = db.execute("SELECT state, count(*) FROM attempts GROUP BY state")
    return Tally(
        reservations=count("SELECT count(*) FROM attempts"),
        by_state={known[state]: number for state, number in by_state if state in known},
        overdue=count(_OVERDUE, now),
        unnamed=count(_UNNAMED),
        unpriced=count(_UNPRICED),
        unclosed=sum(count(_UNCLOSED, owner) for owner in dead),
    )


def forget(db: sqlite3.Connection, before: float) -> None:
    """Delete calls that were made before this moment (wall-clock seconds) and have ended."""
    db.execute(
        "DELETE FROM attempts WHERE call_id IN"
        " (SELECT call_id FROM calls WHERE created < ? AND outcome <> '')",
        (before,),
    )
    db.execute("DELETE FROM calls WHERE created < ? AND outcome <> ''", (before,))


def has_salvaged(db: sqlite3.Connection, asides: Iterable[Path]) -> bool:
    """Whether this view has taken over what could be read from all these databases."""
    return {aside.name for aside in asides} <= {row[0] for row in db.execute("SELECT name FROM salvaged")}


def salvage(db: sqlite3.Connection, aside: Path) -> int:
    """Take over every ended call that can still be read from a damaged database; returns how many were new.

    Reads from both ends, so that one bad page costs only what it held. A database is read once for each view.
    """
    if not db.execute("INSERT OR IGNORE INTO salvaged VALUES (?)", (aside.name,)).rowcount:
        return 0
    taken = 0
    for order in ("ASC", "DESC"):
        query = f"SELECT * FROM calls WHERE rank > 0 ORDER BY call_id {order}"  # noqa: S608 - own words
        taken += sum(put(db, [entry]) for entry in _readable(aside, query))
    return taken


def _readable(aside: Path, query: str) -> Iterator[Entry]:
    """The calls that the query selects, up to the first that cannot be read."""
    old = sqlite3.connect(aside)
    entries = _entries(old, query)
    try:
        while True:
            try:
                entry = next(entries, None)
            except sqlite3.DatabaseError:
                return
            if entry is None:
                return
            yield entry
    finally:
        old.close()
