"""What a recorded answer says and what of it a client must get, read in the plainest way.

A second opinion: nothing here is of moongate, and nothing is fast. `read` folds an answer, `due` says which bytes
reach the client once the documented edits were made, and how the call ends.
"""

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

DONE = b"data: [DONE]\n\n"


class Tokens(NamedTuple):
    """Tokens by kind, in the order of the ledger's columns."""

    input: int
    output: int
    cached: int
    reasoning: int
    cache_write: int


@dataclass
class Call:
    """A tool call."""

    index: int
    id: str = ""
    kind: str = "function"
    name: str = ""
    arguments: str = ""


@dataclass
class Reading:
    """What an answer says. `tokens` None: it gave no usage, or one whose figures contradict each other."""

    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    finish: str = ""
    tokens: Tokens | None = None
    error: bool = False


class Due(NamedTuple):
    """What the client must get: these bytes, then, if `breaks`, an error event of this stream's own."""

    body: bytes
    breaks: bool


def blocks(body: bytes) -> list[bytes]:
    """The events of a stream, each with its empty line; the last one gets it where it lacks it."""
    return [block + b"\n\n" for block in body.rstrip(b"\n").split(b"\n\n") if block]


def said(block: bytes) -> tuple[str, Any]:
    """The kind of an event and its data: a JSON value, `[DONE]`, or None where a client is told nothing."""
    fields = [line.partition(":") for line in block.decode().splitlines()]
    kind = "".join(value.strip() for name, _, value in fields if name == "event")
    data = "\n".join(value.removeprefix(" ") for name, _, value in fields if name == "data").strip()
    if not data:
        return kind, None
    return kind, data if data == "[DONE]" else json.loads(data)


def is_error(kind: str, data: Any) -> bool:
    """Whether an event says that the answer failed."""
    return kind == "error" or (isinstance(data, dict) and bool(data.get("error")))


def is_usage_alone(data: Any) -> bool:
    """Whether an event is the chunk that `stream_options.include_usage` asks for."""
    return isinstance(data, dict) and data.get("choices") == [] and bool(data.get("usage"))


def read_stream(body: bytes) -> Reading:
    """Fold a stream, as far as it is good."""
    reading, calls, used = Reading(), dict[int, Call](), None
    for kind, data in map(said, blocks(body)):
        if data == "[DONE]":
            break
        if data is None:
            continue
        for choice in data.get("choices", []):
            used = choice.get("usage") or used
        used = data.get("usage") or used
        if is_error(kind, data):
            reading.error = True
            break
        for choice in data.get("choices", []):
            assert choice["index"] == 0, "this reading knows one choice only"
            reading.finish = choice.get("finish_reason") or reading.finish
            delta = choice["delta"]
            reading.text += delta.get("content") or ""
            reading.reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
            for piece in delta.get("tool_calls") or []:
                call = calls.setdefault(piece["index"], Call(piece["index"]))
                _add(call, piece)
    reading.calls = list(calls.values())
    reading.tokens = tokens(used)
    return reading


def read_plain(body: bytes) -> Reading:
    """Read an answer that came in one piece."""
    answer = json.loads(body)
    [choice] = answer["choices"]
    message = choice["message"]
    calls = [Call(at) for at, _ in enumerate(message.get("tool_calls") or [])]
    for call, piece in zip(calls, message.get("tool_calls") or [], strict=True):
        _add(call, piece)
    return Reading(
        message.get("content") or "",
        message.get("reasoning_content") or message.get("reasoning") or "",
        calls,
        choice["finish_reason"],
        tokens(answer.get("usage")),
    )


def _add(call: Call, piece: dict[str, Any]) -> None:
    call.id = call.id or piece.get("id") or ""
    call.kind = piece.get("type") or call.kind
    call.name = call.name or piece["function"].get("name") or ""
    call.arguments += piece["function"].get("arguments") or ""


def tokens(used: dict[str, Any] | None) -> Tokens | None:
    """The figures of a `usage`; None if a part is larger than its whole or the total is not the sum."""
    if not used:
        return None
    prompt, completion = used["prompt_tokens"], used["completion_tokens"]
    about_prompt = used.get("prompt_tokens_details") or {}
    about_completion = used.get("completion_tokens_details") or {}
    cached = about_prompt.get("cached_tokens") or used.get("cached_tokens") or 0
    reasoning = about_completion.get("reasoning_tokens") or 0
    if used["total_tokens"] != prompt + completion or cached > prompt or reasoning > completion:
        return None
    return Tokens(prompt, completion, cached, reasoning, about_prompt.get("cache_write_tokens") or 0)


def due(body: bytes, *, strips_usage: bool) -> Due:
    """What of a stream the client gets: all but our usage chunk, ended by `[DONE]`; up to an error, if there is one."""
    passed = b""
    for block in blocks(body):
        kind, data = said(block)
        if is_error(kind, data):
            return Due(passed, breaks=True)
        if data == "[DONE]":
            break
        if not (strips_usage and is_usage_alone(data)):
            passed += block
    return Due(passed + DONE, breaks=False)
