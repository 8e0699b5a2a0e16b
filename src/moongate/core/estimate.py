"""Token counts where the provider gave none: a prompt as near as can be, an answer never above the truth.

What is charged by such a count must not exceed what the provider charges, so an answer's is a floor. Figures:
KIMI.md section 11, measured with Kimi's own vocabulary.
"""

from typing import Any, Final

import msgspec

FRAME_TOKENS: Final = 4
"""What a message costs besides its text: its role and the marks around it."""

IMAGE_TOKENS: Final = 256
"""An image or a video, whose true count depends on its size."""

_FLOOR_BYTES: Final = 8
"""No kind of text was seen to have more bytes a token on the whole; English has 4.3, Chinese 6.9, code 4.7."""


class _Message(msgspec.Struct, gc=False):
    content: Any = None
    tool_calls: Any = None


_messages: Final = msgspec.json.Decoder(list[_Message])


def estimate(size: int) -> int:
    """Tokens in `size` bytes of UTF-8 text: a quarter, rounded up (KIMI.md section 11: mostly within 25 %)."""
    return -(-size // 4)


def prompt_tokens(messages: bytes, tools: bytes) -> int:
    """Tokens of a prompt from its raw members, empty where there is none. Unreadable ones: a quarter."""
    try:
        whole = _messages.decode(messages) if messages else []
    except (ValueError, RecursionError):
        return estimate(len(messages)) + estimate(len(_compact(tools)))
    tokens = sum(FRAME_TOKENS + _inside(message) for message in whole)
    return estimate(len(_compact(tools))) + max(tokens, FRAME_TOKENS)


def _inside(message: _Message) -> int:
    calls = estimate(len(msgspec.json.encode(message.tool_calls))) if message.tool_calls else 0
    content = message.content
    if isinstance(content, str):
        return calls + estimate(len(content.encode()))
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    texts = "".join(part["text"] for part in parts if isinstance(part.get("text"), str))
    pictures = sum(part.get("type") in ("image_url", "video_url") for part in parts)
    return calls + estimate(len(texts.encode())) + IMAGE_TOKENS * pictures


def _compact(raw: bytes) -> bytes:
    """The same JSON without blanks between its parts."""
    try:
        return msgspec.json.encode(msgspec.json.decode(raw)) if raw else b""
    except (ValueError, RecursionError):
        return raw


def least_tokens(text: str) -> int:
    """Tokens that a text has at least: each word is one or more, and so are eight bytes."""
    return max(len(text.split()), -(-len(text.encode()) // _FLOOR_BYTES))
