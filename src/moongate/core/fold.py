"""Putting one completion together from its chunks: text, reasoning, tool calls, usage and how it ended.

Shapes: OpenAI's chat completion objects as Kimi, vLLM and SGLang send them (KIMI.md section 4). Members are
typed loosely on purpose: an unknown value must travel on, so only containers that have to be walked have a
type.
"""

from typing import Any, Final

import msgspec

from moongate.core import lenient
from moongate.core.call import Usage
from moongate.core.faults import Fault
from moongate.core.plain import MOST_TOKENS
from moongate.core.surface import Answer, Classify, ToolCall

_encode: Final = msgspec.json.encode
_TEXT: Final = msgspec.json.Decoder(str)


class Function(msgspec.Struct, gc=False):
    """What a tool call asks for; `arguments` comes in pieces."""

    name: Any = None
    arguments: Any = None


class ToolDelta(msgspec.Struct, gc=False):
    """A piece of a tool call, or a whole one."""

    index: Any = None
    id: Any = None
    type: Any = None
    function: Function | None = None


class Delta(msgspec.Struct, gc=False):
    """A piece of the assistant's message, or the whole message of a plain answer."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: list[ToolDelta] | None = None


class Choice(msgspec.Struct, gc=False):
    """One of the answers asked for by `n`."""

    index: Any = None
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: Any = None
    usage: Any = None


class Chunk(msgspec.Struct, gc=False):
    """One event of a stream, or a whole plain answer."""

    id: Any = None
    object: Any = None
    model: Any = None
    created: Any = None
    system_fingerprint: Any = None
    choices: list[Choice] | None = None
    usage: Any = None
    error: Any = None


CHUNK: Final = msgspec.json.Decoder(Chunk)


class Tool:
    """A tool call under way; `arguments` is the inside of a JSON string, still escaped."""

    __slots__ = ("arguments", "id", "index", "kind", "name")

    def __init__(self, index: int, given_id: str) -> None:
        self.index = index
        self.id = given_id
        self.kind = "function"
        self.name = ""
        self.arguments = bytearray()


class Fold:
    """One completion as far as it came. `text` and `reasoning` are insides of JSON strings, still escaped."""

    __slots__ = (
        "_by_index",
        "_finished",
        "_said",
        "_tools",
        "created",
        "fingerprint",
        "finish",
        "id",
        "model",
        "pieces",
        "reasoning",
        "suspect",
        "text",
        "usage",
    )

    def __init__(self) -> None:
        self.id = ""
        self.model = ""
        self.fingerprint = ""
        self.created = 0
        self.pieces = 0
        self.finish = ""
        self.text = bytearray()
        self.reasoning = bytearray()
        self.usage: Usage | None = None
        self.suspect = False
        self._said = ("", "")
        self._finished: dict[int, bool] = {}
        self._tools: list[Tool] = []
        self._by_index: dict[int, Tool] = {}

    @property
    def complete(self) -> bool:
        """Whether every choice that was begun has its finish reason, and at least one was begun."""
        return bool(self._finished) and all(self._finished.values())

    @property
    def choices(self) -> int:
        """How many answers were begun; only the one with index 0 is folded."""
        return len(self._finished)

    def is_foreign(self, chunk: Chunk) -> bool:
        """Whether the chunk names another completion than those before it; many chunks name none."""
        return bool(self.id and _string(chunk.id)) and chunk.id != self.id

    def take(self, chunk: Chunk) -> None:
        """Add one chunk, or a whole plain answer."""
        if not self.id:
            self.id = _string(chunk.id)
        if not self.model:
            self.model = _string(chunk.model)
            self.created = _whole(chunk.created)
        if not self.fingerprint:
            self.fingerprint = _string(chunk.system_fingerprint)
        for choice in chunk.choices or ():
            index = _whole(choice.index)
            reason = _string(choice.finish_reason)
            self._finished[index] = bool(reason) or self._finished.get(index, False)
            if choice.delta is not None:
                self.pieces += _pieces(choice.delta)
            if index == 0:
                self.finish = reason or self.finish
                if choice.delta is not None:
                    self._delta(choice.delta)
                if choice.message is not None:
                    self._message(choice.message)
        self.meter(chunk)

    def meter(self, chunk: Chunk) -> None:
        """Take the usage of a chunk, wherever it stands; the last one given holds, they are never added."""
        for choice in chunk.choices or ():
            self._usage(choice.usage)
        self._usage(chunk.usage)

    def tool_of(self, call: ToolDelta) -> Tool:
        """The call that a delta belongs to, made if it is a new one.

        The index tells calls apart. Where it is missing the id does, and where that is missing too the
        delta goes on with the last call. An index met again with another id is another call.
        """
        index, given_id = call.index, _string(call.id)
        if type(index) is int:
            found = self._by_index.get(index)
        elif given_id:
            found = next((tool for tool in self._tools if tool.id == given_id), None)
        else:
            found = self._tools[-1] if self._tools else None
        if found is not None and not (given_id and found.id and found.id != given_id):
            return found
        taken = {tool.index for tool in self._tools}
        free = index if type(index) is int and index not in taken else max(taken, default=-1) + 1
        made = Tool(free, given_id)
        self._tools.append(made)
        self._by_index[index if type(index) is int else free] = made
        return made

    def answer(self) -> Answer:
        """What came so far."""
        return Answer(
            id=self.id,
            model=self.model,
            created=self.created,
            fingerprint=self.fingerprint,
            text=self._said[0] or unescaped(self.text),
            reasoning=self._said[1] or unescaped(self.reasoning),
            finish=self.finish if self.complete else "",
            tool_calls=[
                ToolCall(tool.index, tool.id, tool.kind, tool.name, unescaped(tool.arguments))
                for tool in self._tools
            ],
            usage=self.usage,
            usage_suspect=self.suspect,
            choices=self.choices,
            pieces=self.pieces,
        )

    def _message(self, message: Delta) -> None:
        self._said = (
            _string(message.content),
            _string(message.reasoning_content) or _string(message.reasoning),
        )
        calls = message.tool_calls or []
        for place, call in enumerate(calls):
            # each is whole; Gemini was recorded with neither index nor id, and two of those are still two
            call.index = place if call.index is None else call.index
        self._calls(calls)

    def _delta(self, delta: Delta) -> None:
        if delta.content:
            self.text += escaped(delta.content)
        if delta.reasoning_content or delta.reasoning:
            self.reasoning += escaped(delta.reasoning_content) or escaped(delta.reasoning)
        if delta.tool_calls:
            self._calls(delta.tool_calls)

    def _calls(self, pieces: list[ToolDelta]) -> None:
        for piece in pieces:
            tool = self.tool_of(piece)
            tool.id = tool.id or _string(piece.id)
            tool.kind = _string(piece.type) or tool.kind
            if piece.function is not None:
                tool.name = tool.name or _string(piece.function.name)
                tool.arguments += escaped(piece.function.arguments)

    def _usage(self, given: object) -> None:
        if given:
            self.usage, self.suspect = read_usage(given)


def _pieces(delta: Delta) -> int:
    """How many non-empty strings of the answer a delta brings."""
    texts = (delta.content, delta.reasoning_content or delta.reasoning)
    functions = [call.function for call in delta.tool_calls or () if call.function is not None]
    return sum(bool(_string(text)) for text in texts) + sum(
        bool(_string(function.arguments) or _string(function.name)) for function in functions
    )


def error_in(chunk: Chunk, text: bytes, classify: Classify) -> Fault | None:
    """What an error inside a 200 means. Older vLLM sends the error object itself; some say so by finish reason."""
    if chunk.error:
        return classify(200, text)
    if chunk.object == "error":
        return classify(200, b'{"error":%b}' % text)
    if any(choice.finish_reason == "error" for choice in chunk.choices or ()):
        return Fault.KIMI_SERVER_ERROR
    return None


def read_usage(given: object) -> tuple[Usage | None, bool]:
    """Tokens by kind from a `usage` object, and whether its figures contradict each other.

    Both cached fields are absent on a miss (KIMI.md section 4), so a missing detail is 0; missing totals,
    figures that are no counts and parts larger than their whole make it suspect. Figures that are no counts
    read as 0.
    """
    if not isinstance(given, dict):
        return None, True
    inside = given.get("prompt_tokens_details") or _NO_DETAILS
    within = given.get("completion_tokens_details") or _NO_DETAILS
    odd = not (isinstance(inside, dict) and isinstance(within, dict))
    if odd:
        inside = within = _NO_DETAILS
    told = [
        given.get("prompt_tokens"),
        given.get("completion_tokens"),
        _detail("cached_tokens", inside, given),
        _detail("reasoning_tokens", within, given),
        _detail("cache_write_tokens", inside, given),
    ]
    counts = [figure if type(figure) is int and 0 <= figure <= MOST_TOKENS else 0 for figure in told]
    usage = Usage(*counts)
    total = given.get("total_tokens")
    wrong = total is not None and total != usage.input + usage.output
    wrong = wrong or usage.cached > usage.input or usage.reasoning > usage.output
    return usage, odd or wrong or counts != told


_NO_DETAILS: Final[dict[str, object]] = {}


def _detail(name: str, details: dict[str, object], given: dict[str, object]) -> object:
    found = details.get(name)
    if found is None:
        found = given.get(name)
    return 0 if found is None else found


def escaped(value: object) -> bytes:
    """The inside of the JSON string for a text, empty for whatever is no text."""
    return _encode(value)[1:-1] if value and type(value) is str else b""


def unescaped(inside: bytes | bytearray) -> str:
    """The text whose JSON string has this inside; halves of surrogate pairs become U+FFFD."""
    if b"\\" not in inside:
        return inside.decode("utf-8", "replace")
    return lenient.decode(_TEXT, b'"%b"' % bytes(inside))


def _string(value: object) -> str:
    return value if type(value) is str else ""


def _whole(value: object) -> int:
    return value if type(value) is int else 0
