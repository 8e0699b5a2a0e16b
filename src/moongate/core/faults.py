"""The fault vocabulary, and the one table that says what each fault means.

A `Fault` is a cause. Several causes may share one public `code` (the error code a client sees): a refused
certificate and a refused connection are both `kimi_network_unreachable`, yet only one may be tried again.
`rule(fault, reach)` is total and is the only place that decides status, retry, bill, health and what SDKs are told.
Source: DESIGN sections 5 and 6; statuses and types of Kimi's errors from KIMI.md section 6.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final


class Reach(IntEnum):
    """How far an attempt got. Ordered: a later one means that more may have been executed and paid."""

    NOTHING_SENT = 0
    PARTLY_SENT = 1
    SENT = 2
    HEAD = 3
    EVENTS = 4

    @property
    def label(self) -> str:
        """The name used in records, logs and metrics."""
        return _LABELS[self]


_LABELS: Final = tuple(reach.name.lower() for reach in Reach)


class Who(StrEnum):
    """Who erred."""

    CALLER = "caller"
    GATEWAY = "gateway"
    UPSTREAM = "upstream"
    OPERATOR = "operator"


class Next(StrEnum):
    """What may follow a failed attempt; tries, deadline and retry budget still apply."""

    NEVER = "never"
    RETRY = "retry"  # this target or the next, after backoff
    AT_ONCE = "at_once"  # on a new connection, without a wait
    ONCE = "once"  # like AT_ONCE, but a second time it is final
    OTHER = "other"  # another target only
    PACED = "paced"  # after the wait that upstream told; another account need not wait
    SUCCESSOR = "successor"  # the model's declared successor only
    PAY_TWICE = "pay_twice"  # only on routes that say `may_pay_twice`
    RESUME = "resume"  # continue the delivered text, or end with an error event


class Settle(StrEnum):
    """What the ledger makes of the attempt's reservation."""

    RELEASED = "released"  # proof that nothing ran
    AMBIGUOUS = "ambiguous"  # no proof either way
    ESTIMATED = "estimated"  # it ran and was cut: counted by us
    REPORTED = "reported"  # whatever usage came with the answer; released if none did


class Health(StrEnum):
    """What the attempt says about its target."""

    NEUTRAL = "neutral"
    FAILURE = "failure"
    THROTTLED = "throttled"


class Park(StrEnum):
    """What must be set aside until an operator looks."""

    NOTHING = "nothing"
    ACCOUNT = "account"
    ACCOUNT_MODEL = "account_model"


class Fault(StrEnum):
    """Why a call or an attempt failed."""

    INVALID_REQUEST = "invalid_request"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    MALFORMED_TOKEN = "malformed_token"  # noqa: S105 - a fault's name
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    MODEL_NOT_FOUND = "model_not_found"
    NOT_ENABLED = "not_enabled"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    HEADER_TOO_LARGE = "header_too_large"
    SLOW_REQUEST = "slow_request"
    IDEMPOTENCY_MISMATCH = "idempotency_mismatch"
    IDEMPOTENCY_IN_PROGRESS = "idempotency_in_progress"
    IDEMPOTENCY_EXPIRED = "idempotency_expired"
    SLOW_CLIENT = "slow_client"
    CLIENT_CLOSED = "client_closed"

    USER_RATE_LIMITED = "user_rate_limited"
    REGION_RATE_LIMITED = "region_rate_limited"
    BUDGET_EXHAUSTED = "budget_exhausted"
    GATEWAY_OVERLOADED = "gateway_overloaded"
    GATEWAY_DRAINING = "gateway_draining"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    LEDGER_UNAVAILABLE = "ledger_unavailable"
    GATEWAY_ERROR = "gateway_error"

    KIMI_REJECTED = "kimi_rejected"
    KIMI_CONTENT_FILTERED = "kimi_content_filtered"
    KIMI_RATE_LIMIT_BURST = "kimi_rate_limit_burst"
    KIMI_RATE_LIMIT_TOKENS = "kimi_rate_limit_tokens"
    KIMI_RATE_LIMIT_CONCURRENCY = "kimi_rate_limit_concurrency"
    KIMI_QUOTA_DAILY = "kimi_quota_daily"
    KIMI_QUOTA_MONTHLY = "kimi_quota_monthly"
    KIMI_ENGINE_OVERLOADED = "kimi_engine_overloaded"
    KIMI_AUTH_FAILED = "kimi_auth_failed"
    KIMI_PERMISSION_DENIED = "kimi_permission_denied"
    KIMI_NETWORK_TIMEOUT = "kimi_network_timeout"
    KIMI_NETWORK_UNREACHABLE = "kimi_network_unreachable"
    KIMI_TLS_REFUSED = "kimi_tls_refused"
    KIMI_STREAM_REFUSED = "kimi_stream_refused"
    KIMI_STALE_CONNECTION = "kimi_stale_connection"
    KIMI_STREAM_TRUNCATED = "kimi_stream_truncated"
    KIMI_BAD_RESPONSE = "kimi_bad_response"
    KIMI_MODEL_GONE = "kimi_model_gone"
    KIMI_UNAVAILABLE = "kimi_unavailable"
    KIMI_UNAVAILABLE_UNPROVEN = "kimi_unavailable_unproven"
    KIMI_SERVER_ERROR = "kimi_server_error"


