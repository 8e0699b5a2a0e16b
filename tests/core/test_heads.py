"""Request heads: what is read, what is refused, and that it does not matter how the bytes arrive."""

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core import heads
from moongate.core.faults import FailedError, Fault
from moongate.core.heads import CHUNKED, HeadReader, RequestHead
from tests.core.requests import BAD, GOOD, HEAD, read, two_way_splits

ALL = GOOD | BAD


def head(lines: bytes, first: bytes = b"GET / HTTP/1.1\r\nHost: a\r\n") -> RequestHead:
    reader = HeadReader(16_384, 65_536)
    data = first + lines + b"\r\n"
    assert reader.feed(data) == len(data)
    assert reader.head is not None
    return reader.head


def refused(lines: bytes, first: bytes = b"GET / HTTP/1.1\r\nHost: a\r\n") -> str:
    with pytest.raises(FailedError) as error:
        head(lines, first)
    return error.value.failure.message


def test_a_head_is_read() -> None:
    got = head(
        b"X-One:  a b \t\r\nAuthorization: Bearer x\r\nEmpty:\r\nContent-Length: 007\r\n",
        b"POST /v1/x%20y?a=b&c HTTP/1.1\r\nHOST: Example.com:80\r\n",
    )
    assert got == RequestHead(
        method="POST",
        path="/v1/x%20y",
        query=b"a=b&c",
        headers={
            b"host": b"Example.com:80",
            b"x-one": b"a b",
            b"authorization": b"Bearer x",
            b"empty": b"",
            b"content-length": b"007",
        },
        peer="",
        version="1.1",
        size=7,
        keep_alive=True,
        expects_continue=False,
    )


def test_bytes_behind_the_head_are_left_alone() -> None:
    reader = HeadReader(16_384, 65_536)
    assert reader.feed(b"GET / HTTP/1.1\r\nHo") == -1
    assert reader.head is None
    assert reader.feed(b"st: a\r\n\r\nbody") == 9
    assert reader.head is not None


@pytest.mark.parametrize("name", GOOD)
def test_good_requests_are_read(name: str) -> None:
    got = read([GOOD[name]])
    assert got.fault is None
    assert not got.unfinished
    assert len(got.requests) == {"pipelined": 3, "upgrade": 2}.get(name, 1)


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_are_refused_and_nothing_behind_them_is_read(name: str) -> None:
    got = read([BAD[name] + GOOD["plain"]])
    assert got.fault in (Fault.INVALID_REQUEST, Fault.HEADER_TOO_LARGE)
    assert not got.requests


@pytest.mark.parametrize("name", ALL)
def test_every_split_in_two_reads_the_same(name: str) -> None:
    data = ALL[name]
    if len(data) > 2000:
        data = data[:400] + data[-400:]
    whole = read([data])
    for pieces in two_way_splits(data):
        assert read(pieces) == whole, pieces
    assert read(bytes([byte]) for byte in data) == whole


@given(st.lists(st.sampled_from(sorted(ALL)), min_size=1, max_size=4), st.data())
def test_any_split_reads_the_same(names: list[str], data: st.DataObject) -> None:
    joined = b"".join(ALL[name] for name in names)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(joined)), max_size=12)))
    pieces = [joined[a:b] for a, b in zip([0, *cuts], [*cuts, len(joined)], strict=True) if a < b]
    assert read(pieces) == read([joined])


@given(st.lists(st.sampled_from(sorted(ALL)), min_size=2, max_size=6), st.data())
def test_a_reader_that_goes_on_reads_what_a_new_one_would(names: list[str], data: st.DataObject) -> None:
    joined = b"".join(ALL[name] for name in names)
    cut = data.draw(st.integers(0, len(joined)))
    pieces = [piece for piece in (joined[:cut], joined[cut:]) if piece]
    assert read(pieces) == read(pieces, anew=True)


