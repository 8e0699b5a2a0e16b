"""The fault table says what DESIGN sections 4 to 6 promise, for every fault at every reach."""

import pytest

from moongate.core.faults import (
    FACTS,
    LONGEST_RETRY_AFTER,
    RULES,
    FailedError,
    Failure,
    Fault,
    Health,
    Next,
    Park,
    Reach,
    Settle,
    Who,
    refuse,
    rule,
)

C, G, U, O = Who.CALLER, Who.GATEWAY, Who.UPSTREAM, Who.OPERATOR  # noqa: E741 - the first letters, as in the table
NOTHING, PARTLY, SENT, HEAD, EVENTS = Reach

# fmt: off
CODES = {
    "invalid_request": (C, 400), "malformed_token": (C, 401), "unauthenticated": (C, 401), "forbidden": (C, 403),
    "model_not_found": (C, 404), "not_enabled": (C, 404), "payload_too_large": (C, 413),
    "header_too_large": (C, 431), "slow_request": (C, 408), "content_filtered": (C, 400),
    "idempotency_mismatch": (C, 422), "idempotency_in_progress": (C, 409), "idempotency_expired": (C, 409),
    "user_rate_limited": (G, 429), "region_rate_limited": (G, 429), "budget_exhausted": (G, 429),
    "kimi_rate_limit_burst": (U, 429), "kimi_rate_limit_tokens": (U, 429), "kimi_rate_limit_concurrency": (U, 429),
    "kimi_quota_daily": (U, 429), "kimi_quota_monthly": (O, 503), "kimi_engine_overloaded": (U, 503),
    "kimi_auth_failed": (O, 502), "kimi_network_timeout": (U, 504), "kimi_network_unreachable": (U, 502),
    "kimi_stream_truncated": (U, 502), "kimi_bad_response": (U, 502), "kimi_model_gone": (O, 502),
    "kimi_unavailable": (U, 503), "kimi_server_error": (U, 502),
    "gateway_overloaded": (G, 503), "gateway_draining": (G, 503), "deadline_exceeded": (G, 504),
    "ledger_unavailable": (G, 503), "slow_client": (C, 499), "client_closed": (C, 499),
    "gateway_error": (G, 500),
}
"""Section 5, code by code; `gateway_error` is our own bug, which a table of causes does not foresee."""

ATTEMPTS = [
    ("DNS, refused", Fault.KIMI_NETWORK_UNREACHABLE, [NOTHING], Next.RETRY, Settle.RELEASED),
    ("SYN or TLS time-out", Fault.KIMI_NETWORK_TIMEOUT, [NOTHING], Next.RETRY, Settle.RELEASED),
    ("certificate", Fault.KIMI_TLS_REFUSED, [NOTHING], Next.OTHER, Settle.RELEASED),
    ("GOAWAY, REFUSED_STREAM", Fault.KIMI_STREAM_REFUSED, [NOTHING], Next.AT_ONCE, Settle.RELEASED),
    ("stale keep-alive", Fault.KIMI_STALE_CONNECTION, [NOTHING], Next.ONCE, Settle.RELEASED),
    ("429 RPM", Fault.KIMI_RATE_LIMIT_BURST, [HEAD], Next.PACED, Settle.RELEASED),
    ("429 TPM", Fault.KIMI_RATE_LIMIT_TOKENS, [HEAD], Next.PACED, Settle.RELEASED),
    ("429 concurrency", Fault.KIMI_RATE_LIMIT_CONCURRENCY, [HEAD], Next.PACED, Settle.RELEASED),
    ("overload", Fault.KIMI_ENGINE_OVERLOADED, [HEAD], Next.PACED, Settle.RELEASED),
    ("429 quota", Fault.KIMI_QUOTA_MONTHLY, [HEAD], Next.OTHER, Settle.RELEASED),
    ("429 quota of the day", Fault.KIMI_QUOTA_DAILY, [HEAD], Next.OTHER, Settle.RELEASED),
    ("401", Fault.KIMI_AUTH_FAILED, [HEAD], Next.OTHER, Settle.RELEASED),
    ("403", Fault.KIMI_PERMISSION_DENIED, [HEAD], Next.OTHER, Settle.RELEASED),
    ("404 on a configured model", Fault.KIMI_MODEL_GONE, [HEAD], Next.SUCCESSOR, Settle.RELEASED),
    ("503 with own JSON", Fault.KIMI_UNAVAILABLE, [HEAD], Next.RETRY, Settle.RELEASED),
    ("503 without", Fault.KIMI_UNAVAILABLE_UNPROVEN, [HEAD], Next.PAY_TWICE, Settle.AMBIGUOUS),
    ("500, 502, 504", Fault.KIMI_SERVER_ERROR, [HEAD], Next.PAY_TWICE, Settle.AMBIGUOUS),
    ("reset", Fault.KIMI_NETWORK_UNREACHABLE, [PARTLY, SENT, HEAD], Next.PAY_TWICE, Settle.AMBIGUOUS),
    ("time-out", Fault.KIMI_NETWORK_TIMEOUT, [PARTLY, SENT, HEAD], Next.PAY_TWICE, Settle.AMBIGUOUS),
    ("no event", Fault.KIMI_STREAM_TRUNCATED, [HEAD], Next.PAY_TWICE, Settle.AMBIGUOUS),
    ("a 200 that is none", Fault.KIMI_BAD_RESPONSE, [HEAD], Next.PAY_TWICE, Settle.AMBIGUOUS),
    ("400", Fault.KIMI_REJECTED, [HEAD], Next.NEVER, Settle.REPORTED),
    ("content filter", Fault.KIMI_CONTENT_FILTERED, [HEAD], Next.NEVER, Settle.REPORTED),
    ("cut stream", Fault.KIMI_STREAM_TRUNCATED, [EVENTS], Next.RESUME, Settle.ESTIMATED),
    ("reset in a stream", Fault.KIMI_NETWORK_UNREACHABLE, [EVENTS], Next.RESUME, Settle.ESTIMATED),
    ("stalled stream", Fault.KIMI_NETWORK_TIMEOUT, [EVENTS], Next.RESUME, Settle.ESTIMATED),
    ("overload in a stream", Fault.KIMI_ENGINE_OVERLOADED, [EVENTS], Next.RESUME, Settle.ESTIMATED),
    ("another call's events", Fault.KIMI_BAD_RESPONSE, [EVENTS], Next.NEVER, Settle.ESTIMATED),
    ("client left", Fault.CLIENT_CLOSED, [SENT, HEAD], Next.NEVER, Settle.AMBIGUOUS),
    ("client left a stream", Fault.CLIENT_CLOSED, [EVENTS], Next.NEVER, Settle.ESTIMATED),
]
"""Section 6, row by row."""
# fmt: on