@dataclass(frozen=True, slots=True)
class Facts:
    """What holds for a fault wherever it happened.

    `retriable`: an SDK may try again, provided that nothing may have been paid. `message` is what the client reads
    when whoever found the fault has nothing better to say; it names what to do now.
    `proxy_status` is the error token of RFC 9209, empty where the answer is the origin's or the client's own affair.
    """

    code: str
    who: Who
    status: int
    kind: str
    retriable: bool
    message: str
    proxy_status: str = ""
    health: Health = Health.NEUTRAL
    park: Park = Park.NOTHING
    page: bool = False


_BAD = "invalid_request_error"
_LIMIT = "rate_limit_error"
_UP = "upstream_error"
_OURS = "gateway_error"
_C, _G, _U, _O = Who.CALLER, Who.GATEWAY, Who.UPSTREAM, Who.OPERATOR
_ILL, _SLOW = Health.FAILURE, Health.THROTTLED

# fmt: off
FACTS: Final[dict[Fault, Facts]] = {
    Fault.INVALID_REQUEST: Facts("invalid_request", _C, 400, _BAD, False, "The request is not valid.", "http_request_error"),
    Fault.METHOD_NOT_ALLOWED: Facts("invalid_request", _C, 405, _BAD, False, "This path does not take this method.", "http_request_error"),
    Fault.MALFORMED_TOKEN: Facts("malformed_token", _C, 401, "authentication_error", False, "The token is cut short or not a JWT; send it whole.", "http_request_denied"),
    Fault.UNAUTHENTICATED: Facts("unauthenticated", _C, 401, "authentication_error", False, "Send a valid key as `Authorization: Bearer mg_...`.", "http_request_denied"),
    Fault.FORBIDDEN: Facts("forbidden", _C, 403, "permission_denied_error", False, "This key or address may not do this; ask the gateway's operator.", "http_request_denied"),
    Fault.MODEL_NOT_FOUND: Facts("model_not_found", _C, 404, _BAD, False, "No such model here; GET /v1/models lists those this key may use.", "http_request_denied"),
    Fault.NOT_ENABLED: Facts("not_enabled", _C, 404, _BAD, False, "This path is not served here.", "http_request_denied"),
    Fault.PAYLOAD_TOO_LARGE: Facts("payload_too_large", _C, 413, _BAD, False, "The body is larger than this gateway takes.", "http_request_error"),
    Fault.HEADER_TOO_LARGE: Facts("header_too_large", _C, 431, _BAD, False, "The headers are larger than this gateway takes.", "http_request_error"),
    Fault.SLOW_REQUEST: Facts("slow_request", _C, 408, _BAD, True, "The request did not arrive in time; send it again.", "http_request_error"),
    Fault.IDEMPOTENCY_MISMATCH: Facts("idempotency_mismatch", _C, 422, _BAD, False, "This Idempotency-Key was used with another body; use a new key.", "http_request_denied"),
    Fault.IDEMPOTENCY_IN_PROGRESS: Facts("idempotency_in_progress", _C, 409, _BAD, True, "The first call with this key still runs; try again shortly.", "http_request_denied"),
    Fault.IDEMPOTENCY_EXPIRED: Facts("idempotency_expired", _C, 409, _BAD, False, "The call is done but its answer is no longer kept; use a new key.", "http_request_denied"),
    Fault.SLOW_CLIENT: Facts("slow_client", _C, 499, _BAD, False, "The client took no data for too long."),
    Fault.CLIENT_CLOSED: Facts("client_closed", _C, 499, _BAD, False, "The client left."),

    Fault.USER_RATE_LIMITED: Facts("user_rate_limited", _G, 429, _LIMIT, True, "Too many requests; wait as Retry-After says.", "http_request_denied"),
    Fault.REGION_RATE_LIMITED: Facts("region_rate_limited", _G, 429, _LIMIT, True, "Too many requests from this region; wait as Retry-After says.", "http_request_denied"),
    Fault.BUDGET_EXHAUSTED: Facts("budget_exhausted", _G, 429, "insufficient_quota", False, "The budget is used up; ask whoever pays for it.", "http_request_denied"),
    Fault.GATEWAY_OVERLOADED: Facts("gateway_overloaded", _G, 503, _OURS, True, "The gateway is full; try again shortly.", "destination_unavailable"),
    Fault.GATEWAY_DRAINING: Facts("gateway_draining", _G, 503, _OURS, True, "The gateway is restarting; try again.", "proxy_internal_response"),
    Fault.DEADLINE_EXCEEDED: Facts("deadline_exceeded", _G, 504, _OURS, True, "The time allowed for this call is up.", "http_response_timeout"),
    Fault.LEDGER_UNAVAILABLE: Facts("ledger_unavailable", _G, 503, _OURS, True, "The call could not be recorded and was not sent; try again later.", "proxy_internal_error", page=True),
    Fault.GATEWAY_ERROR: Facts("gateway_error", _G, 500, _OURS, True, "The gateway erred; report the request id to its operator.", "proxy_internal_error", page=True),

    Fault.KIMI_REJECTED: Facts("invalid_request", _C, 400, _BAD, False, "Kimi does not accept this request."),
    Fault.KIMI_CONTENT_FILTERED: Facts("content_filtered", _C, 400, _BAD, False, "Kimi's content filter refused this request."),
    Fault.KIMI_RATE_LIMIT_BURST: Facts("kimi_rate_limit_burst", _U, 429, _LIMIT, True, "Kimi's request limit is reached; wait as Retry-After says.", health=_SLOW),
    Fault.KIMI_RATE_LIMIT_TOKENS: Facts("kimi_rate_limit_tokens", _U, 429, _LIMIT, True, "Kimi's token limit is reached; wait as Retry-After says or ask for fewer max tokens.", health=_SLOW),
    Fault.KIMI_RATE_LIMIT_CONCURRENCY: Facts("kimi_rate_limit_concurrency", _U, 429, _LIMIT, True, "Kimi runs as many calls at once as it allows; try again shortly.", health=_SLOW),
    Fault.KIMI_QUOTA_DAILY: Facts("kimi_quota_daily", _U, 429, _LIMIT, False, "Kimi's tokens for today are used up.", health=_SLOW),
    Fault.KIMI_QUOTA_MONTHLY: Facts("kimi_quota_monthly", _O, 503, _UP, False, "The service cannot reach its model now; its operator has been told.", "destination_unavailable", park=Park.ACCOUNT, page=True),
    Fault.KIMI_ENGINE_OVERLOADED: Facts("kimi_engine_overloaded", _U, 503, _UP, True, "Kimi is overloaded; try again shortly.", health=_SLOW),
    Fault.KIMI_AUTH_FAILED: Facts("kimi_auth_failed", _O, 502, _UP, False, "The gateway's own credential was refused; its operator has been told.", park=Park.ACCOUNT, page=True),
    Fault.KIMI_PERMISSION_DENIED: Facts("kimi_auth_failed", _O, 502, _UP, False, "The gateway's own credential may not use this model; its operator has been told.", park=Park.ACCOUNT_MODEL, page=True),
    Fault.KIMI_NETWORK_TIMEOUT: Facts("kimi_network_timeout", _U, 504, _UP, True, "Kimi did not answer in time.", "http_response_timeout", health=_ILL),
    Fault.KIMI_NETWORK_UNREACHABLE: Facts("kimi_network_unreachable", _U, 502, _UP, True, "Kimi cannot be reached.", "destination_unavailable", health=_ILL),
    Fault.KIMI_TLS_REFUSED: Facts("kimi_network_unreachable", _U, 502, _UP, False, "No trusted connection to Kimi can be made; the gateway's operator has been told.", "tls_certificate_error", health=_ILL, page=True),
    Fault.KIMI_STREAM_REFUSED: Facts("kimi_network_unreachable", _U, 502, _UP, True, "Kimi refused to start this call.", "connection_terminated"),
    Fault.KIMI_STALE_CONNECTION: Facts("kimi_network_unreachable", _U, 502, _UP, True, "Kimi closed the connection before it took the call.", "connection_terminated"),
    Fault.KIMI_STREAM_TRUNCATED: Facts("kimi_stream_truncated", _U, 502, _UP, False, "Kimi's answer broke off.", "http_response_incomplete", health=_ILL),
    Fault.KIMI_BAD_RESPONSE: Facts("kimi_bad_response", _U, 502, _UP, False, "Kimi's answer cannot be understood.", "http_protocol_error", health=_ILL),
    Fault.KIMI_MODEL_GONE: Facts("kimi_model_gone", _O, 502, _UP, False, "The model behind this route is gone; the gateway's operator has been told.", page=True),
    Fault.KIMI_UNAVAILABLE: Facts("kimi_unavailable", _U, 503, _UP, True, "Kimi is not available; try again shortly.", health=_ILL),
    Fault.KIMI_UNAVAILABLE_UNPROVEN: Facts("kimi_unavailable", _U, 503, _UP, True, "Kimi is not available.", health=_ILL),
    Fault.KIMI_SERVER_ERROR: Facts("kimi_server_error", _U, 502, _UP, True, "Kimi erred while it worked on this call.", health=_ILL),
}
# fmt: on

