"""The ledger's tables in SQLite: how words from the journals go in and how records come out.

`records` has one row a call: the `CallRecord` as a JSON array, and beside it the fields by which calls are found,
counted and summed up. People ask the views `calls` and `attempts`, whose columns are the fields of `CallRecord`
and `AttemptRecord`, taken out of the JSON when they are asked for. (Columns of a table that are generated so would be
computed whenever a row is written.) `writer`, `sequence` and `rank` say which word of which journal a row stands
for. Nothing here opens, commits or locks: `store/records` does.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final

import msgspec

from moongate.core.charging import sum_up
from moongate.core.faults import FACTS, Fault
from moongate.core.ledger import OPEN, Event, State, Tally, step
from moongate.core.record import CRASHED, AttemptRecord, CallRecord, Outcome, call_id_of
from moongate.store.database import LayoutError
from moongate.store.reader import AMENDED_RANK, RECOVERED_RANK, Entry, Hole

_LARGEST: Final = (1 << 63) - 1

_KEPT: Final = (
    "call_id", "request_id", "tenant", "session", "route", "model", "created", "outcome", "code",
    "input", "output", "billed_micro", "currency",
)  # fmt: skip
"""Fields with a column of their own: each costs as much to write as the rest of the record together."""
_WORD: Final = ("record", "writer", "sequence", "rank")
_WRITTEN: Final = (*_KEPT, *_WORD)
_ATTEMPTS_AT: Final = CallRecord.__struct_fields__.index("attempts")


def _default(field: msgspec.structs.FieldInfo) -> str:
    """What an older record without this field stands for, in SQL."""
    value = field.default
    if value == ():
        return "'[]'"
    if value is msgspec.NODEFAULT or value is None or field.default_factory is not msgspec.NODEFAULT:
        return "NULL"
    return (
        f"'{value}'" if isinstance(value, str) else repr(float(value) if field.type is float else int(value))
    )


def _columns(kind: type[msgspec.Struct], source: str) -> dict[str, str]:
    """How each field is computed from a record that is the JSON text `source`."""
    return {
        field.name: f"ifnull(json_extract({source}, '$[{place}]'), {_default(field)})"
        for place, field in enumerate(msgspec.structs.fields(kind))
        if field.name != "attempts"
    }


def _types(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Each field's SQL type; numbers get an affinity so that sums are sums."""
    affinity = {int: "INTEGER", bool: "INTEGER", float: "REAL", int | None: "INTEGER"}
    return {field.name: affinity.get(field.type, "TEXT") for field in msgspec.structs.fields(kind)}


_TYPES: Final = _types(CallRecord)
_TABLES: Final = (
    (
        f"CREATE TABLE IF NOT EXISTS records ({', '.join(f'{name} {_TYPES[name]}' for name in _KEPT)},"
        " record TEXT, writer TEXT, sequence INTEGER, rank INTEGER, PRIMARY KEY (call_id))"
    ),
    "CREATE TABLE IF NOT EXISTS provider_ids (id TEXT, call_id TEXT, PRIMARY KEY (id, call_id)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS remembered (call_id TEXT PRIMARY KEY) WITHOUT ROWID",
    (
        "CREATE TABLE IF NOT EXISTS checkpoints (owner TEXT PRIMARY KEY, segment TEXT, offset INTEGER,"
        " sequence INTEGER, done INTEGER) WITHOUT ROWID"
    ),
    (
        "CREATE TABLE IF NOT EXISTS holes (segment TEXT, offset INTEGER, size INTEGER, missing INTEGER,"
        " what TEXT, PRIMARY KEY (segment, offset)) WITHOUT ROWID"
    ),
    "CREATE TABLE IF NOT EXISTS salvaged (name TEXT PRIMARY KEY) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS lost_days (day TEXT PRIMARY KEY, calls INTEGER) WITHOUT ROWID",
)


def _view(name: str, columns: dict[str, str], rest: str) -> str:
    chosen = ", ".join(f"{value} AS {column}" for column, value in columns.items())
    return f"CREATE VIEW {name} AS SELECT {chosen}, {rest}"


_VIEWS: Final = {
    "calls": _view(
        "calls",
        _columns(CallRecord, "record") | {name: name for name in _KEPT},
        "writer, sequence, rank FROM records",
    ),
    "attempts": _view(
        "attempts",
        _columns(AttemptRecord, "attempt.value"),
        f"call_id FROM records, json_each(record, '$[{_ATTEMPTS_AT}]') AS attempt",
    ),
}
_INDEXES: Final = (
    "records_request ON records (request_id)",
    "records_session ON records (session) WHERE session <> ''",
    "records_open ON records (writer) WHERE rank = 0",
)


