"""What the hosted API refuses, in its own words (KIMI.md sections 3 and 6)."""

from typing import Any, Final

from moongate.sim.ask import Ask, Body, Message, read, steering, text_of
from moongate.sim.models import Family, Model, Thinking
from moongate.sim.reply import Refusal, invalid
from moongate.sim.schema import check_tools

_ROLES: Final = frozenset({"system", "user", "assistant", "tool"})
_MAX_STOP: Final = 5
_MAX_STOP_BYTES: Final = 32
_MAX_N: Final = 5
HIGH_RISK: Final = "[[high risk]]"
"""A prompt that holds these words meets the content filter."""


def judge(body: Body, model: Model) -> Ask:
    """The request as the hosted platform will run it, or the `Refusal` it gives."""
    thinking = _thinks(body, model)
    _check_messages(body.messages)
    if thinking:
        _check_reasoning(body.messages)
    _check_sampling(body, model, thinking=thinking)
    _check_stop(body)
    if body.tools:
        check_tools(body.tools)
    _check_choice(body, model, thinking=thinking)
    _check_format(body)
    ask = weigh(body, model, thinking=thinking)
    last = body.messages[-1]
    if last.role == "assistant" and last.partial:
        ask.prefix = text_of(last)
        ask.prefix_reasoning = last.reasoning_content or ""
    return ask


def weigh(body: Body, model: Model, *, thinking: bool) -> Ask:
    """Count the prompt, settle the cap on output, and refuse what the context cannot hold."""
    prompt = read(body)
    tokens = prompt.tokens
    if HIGH_RISK.encode() in prompt.raw:
        raise Refusal(400, "content_filter", "The request was rejected because it was considered high risk")
    if tokens > model.context:
        raise invalid("Input token length too long")
    asked = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    if asked is not None:
        if asked < 1:
            raise invalid("Invalid request: max_tokens must be at least 1")
        if tokens + asked > model.context:
            raise invalid(
                f"Invalid request: Your request exceeded model token limit: {model.context} "
                f"(requested: {tokens + asked})"
            )
    cap = asked if asked is not None else min(model.default_max, model.context - tokens)
    return Ask(body, model, steering(body.sim), thinking, cap, prompt)


def _thinks(body: Body, model: Model) -> bool:
    wanted = body.thinking
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if model.thinking is Thinking.NEVER:
        return False
    if kind not in {None, "enabled", "disabled"}:
        raise invalid("Invalid request: thinking.type must be enabled or disabled")
    if kind == "disabled":
        if model.thinking is Thinking.ALWAYS:
            raise invalid("invalid thinking: only type=enabled is allowed for this model")
        return False
    return True


def _check_messages(messages: list[Message]) -> None:
    if not messages:
        raise invalid("Invalid request: messages must not be empty")
    open_calls: set[str] | None = None
    for index, message in enumerate(messages):
        if message.role not in _ROLES:
            raise invalid(
                f"Invalid request: the message at position {index} has unknown role '{message.role}'"
            )
        _check_parts(message)
        if message.role == "tool":
            _check_tool_answer(message, open_calls)
            continue
        open_calls = None
        if message.role == "assistant" and message.tool_calls:
            open_calls = {str(call.get("id")) for call in message.tool_calls if isinstance(call, dict)}
        elif (
            not text_of(message)
            and not isinstance(message.content, list)
            and not _continues_reasoning(message)
        ):
            raise invalid(
                f"Invalid request: the message at position {index} with role '{message.role}' "
                "must not be empty"
            )


def _continues_reasoning(message: Message) -> bool:
    return bool(message.role == "assistant" and message.partial and message.reasoning_content)


def _check_tool_answer(message: Message, open_calls: set[str] | None) -> None:
    if open_calls is None:
        raise invalid("role 'tool' must be a response to a preceding message with 'tool_calls'")
    if message.tool_call_id not in open_calls:
        raise invalid(f"tool_call_id {message.tool_call_id or ''} is not found")


