"""The answer to an ask: which tokens the model makes, decided before any of them is sent.

The words follow from the seed, the model's name without its owner, and what the messages say; not from
`stream`, from limits on output or from members the model does not read. So an answer that was cut short goes
on, in Partial Mode, with the very text that it would have had, on whichever host of the process.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from moongate.sim.ask import Ask, last_user_text
from moongate.sim.schema import value_for
from moongate.sim.text import after_prefix, cut, derived, generate, is_chinese, key_of

_encode: Final = msgspec.json.encode
_CALL_WORDS: Final = ("call the tool", "use the tool", "call a tool", "use a tool", "调用工具", "使用工具")


@dataclass(slots=True)
class ToolCall:
    """One call that the model makes: its id, the function's name, and the arguments as pieces of JSON."""

    id: str
    name: str
    arguments: list[str]
    kind: str = "function"

    @property
    def tokens(self) -> int:
        """One for the name and one a piece."""
        return 1 + len(self.arguments)


@dataclass(slots=True)
class Choice:
    """One answer: thinking first, then words, then calls. Every piece is one token."""

    reasoning: list[str]
    content: list[str]
    calls: list[ToolCall]
    finish: str = "stop"

    @property
    def tokens(self) -> int:
        """All tokens of the answer."""
        return len(self.reasoning) + len(self.content) + sum(call.tokens for call in self.calls)


@dataclass(slots=True)
class Answer:
    """What the model makes of an ask. `output_tokens` are those of all choices, reasoning included."""

    choices: list[Choice]
    output_tokens: int
    reasoning_tokens: int


def compose(ask: Ask, seed: str, salt: str = "", *, canonical_ids: bool = False) -> Answer:
    """Decide every token of the answer.

    `salt` differs from one execution to the next in sampling mode and is empty otherwise. With
    `canonical_ids`, a history whose tool-call ids are not of the model's native form makes it stop calling
    tools, as self-hosted K2 models do (KIMI.md section 3).
    """
    body = ask.body
    said = ask.prompt.raw if ask.prefix is None else ask.prompt.before_last
    name = ask.model.id.rpartition("/")[2].lower()
    base = key_of(seed.encode(), salt.encode(), name.encode(), said)
    choices = []
    for index in range(body.n or 1):
        choice = _choice(ask, derived(base, str(index)) if index else base, canonical_ids=canonical_ids)
        _stop_at(choice, body.stop)
        _cap(choice, ask.cap)
        choices.append(choice)
    thought = sum(len(choice.reasoning) for choice in choices)
    return Answer(choices, sum(choice.tokens for choice in choices), thought)


