"""Response heads as bytes; RFC 9110 and RFC 9112."""

import math
import re
from datetime import UTC, datetime
from typing import Final

from moongate.core.faults import Failure

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"

_FIELD_NAME = re.compile(rb"[\w!#$%&'*+.^`|~\-]+")
_FIELD_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# fmt: off
_REASONS = {
    200: b"OK", 201: b"Created", 202: b"Accepted", 204: b"No Content", 304: b"Not Modified", 400: b"Bad Request",
    401: b"Unauthorized", 403: b"Forbidden", 404: b"Not Found", 405: b"Method Not Allowed",
    408: b"Request Timeout", 409: b"Conflict", 413: b"Content Too Large", 422: b"Unprocessable Content",
    429: b"Too Many Requests", 431: b"Request Header Fields Too Large", 499: b"Client Closed Request",
    500: b"Internal Server Error", 502: b"Bad Gateway", 503: b"Service Unavailable", 504: b"Gateway Timeout",
}
# fmt: on
_STATUS_LINES = {status: b"HTTP/1.1 %d %b\r\n" % (status, reason) for status, reason in _REASONS.items()}


def response_head(status: int, headers: bytes, date: bytes, framing: bytes, connection: bytes) -> bytes:
    """Format a whole response head, its empty line included.

    Everything but the status is given as whole header lines with CRLF, or empty: `date`, `framing` (Content-Length
    or Transfer-Encoding), `connection`. The version is always HTTP/1.1 (RFC 9110 section 6.2: the server's own).
    """
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    return b"%b%b%b%b%b\r\n" % (line, headers, date, framing, connection)


def response(status: int, headers: bytes, last: bytes, size: int, body: bytes) -> bytes:
    """Format a whole response: a head with the Content-Length `size` and the header lines `last`, and `body`."""
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    return b"%b%b%bContent-Length: %d\r\n\r\n%b" % (line, headers, last, size, body)


def header_line(name: bytes, value: bytes) -> bytes:
    """One header as a line with CRLF.

    Raises ValueError for a name that is no token and for a value with control bytes: neither may ever split a head.
    """
    if _FIELD_NAME.fullmatch(name) is None or _FIELD_VALUE.fullmatch(value) is None:
        raise ValueError(f"no valid header: {name!r}")
    return b"%b: %b\r\n" % (name, value)


def date_line(wall: float) -> bytes:
    """The Date header, as a line with CRLF, for `wall` seconds since 1970; IMF-fixdate of RFC 9110 section 5.6.7."""
    when = datetime.fromtimestamp(int(wall), UTC)
    day, month = _DAYS[when.weekday()], _MONTHS[when.month - 1]
    return f"Date: {day}, {when.day:02d} {month} {when.year} {when:%H:%M:%S} GMT\r\n".encode("ascii")


def error_lines(failure: Failure) -> bytes:
    """The header lines that every error carries: what an SDK should do, how long to wait, and who erred.

    `x-should-retry` decides for the official SDKs; `Retry-After` in whole seconds, rounded up so that a client that
    keeps to it is never early; `Proxy-Status` by RFC 9209; `WWW-Authenticate` belongs to every 401 (RFC 9110).
    """
    facts = failure.rule.facts
    lines = b"x-should-retry: true\r\n" if failure.should_retry else b"x-should-retry: false\r\n"
    if failure.retry_after is not None:
        lines += b"Retry-After: %d\r\n" % max(0, math.ceil(failure.retry_after))
    if facts.proxy_status:
        lines += b"Proxy-Status: moongate; error=%b\r\n" % facts.proxy_status.encode("ascii")
    if facts.status == 401:
        lines += b"WWW-Authenticate: Bearer\r\n"
    return lines
