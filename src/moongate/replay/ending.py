"""What the end of an answer says: completed or why not, tokens, and the model. Pure."""

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from moongate.core import sse
from moongate.core.call import Usage
from moongate.core.fold import read_usage

COMPLETED: Final = "completed"
NO_END: Final = "no_done"
"""The stream ended without `[DONE]`."""
NOT_CONNECTED: Final = "not_connected"
CONNECTION_LOST: Final = "connection_lost"
NOT_HTTP: Final = "not_http"
TIMEOUT: Final = "timeout"

TAIL_BYTES: Final = 16_384
"""How much of an answer's end is looked at; an event is some hundred bytes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How one call ended: `completed`, or the code of its error.

    `first` and `total` are seconds from the making of the call, connecting included, to the first data event
    (negative: none came) and to the end. `usage` None: nobody said it.
    """

    outcome: str
    first: float = -1.0
    total: float = -1.0
    usage: Usage | None = None
    model: str = ""


class _Choice(msgspec.Struct):
    usage: Any = None


class _Chunk(msgspec.Struct):
    model: str = ""
    usage: Any = None
    choices: list[_Choice] = []
    error: Any = None


_decode: Final = msgspec.json.Decoder(_Chunk).decode


def of_stream(tail: bytes, first: float, total: float) -> Answer:
    """The end of an event stream, of which `tail` is the last `TAIL_BYTES` or more (all of it, if it has fewer)."""
    payloads = [event.data for event in sse.split(tail) if event.data]
    done = bool(payloads) and payloads[-1] == b"[DONE]"
    outcome = COMPLETED if done else NO_END
    usage, model = None, ""
    for payload in reversed(payloads):
        chunk = _chunk(payload)
        if chunk is None:
            continue
        if chunk.error:
            outcome = code_of(chunk.error)
        model = model or chunk.model
        told = chunk.usage or next((choice.usage for choice in chunk.choices if choice.usage), None)
        if told:
            usage = read_usage(told)[0]
            break
    return Answer(outcome, first, total, usage, model)


def of_refusal(status: int, body: bytes, total: float) -> Answer:
    """An answer that is no event stream: an error, or what only says its status."""
    chunk = _chunk(body)
    told = code_of(chunk.error) if chunk is not None and chunk.error else f"status_{status}"
    return Answer(told, total=total)


def code_of(error: Any) -> str:
    """An error object's code, or else its type."""
    if isinstance(error, dict):
        for name in ("code", "type"):
            if isinstance(error.get(name), str) and error[name]:
                return str(error[name])
    return "error"


def _chunk(payload: bytes) -> _Chunk | None:
    try:
        return _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