_NOT_RUN_UNTIL_SENT = {
    Reach.NOTHING_SENT: (Next.RETRY, Settle.RELEASED),
    Reach.PARTLY_SENT: (Next.PAY_TWICE, Settle.AMBIGUOUS),
    Reach.SENT: (Next.PAY_TWICE, Settle.AMBIGUOUS),
    Reach.HEAD: (Next.PAY_TWICE, Settle.AMBIGUOUS),
    Reach.EVENTS: (Next.RESUME, Settle.ESTIMATED),
}


def _refused(upto_head: Next, after_events: Next = Next.RESUME) -> dict[Reach, tuple[Next, Settle]]:
    """Upstream's own word that it did not execute the call; once events came, it plainly had."""
    row = dict.fromkeys(Reach, (upto_head, Settle.RELEASED))
    row[Reach.EVENTS] = (after_events, Settle.ESTIMATED)
    return row


_FINAL = {
    Reach.NOTHING_SENT: (Next.NEVER, Settle.RELEASED),
    Reach.PARTLY_SENT: (Next.NEVER, Settle.AMBIGUOUS),
    Reach.SENT: (Next.NEVER, Settle.AMBIGUOUS),
    Reach.HEAD: (Next.NEVER, Settle.AMBIGUOUS),
    Reach.EVENTS: (Next.NEVER, Settle.ESTIMATED),
}
_BAD_ANSWER = _NOT_RUN_UNTIL_SENT | {Reach.EVENTS: (Next.NEVER, Settle.ESTIMATED)}
_REPORTED = dict.fromkeys(Reach, (Next.NEVER, Settle.REPORTED)) | {
    Reach.EVENTS: (Next.NEVER, Settle.ESTIMATED)
}

