"""Reads a journal segment piece by piece: the newest word on each call, and what is missing or damaged."""

import os
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from moongate.core.record import FORMAT, CallRecord, RecordError, decode, decode_owner
from moongate.store import frames
from moongate.store.frames import Kind
from moongate.store.owners import Segment

PIECE: Final = 8 * 1024 * 1024
"""Bytes read at once; more only where a damaged stretch is longer."""

_RANKS: Final[dict[int, int]] = {
    Kind.RESERVED: 0,
    Kind.SENT: 0,
    Kind.FIRST_EVENT: 0,
    Kind.CLOSED: 2,
    Kind.AMENDED: 3,
}
OPEN_RANK: Final = 0
RECOVERED_RANK: Final = 1


class Entry(NamedTuple):
    """One word on a call. Of two, the one with the greater (rank, writer, sequence) holds."""

    rank: int
    writer: str
    sequence: int
    record: CallRecord


@dataclass(frozen=True, slots=True)
class Hole:
    """A place where the journal is damaged.

    `size` bytes at `offset` are no record; `missing` records are known to be gone before the next sound one
    (0 also where it is not known); `what` says more.
    """

    segment: str
    offset: int
    size: int
    missing: int
    what: str


class FormatError(Exception):
    """The segment is in a format that is newer than this program; it stays unread, and whole."""


@dataclass(slots=True)
class Piece:
    """What one read gave. The next goes on at `offset` and `sequence`; `ended`: nothing more is there."""

    offset: int
    sequence: int
    ended: bool = False
    records: int = 0
    latest: dict[str, Entry] = field(default_factory=dict)
    holes: list[Hole] = field(default_factory=list)


def read(segment: Segment, offset: int, sequence: int, *, final: bool, piece: int = PIECE) -> Piece:
    """Read on from `offset`, having seen `sequence`. `final`: nothing is written to this segment any more.

    In a segment that is still written, an unsound end is left for the next read. Raises OSError and
    `FormatError`.
    """
    data, whole = _load(segment, offset, piece)
    start = frames.seed(segment.owner)
    found, gaps, end = frames.scan(data, start, sequence)
    while not end and not whole:
        piece *= 2
        data, whole = _load(segment, offset, piece)
        found, gaps, end = frames.scan(data, start, sequence)
    result = Piece(offset + end, sequence)
    damaged = {gap.end: gap.end - gap.start for gap in gaps}
    for frame in found:
        begin = frame.end - len(frame.payload) - frames.OVERHEAD
        _note_hole(result, segment.path.name, frame, offset + begin, damaged.get(begin, 0))
        _take(result, segment, frame, offset + begin)
    if whole and final and end < len(data):
        size = len(data) - end
        result.holes.append(Hole(segment.path.name, offset + end, size, 0, "cut or damaged end"))
        result.offset = offset + len(data)
    result.ended = whole
    return result


def _load(segment: Segment, offset: int, size: int) -> tuple[bytes, bool]:
    """The bytes there, and whether they reach the end of the file."""
    file = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.pread(file, size, offset)
    finally:
        os.close(file)
    return data, len(data) < size


def _note_hole(result: Piece, name: str, frame: frames.Frame, begin: int, damaged: int) -> None:
    """Compare this frame's sequence with the one before; an OWNER frame repeats the last before it."""
    expected = result.sequence + (0 if frame.kind == Kind.OWNER else 1)
    missing = max(frame.sequence - expected, 0)
    result.sequence = max(result.sequence, frame.sequence)
    if damaged:
        result.holes.append(Hole(name, begin - damaged, damaged, missing, "damaged records"))
    elif missing:
        result.holes.append(Hole(name, begin, 0, missing, "records never written"))


def _take(result: Piece, segment: Segment, frame: frames.Frame, begin: int) -> None:
    """Keep the frame's word on its call if it is the newest; a kind from a later version is passed over."""
    rank = _RANKS.get(frame.kind)
    try:
        if frame.kind == Kind.OWNER:
            header = decode_owner(frame.payload)
            if header.format > FORMAT:
                raise FormatError(f"{segment.path.name} has format {header.format}; known is {FORMAT}")
            return
        if rank is None:
            return
        record = decode(frame.payload)
    except RecordError as error:
        size = len(frame.payload) + frames.OVERHEAD
        result.holes.append(Hole(segment.path.name, begin, size, 1, f"not understood: {error}"))
        return
    result.records += 1
    entry = Entry(rank, segment.owner, frame.sequence, record)
    known = result.latest.get(record.call_id)
    if known is None or entry[:3] >= known[:3]:
        result.latest[record.call_id] = entry
