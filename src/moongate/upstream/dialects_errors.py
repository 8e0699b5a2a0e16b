"""What an upstream's error means: pure functions over status, headers, body and the dialect's patterns."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final

import msgspec

from moongate.core.faults import Failure, Fault, Reach
from moongate.upstream.dialects import Dialect
from moongate.upstream.transport import Headers

SHORTEST_WAIT: Final = 0.05
LONGEST_WAIT: Final = 60.0
_MOST_TEXT: Final = 500
_HOUR: Final = 3600.0
_DAY: Final = 24 * _HOUR

_IDS: Final = re.compile(r"\b(?:org|ak|proj|sk)-[\w-]+", re.IGNORECASE)
# `<ak-...>` names a key; `<At path 'properties.x': ...>` of a refused tool schema is what the developer must read
_IN_BRACKETS: Final = re.compile(r"<(?!At path\b)[^<>]*>", re.IGNORECASE)
_ACCOUNT: Final = re.compile(r"\b(Your account) (?!is\b)\S+")
_LONG_HEX: Final = re.compile(r"\b[0-9a-f]{24,}\b", re.IGNORECASE)
_AFTER_SECONDS: Final = re.compile(r"\bafter (\d+(?:\.\d+)?) ?s(?:ec(?:ond)?s?)?\b", re.IGNORECASE)
_CLOCKED: Final = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?")
_WAITS: Final = (b"retry-after", b"x-retry-after", b"msh-cooldown-seconds")
_REMAINING: Final = (
    b"x-ratelimit-remaining",
    b"x-ratelimit-remaining-requests",
    b"x-ratelimit-remaining-tokens",
)
_RESET: Final = b"-reset"
_REMAINS: Final = b"-remaining"
_EPOCH_FROM: Final = 1e9

_PACED: Final = frozenset(
    (
        Fault.KIMI_RATE_LIMIT_BURST,
        Fault.KIMI_RATE_LIMIT_TOKENS,
        Fault.KIMI_RATE_LIMIT_CONCURRENCY,
        Fault.KIMI_ENGINE_OVERLOADED,
        Fault.KIMI_UNAVAILABLE,
        Fault.KIMI_UNAVAILABLE_UNPROVEN,
    )
)
_OF_STATUS: Final = {
    401: Fault.KIMI_AUTH_FAILED,
    402: Fault.KIMI_QUOTA_MONTHLY,
    403: Fault.KIMI_PERMISSION_DENIED,
    404: Fault.KIMI_MODEL_GONE,
    408: Fault.KIMI_SERVER_ERROR,
    425: Fault.KIMI_SERVER_ERROR,
    429: Fault.KIMI_RATE_LIMIT_BURST,
    499: Fault.KIMI_SERVER_ERROR,
    529: Fault.KIMI_ENGINE_OVERLOADED,
}
# inside a 200 an object of these types says that nothing ran; of any other the answer is just bad
_KNOWN_INSIDE_200: Final = frozenset(
    (
        Fault.KIMI_RATE_LIMIT_BURST,
        Fault.KIMI_RATE_LIMIT_TOKENS,
        Fault.KIMI_RATE_LIMIT_CONCURRENCY,
        Fault.KIMI_QUOTA_DAILY,
        Fault.KIMI_QUOTA_MONTHLY,
        Fault.KIMI_ENGINE_OVERLOADED,
        Fault.KIMI_CONTENT_FILTERED,
    )
)


@dataclass(frozen=True, slots=True)
class Told:
    """What an error body says. `is_own`: it is the provider's JSON, not a page of something in between."""

    type: str = ""
    message: str = ""
    param: str | None = None
    is_own: bool = False
    is_page: bool = False


def classify(dialect: Dialect, status: int, headers: Headers, body: bytes, now: float) -> Failure:
    """Say what an answer that is no good 200 means; `now` is wall-clock seconds, for dates in headers.

    Total: any status and any bytes give a failure, with reach HEAD. `message` is set for a refused request only, for
    there the developer needs upstream's own words; ids are taken out of them. `detail` is for the record.
    """
    told = _told(body)
    fault = _fault(dialect, status, headers, told, now)
    is_refusal = fault is Fault.KIMI_REJECTED
    text = redact(told.message)
    return Failure(
        fault,
        Reach.HEAD,
        message=text if is_refusal else "",
        param=told.param if is_refusal else None,
        retry_after=_wait(fault, headers, told.message, now),
        detail=" ".join(part for part in (str(status), _printable(told.type)[:64], text) if part),
    )


def redact(text: str) -> str:
    """Take ids of organisations, projects, users and keys out of a text, and what could break a line; cut it short."""
    text = _printable(text[: 4 * _MOST_TEXT])
    text = _IN_BRACKETS.sub("<...>", text)
    text = _IDS.sub("...", text)
    text = _LONG_HEX.sub("...", text)
    text = _ACCOUNT.sub(r"\1 ...", text)
    return text[:_MOST_TEXT].strip()


def retry_after(headers: Headers, message: str, now: float) -> float | None:
    """Seconds to wait as upstream told them, kept within `SHORTEST_WAIT` and `LONGEST_WAIT`; None if it did not.

    Headers in the order of `Retry-After` (seconds or a date, RFC 9110 section 10.2.3), `X-Retry-After` and
    `Msh-Cooldown-Seconds`, then "after N seconds" of the message. What cannot be read counts as absent.
    """
    given = dict(headers)
    found = (_seconds(given.get(name, b""), now) for name in _WAITS)
    told = next((seconds for seconds in found if seconds is not None), None)
    if told is None and (match := _AFTER_SECONDS.search(message)):
        told = float(match[1])
    return None if told is None else min(max(told, SHORTEST_WAIT), LONGEST_WAIT)


