"""A word on each segment that was deleted: how many calls ended in it, by day.

Without it nobody would know what a view that was lost had known. A file of JSON lines beside the journals; a line that
is damaged is passed over.
"""

import contextlib
import errno
import os
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from moongate.store import reader
from moongate.store.owners import Segment

FILE: Final = "retired"
_CLOSED: Final = 2


class Word(msgspec.Struct):
    """One deleted segment; `days` are UTC dates."""

    segment: str
    days: dict[str, int]


def calls_by_day(segment: Segment) -> dict[str, int]:
    """How many calls ended in this segment, by the day on which they were made."""
    days: Counter[str] = Counter()
    offset, sequence, ended = 0, segment.first - 1, False
    while not ended:
        piece = reader.read(segment, offset, sequence, final=True)
        for entry in piece.latest.values():
            if entry.rank == _CLOSED:
                days[day(entry.record.created)] += 1
        offset, sequence, ended = piece.offset, piece.sequence, piece.ended
    return dict(days)


def day(moment: float) -> str:
    """The UTC date of a moment (wall-clock seconds) as SQLite's `date` writes it."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d")


def remove(directory: Path, segment: Segment) -> None:
    """Leave word of a segment, and delete it. Raises OSError; it goes all the same, so that a full disk has room."""
    word = Word(segment.path.name, calls_by_day(segment))
    try:
        _note(directory, word)
    except OSError:
        segment.path.unlink()
        _note(directory, word)
    else:
        segment.path.unlink()


def _note(directory: Path, word: Word) -> None:
    line = b"\n" + msgspec.json.encode(word) + b"\n"  # one that was cut before it takes no other with it
    file = os.open(directory / FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        if os.write(file, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(file)


def words(directory: Path) -> dict[str, Word]:
    """Every word by its segment: one that was noted twice counts once."""
    found: dict[str, Word] = {}
    try:
        lines = (directory / FILE).read_bytes().splitlines()
    except OSError:
        return found
    for line in lines:
        with contextlib.suppress(msgspec.MsgspecError):
            word = msgspec.json.decode(line, type=Word)
            found[word.segment] = word
    return found


def by_day(directory: Path) -> dict[str, int]:
    """All calls that ended in deleted segments."""
    days: Counter[str] = Counter()
    for word in words(directory).values():
        days.update(word.days)
    return dict(days)


def forget(directory: Path, before: str) -> None:
    """Drop words of which every day is before this one."""
    known = words(directory)
    kept = [word for word in known.values() if any(day >= before for day in word.days)]
    if len(kept) < len(known):
        draft = directory / f"{FILE}.tmp"
        draft.write_bytes(b"".join(msgspec.json.encode(word) + b"\n" for word in kept))
        draft.replace(directory / FILE)
