"""How records lie in a journal segment, and how they are found again when some are cut or bent.

A frame, little-endian: payload length u32, CRC-32 u32, sequence u64, kind u8, payload. The checksum covers
sequence, kind and payload and starts from the owner's seed and the length, so that a changed length is seen
too. Sequences grow by one within an owner; a gap means that records were lost. A segment starts with an OWNER
frame that bears the sequence before its first record.
"""

import re
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple
from zlib import crc32

_FRONT: Final = struct.Struct("<II")
_BACK: Final = struct.Struct("<QB")
_WHOLE: Final = struct.Struct("<IIQB")

OVERHEAD: Final = _WHOLE.size
_SUMMED: Final = _FRONT.size
_unpack: Final = _WHOLE.unpack_from
LARGEST: Final = 4 * 1024 * 1024
"""Bytes of the largest payload; a length above it is damage, not a record."""

_UPPER: Final = 12
"""Offset in a frame of the sequence's upper half, which the kind follows."""

_FURTHEST: Final = 1 << 24
"""How many records may have been lost at one place: more than a segment holds."""


class Kind(IntEnum):
    """What a frame holds: for OWNER an `OwnerRecord`, for all others a `CallRecord` as it stood then."""

    OWNER = 1
    RESERVED = 2  # only for calls that wait
    SENT = 3  # before an attempt's first upstream byte
    FIRST_EVENT = 4
    CLOSED = 5
    AMENDED = 6  # a later word about a closed call: what a reconciler found


class Frame(NamedTuple):
    """One record as it lies in a segment; `end` is the offset behind it."""

    sequence: int
    kind: int
    payload: bytes
    end: int


_new: Final = tuple.__new__  # half the time of the named tuple's own


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes in a segment that are no frame, from `start` to `end`."""

    start: int
    end: int


def seed(owner: str) -> int:
    """Where this owner's checksums start: frames of others, or made up by a client, are not sound here."""
    return crc32(owner.encode())


def pack(start: int, sequence: int, kind: int, payload: bytes) -> bytes:
    """The frame as bytes; `start` is the owner's `seed`."""
    size = len(payload)
    back = _BACK.pack(sequence, kind) + payload
    return _FRONT.pack(size, crc32(back, start ^ size)) + back


def sequence_of(frame: bytes) -> int:
    """The sequence in a packed frame."""
    sequence: int = _BACK.unpack_from(frame, _FRONT.size)[0]
    return sequence


def frame_at(data: bytes, at: int, start: int) -> Frame | None:
    """The whole and sound frame that begins at this offset, if there is one."""
    begin = at + OVERHEAD
    if begin > len(data):
        return None
    size, checksum, sequence, kind = _unpack(data, at)
    end = begin + size
    if size > LARGEST or end > len(data) or crc32(data[at + _SUMMED : end], start ^ size) != checksum:
        return None
    return _new(Frame, (sequence, kind, data[begin:end], end))


def next_sound(data: bytes, at: int, start: int, after: int) -> int:
    """The offset of the first sound frame at or behind `at` whose sequence is not far beyond `after`; -1: none.

    It may be an earlier one: what was found before may have been a copy that lies in the wrong place.

    Only places whose upper sequence bytes and kind byte are possible have their checksum computed, so that
    the search stays linear in the bytes skipped.
    """
    upper = {(after + step >> 32).to_bytes(4, "little") for step in (0, _FURTHEST)}
    possible = re.compile(b"(?=(?:" + b"|".join(map(re.escape, upper)) + b")[\x01-\x1f])", re.DOTALL)
    for match in possible.finditer(data, at + _UPPER):
        frame = frame_at(data, match.start() - _UPPER, start)
        if frame is not None and frame.sequence <= after + _FURTHEST:
            return match.start() - _UPPER
    return -1


def scan(data: bytes, start: int, after: int) -> tuple[list[Frame], list[Gap], int]:
    """All sound frames, the gaps between them, and the offset behind the last frame.

    `start` is the owner's `seed`, `after` the last sequence known before these bytes. What follows the
    returned offset is no whole frame: it may be one that is being written, or damage up to the end; the
    caller knows which.
    """
    frames: list[Frame] = []
    gaps: list[Gap] = []
    at, total = 0, len(data)
    while at < total:
        frame = frame_at(data, at, start)
        if frame is None:
            found = next_sound(data, at + 1, start, after)
            if found < 0:
                break
            gaps.append(Gap(at, found))
            at = found
            continue
        frames.append(frame)
        after, at = frame[0], frame[3]
    return frames, gaps, at