def _seconds(value: bytes, now: float) -> float | None:
    text = value.decode("latin-1").strip()
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        return _until(text, now)
    return None if math.isnan(number) else number


def _until(text: str, now: float) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp() - now
    except (ValueError, OverflowError, OSError):
        return None


def _told(body: bytes) -> Told:
    """Read an error body in any of its shapes: `{"error":{}}`, `{"error":""}`, vLLM's flat one, plain text, a page."""
    try:
        read = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        text = body[: 4 * _MOST_TEXT].decode("utf-8", "replace").strip()
        is_page = text.startswith("<")
        return Told(message="" if is_page else text, is_page=is_page)
    if not isinstance(read, dict):
        return Told(message=read if isinstance(read, str) else "")
    error = read.get("error", read)
    if not isinstance(error, dict):
        return Told(_name(read.get("type")), _name(error), is_own=isinstance(error, str))
    kind = _name(error.get("type")) or _name(error.get("code"))
    message = _name(error.get("message")) or _name(error.get("detail"))
    param = error.get("param")
    return Told(kind, message, param if isinstance(param, str) else None, is_own=bool(kind or message))


def _name(value: object) -> str:
    return value if isinstance(value, str) else ""


def _fault(dialect: Dialect, status: int, headers: Headers, told: Told, now: float) -> Fault:
    patterned = _patterned(dialect, status, told)
    if status < 300:
        return patterned if patterned in _KNOWN_INSIDE_200 else Fault.KIMI_BAD_RESPONSE
    if patterned is not None:
        return patterned
    if status < 400:
        return Fault.KIMI_BAD_RESPONSE
    if status == 429:
        return _by_reset(headers, now) or _OF_STATUS[status]
    if status == 503:
        return Fault.KIMI_UNAVAILABLE if told.is_own else Fault.KIMI_UNAVAILABLE_UNPROVEN
    if status == 504 and told.is_page:
        return Fault.KIMI_BAD_RESPONSE
    return _OF_STATUS.get(status) or (Fault.KIMI_REJECTED if status < 500 else Fault.KIMI_SERVER_ERROR)


def _patterned(dialect: Dialect, status: int, told: Told) -> Fault | None:
    for pattern in dialect.errors:
        if (
            (not pattern.types or told.type in pattern.types)
            and (not pattern.statuses or status in pattern.statuses)
            and (pattern.message is None or pattern.message.search(told.message))
        ):
            return pattern.fault
    return None


def _by_reset(headers: Headers, now: float) -> Fault | None:
    """Tell kinds of 429 apart by `x-ratelimit-remaining: 0` and when it resets (DESIGN section 5)."""
    reset = _reset(headers, now)
    if reset is None:
        return None
    if reset == 0 or reset > _DAY:
        return Fault.KIMI_QUOTA_MONTHLY
    return Fault.KIMI_QUOTA_DAILY if reset > _HOUR else Fault.KIMI_RATE_LIMIT_BURST


def _reset(headers: Headers, now: float) -> float | None:
    """Seconds until the limit of which nothing remains is reset; None if something remains, or no word of it."""
    given = dict(headers)
    for name in _REMAINING:
        if given.get(name, b"").strip() == b"0":
            written = given.get(name.replace(_REMAINS, _RESET), b"").decode("latin-1").strip()
            return _clocked(written, now)
    return None


def _clocked(written: str, now: float) -> float | None:
    """Read seconds, an instant since 1970, or a span such as `6m0s`."""
    seconds = _seconds(written.encode("latin-1", "replace"), now)
    if seconds is not None:
        return seconds - now if seconds >= _EPOCH_FROM else seconds
    match = _CLOCKED.fullmatch(written)
    if match is None or not written:
        return None
    parts = [float(part or 0) for part in match.groups()]
    return sum(part * unit for part, unit in zip(parts, (_DAY, _HOUR, 60.0, 1.0, 0.001), strict=True))


def _wait(fault: Fault, headers: Headers, message: str, now: float) -> float | None:
    """A wait that makes sense for this fault: a daily quota's is told by its reset alone, whatever else is said."""
    if fault is Fault.KIMI_QUOTA_DAILY:
        reset = _reset(headers, now)
        return min(reset, _DAY) if reset is not None and reset > 0 else None
    return retry_after(headers, message, now) if fault in _PACED else None


def _printable(text: str) -> str:
    """The text on one line: each run of what cannot be printed becomes one space."""
    if text.isprintable():
        return text
    marked = "".join(each if each.isprintable() else "\n" for each in text)
    return " ".join(part for part in marked.split("\n") if part)


def provider_ids(dialect: Dialect, headers: Headers) -> tuple[str, str]:
    """The provider's own request id and trace id, as far as its answer holds them; what is no plain id is left out."""
    given = dict(headers)
    return _first_id(given, dialect.request_ids), _first_id(
        given, dialect.trace_ids
    ) if dialect.trace_ids else ""


def cached_tokens(dialect: Dialect, headers: Headers) -> int:
    """Input tokens from the provider's prompt cache as its head tells them, 0 where it does not."""
    for name, value in headers:
        if name == dialect.cached_header and value.isdigit() and len(value) <= _LONGEST_COUNT:
            return int(value)
    return 0


_LONGEST_COUNT = 12


def _first_id(given: dict[bytes, bytes], names: Iterable[bytes]) -> str:
    for name in names:
        if name in given:
            value = given[name].decode("latin-1").strip()
            if value and value.isascii() and value.isprintable() and len(value) <= 128:
                return value
    return ""
