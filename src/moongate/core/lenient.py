"""Reading JSON text that is framed as one value but is not quite JSON.

Upstreams emit NaN, raw control characters, broken UTF-8, halves of surrogate pairs, endless numbers and
absurd nesting. Such an answer goes to the client as it came; what moongate must know of it is read from a
mended copy.
"""

import math
import re
from typing import Final, Protocol, TypeVar

DEEPEST: Final = 200
"""Levels that are kept; nothing that moongate reads lies deeper than ten."""

T_co = TypeVar("T_co", covariant=True)

_CONTROLS: Final = bytes.maketrans(bytes(range(32)), b" " * 32)
_TOKEN: Final = re.compile(
    rb'(?P<string>"(?:[^"\\]++|\\.)*+")|(?P<open>[\[{])|(?P<close>[\]}])'
    rb'|(?P<word>[^\[\]{}":, ]++)|(?P<rest>.)'
)
_ESCAPE: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)
_NO_NUMBER: Final = frozenset({b"NaN", b"Infinity", b"-Infinity"})
_NUMBER: Final = re.compile(rb"-?(?:0|[1-9]\d*+)(?:\.\d++)?(?:[eE][+-]?\d++)?")


class Decoder(Protocol[T_co]):
    """A strict decoder, as msgspec makes them."""

    def decode(self, text: bytes, /) -> T_co:
        """Raise `ValueError` or `RecursionError` for what it does not take."""


def decode(decoder: Decoder[T_co], text: bytes) -> T_co:
    """Decode strictly, else decode a mended copy. Raises `ValueError` if that cannot be read either."""
    try:
        return decoder.decode(text)
    except (ValueError, RecursionError):
        return decoder.decode(mended(text))


def mended(text: bytes) -> bytes:
    """A copy that a strict parser takes if `text` is framed as one value, and refuses if it is cut or glued.

    Numbers that are none or beyond any range become null, as does whatever lies deeper than `DEEPEST` levels;
    characters that are none become U+FFFD; control characters become spaces. Takes linear time.
    """
    clean = text.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").encode().translate(_CONTROLS)
    pieces: list[bytes] = []
    depth = 0
    for token in _TOKEN.finditer(clean):
        kind, piece = token.lastgroup, token[0]
        if kind == "open":
            depth += 1
            if depth == DEEPEST + 1:
                pieces.append(b"null")
        if depth <= DEEPEST:
            if kind == "string" and b"\\u" in piece:
                piece = _ESCAPE.sub(lambda found: rb"\ufffd" if found["half"] else found[0], piece)
            elif kind == "word" and _is_beyond(piece):
                piece = b"null"
            pieces.append(piece)
        if kind == "close":
            depth -= 1
    return b"".join(pieces)


def _is_beyond(word: bytes) -> bool:
    return word in _NO_NUMBER or (_NUMBER.fullmatch(word) is not None and math.isinf(float(word)))
