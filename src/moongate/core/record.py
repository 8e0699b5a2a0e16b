"""The record of one call and of its attempts: what was asked, decided, tried, sent, charged, and its end.

Everything else that tells of a call (log line, metric, console, `explain`) is a view of this record. Records
are MessagePack arrays: a field's place is its name. Fields are only ever added at the end, each with a
default: a reader skips what it does not know and takes defaults for what an older writer did not have.
Anything else is a new `FORMAT`, which every journal segment names in its header. Money is in millionths of
`currency`. Source: DESIGN section 7.
"""

from enum import StrEnum
from typing import Any, Final

import msgspec

from moongate.core.call import Usage
from moongate.core.ledger import State

FORMAT: Final = 1


class Outcome(StrEnum):
    """How a call ended."""

    COMPLETED = "completed"
    REPLAYED = "replayed"
    TRUNCATED = "truncated"
    FAILED = "failed"
    REFUSED = "refused"
    ABANDONED = "abandoned"


class Source(StrEnum):
    """Where its answer came from."""

    UPSTREAM = "upstream"
    CACHE = "cache"
    COLLAPSED = "collapsed"
    PACKED = "packed"
    LOCAL = "local"
    FAQ = "faq"


class TokensSource(StrEnum):
    """Who counted an attempt's tokens."""

    PROVIDER = "provider"
    COUNTED = "counted"
    NONE = "none"


CRASHED: Final = "gateway_crash"
"""The cause in records that recovery closes: the process that ran the call died. No client ever sees it."""

NEVER: Final = -1.0
"""An offset or a duration for a point that was not reached."""


LONGEST_ID: Final = 128
"""Characters that are kept of an id that somebody else made."""

_LARGEST: Final = (1 << 63) - 1


class RecordError(ValueError):
    """Bytes that are no record."""


class AttemptRecord(msgspec.Struct, array_like=True, gc=False):
    """One try on the wire.

    `started` is wall-clock seconds; `connected`, `sent`, `head`, `first_event` and `ended` are seconds after
    it, or `NEVER`. `reach` is a `Reach` label, `cause` a `Fault` value, `code` what a client would be told,
    `detail` is redacted by whoever writes it. `cost_micro` None: no price is known (`price_row` is empty
    then). `answer_id` is the id that the answer itself bears, which its client has too.
    """

    attempt_id: str
    target: str = ""
    account: str = ""
    model: str = ""
    started: float = 0.0
    state: str = State.RESERVED
    reach: str = ""
    cause: str = ""
    code: str = ""
    phase: str = ""
    detail: str = ""
    status: int = 0
    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0
    cache_write: int = 0
    tokens_source: str = TokensSource.NONE
    price_row: str = ""
    cost_micro: int | None = None
    currency: str = ""
    provider_request_id: str = ""
    provider_trace_id: str = ""
    connected: float = NEVER
    sent: float = NEVER
    head: float = NEVER
    first_event: float = NEVER
    ended: float = NEVER
    request_bytes: int = 0
    response_bytes: int = 0
    reused: bool = False
    answer_id: str = ""

    @property
    def usage(self) -> Usage:
        """Its tokens by kind."""
        return Usage(self.input, self.output, self.cached, self.reasoning, self.cache_write)

    def count(self, usage: Usage, source: TokensSource) -> None:
        """Take these tokens for its own."""
        self.input, self.output, self.cached = usage.input, usage.output, usage.cached
        self.reasoning, self.cache_write, self.tokens_source = usage.reasoning, usage.cache_write, source


