"""Decode a gzip body piece by piece, under bounds."""

import zlib
from collections import deque

PIECE = 64 * 1024
MOST_DECODED = 32 * 1024 * 1024
MOST_RATIO = 100
RATIO_COUNTS_FROM = 1024 * 1024
_GZIP = 16 + zlib.MAX_WBITS


class BadGzipError(Exception):
    """The body is no gzip, goes on after its end, or grows beyond all measure."""


class Gunzip:
    """One body on its way through the decoder.

    Bounds (bytes): `MOST_DECODED` in all, and past `RATIO_COUNTS_FROM` no more than `MOST_RATIO` times what came in.
    """

    __slots__ = ("_full", "_inflater", "_waiting", "given", "taken")

    def __init__(self) -> None:
        self._inflater = zlib.decompressobj(_GZIP)
        self._waiting: deque[bytes] = deque()
        self._full = False
        self.taken = 0
        self.given = 0

    @property
    def is_drained(self) -> bool:
        """Whether nothing is left to be decoded of what was fed."""
        return not self._waiting and not self._full

    @property
    def is_whole(self) -> bool:
        """Whether the gzip member has come to its end, checksum included."""
        return self._inflater.eof

    def feed(self, data: bytes) -> None:
        """Take body bytes; nothing is decoded yet."""
        self._waiting.append(data)
        self.taken += len(data)

    def piece(self) -> bytes:
        """Decode at most `PIECE` bytes more; empty when nothing more can be had of what was fed.

        Raises `BadGzipError`.
        """
        out = b""
        while not out and not self.is_drained:
            # a full piece may have left output inside the decoder although all input was taken
            fed = self._inflater.unconsumed_tail if self._full else self._waiting.popleft()
            if self._inflater.eof:
                raise BadGzipError("bytes after the end of the gzip body")
            try:
                out = self._inflater.decompress(fed, PIECE)
            except zlib.error as error:
                raise BadGzipError(f"not gzip: {error}") from None
            self._full = not self._inflater.eof and len(out) == PIECE
            if self._inflater.unused_data:
                raise BadGzipError("bytes after the end of the gzip body")
        self.given += len(out)
        if self.given > MOST_DECODED:
            raise BadGzipError(f"more than {MOST_DECODED} bytes decoded")
        if self.given > RATIO_COUNTS_FROM and self.given > MOST_RATIO * self.taken:
            raise BadGzipError(f"more than {MOST_RATIO} times larger once decoded")
        return out