def create(db: sqlite3.Connection) -> None:
    """Make what is missing: tables, views with every field that this version knows, indexes.

    Raises `LayoutError` where the tables are not such as this version can write.
    """
    kinds = dict(db.execute("SELECT name, type FROM sqlite_master WHERE name IN ('calls', 'attempts')"))
    if "table" in kinds.values():
        raise LayoutError("its tables are those of another version")
    for table in _TABLES:
        db.execute(table)
    there = {row[1] for row in db.execute("PRAGMA table_info(records)")}
    if not there.issuperset(_WRITTEN):
        raise LayoutError("its tables are those of another version")
    for name, view in _VIEWS.items():
        if db.execute("SELECT sql FROM sqlite_master WHERE name = ?", (name,)).fetchone() != (view,):
            db.execute(f"DROP VIEW IF EXISTS {name}")
            db.execute(view)
    for index in _INDEXES:
        db.execute(f"CREATE INDEX IF NOT EXISTS {index}")


_PUT: Final = (
    f"INSERT INTO records ({', '.join(_WRITTEN)}) VALUES ({', '.join('?' * len(_WRITTEN))})"  # noqa: S608 - own words
    f" ON CONFLICT (call_id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _WRITTEN)}"
    " WHERE (excluded.rank, excluded.writer, excluded.sequence)"
    " > (records.rank, records.writer, records.sequence)"
)
_kept: Final = attrgetter(*_KEPT)
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(CallRecord).decode


def put(db: sqlite3.Connection, entries: Iterable[Entry]) -> int:
    """Take these words where they are newer than what is there; returns how many were."""
    words = list(entries)
    before = db.total_changes
    try:
        db.executemany(_PUT, map(_row, words))
    except OverflowError:  # those before the odd one are there already, and not taken twice
        for word in words:
            _bound(word.record)
        db.executemany(_PUT, map(_row, words))
    taken = db.total_changes - before
    ids = [
        (name, word.record.call_id)
        for word in words
        for attempt in word.record.attempts
        for name in (attempt.provider_request_id, attempt.provider_trace_id)
        if name
    ]
    db.executemany("INSERT OR IGNORE INTO provider_ids VALUES (?, ?)", ids)
    known = [(word.record.call_id,) for word in words if word.record.fingerprint]
    db.executemany("INSERT OR IGNORE INTO remembered VALUES (?)", known)
    return taken


def _row(entry: Entry) -> tuple[object, ...]:
    rank, writer, sequence, record = entry
    if not record.owner:
        record.owner = writer
    return (*_kept(record), _encode(record).decode(), writer, sequence, rank)


def _bound(record: CallRecord | AttemptRecord) -> None:
    """Make integers too large for SQLite its largest: one odd record stops no fold."""
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if isinstance(value, int) and value > _LARGEST:
            setattr(record, name, _LARGEST)
    for attempt in record.attempts if isinstance(record, CallRecord) else ():
        _bound(attempt)


def put_holes(db: sqlite3.Connection, holes: Iterable[Hole]) -> None:
    """Remember what the journals lack."""
    db.executemany(
        "INSERT OR IGNORE INTO holes VALUES (?, ?, ?, ?, ?)",
        [(hole.segment, hole.offset, hole.size, hole.missing, hole.what) for hole in holes],
    )


def close_orphans(db: sqlite3.Connection, writer: str) -> int:
    """Close what a dead owner left open; returns how many calls. A second time there is nothing to do."""
    code = FACTS[Fault.GATEWAY_ERROR].code
    orphans = list(_entries(db, "writer = ? AND rank = 0", writer))
    for entry in orphans:
        record = entry.record
        record.outcome, record.cause, record.code = Outcome.FAILED, CRASHED, code
        record.billed_micro = 0
        for attempt in record.attempts:
            if attempt.state in OPEN:
                attempt.state = step(State(attempt.state), Event.OWNER_DIED)
                attempt.cause, attempt.code = attempt.cause or CRASHED, attempt.code or code
        if record.attempts:
            sum_up(record)
    return put(db, [entry._replace(rank=RECOVERED_RANK) for entry in orphans])


def _entries(db: sqlite3.Connection, condition: str, *values: object) -> Iterator[Entry]:
    """The calls for which this condition holds. One whose record is damaged raises `LayoutError`."""
    return (entry for _, entry in numbered(db, condition, *values))


def numbered(db: sqlite3.Connection, condition: str, *values: object) -> Iterator[tuple[int, Entry]]:
    """The same with their row ids."""
    query = f"SELECT rowid, rank, writer, sequence, record FROM records WHERE {condition}"  # noqa: S608 - own words
    for number, rank, writer, sequence, text in db.execute(query, values):
        try:
            record = _decode(text)
        except (msgspec.DecodeError, TypeError) as error:
            record = _decode_odd(text, error)
        yield number, Entry(rank, writer, sequence, record)


def _decode_odd(text: str, error: Exception) -> CallRecord:
    """The record in a text that holds `null` for numbers that JSON does not have: not a number, infinity."""
    try:
        fields = msgspec.json.decode(text)
        _fill(CallRecord, fields)
        for attempt in fields[_ATTEMPTS_AT]:
            _fill(AttemptRecord, attempt)
        return msgspec.convert(fields, CallRecord)
    except (msgspec.MsgspecError, TypeError, IndexError):
        raise LayoutError(f"a record cannot be read: {error}") from error