def test_the_table_is_total_and_every_row_is_of_one_piece() -> None:
    assert set(FACTS) == set(Fault)
    assert set(RULES) == {(fault, reach) for fault in Fault for reach in Reach}
    for (fault, reach), row in RULES.items():
        assert rule(fault, reach) is row
        assert row.facts is FACTS[fault]
        assert row.may_have_run == (row.settle in {Settle.AMBIGUOUS, Settle.ESTIMATED})


def test_every_documented_code_has_its_author_and_status_and_no_other_code_exists() -> None:
    found = {facts.code: (facts.who, facts.status) for facts in FACTS.values() if facts.status != 405}
    assert found == CODES


@pytest.mark.parametrize(("what", "fault", "reaches", "step", "settle"), ATTEMPTS)
def test_the_attempt_table(what: str, fault: Fault, reaches: list[Reach], step: Next, settle: Settle) -> None:
    for reach in reaches:
        row = rule(fault, reach)
        assert (row.next, row.settle) == (step, settle), what


def test_nothing_sent_is_never_billed_and_events_always_are() -> None:
    for fault in Fault:
        assert rule(fault, NOTHING).settle in {Settle.RELEASED, Settle.REPORTED}
        assert rule(fault, EVENTS).settle is Settle.ESTIMATED


def test_after_the_first_event_only_a_resume_may_follow() -> None:
    assert {rule(fault, EVENTS).next for fault in Fault} == {Next.RESUME, Next.NEVER}


def test_what_is_not_the_providers_doing_ends_the_call() -> None:
    for fault, facts in FACTS.items():
        if not fault.name.startswith("KIMI_"):
            assert {rule(fault, reach).next for reach in Reach} == {Next.NEVER}
            assert facts.health is Health.NEUTRAL, "a client that leaves is nobody's failure"


def test_a_restart_needs_proof_that_nothing_ran_or_the_routes_consent() -> None:
    free = {Next.RETRY, Next.AT_ONCE, Next.ONCE, Next.OTHER, Next.PACED, Next.SUCCESSOR}
    for row in RULES.values():
        if row.next in free:
            assert row.settle is Settle.RELEASED
        if row.next is Next.PAY_TWICE:
            assert row.settle is Settle.AMBIGUOUS


def test_no_client_is_told_to_retry_what_may_have_been_paid() -> None:
    assert not any(row.should_retry for row in RULES.values() if row.may_have_run)


NEVER_AGAIN = {
    "invalid_request",
    "unauthenticated",
    "forbidden",
    "malformed_token",
    "budget_exhausted",
    "content_filtered",
}
NEVER_AGAIN |= {
    "kimi_quota_daily",
    "kimi_quota_monthly",
    "kimi_auth_failed",
    "idempotency_mismatch",
    "idempotency_expired",
}
NEVER_AGAIN |= {"model_not_found", "not_enabled", "payload_too_large", "header_too_large", "kimi_model_gone"}


