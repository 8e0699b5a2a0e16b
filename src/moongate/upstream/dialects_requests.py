"""What leaves for an upstream: headers by allow-list, and the members that its dialect needs otherwise."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec

from moongate.core.body import RawBody
from moongate.core.resume import EDIT
from moongate.core.wire import header_line
from moongate.upstream.dialects import Dialect

EDITS: Final = frozenset(
    (
        "model",
        "thinking",
        "stream_options.include_usage",
        "temperature",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
        EDIT,
    )
)
"""Every edit that a request may get, by the name that records, headers and metrics give it."""

AGENT: Final = b"moongate"
MAY_PASS: Final = frozenset((b"traceparent", b"tracestate"))
"""Headers of the caller's that may go on, lower case; whatever else the caller sent stays here."""


def outbound_headers(
    dialect: Dialect,
    key: str,
    request_id: str,
    header_names: tuple[str, ...],
    extra: Sequence[tuple[bytes, bytes]] = (),
) -> bytes:
    """Header lines of one attempt, without those that the transport adds.

    Only the pool's `key` leaves (none: no Authorization). The request id goes out under each of `header_names`.
    Of `extra` only what `MAY_PASS` names is sent. Raises ValueError for an id, key or name that could split a head.
    """
    if not (request_id.isascii() and request_id.isprintable()):
        raise ValueError("a request id of unprintable characters")
    lines = request_id.encode("ascii").join(_parts(dialect, key, header_names))
    for name, given in extra:
        if name.lower() in MAY_PASS:
            lines += header_line(name, given)
    return lines


_HOLE: Final = b"\x00"


@lru_cache(maxsize=1024)
def _parts(dialect: Dialect, key: str, header_names: tuple[str, ...]) -> list[bytes]:
    """What is the same for each attempt at a target, split where the id belongs; NUL stands in no header."""
    del dialect  # no provider needs other headers by now; the key of the cache may stay
    fixed = [
        (b"Content-Type", b"application/json"),
        (b"Accept", b"application/json, text/event-stream"),
        (b"Accept-Encoding", b"identity"),
        (b"User-Agent", AGENT),
    ]
    if key:
        fixed.insert(0, (b"Authorization", b"Bearer " + key.encode("ascii")))
    lines = b"".join(header_line(name, value) for name, value in fixed)
    lines += b"".join(
        header_line(name.encode("ascii"), b"").replace(b"\r\n", _HOLE + b"\r\n") for name in header_names
    )
    return lines.split(_HOLE)


def ask_for_usage(dialect: Dialect, body: RawBody) -> bool:
    """Make a stream report its usage where it would not. Says whether anything was edited."""
    if dialect.reports_usage:
        return False
    options = body.part("stream_options")
    if options is None:
        return body.edit("stream_options", b'{"include_usage":true}')
    return options.edit("include_usage", b"true") and body.edit("stream_options", options.data)


def drop_pinned(dialect: Dialect, model: str, body: RawBody) -> list[str]:
    """Drop sampling members whose value the model would refuse; the pinned value itself may stay. Returns their names.

    Kimi answers 400 to any other value on K2.5 and later, and advises not to send them (KIMI.md section 3).
    """
    if dialect.pinned_models is None or dialect.pinned_models.match(model) is None:
        return []
    thinks = not is_thinking_off(dialect, body)
    dropped = []
    for pin in dialect.pinned:
        raw = body.get(pin.member)
        if raw is not None and _number(raw) not in (None, pin.thinking if thinks else pin.plain):
            body.edit(pin.member, None)
            dropped.append(pin.member)
    return dropped


def is_thinking_off(dialect: Dialect, body: RawBody) -> bool:
    """Whether the call switches thinking off by the dialect's own member."""
    if dialect.thinking_off is None:
        return False
    member, off = dialect.thinking_off
    given = body.get(member)
    if given is None:
        return False
    try:
        wanted: dict[str, object] = msgspec.json.decode(off)
        read = msgspec.json.decode(given)
    except (msgspec.DecodeError, RecursionError):
        return False
    return isinstance(read, dict) and all(read.get(name) == value for name, value in wanted.items())


def switch_thinking(dialect: Dialect, body: RawBody) -> bool:
    """Turn Kimi's `thinking` member into the dialect's own switch, where it has another. Says whether anything changed.

    Self-hosted models take `chat_template_kwargs` and ignore the member (KIMI.md section 12). Whatever else the client
    put into those stays.
    """
    given = body.part("thinking") if dialect.thinking_off and dialect.thinking_off[0] != "thinking" else None
    kind = given.text("type") if given is not None else None
    switch = {"disabled": dialect.thinking_off, "enabled": dialect.thinking_on}.get(kind or "")
    if switch is None:
        return False
    member, wanted = switch
    held = body.part(member)
    if held is None:
        body.edit(member, wanted)
    else:
        for name, value in RawBody(wanted).items():
            held.edit(name, value)
        body.edit(member, held.data)
    return body.edit("thinking", None)


def _number(raw: bytes) -> float | None:
    """The number; None for null and for what is none: Kimi's own 400 says more about those."""
    try:
        return float(raw)
    except ValueError:
        return None
