"""Three ways to put the same answer on the wire: Moonshot's platform, vLLM, SGLang.

Source: KIMI.md sections 4, 5 and 12. A face decides names of members, where usage stands, the shape of errors
and the headers; it decides nothing about the words.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from moongate.sim.chat import Answer, Choice, steps
from moongate.sim.reply import Content

_encode: Final = msgspec.json.encode
DONE: Final = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Face:
    """How a kind of server looks. `reasoning` is the member that carries thinking."""

    name: str
    reasoning: str
    hosted: bool
    usage_in_choice: bool
    empty_content: str | None
    owner: str


MOONSHOT: Final = Face("moonshot", "reasoning_content", True, True, "", "moonshot")
VLLM: Final = Face("vllm", "reasoning", False, False, None, "vllm")
SGLANG: Final = Face("sglang", "reasoning_content", False, False, None, "sglang")
FACES: Final = {face.name: face for face in (MOONSHOT, VLLM, SGLANG)}


@dataclass(frozen=True, slots=True)
class Label:
    """What every part of one answer repeats."""

    id: str
    created: int
    model: str
    fingerprint: str


def usage_of(answer: Answer, input_tokens: int, cached: int, face: Face) -> dict[str, Any]:
    """Usage as the face reports it. On a miss the hosted platform leaves both cached members out."""
    usage: dict[str, Any] = {
        "prompt_tokens": input_tokens,
        "completion_tokens": answer.output_tokens,
        "total_tokens": input_tokens + answer.output_tokens,
    }
    if not face.hosted:
        if cached:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        return usage
    if cached:
        usage["cached_tokens"] = cached
    if answer.reasoning_tokens:
        usage["completion_tokens_details"] = {"reasoning_tokens": answer.reasoning_tokens}
    if cached:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    return usage


def _message(choice: Choice, face: Face) -> dict[str, Any]:
    content: str | None = "".join(choice.content)
    if choice.calls and not content:
        content = face.empty_content
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if choice.reasoning:
        message[face.reasoning] = "".join(choice.reasoning)
    if choice.calls:
        message["tool_calls"] = [
            {
                "index": at,
                "id": call.id,
                "type": call.kind,
                "function": {"name": call.name, "arguments": "".join(call.arguments)},
            }
            for at, call in enumerate(choice.calls)
        ]
    return message


def completion(answer: Answer, label: Label, usage: dict[str, Any], face: Face) -> bytes:
    """The whole answer as one JSON text."""
    return _encode(
        {
            "id": label.id,
            "object": "chat.completion",
            "created": label.created,
            "model": label.model,
            "choices": [
                {"index": index, "message": _message(choice, face), "finish_reason": choice.finish}
                for index, choice in enumerate(answer.choices)
            ],
            "usage": usage,
        }
    )


def events(
    answer: Answer,
    label: Label,
    usage: dict[str, Any],
    face: Face,
    *,
    include_usage: bool,
    chunks: int | None,
) -> Iterator[Content]:
    """The whole answer as server-sent events, each with the tokens in it, `[DONE]` last."""
    top: dict[str, Any] = {
        "id": label.id,
        "object": "chat.completion.chunk",
        "created": label.created,
        "model": label.model,
    }
    front = b"data: " + _encode(top)[:-1] + b',"choices":[{"index":'
    back = b',"finish_reason":null}]'
    print_ = b',"system_fingerprint":"%b"' % label.fingerprint.encode() if face.hosted else b""
    tail = print_ + b"}\n\n"
    deltas = {
        "reasoning": b',"delta":{"%b":' % face.reasoning.encode(),
        "content": b',"delta":{"content":',
    }
    for index in range(len(answer.choices)):
        yield front + b"%d" % index + b',"delta":{"role":"assistant","content":""}' + back + tail, 0
    plain = back + tail
    for index, kind, value, tokens in steps(answer, chunks):
        start = deltas.get(kind)
        if start is not None:
            yield front + b"%d" % index + start + _encode(value) + b"}" + plain, tokens
        elif kind == "tool":
            call = b',"delta":{"tool_calls":[' + _encode(value) + b"]}"
            yield front + b"%d" % index + call + plain, tokens
        else:
            end = b',"delta":{},"finish_reason":"%b"' % value.encode()
            if face.usage_in_choice:
                end += b',"usage":' + _encode(usage)
            yield front + b"%d" % index + end + b"}]" + tail, 0
    if include_usage:
        yield b"data: " + _encode(top)[:-1] + b',"choices":[],"usage":' + _encode(usage) + tail, 0
    yield DONE, 0


def error_body(face: Face, status: int, kind: str, message: str) -> bytes:
    """An error in the face's shape."""
    if face.hosted:
        return _encode({"error": {"message": message, "type": kind}})
    names = {
        400: "BadRequestError",
        401: "UnauthorizedError",
        404: "NotFoundError",
        503: "ServiceUnavailableError",
    }
    name = names.get(status, "InternalServerError" if status >= 500 else kind)
    flat = {"message": message, "type": name, "param": None, "code": status}
    if face.name == "sglang":
        return _encode({"object": "error", **flat})
    return _encode({"error": flat})
