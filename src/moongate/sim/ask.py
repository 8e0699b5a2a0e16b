"""The request body as the provider understands it.

Members nobody knows are ignored, as KIMI.md section 3 records, with one exception: a member `sim` steers the
simulator itself. A real provider would ignore it, so it passes through any gateway that preserves bodies.
"""

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from moongate.sim.models import Model
from moongate.sim.reply import invalid


class Message(msgspec.Struct):
    """One message, as far as the provider reads it."""

    role: str
    content: str | list[Any] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    partial: bool | None = None


class StreamOptions(msgspec.Struct):
    """What a stream shall carry beside the deltas."""

    include_usage: bool | None = None


class Body(msgspec.Struct):
    """The members of a chat completion request that mean something to one of the faces."""

    model: str
    messages: list[Message]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: str | list[str] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    response_format: Any = None
    thinking: Any = None
    chat_template_kwargs: Any = None
    continue_final_message: bool | None = None
    sim: Any = None


_decode: Final = msgspec.json.Decoder(Body).decode


def decode(raw: bytes) -> Body:
    """The body, or the 400 that a wrong one gets."""
    try:
        return _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"Invalid request: {error}") from None


@dataclass(frozen=True, slots=True)
class Steering:
    """What the member `sim` asks for. Durations are seconds; None leaves the host's own setting."""

    fault: Any = None
    params: dict[str, Any] = field(default_factory=dict)
    first_token: float | None = None
    tokens_per_second: float | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    chunks: int | None = None
    text: str | None = None
    reasoning: str | None = None
    language: str = ""
    tool_calls: list[str] | None = None
    sampling: bool | None = None


_NUMBERS: Final = ("first_token", "tokens_per_second")
_COUNTS: Final = ("output_tokens", "reasoning_tokens", "chunks")
_TEXTS: Final = ("text", "reasoning")
_NONE: Final = Steering()


def steering(member: Any) -> Steering:
    """The steering that a request asks for; anything of a wrong type is ignored, like an unknown member."""
    if not isinstance(member, dict):
        return _NONE
    known: dict[str, Any] = {}
    for name in _NUMBERS:
        if isinstance(member.get(name), int | float):
            known[name] = float(member[name])
    for name in _COUNTS:
        if isinstance(member.get(name), int) and member[name] >= 0:
            known[name] = member[name]
    for name in _TEXTS:
        if isinstance(member.get(name), str):
            known[name] = member[name]
    calls = member.get("tool_calls")
    if isinstance(calls, list):
        known["tool_calls"] = [str(name) for name in calls]
    if isinstance(member.get("sampling"), bool):
        known["sampling"] = member["sampling"]
    return Steering(
        fault=member.get("fault"), params=member, language=str(member.get("language") or ""), **known
    )


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model reads: its bytes, its tokens, and the size of its last message in bytes."""

    raw: bytes
    tokens: int
    last: int

    @property
    def before_last(self) -> bytes:
        """All but the last message."""
        return self.raw[: len(self.raw) - self.last]


@dataclass(slots=True)
class Ask:
    """A request that passed the rules: what the model reads and how it shall answer."""

    body: Body
    model: Model
    steer: Steering
    thinking: bool
    cap: int
    prompt: Prompt
    prefix: str | None = None
    prefix_reasoning: str = ""

    @property
    def input_tokens(self) -> int:
        """Tokens of the prompt."""
        return self.prompt.tokens

    @property
    def stream(self) -> bool:
        """Whether the answer comes as events."""
        return bool(self.body.stream)

    @property
    def include_usage(self) -> bool:
        """Whether a closing usage chunk is wanted."""
        options = self.body.stream_options
        return bool(options and options.include_usage)


_PART_TOKENS: Final = 256
_FRAME_TOKENS: Final = 4


def text_of(message: Message) -> str:
    """The words of a message, its parts joined."""
    content = message.content
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    return "".join(
        part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)
    )


def last_user_text(body: Body) -> str:
    """The words of the newest user message."""
    for message in reversed(body.messages):
        if message.role == "user":
            return text_of(message)
    return ""


def read(body: Body) -> Prompt:
    """The prompt of a body: its tools, then each message with its role.

    Tokens: bytes/4 of each text, of the tools' JSON and of calls, 4 a message, 256 an image or video.
    """
    parts: list[bytes] = []
    tokens = last = 0
    if body.tools:
        parts.append(msgspec.json.encode(body.tools))
        tokens += (len(parts[0]) + 3) // 4
    for message in body.messages:
        text = text_of(message).encode("utf-8", "surrogatepass")
        calls = msgspec.json.encode(message.tool_calls) if message.tool_calls else b""
        part = b"\n%b\n%b%b" % (message.role.encode("utf-8", "surrogatepass"), text, calls)
        parts.append(part)
        last = len(part)
        tokens += _FRAME_TOKENS + (len(text) + 3) // 4 + (len(calls) + 3) // 4
        if isinstance(message.content, list):
            tokens += _PART_TOKENS * sum(
                isinstance(part, dict) and part.get("type") in {"image_url", "video_url"}
                for part in message.content
            )
    return Prompt(b"".join(parts), tokens, last)
