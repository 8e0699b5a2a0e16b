"""Request heads as bytes: reading one strictly, and deciding how its body is framed.

llhttp (through httptools) judges every byte and where the head ends; what is read from the judged lines, and how the
body is framed, is decided here. Where the two, or any two readers of the same bytes, could see different requests, the
request is refused: RFC 9112 sections 2.2, 3, 5, 6 and 11.
"""

import re
from types import SimpleNamespace
from typing import Final

import httptools
import msgspec

from moongate.core.faults import FailedError, Fault, refuse

CHUNKED: Final = -1
"""The body's size where `Transfer-Encoding: chunked` frames it."""

MOST_FIELDS: Final = 128
"""Header fields of one request; more are refused with 431. Official SDKs send about 20."""

_END = b"\r\n\r\n"
_MOST_DIGITS = 18
# Clients send the same lines again and again: what was read from a short one is remembered, as long as neither its
# name nor its content can be a secret. Each table is emptied when full.
_MOST_KNOWN = 4096
_LONGEST_KNOWN = 128
_WORTH_KNOWING = (
    b"accept",
    b"cache-control",
    b"connection",
    b"content-",
    b"host",
    b"user-agent",
    b"x-forwarded-",
    b"x-stainless-",
)
_KNOWN_LINES: dict[bytes, tuple[str, str, bytes, bytes, str]] = {}
_KNOWN_HOSTS: set[bytes] = set()

_VERSIONS = {b"HTTP/1.1": "1.1", b"HTTP/1.0": "1.0"}
_ORIGIN_FORM = re.compile(rb"(/[\w.~!$&'()*+,;=:@%/\-]*)(?:\?([!\x22$-~]*))?")
_ABSOLUTE_FORM = re.compile(
    rb"https?://([\w.~!$&'()*+,;=%\-]+(?::\d*)?|\[[0-9A-Fa-f:.]+\](?::\d*)?)"
    rb"(/[\w.~!$&'()*+,;=:@%/\-]*)?(?:\?([!\x22$-~]*))?",
    re.IGNORECASE,
)
_HOST = re.compile(rb"(?:[\w.~!$&'()*+,;=%\-]+|\[[0-9A-Fa-f:.]+\])(?::\d*)?")

_ONCE = frozenset((b"host", b"content-length", b"transfer-encoding"))
_SINGLE = frozenset(
    (
        b"authorization",
        b"api-key",
        b"content-type",
        b"date",
        b"expect",
        b"from",
        b"idempotency-key",
        b"if-modified-since",
        b"if-range",
        b"if-unmodified-since",
        b"last-event-id",
        b"max-forwards",
        b"proxy-authorization",
        b"range",
        b"referer",
        b"traceparent",
        b"user-agent",
        b"x-api-key",
        b"x-conversation-id",
        b"x-kimi-request-id",
        b"x-real-ip",
        b"x-request-id",
        b"x-session-id",
        b"x-stainless-retry-count",
        b"x-user-id",
    )
)


class RequestHead(msgspec.Struct):
    """Request line and headers of one request, and what they say about its body and its connection.

    `path` and `query` are the target's own bytes, not percent-decoded; `path` starts with `/` or is `*`.
    `headers` has lower-case names; a repeated list header is one value joined by `, `.
    `peer` is the client's address as text, or `unix`; `version` is `1.0` or `1.1`.
    `size` is the announced length of the body in bytes (0: none, `CHUNKED`: unknown), `keep_alive` whether the client
    wants the connection kept, `expects_continue` whether it sends the body only after `100 Continue`.
    """

    method: str
    path: str
    query: bytes
    headers: dict[bytes, bytes]
    peer: str
    version: str
    size: int = 0
    keep_alive: bool = False
    expects_continue: bool = False


def bad_request(why: str) -> FailedError:
    """The refusal of a request whose bytes cannot be trusted to mean one thing."""
    return refuse(Fault.INVALID_REQUEST, f"This is not a valid HTTP/1.1 request: {why}.")


