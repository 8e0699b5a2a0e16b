"""Streams of chat completion chunks for the tests of the core, and what comes of reading them."""

import itertools
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from moongate.core.chat import CHAT
from moongate.core.chat_stream import ChatReader
from moongate.core.faults import Failure, Fault
from moongate.core.surface import Answer, StreamReader

DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 8, "completion_tokens": 11, "total_tokens": 19, "cached_tokens": 8}


def data(text: bytes) -> bytes:
    """One event."""
    return b"data: %b\n\n" % text


def raw(members: dict[str, Any], *, ascii_only: bool = False) -> bytes:
    """JSON as Kimi writes it: no spaces, no escapes that need not be."""
    return json.dumps(members, separators=(",", ":"), ensure_ascii=ascii_only).encode()


def chunk(
    finish: str | None = None, usage: object = None, cid: str | None = "chatcmpl-A", **delta: Any
) -> bytes:
    """One chunk as Kimi sends it; the finish chunk carries its usage inside the choice."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish} | ({"usage": usage} if usage else {})
    head = {} if cid is None else {"id": cid}
    rest = {"object": "chat.completion.chunk", "created": 1, "model": "kimi-k2.5", "choices": [choice]}
    return raw(head | rest | {"system_fingerprint": "fpv0_b30801d4"})


def text(*pieces: str) -> bytes:
    """An opening event and one for each piece of text."""
    opening = data(chunk(role="assistant", content=""))
    return opening + b"".join(data(chunk(content=piece)) for piece in pieces)


def usage_chunk(usage: object = USAGE) -> bytes:
    """The chunk that only carries usage."""
    return raw(
        {"id": "chatcmpl-A", "object": "chat.completion.chunk", "created": 1, "choices": [], "usage": usage}
    )


FINISH = data(chunk("stop"))
WHOLE = text("Hel", "lo", " wörld", ' "x"\n') + FINISH + DONE

OVERLOADED = raw(
    {"error": {"message": "The engine is currently overloaded", "type": "engine_overloaded_error"}}
)
GLUED = b'{"id":"chatcmpl-jQugNdata:' + chunk(content="x")


class Read(NamedTuple):
    """All that came of reading a stream to its end."""

    out: bytes
    beats: int
    failure: Failure | None
    done: bool
    answer: Answer


def classified(status: int, body: bytes) -> Fault:
    """A stand-in for a dialect: it wants an object with an `error`, as the interface promises."""
    assert status == 200
    error = json.loads(body)["error"]
    return Fault.KIMI_ENGINE_OVERLOADED if "overloaded" in str(error) else Fault.KIMI_SERVER_ERROR


def reader(*, strip_usage: bool = False) -> ChatReader:
    """A fresh reader."""
    return CHAT.stream_reader(strip_usage=strip_usage, classify=classified)


def read(pieces: Iterable[bytes], by: StreamReader | None = None) -> Read:
    """Feed and finish as a relay does: it stops at a failure and at the end."""
    by = by or reader()
    out, beats = b"", 0
    for step in itertools.chain((by.feed(piece) for piece in pieces), (by.finish() for _ in "1")):
        out += step.out
        beats += step.beats
        if step.failure or step.done:
            return Read(out, beats, step.failure, step.done, by.answer())
    message = "the end of a stream is either whole or a failure"
    raise AssertionError(message)


def cuts(whole: bytes, *places: int) -> list[bytes]:
    """Cut at these places."""
    edges = [0, *sorted(min(place, len(whole)) for place in places), len(whole)]
    return [whole[a:b] for a, b in itertools.pairwise(edges)]


def steps(whole: bytes, size: int) -> list[bytes]:
    """Cut into pieces of one size."""
    return cuts(whole, *range(size, len(whole), size))


CORPUS = {
    "whole": text("你", '🌙"') + FINISH + DONE,
    "usage twice": text("a") + data(chunk("stop", usage=USAGE)) + data(usage_chunk()) + DONE,
    "crlf": (text("a", "b") + FINISH).replace(b"\n", b"\r\n") + DONE,
    "cr": (text("a", "b") + FINISH + DONE).replace(b"\n", b"\r"),
    "comments": b": hi\n\n" + text("a") + b"\n\n: hi\r\n\r\n" + FINISH,
    "error": text("a", "b") + data(b'{"error":{"message":"overloaded"}}') + DONE,
    "glued": text("a", "b") + data(b'{"id":"chatcmpl-Adata:' + chunk(content="x")) + FINISH,
    "cut": text("a", "b") + chunk(content="c")[:40],
    "foreign": text("a", "b") + data(chunk(content="c", cid="chatcmpl-B")) + FINISH,
    "no empty line": text("a") + FINISH[:-2],
}
"""Streams of every kind of ending, short enough to be cut everywhere."""
