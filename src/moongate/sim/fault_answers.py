"""Faults that answer instead of the model: statuses, pages, redirects, and connections that never answer."""

import base64
import time
from collections.abc import Iterable
from email.utils import formatdate
from itertools import pairwise
from typing import Final

import msgspec

from moongate.sim.accounts import PACED
from moongate.sim.book import Bill
from moongate.sim.faults import Case, Change, fault
from moongate.sim.reply import FOREVER, Act, Do, Framing, Header, Item, Reply, json_reply, text_reply

_encode: Final = msgspec.json.encode
_LIMIT: Final = "rate_limit_reached_error"
HTML_504: Final = (
    b"<html>\r\n<head><title>504 Gateway Time-out</title></head>\r\n<body>\r\n"
    b"<center><h1>504 Gateway Time-out</h1></center>\r\n<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n"
)


def refuse(status: int, kind: str, message: str, headers: Iterable[Header] = ()) -> Reply:
    """An error as the hosted platform sends it."""
    return json_reply(status, _encode({"error": {"message": message, "type": kind}}), headers)


def _limit(text: str) -> Change:
    def change(_: Reply, case: Case) -> Reply:
        message = text.format(who=case.who, n=case.whole("limit", 3), c=case.whole("current", 9))
        return refuse(429, _LIMIT, message, PACED)

    change.__doc__ = f"429 {_LIMIT}: {text.partition(',')[0]}, with the three headers that say 1 second."
    return change


_REACHED: Final = "Your account {who} request reached "
_AGAIN: Final = ", please try again after 1 seconds"
_WORDS: Final = {
    "rate_limit_rpm": _REACHED + "organization max RPM: {n}" + _AGAIN,
    "rate_limit_concurrency": _REACHED + "organization max concurrency: {n}" + _AGAIN,
    "rate_limit_tpm": _REACHED + "organization TPM rate limit, current:{c}, limit:{n}",
    "rate_limit_tpd": _REACHED + "organization TPD rate limit, current:{c}, limit:{n}",
    "rate_limit_organization": "Organization Rate limit exceeded" + _AGAIN,
    "rate_limit_concurrency_2025": _REACHED + "max organization concurrency: {n}" + _AGAIN,
    "rate_limit_project_tpm": _REACHED + "project TPM rate limit, current: {c}, limit: {n}",
}
_ROWS: Final = {"rate_limit_rpm": 11, "rate_limit_concurrency": 12, "rate_limit_concurrency_2025": 12}
for _name, _text in _WORDS.items():
    fault(_name, row=_ROWS.get(_name, 13), runs=False)(_limit(_text))


@fault("429_with_retry_after", row=11, runs=False)
def _paced_429(_: Reply, case: Case) -> Reply:
    """429 for requests a minute whose Retry-After says `seconds`."""
    seconds = case.word("seconds", "1").encode()
    message = (
        f"Your account {case.who} request reached organization max RPM: 3, please try again after 1 seconds"
    )
    return refuse(429, _LIMIT, message, [(b"Retry-After", seconds)])


@fault("429_without", row=15, runs=False)
def _bare_429(_: Reply, case: Case) -> Reply:
    """429 for requests a minute without any header that tells the wait."""
    message = (
        f"Your account {case.who} request reached organization max RPM: 3, please try again after 1 seconds"
    )
    return refuse(429, _LIMIT, message)


@fault("retry_after", row=15, runs=False)
def _odd_retry_after(_: Reply, case: Case) -> Reply:
    """429 with an absurd Retry-After: `value` is sent as it is; `date` stands for an HTTP date in 30 s."""
    value = case.word("value", "-1")
    if value == "date":
        value = formatdate(time.time() + 30, usegmt=True)
    return refuse(429, _LIMIT, "Organization Rate limit exceeded", [(b"Retry-After", value.encode())])


@fault("engine_overloaded", row=12, runs=False)
def _overloaded(_: Reply, __: Case) -> Reply:
    """429 engine_overloaded_error: the provider's capacity, not the caller's tier; no header tells a wait."""
    return refuse(
        429, "engine_overloaded_error", "The engine is currently overloaded, please try again later"
    )