def _check_parts(message: Message) -> None:
    if not isinstance(message.content, list):
        return
    for part in message.content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            if not part.get("text"):
                raise invalid("text content is empty")
        elif kind in {"image_url", "video_url"}:
            source = part.get(kind)
            url = str(source.get("url") if isinstance(source, dict) else source)
            if not url.startswith(("data:", "ms://")):
                raise invalid(f"Invalid request: unsupported {kind.partition('_')[0]} url: {url[:100]}")
        else:
            raise invalid(f"Invalid request: unknown content part type {kind!r}")


def _check_reasoning(messages: list[Message]) -> None:
    """Every call of tools since the last user message must carry its reasoning; a single space will do."""
    start = max((at for at, message in enumerate(messages) if message.role == "user"), default=-1)
    for index in range(start + 1, len(messages)):
        message = messages[index]
        if message.role == "assistant" and message.tool_calls and not message.reasoning_content:
            raise invalid(
                "thinking is enabled but reasoning_content is missing in assistant tool call message "
                f"at index {index}"
            )


def _check_sampling(body: Body, model: Model, *, thinking: bool) -> None:
    given = (
        ("temperature", body.temperature),
        ("top_p", body.top_p),
        ("n", body.n),
        ("presence_penalty", body.presence_penalty),
        ("frequency_penalty", body.frequency_penalty),
    )
    if model.pinned:
        cool = model.family in {Family.K25, Family.K26} and not thinking
        only = {"temperature": 0.6 if cool else 1, "top_p": 0.95, "n": 1}
        for name, value in given:
            allowed = only.get(name, 0)
            if value is not None and value != allowed:
                raise invalid(f"invalid {name}: only {allowed} is allowed for this model")
        return
    bounds = {"temperature": (0, 1), "top_p": (0, 1), "n": (1, _MAX_N)}
    for name, value in given:
        low, high = bounds.get(name, (-2, 2))
        if value is not None and not low <= value <= high:
            raise invalid(f"invalid {name}: must be between {low} and {high}")
    default = 0.0 if model.family is Family.V1 else 0.6
    heat = body.temperature if body.temperature is not None else default
    if body.n is not None and body.n > 1 and heat < 0.01:
        raise invalid("invalid n: only 1 is allowed when temperature is close to 0")


def _check_stop(body: Body) -> None:
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if len(stops) > _MAX_STOP:
        raise invalid(
            f"stop array too long. Expected an array with maximum length {_MAX_STOP}, but got {len(stops)}"
        )
    for stop in stops:
        if len(stop.encode("utf-8", "surrogatepass")) > _MAX_STOP_BYTES:
            raise invalid(
                f"Invalid request: stop string too long, at most {_MAX_STOP_BYTES} bytes are allowed"
            )


def _check_choice(body: Body, model: Model, *, thinking: bool) -> None:
    choice = body.tool_choice
    if choice is None or choice in ("auto", "none"):
        return
    named = _named(choice)
    if choice != "required" and named is None:
        raise invalid("Invalid request: tool_choice must be none, auto, required or a function")
    if thinking and not (model.family is Family.K3 and choice == "required"):
        word = "required" if choice == "required" else "specified"
        raise invalid(f"tool_choice '{word}' is incompatible with thinking enabled")
    names = [tool["function"].get("name") for tool in body.tools or []]
    if not names or (named is not None and named not in names):
        raise invalid("Invalid request: tool_choice names a tool that is not in tools")


def _named(choice: Any) -> str | None:
    if isinstance(choice, dict) and isinstance(choice.get("function"), dict):
        name = choice["function"].get("name")
        return name if isinstance(name, str) else None
    return None


def _check_format(body: Body) -> None:
    wanted = body.response_format
    if wanted is None:
        return
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind not in {"text", "json_object", "json_schema"}:
        raise invalid("Invalid request: response_format.type must be text, json_object or json_schema")
    if kind == "json_schema":
        named = wanted.get("json_schema")
        if not isinstance(named, dict) or not isinstance(named.get("schema"), dict):
            raise invalid("Invalid request: response_format.json_schema.schema is required")
