"""How providers deviate from one another, as data: Moonshot, vLLM, SGLang, and anything OpenAI-compatible.

Patterns that tell errors apart are data too, for Kimi tells its kinds of 429 apart by nothing but their message;
each has a recorded body as its test. Source: KIMI.md sections 3, 5, 6 and 12, and bodies as their users quoted them.
"""

import re
from dataclasses import dataclass, field
from typing import Final

from moongate.core.faults import Fault
from moongate.core.resume import Means


@dataclass(frozen=True, slots=True)
class Pattern:
    """An error body that means `fault`: all that is given must fit.

    `types` are values of `error.type`, `statuses` HTTP statuses (none given: any), `message` is searched for.
    """

    fault: Fault
    types: frozenset[str] = frozenset()
    statuses: frozenset[int] = frozenset()
    message: re.Pattern[str] | None = None


@dataclass(frozen=True, slots=True)
class Pinned:
    """A sampling member that some models take with one value only; `plain` is that value without thinking."""

    member: str
    thinking: float
    plain: float


@dataclass(frozen=True, eq=False, slots=True)
class Dialect:
    """One provider's ways. Compared by identity: there is one value of each.

    `reports_usage`: usage comes unasked in a stream; else `stream_options.include_usage` must ask for it.
    `thinking_on`, `thinking_off`: the top-level member and raw value that switch thinking, empty if there is none.
    `resume`: how it is asked to go on with an answer that broke off, None where it cannot.
    `request_ids`, `trace_ids`: response headers, lower case, that hold the provider's own ids, best first.
    `account_headers`: response headers that tell whose account it is; they go nowhere, not even into the record.
    `takes_prompt_cache_key`: whether that member helps its prompt cache.
    `cached_header`: the response header, lower case, that tells how many input tokens came from its prompt cache.
    `members`: those that a call must lack to go out as it is.
    """

    name: str
    reports_usage: bool = False
    thinking_on: tuple[str, bytes] | None = None
    thinking_off: tuple[str, bytes] | None = None
    resume: Means | None = None
    pinned_models: re.Pattern[str] | None = None
    pinned: tuple[Pinned, ...] = ()
    reasoning_fields: tuple[str, ...] = ("reasoning_content",)
    request_ids: tuple[bytes, ...] = (b"x-request-id",)
    trace_ids: tuple[bytes, ...] = ()
    account_headers: frozenset[bytes] = frozenset()
    takes_prompt_cache_key: bool = False
    cached_header: bytes = b""
    members: frozenset[str] = field(default=frozenset(), init=False)
    errors: tuple[Pattern, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        """Note which members of a call may have to be edited, whatever the call."""
        object.__setattr__(self, "members", frozenset(("thinking", *(pin.member for pin in self.pinned))))


def _text(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def _of(*types: str) -> frozenset[str]:
    return frozenset(types)


_RATE: Final = _of("rate_limit_reached_error", "rate_limit_error")

_MOONSHOT_ERRORS: Final = (
    Pattern(Fault.KIMI_QUOTA_MONTHLY, _of("exceeded_current_quota_error")),
    Pattern(Fault.KIMI_ENGINE_OVERLOADED, _of("engine_overloaded_error")),
    Pattern(Fault.KIMI_CONTENT_FILTERED, _of("content_filter")),
    # Kimi Code says "overloaded" under the type of a rate limit
    Pattern(Fault.KIMI_ENGINE_OVERLOADED, _RATE, message=_text(r"\bcurrently overloaded\b")),
    Pattern(Fault.KIMI_QUOTA_DAILY, _RATE, message=_text(r"\bTPD\b")),
    Pattern(Fault.KIMI_RATE_LIMIT_TOKENS, _RATE, message=_text(r"\bTPM\b")),
    Pattern(Fault.KIMI_RATE_LIMIT_CONCURRENCY, _RATE, message=_text(r"\bconcurrency\b")),
    Pattern(Fault.KIMI_RATE_LIMIT_BURST, _RATE, message=_text(r"\bRPM\b")),
    Pattern(
        Fault.KIMI_QUOTA_MONTHLY,
        statuses=frozenset({403}),
        message=_text(r"usage limit for this billing cycle"),
    ),
    Pattern(Fault.KIMI_AUTH_FAILED, _of("invalid_authentication_error", "incorrect_api_key_error")),
    Pattern(Fault.KIMI_PERMISSION_DENIED, _of("permission_denied_error")),
    Pattern(Fault.KIMI_MODEL_GONE, _of("resource_not_found_error")),
    Pattern(Fault.KIMI_UNAVAILABLE, _of("server_unavailable"), frozenset({503})),
)

_OPENAI_ERRORS: Final = (
    Pattern(Fault.KIMI_QUOTA_MONTHLY, _of("insufficient_quota")),
    Pattern(Fault.KIMI_CONTENT_FILTERED, _of("content_filter", "content_policy_violation")),
    Pattern(Fault.KIMI_ENGINE_OVERLOADED, _of("overloaded_error")),
    Pattern(Fault.KIMI_RATE_LIMIT_TOKENS, _of("tokens"), frozenset({429})),
)

_SELF_HOSTED_ERRORS: Final = (
    # SGLang answers 503 and vLLM's front 429 when their queues are full
    Pattern(
        Fault.KIMI_ENGINE_OVERLOADED,
        statuses=frozenset({429, 503}),
        message=_text(r"queue is full|overloaded"),
    ),
    Pattern(Fault.KIMI_MODEL_GONE, _of("NotFoundError"), frozenset({404})),
)

MOONSHOT: Final = Dialect(
    "moonshot",
    reports_usage=True,
    thinking_on=("thinking", b'{"type":"enabled"}'),
    thinking_off=("thinking", b'{"type":"disabled"}'),
    resume=Means(message=(("partial", b"true"),), inside_reasoning=True),
    pinned_models=re.compile(r"kimi-k(?:2\.[5-9]|[3-9])"),
    pinned=(
        Pinned("temperature", 1.0, 0.6),
        Pinned("top_p", 0.95, 0.95),
        Pinned("presence_penalty", 0.0, 0.0),
        Pinned("frequency_penalty", 0.0, 0.0),
    ),
    request_ids=(b"msh-request-id", b"x-request-id"),
    trace_ids=(b"x-msh-trace-id", b"x-trace-id"),
    account_headers=frozenset((b"msh-org-id", b"msh-project-id", b"msh-uid", b"msh-gid", b"set-cookie")),
    takes_prompt_cache_key=True,
    cached_header=b"msh-context-cache-token-saved",
    errors=_MOONSHOT_ERRORS + _OPENAI_ERRORS,
)
"""Moonshot's platform, both hosts. `n` is pinned there too but never dropped: the client would get fewer answers
than it asked for and not be told; Kimi's own 400 tells it."""

_CONTINUE: Final = (("continue_final_message", b"true"), ("add_generation_prompt", b"false"))

VLLM: Final = Dialect(
    "vllm",
    thinking_on=("chat_template_kwargs", b'{"thinking":true}'),
    thinking_off=("chat_template_kwargs", b'{"thinking":false}'),
    resume=Means(call=_CONTINUE, reasoning="reasoning"),
    reasoning_fields=("reasoning", "reasoning_content"),
    errors=_SELF_HOSTED_ERRORS + _OPENAI_ERRORS,
)
"""Open weights on vLLM; newer ones name the field `reasoning`."""

SGLANG: Final = Dialect(
    "sglang",
    thinking_on=("chat_template_kwargs", b'{"thinking":true}'),
    thinking_off=("chat_template_kwargs", b'{"thinking":false}'),
    resume=Means(call=(("continue_final_message", b"true"),)),
    errors=_SELF_HOSTED_ERRORS + _OPENAI_ERRORS,
)
"""Open weights on SGLang."""

GENERIC: Final = Dialect(
    "generic",
    reasoning_fields=("reasoning_content", "reasoning"),
    request_ids=(b"x-request-id", b"request-id"),
    trace_ids=(b"x-trace-id",),
    errors=_MOONSHOT_ERRORS + _SELF_HOSTED_ERRORS + _OPENAI_ERRORS,
)
"""Any OpenAI-compatible host. It may pass Moonshot's own errors through, so those are known here too."""

DIALECTS: Final = {dialect.name: dialect for dialect in (MOONSHOT, VLLM, SGLANG, GENERIC)}