@fault("quota_exhausted", row=14, runs=False)
def _no_money(_: Reply, case: Case) -> Reply:
    """429 exceeded_current_quota_error: the account is suspended for want of balance."""
    message = (
        f"Your account {case.who} is suspended due to insufficient balance, please recharge your account or "
        "check your plan and billing details"
    )
    return refuse(429, "exceeded_current_quota_error", message)


@fault("quota_credit", row=14, runs=False)
def _no_credit(_: Reply, case: Case) -> Reply:
    """429 exceeded_current_quota_error: the token quota is used up."""
    name = case.who.partition("<")[0]
    message = f"You exceeded your current token quota: <{name}> 0, please check your account balance"
    return refuse(429, "exceeded_current_quota_error", message)


@fault("quota_403", row=14, runs=False)
def _inactive(_: Reply, case: Case) -> Reply:
    """403 exceeded_current_quota_error, as recorded in 2025-07."""
    name = case.who.partition("<")[0]
    message = (
        f"Your account {name} is not active, organization <{name}> exceeded current quota, "
        "please check your plan and billing details"
    )
    return refuse(403, "exceeded_current_quota_error", message)


_PLAIN: Final = {
    "400": (400, "invalid_request_error", "Invalid request: refused by script", 0),
    "content_filter": (
        400,
        "content_filter",
        "The request was rejected because it was considered high risk",
        0,
    ),
    "auth_401": (401, "invalid_authentication_error", "Invalid Authentication", 18),
    "wrong_key_401": (401, "incorrect_api_key_error", "Incorrect API key provided", 18),
    "forbidden_403": (403, "permission_denied_error", "The API you are accessing is not open", 18),
    "ip_403": (
        403,
        "permission_denied_error",
        "Your IP is not allowed to access this organization",
        18,
    ),
    "model_404": (
        404,
        "resource_not_found_error",
        "Model not found, or this account does not have permission to access it",
        0,
    ),
    "client_closed_499": (499, "client_closed_request", "client closed request", 0),
    "500": (500, "server_error", "invalid state transition", 16),
    "unexpected_output_500": (500, "unexpected_output", "invalid state transition", 16),
    "502": (502, "server_error", "Bad Gateway", 16),
    "503": (503, "server_unavailable", "The server is currently unavailable, please try again later", 16),
    "503_overloaded": (503, "engine_overloaded_error", "The engine is currently overloaded", 16),
    "504": (504, "server_error", "Gateway Timeout", 16),
    "529": (529, "overloaded_error", "Overloaded", 16),
}


def _status(status: int, kind: str, message: str) -> Change:
    def change(_: Reply, __: Case) -> Reply:
        return refuse(status, kind, message)

    change.__doc__ = f"{status} {kind}: {message}."
    return change


for _name, (_code, _kind, _message, _row) in _PLAIN.items():
    fault(_name, row=_row, runs=False)(_status(_code, _kind, _message))


@fault("status", runs=False)
def _any_status(_: Reply, case: Case) -> Reply:
    """Any status: `code`, `type`, `message`; `retry_after` adds that header."""
    headers = (
        [(b"Retry-After", case.word("retry_after", "").encode())] if "retry_after" in case.params else []
    )
    return refuse(
        case.whole("code", 500),
        case.word("type", "server_error"),
        case.word("message", "refused by script"),
        headers,
    )


@fault("ratelimit_headers", row=15, runs=False)
def _limit_headers(_: Reply, case: Case) -> Reply:
    """429 with the documented, never captured X-RateLimit headers: `limit`, `remaining`, `reset` seconds."""
    headers = [
        (b"X-RateLimit-Limit", case.word("limit", "3").encode()),
        (b"X-RateLimit-Remaining", case.word("remaining", "0").encode()),
        (b"X-RateLimit-Reset", case.word("reset", "30").encode()),
    ]
    return refuse(429, _LIMIT, "Organization Rate limit exceeded", headers)