# the attempt table of DESIGN section 6; a fault that is not named here ends the call wherever it happened
_STEPS: Final[dict[Fault, dict[Reach, tuple[Next, Settle]]]] = {
    Fault.KIMI_REJECTED: _REPORTED,
    Fault.KIMI_CONTENT_FILTERED: _REPORTED,
    Fault.KIMI_RATE_LIMIT_BURST: _refused(Next.PACED),
    Fault.KIMI_RATE_LIMIT_TOKENS: _refused(Next.PACED),
    Fault.KIMI_RATE_LIMIT_CONCURRENCY: _refused(Next.PACED),
    Fault.KIMI_QUOTA_DAILY: _refused(Next.OTHER),
    Fault.KIMI_QUOTA_MONTHLY: _refused(Next.OTHER),
    Fault.KIMI_ENGINE_OVERLOADED: _refused(Next.PACED),
    Fault.KIMI_AUTH_FAILED: _refused(Next.OTHER),
    Fault.KIMI_PERMISSION_DENIED: _refused(Next.OTHER),
    Fault.KIMI_NETWORK_TIMEOUT: _NOT_RUN_UNTIL_SENT,
    Fault.KIMI_NETWORK_UNREACHABLE: _NOT_RUN_UNTIL_SENT,
    Fault.KIMI_TLS_REFUSED: _NOT_RUN_UNTIL_SENT | {Reach.NOTHING_SENT: (Next.OTHER, Settle.RELEASED)},
    Fault.KIMI_STREAM_REFUSED: _NOT_RUN_UNTIL_SENT | {Reach.NOTHING_SENT: (Next.AT_ONCE, Settle.RELEASED)},
    Fault.KIMI_STALE_CONNECTION: _NOT_RUN_UNTIL_SENT | {Reach.NOTHING_SENT: (Next.ONCE, Settle.RELEASED)},
    Fault.KIMI_STREAM_TRUNCATED: _NOT_RUN_UNTIL_SENT,
    Fault.KIMI_BAD_RESPONSE: _BAD_ANSWER,
    Fault.KIMI_MODEL_GONE: _refused(Next.SUCCESSOR, Next.NEVER),
    Fault.KIMI_UNAVAILABLE: _refused(Next.RETRY),
    Fault.KIMI_UNAVAILABLE_UNPROVEN: _NOT_RUN_UNTIL_SENT,
    Fault.KIMI_SERVER_ERROR: _NOT_RUN_UNTIL_SENT,
}