@pytest.mark.parametrize(
    ("lines", "body", "goes_on"),
    [
        (b"", b"", True),
        (b"Content-Length: 3\r\n", b"abc", True),
        (b"Connection: keep-alive\r\nContent-Length: 3\r\n", b"abc", True),
        (b"Content-Length: 3\r\n", b"ab", False),
        (b"Transfer-Encoding: chunked\r\n", b"abc", False),
        (b"Connection: close\r\n", b"", False),
        (b"Connection: x\r\n", b"", False),
        (b"Connection: Upgrade\r\nUpgrade: h2c\r\n", b"", False),
    ],
)
def test_a_reader_goes_on_only_where_the_next_head_is_sure_to_follow(
    lines: bytes, body: bytes, goes_on: bool
) -> None:
    reader = HeadReader(16_384, 65_536)
    first = b"POST / HTTP/1.1\r\nHost: a\r\n" + lines + b"\r\n"
    assert not reader.pass_over(b"")
    assert reader.feed(first) == len(first)
    assert reader.pass_over(body) is goes_on
    if goes_on:
        assert not reader.started
        assert reader.feed(b"GET /2 HTTP/1.1\r\n") == -1
        assert reader.feed(b"Host: a\r\n\r\n") == 11
        assert getattr(reader.head, "path", "") == "/2"


@given(st.binary(max_size=300), st.integers(0, 300))
def test_noise_is_never_more_than_refused(noise: bytes, at: int) -> None:
    data = GOOD["pipelined"]
    mixed = data[:at] + noise + data[at:]
    whole = read([mixed])
    assert whole.fault in (None, Fault.INVALID_REQUEST, Fault.HEADER_TOO_LARGE)
    assert read(bytes([byte]) for byte in mixed) == whole


def test_limits_on_lines_fields_and_all_of_it() -> None:
    line = b"X: " + b"x" * 97 + b"\r\n"  # 100 bytes without its CRLF
    assert read([b"GET / HTTP/1.1\r\nHost: a\r\n" + line + b"\r\n"], 100).fault is None
    longer = b"GET / HTTP/1.1\r\nHost: a\r\nX" + line + b"\r\n"
    assert read([longer], 100).fault is Fault.HEADER_TOO_LARGE
    exact = b"GET / HTTP/1.1\r\nHost: a\r\n" + line + b"\r\n"
    assert read([exact], 100, len(exact)).fault is None
    for pieces in ([exact], *two_way_splits(exact)):
        assert read(pieces, 100, len(exact) - 1).fault is Fault.HEADER_TOO_LARGE
    assert len(head(b"".join(b"X%d: 1\r\n" % n for n in range(127))).headers) == 128
    assert "128" in refused(b"".join(b"X%d: 1\r\n" % n for n in range(128)))
    endless = read([b"GET / HTTP/1.1\r\n" + b"X: 1\r\n" * 40_000])
    assert endless.fault is Fault.HEADER_TOO_LARGE


def test_a_wrong_byte_within_the_limit_is_400_however_long_the_rest() -> None:
    assert read([b"GET / HTTP/1.1\nX: " + b"x" * 100_000]).fault is Fault.INVALID_REQUEST


def test_repeated_headers() -> None:
    got = head(
        b"Accept: a\r\nX-List: 1\r\nAccept: b\r\nX-List: 2\r\nCookie: a=1\r\nCookie: b=2\r\n"
        b"X-Request-Id: 1\r\nX-Request-Id: 1\r\n"
    )
    assert got.headers[b"accept"] == b"a, b"
    assert got.headers[b"x-list"] == b"1, 2"
    assert got.headers[b"cookie"] == b"a=1; b=2"
    assert got.headers[b"x-request-id"] == b"1"
    assert "authorization may be given once" in refused(b"Authorization: a\r\nauthorization: b\r\n")


@pytest.mark.parametrize(
    ("version", "connection", "kept"),
    [
        (b"1.1", None, True),
        (b"1.1", b"keep-alive", True),
        (b"1.1", b"Keep-Alive, Upgrade", True),
        (b"1.1", b"close", False),
        (b"1.1", b"x,\tCLOSE", False),
        (b"1.1", b"closed", True),
        (b"1.0", None, False),
        (b"1.0", b"keep-alive", True),
        (b"1.0", b"Keep-Alive", True),
        (b"1.0", b"close, keep-alive", False),
        (b"1.0", b"x", False),
    ],
)
def test_what_becomes_of_the_connection(version: bytes, connection: bytes | None, *, kept: bool) -> None:
    line = b"" if connection is None else b"Connection: %b\r\n" % connection
    assert head(line, b"GET / HTTP/%b\r\nHost: a\r\n" % version).keep_alive is kept


