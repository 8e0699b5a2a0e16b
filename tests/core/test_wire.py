"""Response heads as bytes."""

import email.utils

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.faults import Failure, Fault, Reach
from moongate.core.wire import date_line, error_lines, header_line, response, response_head


def test_a_head_is_put_together() -> None:
    got = response_head(404, b"A: 1\r\n", b"Date: x\r\n", b"Content-Length: 2\r\n", b"Connection: close\r\n")
    assert got == (
        b"HTTP/1.1 404 Not Found\r\nA: 1\r\nDate: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n"
    )
    assert response_head(299, b"", b"", b"", b"") == b"HTTP/1.1 299 \r\n\r\n"


def test_a_whole_answer_is_its_head_and_its_body() -> None:
    head = response_head(404, b"A: 1\r\n", b"Date: x\r\n", b"Content-Length: 2\r\n", b"")
    assert response(404, b"A: 1\r\n", b"Date: x\r\n", 2, b"no") == head + b"no"
    assert response(299, b"", b"", 7, b"") == b"HTTP/1.1 299 \r\nContent-Length: 7\r\n\r\n"


@pytest.mark.parametrize("fault", Fault)
def test_every_status_of_the_fault_table_has_its_reason(fault: Fault) -> None:
    status = Failure(fault).rule.facts.status
    line = response_head(status, b"", b"", b"", b"").partition(b"\r\n")[0]
    assert line.startswith(b"HTTP/1.1 %d " % status)
    assert line[13:]


@given(st.integers(0, 4_000_000_000))
def test_dates_are_those_of_the_mail_format(seconds: int) -> None:
    expected = email.utils.formatdate(seconds, usegmt=True)
    assert date_line(seconds + 0.9) == f"Date: {expected}\r\n".encode()


def test_header_lines_cannot_split_a_head() -> None:
    assert header_line(b"X-A", b"b c\xff") == b"X-A: b c\xff\r\n"
    for name, value in (
        (b"X A", b""),
        (b"", b""),
        (b"X:", b""),
        (b"X", b"a\r\nB: c"),
        (b"X", b"a\n"),
        (b"X", b"\0"),
    ):
        with pytest.raises(ValueError, match="no valid header"):
            header_line(name, value)


def test_errors_tell_what_to_do() -> None:
    assert error_lines(Failure(Fault.USER_RATE_LIMITED, retry_after=1.2)) == (
        b"x-should-retry: true\r\nRetry-After: 2\r\nProxy-Status: moongate; error=http_request_denied\r\n"
    )
    assert b"Retry-After: 0\r\n" in error_lines(Failure(Fault.USER_RATE_LIMITED, retry_after=-1.0))
    patient = error_lines(Failure(Fault.USER_RATE_LIMITED, retry_after=121.0))
    assert b"x-should-retry: false\r\nRetry-After: 121\r\n" in patient
    assert b"WWW-Authenticate: Bearer\r\n" in error_lines(Failure(Fault.UNAUTHENTICATED))
    assert error_lines(Failure(Fault.KIMI_REJECTED, Reach.HEAD)) == b"x-should-retry: false\r\n"
