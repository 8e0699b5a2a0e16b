"""Whole plain answers as nearly all of them are: one choice, finished, in text, with figures that agree.

Types do the checking while the JSON is read. Whatever does not fit is `None` here and is read the long way by
`core/chat`, which knows every deviation; both ways give the same answer.
"""

from typing import Final

import msgspec

from moongate.core.call import Usage
from moongate.core.surface import Answer

MOST_TOKENS: Final = 1 << 40
"""No exchange has more; a larger figure is taken for nonsense."""


class Inside(msgspec.Struct, gc=False):
    """Details of the prompt; a count of cache writes goes the long way."""

    cached_tokens: int = 0
    cache_write_tokens: None = None


class Within(msgspec.Struct, gc=False):
    """Details of the completion."""

    reasoning_tokens: int = 0


class Figures(msgspec.Struct, gc=False):
    """`usage`, as Kimi and OpenAI report it (KIMI.md section 4)."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: None = None
    prompt_tokens_details: Inside | None = None
    completion_tokens_details: Within | None = None


class Message(msgspec.Struct, gc=False):
    """A message in text; one with tool calls goes the long way."""

    content: str
    reasoning_content: str = ""
    reasoning: None = None
    tool_calls: None = None


class Choice(msgspec.Struct, gc=False):
    """The only choice."""

    message: Message
    finish_reason: str
    index: int = 0
    delta: None = None
    usage: None = None


class Whole(msgspec.Struct, gc=False):
    """The answer."""

    choices: tuple[Choice]
    usage: Figures
    id: str = ""
    model: str = ""
    created: int = 0
    system_fingerprint: str = ""
    object: str = ""
    error: None = None


_decode: Final = msgspec.json.Decoder(Whole).decode


def plain_answer(body: bytes) -> Answer | None:
    """The answer in these bytes if nothing about it is unusual."""
    try:
        whole = _decode(body)
    except (ValueError, RecursionError):
        return None
    figures, choice = whole.usage, whole.choices[0]
    inside, within = figures.prompt_tokens_details, figures.completion_tokens_details
    taken, made = figures.prompt_tokens, figures.completion_tokens
    cached, reasoning = figures.cached_tokens, figures.reasoning_tokens
    if inside is not None:
        if cached not in (0, inside.cached_tokens):
            return None
        cached = inside.cached_tokens
    if within is not None:
        if reasoning not in (0, within.reasoning_tokens):
            return None
        reasoning = within.reasoning_tokens
    agree = 0 <= cached <= taken <= MOST_TOKENS and 0 <= reasoning <= made <= MOST_TOKENS
    if not agree or taken + made != figures.total_tokens:
        return None
    if choice.index or choice.finish_reason in ("", "error") or whole.object == "error":
        return None
    return Answer(
        whole.id,
        whole.model,
        whole.created,
        whole.system_fingerprint,
        choice.message.content,
        choice.message.reasoning_content,
        choice.finish_reason,
        usage=Usage(taken, made, cached, reasoning),
        choices=1,
    )
