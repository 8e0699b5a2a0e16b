"""Request bodies as bytes: where a body ends, and what is in a packed one.

`SizedBody` and `ChunkedBody` read a body in whatever pieces it comes and never a byte beyond it; `Gunzip` unpacks in
bounded steps. Trailers are checked and dropped: they never become headers (RFC 9112 section 7.1.2).
"""

import re
import zlib
from typing import Final

from moongate.core.faults import Fault, refuse
from moongate.core.heads import bad_request

LONGEST_SIZE_LINE: Final = 256
"""Bytes of a chunk's size line with its extensions, CRLF included."""

LONGEST_TRAILERS: Final = 8192
"""Bytes of all trailers together."""

CHUNKS_A_TURN: Final = 2048
"""Chunks read in one `feed`: tiny chunks must not hold the event loop for long."""

_SLICE = 65536  # packed bytes given to zlib at once: what it leaves over is copied

_SIZE_LINE = re.compile(
    rb"([0-9A-Fa-f]{1,8})"
    rb"(?:;[\w!#$%&'*+.^`|~\-]+(?:=(?:[\w!#$%&'*+.^`|~\-]+|"
    rb'"(?:[\t\x20\x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t\x20-\x7e\x80-\xff])*"))?)*\r\n',
)
_TRAILER = re.compile(rb"[\w!#$%&'*+.^`|~\-]+:[\t\x20-\x7e\x80-\xff]*\r\n")


class SizedBody:
    """A body of `left` bytes."""

    __slots__ = ("left",)

    def __init__(self, size: int) -> None:
        self.left = size

    @property
    def done(self) -> bool:
        """Whether the whole body was seen."""
        return self.left == 0

    def feed(self, data: bytes) -> tuple[bytes, int]:
        """Take the next bytes: the part that belongs to the body, and how many were used."""
        if len(data) > self.left:
            data = data[: self.left]
        self.left -= len(data)
        return data, len(data)


class ChunkedBody:
    """A body in the chunked coding, read strictly: CRLF only, no white space, known syntax of extensions."""

    __slots__ = ("_left", "_line", "_trailers", "done")

    def __init__(self) -> None:
        self.done = False
        self._left = 0  # bytes of the chunk still to come, its CRLF included
        self._line = b""
        self._trailers = -1  # bytes of trailers seen; -1 before the last chunk

    def feed(self, data: bytes) -> tuple[bytes, int]:
        """Take the next bytes: the decoded part, and how many were used.

        Fewer may be used than were given although the body is not done: feed the rest again.
        Raises FailedError (400) for wrong framing; the reader is spent then.
        """
        out: list[bytes] = []
        position = 0
        turns = CHUNKS_A_TURN
        while position < len(data) and not self.done and turns:
            if self._left:
                position = self._take_chunk(data, position, out)
                continue
            turns -= 1
            match = None if self._line or self._trailers >= 0 else _SIZE_LINE.match(data, position)
            if match is None or match.end() - position > LONGEST_SIZE_LINE:
                position = self._take_line(data, position)
            else:
                position = match.end()
                self._read_size(match)
        return (out[0] if len(out) == 1 else b"".join(out)), position

    def _take_chunk(self, data: bytes, position: int, out: list[bytes]) -> int:
        """Take what is there of a chunk and of the CRLF behind it."""
        content = self._left - 2
        if content > 0:
            piece = data[position : position + content]
            out.append(piece)
            self._left -= len(piece)
            position += len(piece)
        tail = data[position : position + self._left] if self._left <= 2 else b""
        if not b"\r\n".startswith(tail, 2 - self._left):
            raise bad_request("a chunk is longer than it says")
        self._left -= len(tail)
        return position + len(tail)

    def _take_line(self, data: bytes, position: int) -> int:
        end = data.find(b"\n", position) + 1
        part = data[position : end or len(data)]
        line = self._line + part if self._line else part
        if len(line) > (LONGEST_SIZE_LINE if self._trailers < 0 else LONGEST_TRAILERS - self._trailers):
            raise bad_request("a chunk's size line or the trailers are too long")
        if not end:
            self._line = line
            return len(data)
        self._line = b""
        if self._trailers < 0:
            match = _SIZE_LINE.fullmatch(line)
            if match is None:
                raise bad_request("a chunk's size line is wrong")
            self._read_size(match)
        else:
            self._read_trailer(line)
        return end

    def _read_size(self, match: re.Match[bytes]) -> None:
        size = int(match[1], 16)
        if size:
            self._left = size + 2
        else:
            self._trailers = 0

    def _read_trailer(self, line: bytes) -> None:
        if line == b"\r\n":
            self.done = True
        elif _TRAILER.fullmatch(line) is None:
            raise bad_request("a trailer is wrong")
        self._trailers += len(line)


class Gunzip:
    """Unpacks one gzip member in steps; what comes out is counted against `limit` bytes."""

    __slots__ = ("_inflater", "_left", "_packed", "_position", "_tail")

    def __init__(self, packed: bytes, limit: int) -> None:
        self._inflater = zlib.decompressobj(wbits=31)
        self._packed = packed
        self._position = 0
        self._tail = b""
        self._left = limit

    def step(self, most: int) -> bytes:
        """The next bytes, at most `most`; empty at the end.

        Raises FailedError: 413 above the limit, 400 if this is not exactly one whole gzip member.
        """
        while not self._inflater.eof:
            if not self._tail:
                self._tail = self._packed[self._position : self._position + _SLICE]
                self._position += len(self._tail)
                if not self._tail:
                    raise refuse(Fault.INVALID_REQUEST, "The gzip data of the body is cut short.")
            try:
                piece = self._inflater.decompress(self._tail, most)
            except zlib.error:
                raise refuse(Fault.INVALID_REQUEST, "The body is not valid gzip data.") from None
            self._tail = self._inflater.unconsumed_tail
            if len(piece) > self._left:
                raise refuse(Fault.PAYLOAD_TOO_LARGE, "The body unpacks to more than this gateway takes.")
            if piece:
                self._left -= len(piece)
                return piece
        if self._inflater.unused_data or self._position < len(self._packed):
            raise refuse(Fault.INVALID_REQUEST, "Something follows the gzip data of the body.")
        return b""
