"""An answer that is kept for a retry, and the ids by which a client says how much of a stream it has.

Only calls with an Idempotency-Key have an `id:` line in each event (naive clients stumble over more lines than they
know); it is `call_id.number`, so that one answer is never continued with another. Source: DESIGN sections 4 and 6.
"""

import re
from typing import Final

import msgspec

from moongate.core import sse

LARGEST: Final = 1024 * 1024
"""Bytes of the largest body that is kept."""

_LINE_END: Final = rb"(?>\r\n|\n|\r)"


class Kept(msgspec.Struct, array_like=True, gc=False):
    """What a client was given, or would have been: a body of status 200 and what its headers told.

    `stream`: the body is the stream's events. `broken_by` is the fault that ended them, without its event; `phase`
    that of a time-out.
    """

    body: bytes
    stream: bool = False
    model: str = ""
    edits: list[str] = []
    attempts: int = 1
    broken_by: str = ""
    phase: str = ""


class Numbered:
    """Gives each event of one stream its id, in order. Events without data (comments) get none."""

    __slots__ = ("_count", "_mark")

    def __init__(self, call_id: str) -> None:
        self._mark = f"id: {call_id}.".encode("ascii")
        self._count = 0

    def mark(self, whole: bytes) -> bytes:
        """The same events, whole ones only, each with its `id:` line at its end: of two such lines the last holds."""
        return b"".join(self._marked(raw) for raw in sse.events(whole))

    def _marked(self, raw: bytes) -> bytes:
        if not sse.parse(raw).data:
            return raw
        self._count += 1
        end = b"\r\n" if raw.endswith(b"\r\n") else raw[-1:]
        return b"%b%b%d%b%b" % (raw[: -len(end)], self._mark, self._count, end, end)


def rest_after(body: bytes, call_id: str, last_event_id: str) -> bytes | None:
    """What follows the event with this id in a numbered stream of this call; None: it is not in there."""
    name, _, number = last_event_id.rpartition(".")
    if name != call_id or not number.isascii() or not number.isdigit():
        return None
    line = re.escape(f"id: {last_event_id}".encode("ascii"))
    found = re.search(rb"[\r\n]%b%b{2}" % (line, _LINE_END), body)
    return None if found is None else body[found.end() :]
