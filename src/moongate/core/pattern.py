"""Knowing harmless events of a stream by their bytes, so that they need not be parsed."""

import re
from typing import Final

from moongate.core.fold import Chunk, Fold, ToolDelta, escaped
from moongate.core.sse import Event

MOST_VAIN_LESSONS: Final = 8
"""Patterns that may be made one after the other without a match; then this stream has none."""

_INSIDE: Final = re.compile(rb'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+')
_TEXTS: Final = ("content", "reasoning_content", "reasoning")


class Pattern:
    """The last event that was parsed and found harmless, with a hole in place of its one string.

    Most events of a stream differ from the one before in one string only: a piece of text, of reasoning or of a
    tool call's arguments. An event that has the same bytes before and behind that string, and between them the
    inside of a JSON string, is proved to be as harmless, and says nothing but that string. `pieces` counts such
    strings, empty ones left out.
    """

    __slots__ = ("_foot", "_head", "_sink", "_vain", "pieces")

    def __init__(self) -> None:
        self.pieces = 0
        self._head = b""
        self._foot = b""
        self._sink = bytearray()
        self._vain = 0

    def matches(self, raw: bytes) -> bool:
        """Whether this is one event of the pattern; if so, its string has been folded."""
        if not (self._head and raw.startswith(self._head) and raw.endswith(self._foot)):
            return False
        found = _INSIDE.fullmatch(raw, len(self._head), len(raw) - len(self._foot))
        if found is None:
            return False
        inside = found[0]
        if inside:
            self.pieces += 1
            self._sink += inside
        self._vain = 0
        return True

    def forget(self) -> None:
        """Match nothing."""
        self._head = b""

    def learn(self, event: Event, chunk: Chunk, fold: Fold) -> None:
        """Take this event for a pattern, or none: only a delta that adds to one string can be one.

        `chunk` is what the event says and has been folded already, so all of it but that string may be repeated.
        The string's name must stand there once and plainly: then it is the delta's, and its value lies behind it.
        """
        self._head = b""
        name, value, sink = _only_string(chunk, fold)
        if not value or self._vain >= MOST_VAIN_LESSONS or len(event.data) + 8 != len(event.raw):
            return
        before, key, behind = event.raw.partition(b'"%b":' % name)
        space, quote, behind = behind.partition(b'"')
        foot = behind[len(value) :]
        around = before + foot
        if behind.startswith(value) and b'"%b"' % name not in around and b"\\" not in around:
            self._head, self._foot, self._sink = before + key + space + quote, foot, sink
            self._vain += 1


_NOTHING: Final = (b"", b"", bytearray())


def _only_string(chunk: Chunk, fold: Fold) -> tuple[bytes, bytes, bytearray]:
    """The one string that this chunk adds to the answer: its name, its inside, and where that is folded."""
    if not chunk.choices or len(chunk.choices) > 1:
        return _NOTHING
    choice = chunk.choices[0]
    if choice.index or choice.delta is None:
        return _NOTHING
    delta = choice.delta
    texts = [(name, inside) for name in _TEXTS if (inside := escaped(getattr(delta, name)))]
    if delta.tool_calls:
        return _NOTHING if texts else _only_arguments(delta.tool_calls[0], fold)
    if len(texts) != 1:
        return _NOTHING
    name, inside = texts[0]
    return name.encode(), inside, fold.text if name == "content" else fold.reasoning


def _only_arguments(call: ToolDelta, fold: Fold) -> tuple[bytes, bytes, bytearray]:
    if call.function is None:
        return _NOTHING
    return b"arguments", escaped(call.function.arguments), fold.tool_of(call).arguments