@fault("verbatim", runs=False)
def _verbatim(_: Reply, case: Case) -> Reply:
    """Any answer: `status`, `headers` (an object), `body` or `body_base64`, `framing`, `slices` (offsets)."""
    body = case.word("body", "").encode()
    if "body_base64" in case.params:
        body = base64.b64decode(case.word("body_base64", ""))
    named = case.params.get("headers")
    given = named if isinstance(named, dict) else {"Content-Type": "application/json"}
    headers = [(str(name).encode("latin-1"), str(value).encode("latin-1")) for name, value in given.items()]
    listed = case.params.get("slices")
    marks = [0, *(int(at) for at in listed), len(body)] if isinstance(listed, list) else [0, len(body)]
    items: list[Item] = []
    for start, end in pairwise(marks):
        items += [(body[start:end], 0), Act(Do.WAIT, case.number("pause", 0))]
    framing = Framing(case.word("framing", "length"))
    return Reply(case.whole("status", 200), headers, items, framing, length=len(body))


@fault("coding_overloaded", row=12, runs=False)
def _coding(_: Reply, __: Case) -> Reply:
    """429 in the shape of the Kimi Code endpoint, which says overloaded for a used-up plan, too."""
    error = {
        "type": "rate_limit_error",
        "message": "The engine is currently overloaded, please try again later",
    }
    return json_reply(429, _encode({"error": error, "type": "error"}))


@fault("html_504", row=16, bill=Bill.FULL)
def _html_504(_: Reply, __: Case) -> Reply:
    """The platform's gateway gives up with an HTML page while the model runs on; the answer is charged."""
    return text_reply(504, HTML_504, b"text/html")


@fault("html_error_page", row=16, runs=False)
def _html_page(_: Reply, case: Case) -> Reply:
    """An HTML page with status `code`, 502 unless told; the model did not run."""
    status = case.whole("code", 502)
    return text_reply(status, HTML_504.replace(b"504 Gateway Time-out", b"%d Error" % status), b"text/html")


@fault("html_200", row=23, bill=Bill.FULL)
def _html_200(_: Reply, __: Case) -> Reply:
    """An HTML page with status 200."""
    return text_reply(200, b"<html><body><h1>Welcome to the captive portal</h1></body></html>", b"text/html")


@fault("error_in_200", row=19, runs=False)
def _error_in_200(_: Reply, case: Case) -> Reply:
    """An error body under status 200; for a stream, as its only event."""
    body = _encode(
        {"error": {"message": "The engine is currently overloaded", "type": "engine_overloaded_error"}}
    )
    if case.stream:
        return text_reply(200, b"data: " + body + b"\n\n", b"text/event-stream")
    return json_reply(200, body)


@fault("redirect_302", row=30, runs=False)
def _redirect_302(_: Reply, case: Case) -> Reply:
    """302 to `location`."""
    where = case.word("location", "http://127.0.0.1:1/stolen").encode()
    return text_reply(302, b"", b"text/plain", [(b"Location", where)])


@fault("redirect_307", row=30, runs=False)
def _redirect_307(_: Reply, case: Case) -> Reply:
    """307 to `location`."""
    where = case.word("location", "http://127.0.0.1:1/stolen").encode()
    return text_reply(307, b"", b"text/plain", [(b"Location", where)])


@fault("redirect_308", row=30, runs=False)
def _redirect_308(_: Reply, case: Case) -> Reply:
    """308 to `location`."""
    where = case.word("location", "http://127.0.0.1:1/stolen").encode()
    return text_reply(308, b"", b"text/plain", [(b"Location", where)])


@fault("down", "reset_peer", row=32, runs=False)
def _down(reply: Reply, _: Case) -> Reply:
    """The connection is reset as the request arrives; the model does not run."""
    reply.before = [Act(Do.RESET)]
    return reply


@fault("keep_alive_close", row=32, runs=False)
def _stale(reply: Reply, _: Case) -> Reply:
    """The connection is closed as the request arrives, as by a keep-alive that just ran out; nothing runs."""
    reply.before = [Act(Do.CLOSE)]
    return reply


@fault("timeout", row=38, runs=False)
def _timeout(reply: Reply, case: Case) -> Reply:
    """Nothing for `seconds`, then the connection is closed; the model does not run."""
    reply.before = [Act(Do.WAIT, case.number("seconds", FOREVER)), Act(Do.CLOSE)]
    return reply


@fault("not_http", row=43, runs=False)
def _not_http(reply: Reply, _: Case) -> Reply:
    """Bytes that are no HTTP answer, then a close."""
    reply.before = [Act(Do.RAW, data=b"SSH-2.0-OpenSSH_9.2\r\n"), Act(Do.CLOSE)]
    return reply