def test_expectations() -> None:
    assert head(b"Expect: 100-Continue\r\n").expects_continue
    assert not head(b"Expect: 100-continue\r\n", b"GET / HTTP/1.0\r\n").expects_continue
    assert not head(b"Expect: something\r\n").expects_continue


def test_bodies_are_announced_by_length_or_chunked() -> None:
    assert head(b"").size == 0
    assert head(b"Content-Length: 0\r\n").size == 0
    assert head(b"Content-Length: 123456789012345678\r\n").size == 123456789012345678
    assert head(b"transfer-encoding: CHUNKED\r\n").size == CHUNKED


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/", "/", b""),
        (b"/?", "/", b""),
        (b"/a?b?c", "/a", b"b?c"),
        (b"//a/../b", "//a/../b", b""),
        (b'/a?x=[1]|"', "/a", b'x=[1]|"'),
        (b"http://a", "/", b""),
        (b"HTTPS://A?b=c", "/", b"b=c"),
        (b"http://a/b/c?d", "/b/c", b"d"),
    ],
)
def test_targets(target: bytes, path: str, query: bytes) -> None:
    got = head(b"", b"GET %b HTTP/1.1\r\nHost: a\r\n" % target)
    assert (got.path, got.query) == (path, query)


def test_an_absolute_target_needs_no_host_in_http_1_0() -> None:
    assert head(b"", b"GET http://a/b HTTP/1.0\r\n").path == "/b"


def test_blank_lines_are_no_start() -> None:
    reader = HeadReader(16_384, 65_536)
    for piece in (b"\r", b"\n", b"\r\n\r\n", b"\r"):
        assert reader.feed(piece) == -1
        assert not reader.started
    assert reader.feed(b"\nG") == -1
    assert reader.started


def test_what_is_remembered_holds_no_secret_and_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "_MOST_KNOWN", 8)
    heads._KNOWN_FIELDS.clear()
    heads._KNOWN_LINES.clear()
    heads._KNOWN_HOSTS.clear()
    for number in range(50):
        for _ in range(2):
            got = head(
                b"User-Agent: n%d\r\nAuthorization: Bearer mg_secret\r\nAccept: %b\r\n"
                % (number, b"x" * 200),
                b"GET /%d HTTP/1.1\r\nHost: a\r\n" % number,
            )
            assert got.path == f"/{number}"
            assert got.headers[b"user-agent"] == b"n%d" % number
        assert head(b"", b"GET / HTTP/1.1\r\nHost: h%d\r\n" % number).headers[b"host"] == b"h%d" % number
    head(b"", b"GET /?key=mg_secret HTTP/1.1\r\nHost: a\r\n")
    head(b"", b"GET / HTTP/1.1\r\nHost: %b\r\n" % (b"a" * 200))
    remembered = [*heads._KNOWN_FIELDS, *heads._KNOWN_LINES, *heads._KNOWN_HOSTS]
    assert b"User-Agent: n49" in heads._KNOWN_FIELDS
    assert b"GET /49 HTTP/1.1" in heads._KNOWN_LINES
    assert len(heads._KNOWN_FIELDS) <= 8
    assert len(heads._KNOWN_LINES) <= 8
    assert b"h49" in heads._KNOWN_HOSTS
    assert len(heads._KNOWN_HOSTS) <= 8
    assert not [line for line in remembered if b"secret" in line or len(line) > 128]


def test_a_read_head_leaves_no_cycle_behind() -> None:
    gc.collect()
    head(b"Content-Length: 5\r\nConnection: upgrade\r\nUpgrade: h2c\r\n")
    assert gc.collect() == 0


def test_refusals_say_why() -> None:
    assert refused(b"", b"GET / HTTP/1.1\r\n") == "This is not a valid HTTP/1.1 request: Host is missing."
    assert "host may be given once only" in refused(b"Host: a\r\n")
    assert "CONNECT" in refused(b"", b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n")
    assert read([HEAD + b"\r\n"]).fault is None
