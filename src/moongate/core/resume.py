"""Continuing an answer that broke off: whether it can be, and what is asked for then.

The same model is asked again with what was delivered as the last assistant message, by the dialect's own means: no
prompt is injected and no text of ours is in the request. Source: DESIGN section 6; KIMI.md section 3 (Partial Mode),
vLLM's and SGLang's `continue_final_message`.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from moongate.core.body import RawBody
from moongate.core.estimate import estimate
from moongate.core.surface import Answer

EDIT: Final = "resume"
"""The name of this edit in records and in `X-Moongate-Edits`."""

_LIMITS: Final = ("max_completion_tokens", "max_tokens")
_encode: Final = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class Means:
    """How a dialect is asked to go on with the last message; its answer then leaves out what was given.

    `message` and `call` are members, with raw values, that this message and the call need. `reasoning` names the
    member that holds the thinking so far; `inside_reasoning`: thinking itself can be continued.
    """

    message: tuple[tuple[str, bytes], ...] = ()
    call: tuple[tuple[str, bytes], ...] = ()
    reasoning: str = "reasoning_content"
    inside_reasoning: bool = False


def obstacle(body: RawBody, so_far: Answer, means: Means | None) -> str:
    """Why an answer cannot be continued, in a few words for record and log; empty where it can be.

    Only an answer that is one text can be: the halves of a tool call, of a JSON value, of one of several answers or
    of token probabilities would not fit together, and a stop word may lie across the seam.
    """
    if means is None:
        return "this target cannot continue an answer"
    if so_far.tool_calls:
        return "a tool call was under way"
    if so_far.choices > 1 or _given(body, "n") not in (None, b"1"):
        return "several answers were asked for"
    if _given(body, "logprobs") not in (None, b"false") or _given(body, "top_logprobs") is not None:
        return "token probabilities were asked for"
    if _given(body, "stop") not in (None, b"[]"):
        return "stop words were given"
    if not _is_text(body):
        return "the answer is JSON"
    if _continues(body):
        return "the call itself continues a message"
    if not so_far.text and not so_far.reasoning:
        return "nothing was delivered"
    if not so_far.text and not means.inside_reasoning:
        return "it broke off while thinking"
    if any(left is not None and left < 1 for left in _left(body, so_far).values()):
        return "its tokens were used up"
    return ""


def continued(body: RawBody, so_far: Answer, means: Means) -> RawBody:
    """The body that asks for the rest. Every byte of the client's messages stays; limits on output shrink by what came.

    Shapes: `so_far` has no obstacle. The message's members are in the order role, content, thinking, the dialect's.
    """
    resumed = body.copy()
    message = b'{"role":"assistant","content":' + _encode(so_far.text)
    if so_far.reasoning:
        message += b"," + _encode(means.reasoning) + b":" + _encode(so_far.reasoning)
    message += b"".join(b"," + _encode(name) + b":" + value for name, value in means.message) + b"}"
    messages = (body.get("messages") or b"").rstrip().removesuffix(b"]")
    resumed.edit("messages", b"%b,%b]" % (messages, message))
    for name, value in means.call:
        resumed.edit(name, value)
    for name, left in _left(body, so_far).items():
        if left is not None:
            resumed.edit(name, b"%d" % left)
    return resumed


def produced(so_far: Answer) -> int:
    """Tokens of what came, estimated."""
    return estimate(len(so_far.text.encode())) + estimate(len(so_far.reasoning.encode()))


def _given(body: RawBody, name: str) -> bytes | None:
    raw = body.get(name)
    return None if raw == b"null" else raw


def _left(body: RawBody, so_far: Answer) -> dict[str, int | None]:
    """Each limit on output that the client set, less what was produced; None where it is no whole number."""
    left: dict[str, int | None] = {}
    for name in _LIMITS:
        raw = _given(body, name)
        if raw is not None:
            left[name] = int(raw) - produced(so_far) if raw.isdigit() else None
    return left


def _is_text(body: RawBody) -> bool:
    """Whether the answer may be any text."""
    raw = _given(body, "response_format")
    if raw is None:
        return True
    try:
        return bool(msgspec.json.decode(raw, type=_Format).type == "text")
    except msgspec.DecodeError:
        return False


class _Format(msgspec.Struct):
    type: str


class _Message(msgspec.Struct):
    role: str | None = None


_MESSAGES: Final = msgspec.json.Decoder(list[_Message])


def _continues(body: RawBody) -> bool:
    """Whether the last message is the assistant's already: Partial Mode or a final message to be continued."""
    try:
        messages = _MESSAGES.decode(body.get("messages") or b"")
    except msgspec.DecodeError:
        return True
    return not messages or messages[-1].role == "assistant"
