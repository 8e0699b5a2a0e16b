"""The fault catalogue's rows 1 to 7 and 11 to 44 as this version answers them: what upstream does, what is seen.

One row is one thing that upstream does. `plain` and `stream` say what the client sees of it and what the ledger holds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final


@dataclass(frozen=True)
class See:
    """What a call shows: to its client, and in the ledger.

    `code` is empty for a good answer. `wait` is Retry-After, None for none. `cause` is the fault where it is not the
    code.
    """

    status: int
    code: str
    state: str
    retry: bool = False
    wait: int | None = None
    cause: str = ""
    phase: str = ""

    @property
    def parks(self) -> bool:
        """Whether the account gets no calls after it."""
        return self.code in {"kimi_quota_monthly", "kimi_auth_failed"}

    @property
    def in_band(self) -> bool:
        """Whether the error is the last event of a stream that had begun."""
        return bool(self.code) and self.status == 200


@dataclass(frozen=True)
class Row:
    """`number` is that of the catalogue; `sim` what the simulator is told; `model` the route."""

    number: int
    name: str
    plain: See | None
    stream: See | None
    sim: Mapping[str, Any] = field(default_factory=dict)
    model: str = "kimi-k2.5"


def released(status: int, code: str, wait: int | None = None, *, retry: bool = True, cause: str = "") -> See:
    """Upstream's word that nothing ran."""
    return See(status, code, "released", retry, wait, cause)


def unclear(status: int, code: str, *, cause: str = "", phase: str = "") -> See:
    """It may have run: nobody may be told to try again."""
    return See(status, code, "ambiguous", cause=cause, phase=phase)


def broken(code: str, *, phase: str = "") -> See:
    """An error after the first event."""
    return See(200, code, "settled_est", phase=phase)


GOOD: Final = See(200, "", "settled")
COUNTED: Final = See(200, "", "settled_est")
BAD: Final = unclear(502, "kimi_bad_response")
CUT: Final = unclear(502, "kimi_stream_truncated")
TORN: Final = broken("kimi_stream_truncated")
SPOILT: Final = broken("kimi_bad_response")
LOST: Final = unclear(502, "kimi_network_unreachable")
BURST: Final = released(429, "kimi_rate_limit_burst", 1)
QUOTA: Final = released(503, "kimi_quota_monthly", retry=False)
DAILY: Final = released(429, "kimi_quota_daily", retry=False)
KEY: Final = released(502, "kimi_auth_failed", retry=False)
DENIED: Final = released(502, "kimi_auth_failed", retry=False, cause="kimi_permission_denied")
FULL: Final = released(503, "kimi_engine_overloaded")
ERRED: Final = unclear(502, "kimi_server_error")


def both(number: int, name: str, see: See, **sim: Any) -> Row:
    """Plain and streamed alike."""
    return Row(number, name, see, see, sim)


def each(number: int, name: str, plain: See | None, stream: See | None, **sim: Any) -> Row:
    return Row(number, name, plain, stream, sim)


def late(number: int, name: str, plain: See | None, stream: See | None, **sim: Any) -> Row:
    """On the route whose time-outs are short."""
    return Row(number, name, plain, stream, sim, "quick")


def _out_of_time(phase: str) -> See:
    return unclear(504, "kimi_network_timeout", phase=phase)


def _dead(number: int, target: str, see: See) -> Row:
    return Row(number, target, see, see, model=target)


_UNREACHED: Final = released(502, "kimi_network_unreachable")
_NO_TRUST: Final = released(502, "kimi_network_unreachable", retry=False, cause="kimi_tls_refused")
_TOO_LATE: Final = released(504, "kimi_network_timeout")
_TOTAL: Final = _out_of_time("total")

CONNECT: Final = (
    _dead(1, "refused", _UNREACHED),
    _dead(2, "full_backlog", replace(_TOO_LATE, phase="connect")),
    Row(4, "silent", _TOTAL, _out_of_time("head"), model="silent"),
    _dead(5, "expired", _NO_TRUST),
    _dead(5, "wrong_name", _NO_TRUST),
    _dead(5, "unknown_ca", _NO_TRUST),
    _dead(5, "tls10", _NO_TRUST),
    _dead(6, "tls_stall", replace(_TOO_LATE, phase="tls")),
    Row(7, "http1_only", GOOD, GOOD, model="http1_only"),
    Row(7, "no_alpn", GOOD, GOOD, model="no_alpn"),
)

