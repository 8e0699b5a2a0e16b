"""A surface is one wire format that clients speak; chat completions is the first (`core/chat`).

The relay asks it, chunk by chunk, what may be passed on; it owns everything that depends on the format's JSON.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from moongate.core.call import Usage
from moongate.core.faults import Failure, Fault

Classify = Callable[[int, bytes], Fault]
"""(status, JSON text that holds an `error` object) -> what it means in the target's dialect."""


class ToolCall(msgspec.Struct):
    """One tool call, put together from its deltas by index."""

    index: int
    id: str = ""
    kind: str = "function"
    name: str = ""
    arguments: str = ""


class Answer(msgspec.Struct):
    """One folded completion, as far as it came. `finish` is empty while the answer is not complete.

    `choices`: how many were begun; only the one with index 0 is folded here. `pieces`: non-empty strings that came as
    deltas of a stream, of all choices; each holds one token or more.
    """

    id: str = ""
    model: str = ""
    created: int = 0
    fingerprint: str = ""
    text: str = ""
    reasoning: str = ""
    finish: str = ""
    tool_calls: list[ToolCall] = []
    usage: Usage | None = None
    usage_suspect: bool = False
    choices: int = 0
    pieces: int = 0


class Step(msgspec.Struct):
    """What to do with what has just arrived.

    `out`: whole events, in upstream's own bytes but for the documented edits, to be passed on now (may be empty).
    `beats`: data events seen, passed on or withheld; comments do not count.
    `failure`: the answer is broken from here on; `out` still holds what was whole before it.
    `done`: the end of the answer was passed on; whatever upstream sends after it is ignored.
    """

    out: bytes = b""
    beats: int = 0
    failure: Failure | None = None
    done: bool = False


class StreamReader(Protocol):
    """Reads one streamed answer. Any split of the same bytes gives the same bytes out."""

    def feed(self, chunk: bytes) -> Step:
        """Take the next bytes of the body."""

    def finish(self) -> Step:
        """Upstream ended with clean framing: say whether the answer is whole; supply a missing end marker."""

    def answer(self) -> Answer:
        """Everything folded so far, from the unfiltered answer."""

    def own(self) -> Answer:
        """The same, without parts that came before this stream."""


class Surface(Protocol):
    """One wire format."""

    name: str

    def stream_reader(self, *, strip_usage: bool, classify: Classify) -> StreamReader:
        """Make a reader for one streamed answer; `strip_usage`: we asked for the usage chunk, the client did not."""

    def read_plain(self, body: bytes, classify: Classify) -> Answer | Failure:
        """Read a whole plain answer with status 200, or say why it is none."""

    def error_body(self, failure: Failure, request_id: str) -> bytes:
        """Write the failure as a JSON body of this format."""

    def error_event(self, failure: Failure, request_id: str) -> bytes:
        """Write the failure as one stream event, its terminator included."""
