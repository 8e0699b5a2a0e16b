"""What can still be read of a damaged database, and which days of what journals once had are gone for good."""

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from moongate.store import view
from moongate.store.owners import Segment
from moongate.store.reader import Entry

_QUESTIONS: Final = 20_000
"""How often a damaged database is asked at most; each bad page costs a few dozen."""

CHECKED: Final = "lost days"
"""A name in the table `salvaged` that is no file's: this view knows what it lacks."""


def has_salvaged(db: sqlite3.Connection, asides: Iterable[Path]) -> bool:
    """Whether this view has taken over what could be read from all these databases."""
    return {aside.name for aside in asides} <= _names(db)


def _names(db: sqlite3.Connection) -> set[str]:
    return {row[0] for row in db.execute("SELECT name FROM salvaged")}


def salvage(db: sqlite3.Connection, aside: Path) -> int:
    """Take over every ended call that can still be read from a damaged database; returns how many were new.

    Reads around bad pages, so that each costs only what it held. A database is read once for each view.
    """
    if not db.execute("INSERT OR IGNORE INTO salvaged VALUES (?)", (aside.name,)).rowcount:
        return 0
    return sum(view.put(db, [entry]) for entry in _readable(aside))


def _readable(aside: Path) -> Iterator[Entry]:
    old = sqlite3.connect(aside)
    try:
        ends = [_end(old, order) for order in ("ASC", "DESC")]
        first, last = ends[0] or 1, ends[1] or (1 << 62)
        ranges, questions = [(first, last)], 0
        while ranges and questions < _QUESTIONS:
            low, high = ranges.pop()
            questions += 2
            below, above = low, high
            for entry in _ascending(old, low, high, step=1):
                below = entry[0] + 1
                yield entry[1]
            if below > high or below == low == high:
                continue
            for entry in _ascending(old, below, high, step=-1):
                above = entry[0] - 1
                yield entry[1]
            if above <= below:
                continue
            middle = (below + above) // 2
            ranges += [(middle + 1, above), (below, middle)]
    finally:
        old.close()


def _end(old: sqlite3.Connection, order: str) -> int:
    try:
        row = old.execute(f"SELECT rowid FROM records ORDER BY rowid {order} LIMIT 1").fetchone()  # noqa: S608 - ours
    except sqlite3.Error:
        return 0
    return int(row[0]) if row else 0


def _ascending(old: sqlite3.Connection, low: int, high: int, step: int) -> Iterator[tuple[int, Entry]]:
    """Ended calls of these rows with their row ids, forwards or backwards, up to the first that cannot be read."""
    order = "ASC" if step > 0 else "DESC"
    condition = f"rowid BETWEEN ? AND ? ORDER BY rowid {order}"
    found = view.numbered(old, condition, low, high)
    while True:
        try:
            row = next(found, None)
        except sqlite3.Error:
            return
        if row is None:
            return
        if row[1].rank > 0:
            yield row


def knows_what_is_lost(db: sqlite3.Connection) -> bool:
    """Whether `note_lost` was done for this view."""
    return CHECKED in _names(db)


def note_lost(
    db: sqlite3.Connection, retired: Mapping[str, int], living: Mapping[str, list[Segment]]
) -> dict[str, int]:
    """Write down, once for a view, which days lack calls, and return them: day (UTC) and at most how many.

    `retired`: calls that ended in segments which are deleted, by day. A call of the view counts as one of theirs unless
    its word is from a segment that is still there.
    """
    db.execute("INSERT OR IGNORE INTO salvaged VALUES (?)", (CHECKED,))
    first = {owner: listed[0].first for owner, listed in living.items()}
    held: Counter[str] = Counter()
    if retired:
        question = "SELECT date(created, 'unixepoch'), writer, sequence FROM records WHERE outcome <> ''"
        for day, writer, sequence in db.execute(question):
            if writer not in first or sequence < first[writer]:
                held[day] += 1
    lost = {day: count - held[day] for day, count in sorted(retired.items()) if count > held[day]}
    db.executemany("INSERT OR REPLACE INTO lost_days VALUES (?, ?)", lost.items())
    return lost


def lost_days(db: sqlite3.Connection) -> dict[str, int]:
    """What `note_lost` wrote down."""
    return dict(db.execute("SELECT day, calls FROM lost_days ORDER BY day"))
