"""Server-sent events: where one ends and the next begins, and what it says. Bytes are never changed.

Source: WHATWG HTML, section 9.2 "Server-sent events". An event ends with an empty line; lines end with LF,
CR or CRLF, mixed at will; one byte order mark at the very start is no part of the first line.
"""

import re
from dataclasses import dataclass
from typing import Final

LARGEST_EVENT: Final = 1 << 20
"""Bytes of one event, its empty line included (DESIGN section 4: 1 MB an event)."""

BOM: Final = b"\xef\xbb\xbf"

_LINE_END: Final = rb"(?>\r\n|\n|\r)"
_LINE_END_SO_FAR: Final = rb"(?>\r\n|\n|\r(?!\Z))"  # a CR at the very end may be half of a CRLF
_ONE: Final = rb"(?>[^\r\n]++%b)*+%b"  # lines that hold something, then the empty line
_EVENT: Final = re.compile(_ONE % (_LINE_END, _LINE_END))
_EVENT_OF_LF: Final = re.compile(rb"(?>[^\n]++\n)*+\n")  # several times faster, where there is no CR
_EVENT_SO_FAR: Final = re.compile(_ONE % (_LINE_END_SO_FAR, _LINE_END_SO_FAR))
_EMPTY_LINE: Final = re.compile(rb"%b%b++" % (_LINE_END_SO_FAR, _LINE_END_SO_FAR))
_EMPTY_LINES: Final = re.compile(rb"%b++" % _LINE_END_SO_FAR)
_LINE: Final = re.compile(rb"[^\r\n]++")


@dataclass(slots=True)
class Event:
    """One event with its own bytes.

    `data`: the payload, lines joined by LF; empty for what a client never sees (comments, `retry:`, `id:`
    alone). `kind`: the value of `event:`, empty if none was given.
    """

    raw: bytes
    data: bytes = b""
    kind: bytes = b""


class Framer:
    """Cuts a stream behind its last complete event, however the bytes arrive.

    Any split of the same bytes gives the same bytes out, and the same events. `too_big` turns true when an
    event exceeds `limit` bytes; what was whole before it has been returned by then and nothing is returned
    any more. Holds at most `limit` bytes and one chunk. Takes time linear in the bytes fed.
    """

    __slots__ = ("_any_cr", "_limit", "_tail", "too_big")

    def __init__(self, limit: int = LARGEST_EVENT) -> None:
        self._limit = limit
        self._tail = bytearray()
        self._any_cr = False
        self.too_big = False

    def feed(self, chunk: bytes) -> bytes:
        """Take the next bytes; return all events that are whole now, as they came."""
        tail = self._tail
        if not tail and chunk[-2:] == b"\n\n" and len(chunk) <= self._limit:
            return chunk
        if b"\r" in chunk:
            self._any_cr = True
        if self.too_big:
            return b""
        known = len(tail)
        tail += chunk
        cut = self._boundary(tail, max(0, known - 3))
        if len(tail) > self._limit:
            cut = self._bounded(tail, cut)
        if not cut:
            return b""
        whole = bytes(memoryview(tail)[:cut])
        del tail[:cut]
        return whole

    def finish(self) -> tuple[bytes, bytes]:
        """At the end of the stream: (what is whole because nothing follows, what is not whole)."""
        rest = bytes(self._tail)
        self._tail.clear()
        return (rest, b"") if _EVENT.fullmatch(rest) else (b"", rest)

    def _boundary(self, tail: bytearray, start: int) -> int:
        """Behind the last empty line; none ends before `start`."""
        if not self._any_cr:
            at = tail.rfind(b"\n\n", start)
            return at + 2 if at >= 0 else int(tail.startswith(b"\n"))
        cut = 0
        for found in _EMPTY_LINE.finditer(tail, start):
            cut = found.end()
        more = _EMPTY_LINES.match(tail, cut)
        return more.end() if more else cut

    def _bounded(self, tail: bytearray, cut: int) -> int:
        """Behind the last whole event before the first that is too long, if any is."""
        at = 0
        while at < cut:
            found = _EVENT_SO_FAR.match(tail, at)
            end = found.end() if found else cut
            if end - at > self._limit:
                self.too_big = True
                return at
            at = end
        self.too_big = len(tail) - cut > self._limit
        return cut


def events(whole: bytes) -> list[bytes]:
    """The bytes of every event in what `Framer` returned; an empty line alone is one too."""
    return (_EVENT if b"\r" in whole else _EVENT_OF_LF).findall(whole)


def split(whole: bytes) -> list[Event]:
    """Every event in what `Framer` returned, read."""
    return [parse(raw) for raw in events(whole)]


def parse(raw: bytes) -> Event:
    """Read one event, or what there is of one that lacks its empty line. A byte order mark is skipped."""
    if raw.startswith(b"data: ") and raw.find(b"\n") == len(raw) - 2 and b"\r" not in raw:
        return Event(raw, raw[6:-2])
    data: list[bytes] = []
    kind = b""
    for found in _LINE.finditer(raw.removeprefix(BOM)):
        name, _, value = found[0].partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
        elif name == b"event":
            kind = value.removeprefix(b" ")
    return Event(raw, b"\n".join(data), kind)
