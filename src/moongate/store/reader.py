"""Reads a journal segment piece by piece: the newest word on each call, and what is missing or damaged."""

import errno
import os
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from moongate.core.record import FORMAT, CallRecord, RecordError, decode, decode_owner
from moongate.store import frames
from moongate.store.frames import Kind
from moongate.store.owners import Segment

PIECE: Final = 1024 * 1024
"""Bytes read at once; more only where a damaged stretch is longer. Larger ones cost more than they save: memory."""

_SECTOR: Final = 4096

_RANKS: Final[dict[int, int]] = {
    Kind.RESERVED: 0,
    Kind.SENT: 0,
    Kind.FIRST_EVENT: 0,
    Kind.CLOSED: 2,
    Kind.AMENDED: 3,
}
OPEN_RANK: Final = 0
RECOVERED_RANK: Final = 1
AMENDED_RANK: Final = 3

_LONG_ARRAY: Final = b"\xdc"
"""MessagePack's mark of an array of 16 to 65,535 members; two bytes of count follow, then the call id."""
_SHORT_TEXT: Final = frozenset(bytes([mark]) for mark in range(0xA0, 0xA0 + 28 + 1))
"""MessagePack's marks of texts up to 28 bytes: an id and its mark lie within `_ID`."""
_ID: Final = slice(3, 3 + 1 + 28)


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
    _take_all(result, segment, offset, found, damaged)
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
    except OSError as error:
        if error.errno != errno.EIO:
            error.filename = str(segment.path)
            raise
        data = _around_bad_sectors(file, size, offset)
    finally:
        os.close(file)
    return data, len(data) < size


def _around_bad_sectors(file: int, size: int, offset: int) -> bytes:
    """The same bytes, with zeros for sectors that the disk does not give: these are damage like any other."""
    found = bytearray()
    end = min(offset + size, os.fstat(file).st_size)
    while offset < end:
        most = min(_SECTOR - offset % _SECTOR, end - offset)
        try:
            found += os.pread(file, most, offset)
        except OSError:
            found += bytes(most)
        offset += most
    return bytes(found)


def _take_all(
    result: Piece, segment: Segment, offset: int, found: list[frames.Frame], damaged: dict[int, int]
) -> None:
    """Take the frames; the last open word on a call that is closed in the same piece is never decoded."""
    unclosed: dict[bytes, frames.Frame] = {}
    sequence = result.sequence
    for frame in found:
        expected = sequence + 1
        sequence, kind, payload, end = frame
        if sequence != expected or damaged:
            begin = end - len(payload) - frames.OVERHEAD
            result.sequence = expected - 1
            _note_hole(result, segment.path.name, frame, offset + begin, damaged.pop(begin, 0))
            sequence = result.sequence
        rank = _RANKS.get(kind)
        call = payload[_ID]
        if rank is None:
            _check(segment, frame, result, offset)
        elif payload[:1] != _LONG_ARRAY or call[:1] not in _SHORT_TEXT:
            _take(result, segment, frame, offset, rank)
        elif rank == OPEN_RANK:
            if call in unclosed:
                _take(result, segment, unclosed[call], offset, rank)
            unclosed[call] = frame
        elif _take(result, segment, frame, offset, rank) and call in unclosed:
            del unclosed[call]
            result.records += 1
    result.sequence = sequence
    for frame in unclosed.values():
        _take(result, segment, frame, offset, OPEN_RANK)


def _note_hole(result: Piece, name: str, frame: frames.Frame, begin: int, damaged: int) -> None:
    """Compare this frame's sequence with the one before; an OWNER frame repeats the last before it."""
    expected = result.sequence + (0 if frame.kind == Kind.OWNER else 1)
    missing = max(frame.sequence - expected, 0)
    result.sequence = max(result.sequence, frame.sequence)
    if damaged:
        result.holes.append(Hole(name, begin - damaged, damaged, missing, "damaged records"))
    elif missing:
        result.holes.append(Hole(name, begin, 0, missing, "records never written"))


def _check(segment: Segment, frame: frames.Frame, result: Piece, offset: int) -> None:
    """Look at a frame that is about no call; a kind from a later version is passed over."""
    if frame.kind != Kind.OWNER:
        return
    try:
        header = decode_owner(frame.payload)
    except RecordError as error:
        result.holes.append(_unknown(segment, frame, offset, error))
        return
    if header.format > FORMAT:
        raise FormatError(f"{segment.path.name} has format {header.format}; known is {FORMAT}")


def _take(result: Piece, segment: Segment, frame: frames.Frame, offset: int, rank: int) -> bool:
    """Keep the frame's word on its call if it is the newest. Returns whether it was understood."""
    try:
        record = decode(frame[2])
    except RecordError as error:
        result.holes.append(_unknown(segment, frame, offset, error))
        return False
    result.records += 1
    entry = Entry(rank, segment.owner, frame[0], record)
    known = result.latest.get(record.call_id)
    if known is None or entry[:3] >= known[:3]:
        result.latest[record.call_id] = entry
    return True


def _unknown(segment: Segment, frame: frames.Frame, offset: int, error: RecordError) -> Hole:
    size = len(frame.payload) + frames.OVERHEAD
    return Hole(segment.path.name, offset + frame.end - size, size, 1, f"not understood: {error}")