def _fill(kind: type[msgspec.Struct], fields: list[object]) -> None:
    for place, field in enumerate(msgspec.structs.fields(kind)[: len(fields)]):
        if fields[place] is None and field.type is float:
            fields[place] = field.default


_FIND: Final = (
    "call_id IN (?1, ?2) OR request_id = ?1 OR (session = ?1 AND session <> '')"
    " OR call_id IN (SELECT call_id FROM provider_ids WHERE id = ?1) ORDER BY call_id"
)


_WITHIN: Final = "instr(record, ?) ORDER BY call_id"
_SHORTEST: Final = 8
"""Characters of a name that is looked for in whole records: a shorter one is no id, and would be found everywhere."""


def find(db: sqlite3.Connection, name: str) -> list[CallRecord]:
    """The calls that bear this name: call, request, session, attempt, answer, or one of the provider's ids.

    The ids of answers have no index, for they are asked for seldom and written always: they are looked for last, in
    all records, a second for each million or so.
    """
    found = [entry.record for entry in _entries(db, _FIND, name, call_id_of(name))] if name else []
    found = [record for record in found if name in _names(record)]
    if not found and len(name) >= _SHORTEST:
        inside = msgspec.json.encode(name).decode("utf-8", "replace")
        found = [entry.record for entry in _entries(db, _WITHIN, inside)]
    return [record for record in found if name in _names(record)]


def _names(record: CallRecord) -> set[str]:
    names = {record.call_id, record.request_id, record.session}
    for attempt in record.attempts:
        names |= {
            attempt.attempt_id,
            attempt.provider_request_id,
            attempt.provider_trace_id,
            attempt.answer_id,
        }
    return names


def page(db: sqlite3.Connection, after: str, before: str, most: int) -> list[CallRecord]:
    """The next calls behind the id `after` and before the id `before`, in the order of their ids, `most` at most."""
    condition = "call_id > ? AND call_id < ? ORDER BY call_id LIMIT ?"
    return [entry.record for entry in _entries(db, condition, after, before, most)]


_UNCLEAR: Final = (
    "outcome <> '' AND (billed_micro IS NULL OR instr(record, '\"ambiguous\"')) ORDER BY call_id"
)


def unclear(db: sqlite3.Connection) -> list[CallRecord]:
    """The ended calls that have an attempt in doubt or no known bill. Reads all: about a second for each million."""
    found = [entry.record for entry in _entries(db, _UNCLEAR)]
    return [
        record
        for record in found
        if record.billed_micro is None or any(one.state == State.AMBIGUOUS for one in record.attempts)
    ]


def last_corrector(db: sqlite3.Connection) -> str:
    """The greatest owner whose word on a closed call holds, empty if there is none."""
    found: str | None = db.execute(
        "SELECT max(writer) FROM records WHERE rank = ?", (AMENDED_RANK,)
    ).fetchone()[0]
    return found or ""


def id_at(moment: float) -> str:
    """What every call id from this moment (wall-clock seconds) on is not before: ids begin with their milliseconds."""
    return f"{max(int(moment * 1000), 0):012x}"


def remembered(db: sqlite3.Connection, since: float) -> Iterator[CallRecord]:
    """The calls made since this moment (wall-clock seconds) whose retries must be known, the oldest first."""
    condition = "call_id IN (SELECT call_id FROM remembered WHERE call_id >= ?) ORDER BY call_id"
    return (entry.record for entry in _entries(db, condition, id_at(since)))


def outcomes(db: sqlite3.Connection) -> dict[str, int]:
    """How many calls ended how; those that still run under `open`."""
    return dict(db.execute("SELECT iif(outcome = '', 'open', outcome), count(*) FROM records GROUP BY 1"))


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
_UNCLOSED: Final = "SELECT count(*) FROM records WHERE writer = ? AND rank = 0"


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


_OLD: Final = "SELECT call_id FROM records WHERE call_id < ? AND outcome <> '' ORDER BY call_id LIMIT ?"


def forget(db: sqlite3.Connection, before: float, most: int) -> int:
    """Delete the oldest calls made before this moment (wall-clock seconds) that have ended; returns how many went.

    Call ids begin with the milliseconds of their making as 12 hexadecimal digits (`World.new_id`), so that the
    old ones lie together and need no search.
    """
    old = (id_at(before), most)
    for name in ("provider_request_id", "provider_trace_id"):
        db.execute(
            f"DELETE FROM provider_ids WHERE (id, call_id) IN"  # noqa: S608 - own words
            f" (SELECT {name}, call_id FROM attempts WHERE call_id IN ({_OLD}))",
            old,
        )
    db.execute("DELETE FROM remembered WHERE call_id < ?", old[:1])
    return db.execute(f"DELETE FROM records WHERE call_id IN ({_OLD})", old).rowcount  # noqa: S608 - own words