@dataclass(frozen=True, slots=True)
class Rule:
    """All that follows from one fault at one reach."""

    facts: Facts
    next: Next
    settle: Settle
    should_retry: bool
    may_have_run: bool


def _row(fault: Fault, reach: Reach) -> Rule:
    facts = FACTS[fault]
    step, settle = _STEPS.get(fault, _FINAL)[reach]
    may_have_run = settle in (Settle.AMBIGUOUS, Settle.ESTIMATED)
    return Rule(facts, step, settle, facts.retriable and not may_have_run, may_have_run)


RULES: Final[dict[tuple[Fault, Reach], Rule]] = {(f, r): _row(f, r) for f in Fault for r in Reach}

LONGEST_RETRY_AFTER: Final = 120.0
"""Seconds; official SDKs do not retry when Retry-After says more (KIMI.md section 8)."""


def rule(fault: Fault, reach: Reach) -> Rule:
    """What this fault at this reach means. Total: every pair has a row."""
    return RULES[fault, reach]


@dataclass(frozen=True, slots=True)
class Failure:
    """A fault with what is known of this one case.

    `message` and `param` are for the client; `detail` is for record and log only and may hold redacted upstream text.
    `retry_after` is in seconds. `phase` and `timeout_ms` are set for `kimi_network_timeout`.
    """

    fault: Fault
    reach: Reach = Reach.NOTHING_SENT
    message: str = ""
    param: str | None = None
    retry_after: float | None = None
    phase: str = ""
    timeout_ms: int = 0
    detail: str = ""

    @property
    def rule(self) -> Rule:
        """The row of the table."""
        return RULES[self.fault, self.reach]

    @property
    def should_retry(self) -> bool:
        """What `x-should-retry` says: the rule's word, unless the wait is longer than any SDK would keep to."""
        patient = self.retry_after is None or self.retry_after <= LONGEST_RETRY_AFTER
        return self.rule.should_retry and patient


class FailedError(Exception):
    """Carries a `Failure` up to whoever renders it; raised only before anything was delivered."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.fault.value}: {failure.message or failure.detail}")
        self.failure = failure


def refuse(
    fault: Fault, message: str = "", *, param: str | None = None, retry_after: float | None = None
) -> FailedError:
    """Make the exception for a call that ends before anything was sent."""
    return FailedError(Failure(fault, message=message, param=param, retry_after=retry_after))