class HeadReader:
    """Reads request heads, in whatever pieces they come; `head` is set once one is complete.

    `field_bytes` bounds each line, `head_bytes` all of them. One reader may read the heads of a connection one after
    another, as long as `pass_over` tells it of the body between them.
    """

    __slots__ = ("_field_bytes", "_half_line", "_head_bytes", "_open", "_parser", "_raw", "head")

    def __init__(self, field_bytes: int, head_bytes: int) -> None:
        self._field_bytes = field_bytes
        self._head_bytes = head_bytes
        self._half_line = False
        self._raw = b""
        # emptied by the parser at a head's end: a list's own method is cheaper than one of ours, and makes no cycle
        self._open = [True]
        self._parser = httptools.HttpRequestParser(SimpleNamespace(on_headers_complete=self._open.clear))
        self.head: RequestHead | None = None

    @property
    def started(self) -> bool:
        """Whether a byte of the request line was seen; empty lines before it do not count (RFC 9112 2.2)."""
        return bool(self._raw)

    def feed(self, data: bytes) -> int:
        """Take the next bytes, at least one: the offset just behind the head, or -1 while it is incomplete.

        Raises FailedError (400 or 431) for a head that is refused; the reader is spent then.
        """
        raw = self._raw
        if raw or self._half_line or data[0] <= 32:
            return self._feed_on(raw, data)
        end = data.find(_END) + 4
        if end == 3 or end > self._head_bytes:
            return self._feed_on(raw, data)
        head = data[:end]
        self._judge(head, last=True)
        self.head = _read(head, self._field_bytes)
        return end

    def _feed_on(self, raw: bytes, data: bytes) -> int:
        """Take bytes that do not begin with a request line, or are no whole head."""
        start = 0 if raw or (data[0] > 32 and not self._half_line) else self._blank_lines(data)
        if start == len(data):
            return -1
        seam = raw[-3:]
        end = (seam + data if seam else data).find(_END, start)
        cut = end + 4 - len(seam) if end >= 0 else len(data)
        room = self._head_bytes - len(raw)
        if cut - start > room:
            self._judge(data[start : start + room], last=False)
            raise refuse(Fault.HEADER_TOO_LARGE, f"All headers together may have {self._head_bytes} bytes.")
        piece = data[start:cut]
        self._judge(piece, last=end >= 0)
        self._raw = raw = raw + piece if raw else piece
        if end < 0:
            return -1
        self.head = _read(raw, self._field_bytes)
        return cut

    def pass_over(self, body: bytes) -> bool:
        """Take the whole body of the request whose head was read; whether the next head may be read by this reader.

        It may not where the body is chunked or not whole, where the connection ends or turns into something else, and
        where there is any doubt whether the parser takes it to end.
        """
        head = self.head
        if (
            head is None
            or head.size != len(body)
            or not head.keep_alive
            or head.headers.get(b"connection", b"keep-alive") != b"keep-alive"
        ):
            return False
        if body:
            self._parser.feed_data(body)
        self._raw = b""
        self._open.append(True)
        self.head = None
        return True

    def _blank_lines(self, data: bytes) -> int:
        start = 0
        if self._half_line:
            if data[0] != 10:
                raise bad_request("a bare CR stands before it")
            start = 1
            self._half_line = False
        while data.startswith(b"\r\n", start):
            start += 2
        if start == len(data) - 1 and data[start] == 13:
            self._half_line = True
            return start + 1
        if start < len(data) and data[start] <= 32:
            raise bad_request("white space stands before the method")
        return start

    def _judge(self, piece: bytes, *, last: bool) -> None:
        judged = len(piece)
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:  # an offer that we ignore (RFC 9110 section 7.8)
            judged = upgrade.args[0]
        except httptools.HttpParserError as error:
            raise bad_request(str(error)) from None
        if bool(self._open) is last or judged != len(piece):
            raise bad_request("its end is ambiguous")


