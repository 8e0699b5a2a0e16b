"""What upstreams say when they fail."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.faults import Fault, Reach
from moongate.upstream.dialects import DIALECTS, GENERIC, MOONSHOT, SGLANG, VLLM, Dialect
from moongate.upstream.dialects_errors import classify, provider_ids, redact, retry_after
from moongate.upstream.transport import Headers
from tests.recorded import DATA, needs_data

NOW = 1_780_000_000.0
AUTH, DENIED, GONE = Fault.KIMI_AUTH_FAILED, Fault.KIMI_PERMISSION_DENIED, Fault.KIMI_MODEL_GONE
BURST, TOKENS = Fault.KIMI_RATE_LIMIT_BURST, Fault.KIMI_RATE_LIMIT_TOKENS
CONCURRENCY, DAILY, MONTHLY = (
    Fault.KIMI_RATE_LIMIT_CONCURRENCY,
    Fault.KIMI_QUOTA_DAILY,
    Fault.KIMI_QUOTA_MONTHLY,
)
FULL, FILTERED, REJECTED = Fault.KIMI_ENGINE_OVERLOADED, Fault.KIMI_CONTENT_FILTERED, Fault.KIMI_REJECTED
ERRED, BAD, AWAY = Fault.KIMI_SERVER_ERROR, Fault.KIMI_BAD_RESPONSE, Fault.KIMI_UNAVAILABLE
UNPROVEN = Fault.KIMI_UNAVAILABLE_UNPROVEN
LIMITED = "rate_limit_reached_error"
ACCOUNT = "Your account org-1a2b<ak-3c4d> request"
# the bodies of KIMI.md section 6 as Moonshot sends them: status, error.type, error.message, fault
KIMI = [
    (400, "content_filter", "The request was rejected because it was considered high risk", FILTERED),
    (
        400,
        "invalid_request_error",
        "Invalid request: Your request exceeded model token limit: 262144",
        REJECTED,
    ),
    (400, "invalid_request_error", "Input token length too long", REJECTED),
    (401, "invalid_authentication_error", "Invalid Authentication", AUTH),
    (401, "incorrect_api_key_error", "Incorrect API key provided", AUTH),
    (403, "permission_denied_error", "The API you are accessing is not open", DENIED),
    (403, "permission_denied_error", "Your IP is not allowed to access this organization", DENIED),
    (404, "resource_not_found_error", "Not found the model kimi-k9 or Permission denied", GONE),
    (
        429,
        LIMITED,
        f"{ACCOUNT} reached organization max concurrency: 1, please try again after 1 seconds",
        CONCURRENCY,
    ),
    (429, LIMITED, f"{ACCOUNT} reached organization max RPM: 3, please try again after 1 seconds", BURST),
    (429, LIMITED, f"{ACCOUNT} reached organization TPM rate limit, current:9, limit:8", TOKENS),
    (429, LIMITED, f"{ACCOUNT} reached organization TPD rate limit, current:9, limit:8", DAILY),
    (429, LIMITED, "Organization Rate limit exceeded, please try again after 1 seconds", BURST),
    (429, "engine_overloaded_error", "The engine is currently overloaded, please try again later", FULL),
    (
        429,
        "exceeded_current_quota_error",
        "Your account org-1<ak-2> is suspended due to insufficient balance",
        MONTHLY,
    ),
    (429, "exceeded_current_quota_error", "You exceeded your current token quota: <org-1> 0.1", MONTHLY),
    (403, "exceeded_current_quota_error", "Your account X is not active", MONTHLY),
    (499, "client_closed_request", "", ERRED),
    (500, "server_error", "Failed to extract file: x", ERRED),
    (500, "unexpected_output", "invalid state transition", ERRED),
    (503, "server_unavailable", "", AWAY),
    # Kimi Code
    (402, "", "membership could not be verified", MONTHLY),
    (403, "", "You've reached your usage limit for this billing cycle", MONTHLY),
    (403, "", "Kimi is only available for Coding Agents", DENIED),
    (429, "rate_limit_error", "The engine is currently overloaded", FULL),
]


def body_of(kind: str, message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": kind}}).encode()


def fault_of(status: int, body: bytes, headers: Headers = (), dialect: Dialect = MOONSHOT) -> Fault:
    return classify(dialect, status, headers, body, NOW).fault


@pytest.mark.parametrize(("status", "kind", "message", "fault"), KIMI)
def test_each_body_of_kimi_has_its_fault(status: int, kind: str, message: str, fault: Fault) -> None:
    assert fault_of(status, body_of(kind, message)) is fault
    assert fault_of(status, body_of(kind, message), dialect=GENERIC) is fault


@needs_data
def test_bodies_as_users_quoted_them() -> None:
    told = [
        json.loads(line) for line in (DATA / "api/kimi_real_errors.jsonl").read_text("utf-8").splitlines()
    ]
    bodies = [json.dumps(t["body"]).encode() if "body" in t else t["body_text"].encode() for t in told]
    faults = [fault_of(t["status"], body) for t, body in zip(told, bodies, strict=True)]
    assert faults == [BURST, CONCURRENCY, BURST, TOKENS, DAILY, MONTHLY, AUTH, REJECTED, REJECTED, REJECTED]
    for t, body in zip(told, bodies, strict=True):
        failure = classify(MOONSHOT, t["status"], (), body, NOW)
        assert "SCRUBBED" not in failure.detail + failure.message


PAGE = b"<!DOCTYPE html><html><head><title>504 Gateway Time-out</title></head></html>"


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (504, PAGE, BAD),
        (504, body_of("server_error", "slow"), ERRED),
        (502, PAGE, ERRED),
        (503, PAGE, UNPROVEN),
        (503, b"", UNPROVEN),
        (503, b"{}", UNPROVEN),
        (503, b'{"error":"busy"}', AWAY),
        (503, body_of("engine_overloaded_error", ""), FULL),
        (529, b"", FULL),
        (520, PAGE, ERRED),
        (301, b"", BAD),
        (307, PAGE, BAD),
        (200, b"", BAD),
        (200, PAGE, BAD),
        (200, body_of("server_error", "x"), BAD),
        (200, body_of("invalid_authentication_error", "x"), BAD),
        (200, body_of(LIMITED, "max RPM: 3"), BURST),
        (200, body_of("engine_overloaded_error", "x"), FULL),
        (200, body_of("exceeded_current_quota_error", "x"), MONTHLY),
        (404, PAGE, GONE),
        (401, PAGE, AUTH),
        (403, PAGE, DENIED),
        (408, b"", ERRED),
        (413, PAGE, REJECTED),
        (418, b"teapot", REJECTED),
        (422, b'{"detail":"no"}', REJECTED),
        (429, PAGE, BURST),
        (429, b"\xff[", BURST),
        (400, b"[" * 100_000, REJECTED),
        (400, b'"text"', REJECTED),
        (400, b'{"error":7}', REJECTED),
        (400, b"7", REJECTED),
    ],
)
def test_bodies_of_things_in_between(status: int, body: bytes, fault: Fault) -> None:
    for dialect in DIALECTS.values():
        if dialect in (MOONSHOT, GENERIC) or b"error" not in body:
            assert fault_of(status, body, dialect=dialect) is fault


@pytest.mark.parametrize(
    ("dialect", "status", "body", "fault"),
    [
        (
            VLLM,
            404,
            b'{"object":"error","message":"The model `x` does not exist.","type":"NotFoundError"}',
            GONE,
        ),
        (VLLM, 400, b'{"object":"error","message":"too long","type":"BadRequestError","code":400}', REJECTED),
        (
            VLLM,
            400,
            b'{"error":{"message":"too long","type":"BadRequestError","param":"n","code":400}}',
            REJECTED,
        ),
        (SGLANG, 503, b'{"object":"error","message":"The request queue is full.","code":503}', FULL),
        (GENERIC, 429, b'{"error":{"message":"x","type":"insufficient_quota"}}', MONTHLY),
        (GENERIC, 429, b'{"error":{"message":"x","type":"tokens"}}', TOKENS),
        (GENERIC, 400, b'{"error":{"message":"x","type":null,"code":"content_filter"}}', FILTERED),
        (GENERIC, 500, b'{"type":"error","error":{"type":"overloaded_error","message":"x"}}', FULL),
    ],
)
def test_other_hosts(dialect: Dialect, status: int, body: bytes, fault: Fault) -> None:
    assert fault_of(status, body, dialect=dialect) is fault


@pytest.mark.parametrize(
    ("reset", "fault"),
    [
        (b"0", MONTHLY),
        (b"30", BURST),
        (b"3600", BURST),
        (b"3601", DAILY),
        (b"86400", DAILY),
        (b"86401", MONTHLY),
        (b"1780000030", BURST),
        (b"1780010000", DAILY),
        (b"1779999999", BURST),
        (b"6m0s", BURST),
        (b"2h", DAILY),
        (b"20ms", BURST),
        (b"soon", BURST),
        (b"", BURST),
    ],
)
def test_what_remains_and_when_it_resets(reset: bytes, fault: Fault) -> None:
    headers = [(b"x-ratelimit-remaining", b"0"), (b"x-ratelimit-reset", reset)]
    assert fault_of(429, body_of(LIMITED, "Rate limit exceeded"), headers) is fault
    by_requests = [(b"x-ratelimit-remaining-requests", b"0"), (b"x-ratelimit-reset-requests", reset)]
    assert fault_of(429, b"", by_requests) is fault
    some_left = [(b"x-ratelimit-remaining", b"1"), (b"x-ratelimit-reset", b"86401")]
    assert fault_of(429, b"", some_left) is BURST


def test_a_daily_quota_waits_for_its_reset_alone() -> None:
    tpd = body_of(LIMITED, "reached organization TPD rate limit")
    one = [(b"retry-after", b"1")]
    assert classify(MOONSHOT, 429, one, tpd, NOW).retry_after is None
    reset = [*one, (b"x-ratelimit-remaining", b"0"), (b"x-ratelimit-reset", b"7200")]
    assert classify(MOONSHOT, 429, reset, tpd, NOW).retry_after == 7200.0


@pytest.mark.parametrize(
    ("headers", "message", "seconds"),
    [
        ([], "", None),
        ([(b"retry-after", b"7")], "try again after 3 seconds", 7.0),
        ([(b"x-retry-after", b"8")], "", 8.0),
        ([(b"msh-cooldown-seconds", b"9")], "", 9.0),
        ([(b"retry-after", b"-1")], "", 0.05),
        ([(b"retry-after", b"0")], "", 0.05),
        ([(b"retry-after", b"1e9")], "", 60.0),
        ([(b"retry-after", b"inf")], "", 60.0),
        ([(b"retry-after", b"nan")], "", None),
        ([(b"retry-after", b"soon")], "", None),
        ([(b"retry-after", b"soon"), (b"x-retry-after", b"2")], "", 2.0),
        ([(b"retry-after", b"Thu, 28 May 2026 20:26:50 GMT")], "", 10.0),
        ([(b"retry-after", b"Thu, 28 May 2020 20:26:50 GMT")], "", 0.05),
        ([(b"retry-after", b"Thu, 99 May 2020 20:26:50 GMT")], "", None),
        ([], "please try again after 3 seconds", 3.0),
        ([], "please try again after 1.5s", 1.5),
        ([], "thereafter 5 things", None),
    ],
)
def test_waits_are_read_and_kept_within_reason(headers: Headers, message: str, seconds: float | None) -> None:
    assert retry_after(headers, message, NOW) == seconds
    assert (
        classify(MOONSHOT, 429, headers, body_of(LIMITED, f"max RPM: {message}"), NOW).retry_after == seconds
    )


def test_no_wait_where_waiting_does_not_help() -> None:
    for status in (400, 401, 403, 404):
        assert classify(MOONSHOT, status, [(b"retry-after", b"7")], b"", NOW).retry_after is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Your account org-1a2b<ak-3c4d> request", "Your account ... request"),
        ("Your account Acme-Corp / proj-9 <ak-3c4d> request", "Your account ... / ... <...> request"),
        ("organization <0f3a> exceeded", "organization <...> exceeded"),
        ("key sk-kimi-AbC_12 is wrong", "key ... is wrong"),
        ("please check your account balance", "please check your account balance"),
        ("Your account is suspended", "Your account is suspended"),
        ("trace 0123456789abcdef0123456789abcdef", "trace ..."),
        ("a\r\nb\x00c\u2028d", "a b c d"),
        ("invalid temperature: only 1 is allowed", "invalid temperature: only 1 is allowed"),
        ("details: <At path 'properties.x': bad>", "details: <At path 'properties.x': bad>"),
        ("x" * 600, "x" * 500),
    ],
)
def test_ids_are_taken_out(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_only_a_refused_request_is_told_in_upstreams_words() -> None:
    message = "invalid temperature: only 1 is allowed for this model"
    body = json.dumps(
        {"error": {"message": message, "type": "invalid_request_error", "param": "temperature"}}
    )
    refused = classify(MOONSHOT, 400, (), body.encode(), NOW)
    assert (refused.message, refused.param, refused.reach) == (message, "temperature", Reach.HEAD)
    for status, kind, told, fault in KIMI:
        failure = classify(MOONSHOT, status, (), body_of(kind, told), NOW)
        assert bool(failure.message) == (fault is REJECTED)
        assert failure.detail.startswith(f"{status} {kind}".strip())
        assert not any(secret in failure.detail for secret in ("org-1", "ak-"))
    assert classify(MOONSHOT, 400, (), PAGE, NOW).message == ""


@given(
    status=st.integers(200, 599),
    body=st.binary(max_size=200) | st.builds(body_of, st.text(max_size=20), st.text(max_size=200)),
    wait=st.binary(max_size=30),
    dialect=st.sampled_from(list(DIALECTS.values())),
)
def test_any_answer_has_a_fault(status: int, body: bytes, wait: bytes, dialect: Dialect) -> None:
    headers = [(b"retry-after", wait), (b"x-ratelimit-remaining", b"0"), (b"x-ratelimit-reset", wait)]
    failure = classify(dialect, status, headers, body, NOW)
    assert failure.reach is Reach.HEAD
    assert failure.retry_after is None or 0 < failure.retry_after <= 86400
    assert (failure.detail + failure.message).isprintable()


def test_the_providers_ids_are_found_and_those_of_accounts_are_not() -> None:
    headers: Headers = [
        (b"msh-org-id", b"org-1"),
        (b"x-msh-trace-id", b"abc"),
        (b"msh-request-id", b"r-1"),
        (b"x-request-id", b"r-2"),
    ]
    assert provider_ids(MOONSHOT, headers) == ("r-1", "abc")
    assert provider_ids(VLLM, headers) == ("r-2", "")
    assert provider_ids(MOONSHOT, [(b"msh-request-id", b"x" * 129), (b"x-request-id", b"caf\xe9")]) == (
        "",
        "",
    )