def test_quota_budget_authentication_and_invalid_requests_are_not_to_be_retried() -> None:
    told = {FACTS[fault].code for fault in Fault if rule(fault, NOTHING).should_retry}
    assert not told & NEVER_AGAIN
    assert {"idempotency_in_progress", "slow_request", "gateway_draining", "deadline_exceeded"} <= told
    assert {
        "user_rate_limited",
        "kimi_rate_limit_burst",
        "kimi_engine_overloaded",
        "gateway_overloaded",
    } <= told


def test_a_deadline_may_be_tried_again_only_if_nothing_was_sent() -> None:
    told = [rule(Fault.DEADLINE_EXCEEDED, reach).should_retry for reach in Reach]
    assert told == [True, False, False, False, False]


@pytest.mark.parametrize(
    ("wait", "told"), [(None, True), (0.0, True), (120.0, True), (120.001, False), (86_400.0, False)]
)
def test_a_wait_longer_than_any_sdk_keeps_is_not_called_a_retry(wait: float | None, told: bool) -> None:
    assert LONGEST_RETRY_AFTER == 120.0
    assert Failure(Fault.KIMI_RATE_LIMIT_BURST, HEAD, retry_after=wait).should_retry is told
    assert Failure(Fault.BUDGET_EXHAUSTED, retry_after=wait).should_retry is False


def test_what_an_operator_must_mend_is_parked_and_paged() -> None:
    parked = {fault: facts.park for fault, facts in FACTS.items() if facts.park is not Park.NOTHING}
    assert parked == {
        Fault.KIMI_QUOTA_MONTHLY: Park.ACCOUNT,
        Fault.KIMI_AUTH_FAILED: Park.ACCOUNT,
        Fault.KIMI_PERMISSION_DENIED: Park.ACCOUNT_MODEL,
    }
    paged = {fault for fault, facts in FACTS.items() if facts.page}
    assert set(parked) | {Fault.KIMI_TLS_REFUSED, Fault.KIMI_MODEL_GONE} <= paged
    assert all(FACTS[fault].page for fault in Fault if FACTS[fault].who is O)


def test_overload_slows_a_target_and_breakage_counts_against_it() -> None:
    health = {fault: facts.health for fault, facts in FACTS.items()}
    slowed = {fault for fault, word in health.items() if word is Health.THROTTLED}
    assert {FACTS[fault].code for fault in slowed} == {
        "kimi_rate_limit_burst",
        "kimi_rate_limit_tokens",
        "kimi_rate_limit_concurrency",
        "kimi_quota_daily",
        "kimi_engine_overloaded",
    }
    ill = {"KIMI_NETWORK_TIMEOUT", "KIMI_NETWORK_UNREACHABLE", "KIMI_TLS_REFUSED", "KIMI_STREAM_TRUNCATED"}
    ill |= {"KIMI_BAD_RESPONSE", "KIMI_UNAVAILABLE", "KIMI_UNAVAILABLE_UNPROVEN", "KIMI_SERVER_ERROR"}
    assert {fault.name for fault, word in health.items() if word is Health.FAILURE} == ill


RFC_9209 = {
    "http_request_error",
    "http_request_denied",
    "destination_unavailable",
    "proxy_internal_response",
    "",
}
RFC_9209 |= {
    "http_response_timeout",
    "proxy_internal_error",
    "tls_certificate_error",
    "connection_terminated",
}
RFC_9209 |= {"http_response_incomplete", "http_protocol_error"}


def test_every_error_reads_well_and_names_a_registered_proxy_status() -> None:
    for facts in FACTS.values():
        assert facts.message.endswith(".")
        assert "your quota" not in facts.message.lower()
        assert facts.proxy_status in RFC_9209
        assert facts.kind.endswith("_error") or facts.kind == "insufficient_quota"


def test_reaches_are_ordered_and_named() -> None:
    assert [reach.label for reach in sorted(Reach)] == [
        "nothing_sent",
        "partly_sent",
        "sent",
        "head",
        "events",
    ]


def test_a_refusal_carries_what_the_client_must_know() -> None:
    error = refuse(Fault.INVALID_REQUEST, "`model` is missing.", param="model", retry_after=1.5)
    assert isinstance(error, FailedError)
    assert error.failure == Failure(
        Fault.INVALID_REQUEST, Reach.NOTHING_SENT, "`model` is missing.", "model", retry_after=1.5
    )
    assert error.failure.rule is rule(Fault.INVALID_REQUEST, NOTHING)
    assert str(error) == "invalid_request: `model` is missing."
    assert (
        str(FailedError(Failure(Fault.KIMI_BAD_RESPONSE, detail="empty_200")))
        == "kimi_bad_response: empty_200"
    )