class Correction(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A later word about an attempt: who said it when (wall-clock seconds) and why, and what it changed.

    `before` and `after` are states; the amounts are those of the call's bill in millionths, None: not known.
    """

    attempt_id: str
    at: float = 0.0
    who: str = ""
    why: str = ""
    before: str = ""
    after: str = ""
    billed_before: int | None = None
    billed_after: int | None = None


class CallRecord(msgspec.Struct, array_like=True, gc=False):
    """One authenticated call. `outcome` is empty while it runs.

    `created` and `deadline` are wall-clock seconds; `duration` and `first_event` seconds after `created`, or
    `NEVER`. `status` is the HTTP status that the client was told (499: it left first), `retry_after` the
    seconds it was told to wait, or `NEVER`. `model_asked` is the client's word, `model` the one that
    answered. Tokens are those the client sees; what each attempt used stands with it. `billed_micro` None:
    not known (a price is missing). `corrections` are what was found out after its end, the oldest first.
    `fingerprint` (hexadecimal) is there where a retry of the call must be known: with an `idempotency_key`, or
    where it was abandoned or its outcome is ambiguous.
    """

    call_id: str
    request_id: str = ""
    tenant: str = ""
    key_id: str = ""
    user: str = ""
    session: str = ""
    route: str = ""
    model_asked: str = ""
    model: str = ""
    stream: bool = False
    created: float = 0.0
    deadline: float = 0.0
    duration: float = NEVER
    first_event: float = NEVER
    outcome: str = ""
    source: str = ""
    code: str = ""
    cause: str = ""
    status: int = 0
    phase: str = ""
    retry_after: float = NEVER
    edits: list[str] = []
    attempts: list[AttemptRecord] = []
    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0
    cache_write: int = 0
    billed_micro: int | None = None
    currency: str = ""
    delivered_bytes: int = 0
    retry_of: str = ""
    collapsed_with: str = ""
    peer: str = ""
    slot: int = 0
    owner: str = ""
    detail: str = ""
    corrections: tuple[Correction, ...] = ()
    idempotency_key: str = ""
    fingerprint: str = ""

    @property
    def usage(self) -> Usage:
        """The tokens that the client sees, by kind."""
        return Usage(self.input, self.output, self.cached, self.reasoning, self.cache_write)

    def count(self, usage: Usage) -> None:
        """Take these tokens for its own."""
        self.input, self.output, self.cached = usage.input, usage.output, usage.cached
        self.reasoning, self.cache_write = usage.reasoning, usage.cache_write


class OwnerRecord(msgspec.Struct, array_like=True):
    """The header of a journal segment: who writes it, in which format. `started` is wall-clock seconds."""

    format: int
    owner: str
    slot: int = 0
    pid: int = 0
    started: float = 0.0


_encoder: Final = msgspec.msgpack.Encoder()
_call_decoder: Final = msgspec.msgpack.Decoder(CallRecord)
_owner_decoder: Final = msgspec.msgpack.Decoder(OwnerRecord)


def encode(record: CallRecord | OwnerRecord) -> bytes:
    """The bytes of a record. Never fails: text that is no Unicode and integers beyond 64 bits are bent to fit."""
    try:
        return _encoder.encode(record)
    except (UnicodeEncodeError, OverflowError):
        return _encoder.encode(_bent(record))


def _bent(value: Any) -> Any:
    """The same record as plain lists, each value as near as the format can hold it."""
    if isinstance(value, msgspec.Struct):
        return [_bent(field) for field in msgspec.structs.astuple(value)]
    if isinstance(value, list | tuple):
        return [_bent(one) for one in value]
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if type(value) is int:
        return max(-_LARGEST, min(value, _LARGEST))
    return value


def decode(payload: bytes) -> CallRecord:
    """The record in these bytes; raises `RecordError`."""
    try:
        return _call_decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError(str(error)) from error


def decode_owner(payload: bytes) -> OwnerRecord:
    """The segment header in these bytes; raises `RecordError`."""
    try:
        return _owner_decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError(str(error)) from error


def attempt_id(call_id: str, number: int) -> str:
    """The id of a call's attempt; the first is number 1."""
    return f"{call_id}-{number}"


def call_id_of(attempt: str) -> str:
    """The call that an attempt belongs to."""
    return attempt.rpartition("-")[0]
