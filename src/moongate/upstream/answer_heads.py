"""What is read from the header lines of an answer, once llhttp has found its head well-formed.

llhttp takes no folded line and no line end but CRLF, so that each line between two CRLFs is one header.
"""

from collections.abc import Callable
from typing import Final

from moongate.upstream.gunzip import Gunzip

MOST_HEADER: Final = 16 * 1024
"""Bytes of one header."""

# Hosts send the same lines again and again: what was read from a short one is remembered, until the table is full.
_MOST_KNOWN: Final = 4096
_LONGEST_KNOWN: Final = 128
_WORTH_KNOWING: Final = (
    b"access-control-",
    b"cache-control",
    b"connection",
    b"content-",
    b"date",
    b"keep-alive",
    b"server",
    b"strict-transport-",
    b"transfer-encoding",
    b"vary",
    b"via",
    b"x-content-",
    b"x-frame-",
)


class BadAnswerError(Exception):
    """What came is no answer that HTTP/1.1 allows, or more of it than we take."""


class _Fields(dict[bytes, tuple[bytes, bytes]]):
    """Name, in lower case, and value of header lines, read when first asked for."""

    def __missing__(self, line: bytes) -> tuple[bytes, bytes]:
        if len(line) > MOST_HEADER:
            raise BadAnswerError(f"a header of more than {MOST_HEADER} bytes")
        name, _, value = line.partition(b":")
        name = name.lower()
        field = (name, value.strip(b" \t"))
        if len(line) <= _LONGEST_KNOWN and name.startswith(_WORTH_KNOWING):
            if len(self) >= _MOST_KNOWN:
                self.clear()
            self[line] = field
        return field


field_of: Final[Callable[[bytes], tuple[bytes, bytes]]] = _Fields().__getitem__
"""Name, in lower case, and value of a header line; raises BadAnswerError for one that is too long."""


def unpacker(headers: list[tuple[bytes, bytes]]) -> Gunzip | None:
    """What unpacks the body that these headers announce; raises BadAnswerError for a coding nobody asked for."""
    gunzip = None
    for name, value in headers:
        if name != b"content-encoding":
            continue
        coding = value.lower()
        if coding in (b"gzip", b"x-gzip") and gunzip is None:
            gunzip = Gunzip()
        elif coding not in (b"identity", b""):
            raise BadAnswerError(f"content coding {coding[:32]!r} that nobody asked for")
    return gunzip