def _choice(ask: Ask, key: int, *, canonical_ids: bool) -> Choice:
    steer, body = ask.steer, ask.body
    words = last_user_text(body)
    chinese = steer.language == "zh" or (not steer.language and is_chinese(words))
    total = steer.output_tokens
    thinks = 0
    if ask.thinking:
        thinks = 8 + key % 24 if steer.reasoning_tokens is None else steer.reasoning_tokens
        if total is not None and steer.reasoning_tokens is None:
            thinks = min(thinks, total // 4)
    reasoning = generate(derived(key, "reasoning"), thinks, chinese=chinese)
    if steer.reasoning is not None and ask.thinking:
        reasoning = cut(steer.reasoning)
    calls = [] if ask.prefix else _calls(ask, key, words, canonical_ids=canonical_ids)
    if calls:
        return Choice(reasoning, [], calls, "tool_calls")
    length = 24 + (key >> 8) % 64 if total is None else max(total - len(reasoning), 0)
    content = _content(ask, key, length, chinese=chinese)
    if ask.prefix is not None:
        return _continue(ask, key, reasoning, content, chinese=chinese)
    return Choice(reasoning, content, [])


def _content(ask: Ask, key: int, length: int, *, chinese: bool) -> list[str]:
    steer, wanted = ask.steer, ask.body.response_format
    if steer.text is not None:
        return cut(steer.text)
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind == "json_schema":
        return cut(_encode(value_for(wanted["json_schema"]["schema"], key)).decode())
    if kind == "json_object":
        said = "".join(generate(key, 8, chinese=chinese))
        return cut(_encode({"answer": said, "sure": key % 2 == 0, "score": key % 100}).decode())
    return generate(key, length, chinese=chinese)


def _continue(ask: Ask, key: int, reasoning: list[str], content: list[str], *, chinese: bool) -> Choice:
    """What is left after the prefix: of the very text if it began so, else of another as long."""
    prefix = ask.prefix or ""
    if not prefix:
        left = after_prefix(reasoning, ask.prefix_reasoning)
        if left is None:
            left = generate(derived(key, ask.prefix_reasoning), len(reasoning) or 8, chinese=chinese)
        return Choice(left, content, [])
    rest = after_prefix(content, prefix)
    if rest is None:
        rest = generate(derived(key, prefix), max(len(content) - len(prefix) // 4, 4), chinese=chinese)
    return Choice([], rest, [])


def _calls(ask: Ask, key: int, words: str, *, canonical_ids: bool) -> list[ToolCall]:
    tools = [tool for tool in ask.body.tools or [] if isinstance(tool, dict)]
    if not tools:
        return []
    history = [call for message in ask.body.messages for call in message.tool_calls or []]
    wanted = _wanted(ask, words, tools)
    if canonical_ids and not all(_canonical(call) for call in history):
        return []
    calls = []
    for index, tool in enumerate(wanted, len(history)):
        function = tool.get("function") or {}
        value = value_for(function.get("parameters") or {"type": "object"}, key + index)
        arguments = cut(_encode(value).decode())
        name = str(function.get("name"))
        kind = "builtin_function" if tool.get("type") == "builtin_function" else "function"
        if kind == "builtin_function":
            arguments = cut(
                _encode({"search_result": {"search_id": f"{key:x}"}, "usage": {"total_tokens": 512}}).decode()
            )
        calls.append(ToolCall(f"functions.{name}:{index}", name, arguments, kind))
    return calls


def _wanted(ask: Ask, words: str, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tools to call: those steered to, the forced one, or those that the newest user message names."""
    by_name = {str((tool.get("function") or {}).get("name")): tool for tool in tools}
    if ask.steer.tool_calls is not None:
        return [by_name[name] for name in ask.steer.tool_calls if name in by_name]
    choice = ask.body.tool_choice
    if choice == "none":
        return []
    if isinstance(choice, dict):
        named = (choice.get("function") or {}).get("name")
        return [by_name[named]] if named in by_name else []
    asked = ask.body.messages[-1].role == "user"
    lowered = words.lower()
    named_tools = [tool for name, tool in by_name.items() if asked and name.lower() in lowered]
    if named_tools:
        return named_tools
    if choice == "required" or (asked and any(word in lowered for word in _CALL_WORDS)):
        return tools[:1]
    return []


def _canonical(call: Any) -> bool:
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        return False
    name, _, index = str(call.get("id")).rpartition(":")
    return index.isdigit() and name == f"functions.{call['function'].get('name')}"


def _cap(choice: Choice, cap: int) -> None:
    """Cut an answer to `cap` tokens; reasoning eats from the same cap."""
    if choice.tokens <= cap:
        return
    choice.finish = "length"
    choice.reasoning = choice.reasoning[:cap]
    left = cap - len(choice.reasoning)
    choice.content = choice.content[:left]
    left -= len(choice.content)
    kept = []
    for call in choice.calls:
        if left < 1:
            break
        call.arguments = call.arguments[: left - 1]
        left -= call.tokens
        kept.append(call)
    choice.calls = kept


def _stop_at(choice: Choice, stop: str | list[str] | None) -> None:
    """End the content before the first stop string."""
    stops = [stop] if isinstance(stop, str) else stop or []
    text = "".join(choice.content) if stops else ""
    found = [at for at in (text.find(word) for word in stops if word) if at >= 0]
    if not found:
        return
    kept, left = [], min(found)
    for piece in choice.content:
        if left <= 0:
            break
        kept.append(piece[:left])
        left -= len(piece)
    choice.content = kept


Step = tuple[int, str, Any, int]
"""Index of the choice, kind of delta, its value, the tokens in it."""


def steps(answer: Answer, chunks: int | None) -> Iterator[Step]:
    """The deltas of a stream in order: each choice's in its own order, choices taking turns.

    With `chunks`, pieces are joined so that the text comes in about that many deltas. Parallel tool calls are
    interleaved: their arguments take turns.
    """
    size = 1 if not chunks else max(1, -(-answer.output_tokens // chunks))
    lines = [_choice_steps(index, choice, size) for index, choice in enumerate(answer.choices)]
    if len(lines) == 1:
        yield from lines[0]
        return
    while lines:
        for line in list(lines):
            step = next(line, None)
            if step is None:
                lines.remove(line)
            else:
                yield step


def _choice_steps(index: int, choice: Choice, size: int) -> Iterator[Step]:
    for kind, pieces in (("reasoning", choice.reasoning), ("content", choice.content)):
        if size == 1:
            for piece in pieces:
                yield index, kind, piece, 1
            continue
        for at in range(0, len(pieces), size):
            group = pieces[at : at + size]
            yield index, kind, "".join(group), len(group)
    if choice.calls:
        yield from _call_steps(index, choice.calls, size)
    yield index, "finish", choice.finish, 0


def _call_steps(index: int, calls: list[ToolCall], size: int) -> Iterator[Step]:
    for at, call in enumerate(calls):
        function = {"name": call.name, "arguments": ""}
        yield index, "tool", {"index": at, "id": call.id, "type": call.kind, "function": function}, 1
    longest = max(len(call.arguments) for call in calls)
    for start in range(0, longest, size):
        for at, call in enumerate(calls):
            group = call.arguments[start : start + size]
            if group:
                yield index, "tool", {"index": at, "function": {"arguments": "".join(group)}}, len(group)