def _read(raw: bytes, field_bytes: int) -> RequestHead:
    """Read a complete head that llhttp has found well-formed."""
    lines = raw.split(b"\r\n")
    if len(lines) - 3 > MOST_FIELDS:
        raise refuse(Fault.HEADER_TOO_LARGE, f"At most {MOST_FIELDS} headers are taken.")
    if len(raw) > field_bytes and any(len(line) > field_bytes for line in lines):
        raise refuse(Fault.HEADER_TOO_LARGE, f"One header may have {field_bytes} bytes.")
    first = lines[0]
    del lines[-2:], lines[0]
    headers = dict(map(_field, lines))
    if len(headers) != len(lines):
        headers = _joined(list(map(_field, lines)))
    method, path, query, authority, version = _KNOWN_LINES.get(first) or _request_line(first)
    current = version == "1.1"
    host = headers.get(b"host")
    if host is None:
        if current:
            raise bad_request("Host is missing")
    elif host not in _KNOWN_HOSTS:
        _judge_host(host)
    if authority and host is not None and authority != host.lower():
        raise bad_request("target and Host name different hosts")
    length = headers.get(b"content-length")
    if b"transfer-encoding" in headers:
        size = _chunked(headers, length, current=current)
    elif length is None:
        size = 0
    elif length.isdigit() and len(length) <= _MOST_DIGITS:
        size = int(length)
    else:
        raise bad_request("Content-Length is not a number")
    connection = headers.get(b"connection")
    keep = (
        current if connection is None else connection == b"keep-alive" or _keeps(connection, current=current)
    )
    expects = current and b"expect" in headers and headers[b"expect"].lower() == b"100-continue"
    return RequestHead(method, path, query, headers, "", version, size, keep, expects)


def _judge_host(host: bytes) -> None:
    if _HOST.fullmatch(host) is None:
        raise bad_request("Host is not a host name")
    if len(host) <= _LONGEST_KNOWN:
        if len(_KNOWN_HOSTS) >= _MOST_KNOWN:
            _KNOWN_HOSTS.clear()
        _KNOWN_HOSTS.add(host)


def _chunked(headers: dict[bytes, bytes], length: bytes | None, *, current: bool) -> int:
    """The size of a body with a transfer coding; RFC 9112 section 6.3."""
    if length is not None or not current or headers[b"transfer-encoding"].lower() != b"chunked":
        raise bad_request("Transfer-Encoding must be chunked, in HTTP/1.1 and without Content-Length")
    return CHUNKED


def _keeps(connection: bytes, *, current: bool) -> bool:
    """What becomes of the connection; RFC 9112 section 9.3."""
    tokens = [token.strip(b" \t") for token in connection.lower().split(b",")]
    return b"close" not in tokens and (current or b"keep-alive" in tokens)


class _Fields(dict[bytes, tuple[bytes, bytes]]):
    """Name and value of header lines, read when first asked for."""

    def __missing__(self, line: bytes) -> tuple[bytes, bytes]:
        name, _, value = line.partition(b":")
        name = name.lower()
        field = (name, value.strip(b" \t"))
        if len(line) <= _LONGEST_KNOWN and name.startswith(_WORTH_KNOWING):
            if len(self) >= _MOST_KNOWN:
                self.clear()
            self[line] = field
        return field


_KNOWN_FIELDS: Final = _Fields()
_field: Final = _KNOWN_FIELDS.__getitem__


def _joined(fields: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers of which some are repeated; RFC 9110 section 5.3."""
    headers: dict[bytes, bytes] = {}
    for name, value in fields:
        before = headers.get(name)
        if before is None:
            headers[name] = value
        elif name in _ONCE or (name in _SINGLE and before != value):
            raise bad_request(f"{name.decode('latin-1')} may be given once only")
        elif name not in _SINGLE:
            headers[name] = before + (b"; " if name == b"cookie" else b", ") + value
    return headers


def _request_line(line: bytes) -> tuple[str, str, bytes, bytes, str]:
    """Method, path, query, authority (of an absolute target, lower-case) and version; RFC 9112 section 3."""
    parts = line.split(b" ")
    version = _VERSIONS.get(parts[-1], "")
    if len(parts) != 3 or not version:
        raise bad_request("the request line is not `method target HTTP/1.1`")
    method, target = parts[0], parts[1]
    if method == b"CONNECT":
        raise bad_request("CONNECT is not served here")
    authority = b""
    match = _ORIGIN_FORM.fullmatch(target)
    if match is not None:
        path, query = match[1], match[2] or b""
    elif target == b"*" and method == b"OPTIONS":
        path, query = target, b""
    else:
        match = _ABSOLUTE_FORM.fullmatch(target)
        if match is None:
            raise bad_request("the target must be a path, percent-encoded and without a fragment")
        authority, path, query = match[1].lower(), match[2] or b"/", match[3] or b""
    read = method.decode("ascii"), path.decode("ascii"), query, authority, version
    if len(line) <= _LONGEST_KNOWN and not query:
        if len(_KNOWN_LINES) >= _MOST_KNOWN:
            _KNOWN_LINES.clear()
        _KNOWN_LINES[line] = read
    return read