ANSWERS: Final = (
    both(11, "rate_limit_rpm", BURST),
    both(11, "429_with_retry_after", replace(BURST, wait=7), seconds=7),
    both(12, "rate_limit_concurrency", released(429, "kimi_rate_limit_concurrency", 1)),
    both(12, "rate_limit_concurrency_2025", released(429, "kimi_rate_limit_concurrency", 1)),
    both(12, "engine_overloaded", FULL),
    both(12, "coding_overloaded", FULL),
    both(13, "rate_limit_tpm", released(429, "kimi_rate_limit_tokens", 1)),
    both(13, "rate_limit_project_tpm", released(429, "kimi_rate_limit_tokens", 1)),
    both(13, "rate_limit_tpd", DAILY),
    both(13, "rate_limit_organization", BURST),
    both(14, "quota_exhausted", QUOTA),
    both(14, "quota_credit", QUOTA),
    both(14, "quota_403", QUOTA),
    both(15, "429_without", BURST),
    both(15, "retry_after", BURST, value="-1"),
    both(15, "retry_after", replace(BURST, wait=60), value="1e9"),
    both(15, "retry_after", replace(BURST, wait=None), value="soon"),
    both(15, "retry_after", replace(BURST, wait=30), value="date"),
    both(15, "ratelimit_headers", replace(BURST, wait=None), reset="30"),
    both(15, "ratelimit_headers", replace(DAILY, wait=7200), reset="7200"),
    both(15, "ratelimit_headers", QUOTA, reset="0"),
    both(16, "500", ERRED),
    both(16, "unexpected_output_500", ERRED),
    both(16, "502", ERRED),
    both(16, "504", ERRED),
    both(16, "503", released(503, "kimi_unavailable")),
    both(16, "503_overloaded", FULL),
    both(16, "529", FULL),
    both(16, "html_error_page", ERRED, code=502),
    both(
        16, "html_error_page", unclear(503, "kimi_unavailable", cause="kimi_unavailable_unproven"), code=503
    ),
    both(16, "html_504", BAD),
    both(18, "auth_401", KEY),
    both(18, "wrong_key_401", KEY),
    both(18, "forbidden_403", DENIED),
    both(18, "ip_403", DENIED),
    both(0, "400", released(400, "invalid_request", retry=False, cause="kimi_rejected")),
    both(0, "content_filter", released(400, "content_filtered", retry=False, cause="kimi_content_filtered")),
    both(0, "model_404", released(502, "kimi_model_gone", retry=False)),
    both(0, "client_closed_499", ERRED),
    both(19, "error_in_200", FULL),
    each(20, "empty_200", BAD, CUT),
    each(21, "json_truncated", BAD, TORN),
    each(22, "short_body", CUT, TORN),
    each(22, "lying_content_length", BAD, None),
    both(23, "html_200", BAD),
    each(23, "wrong_content_type", GOOD, BAD),
    both(24, "gzip", GOOD),
    both(24, "gzip_broken", BAD),
    each(24, "gzip_bomb", BAD, None, megabytes=40),
    both(25, "br_unasked", BAD),
    both(25, "zstd_unasked", BAD),
    both(26, "invalid_utf8", GOOD),
    both(26, "lone_surrogate", GOOD),
    both(27, "json_deep", GOOD),
    both(27, "json_nan", GOOD),
    both(27, "json_huge_number", GOOD),
    both(27, "json_duplicate_keys", GOOD),
    both(28, "usage_missing", COUNTED),
    both(28, "usage_negative", COUNTED),
    both(28, "usage_inconsistent", COUNTED),
    both(29, "unknown_model", GOOD),
    both(29, "unknown_finish_reason", GOOD),
    both(29, "unknown_fields", GOOD),
    both(30, "redirect_302", BAD),
    both(30, "redirect_307", BAD),
    both(30, "redirect_308", BAD),
    both(31, "103_hints", GOOD),
    both(31, "1xx_flood", BAD),
    both(42, "big_headers", GOOD),
    both(42, "big_headers", BAD, bytes=70_000),
    both(42, "one_big_header", BAD),
    both(42, "many_headers", BAD),
    both(43, "header_obs_fold", BAD),
    both(43, "header_nul", BAD),
    both(43, "header_bare_cr", BAD),
    both(43, "header_bare_lf", BAD),
    both(43, "two_lengths", BAD),
    both(43, "not_http", BAD),
)

STREAMS: Final = (
    both(32, "reset_before_head", LOST),
    both(32, "close_before_head", LOST),
    both(32, "down", LOST),
    both(32, "keep_alive_close", LOST),
    each(33, "reset_after_head", CUT, CUT),
    each(34, "reset_mid_stream", CUT, TORN),
    each(34, "reset_mid_event", None, TORN),
    each(34, "reset_mid_utf8", None, TORN),
    each(35, "chunk_truncated", CUT, TORN),
    each(35, "chunk_cut", None, TORN),
    each(35, "chunk_size_bad", None, SPOILT),
    each(36, "no_done", None, GOOD),
    each(36, "no_done_close", None, GOOD),
    each(36, "close_mid_stream", None, TORN),
    each(36, "done_without_finish", None, TORN),
    each(36, "no_stream", None, CUT),
    each(36, "error_event", None, SPOILT),
    each(36, "error_event_named", None, SPOILT),
    each(36, "error_event", None, broken("kimi_engine_overloaded"), type="engine_overloaded_error"),
    each(37, "after_done", None, GOOD),
    late(38, "stall_before_head", _TOTAL, _out_of_time("head")),
    late(38, "stall_first_token", _TOTAL, _out_of_time("first_event")),
    late(38, "stall_mid_stream", _TOTAL, broken("kimi_network_timeout", phase="idle")),
    late(39, "drip", _TOTAL, None, bytes=20, seconds=0.1),
    late(39, "drip", None, broken("kimi_network_timeout", phase="total"), bytes=60, seconds=0.1),
    each(41, "big_event", None, GOOD),
    each(41, "big_event", None, SPOILT, bytes=1_200_000),
    each(41, "endless_line", None, SPOILT),
    each(44, "cross_talk", None, SPOILT),
)

ROWS: Final = (*CONNECT, *ANSWERS, *STREAMS)
