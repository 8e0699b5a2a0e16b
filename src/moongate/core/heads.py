"""Request heads as bytes: reading one strictly, and deciding how its body is framed.

llhttp (through httptools) reads the characters; the checks around it decide the framing. Where the two, or any two
readers of the same bytes, could see different requests, the request is refused: RFC 9112 sections 2.2, 3, 5, 6, 11.
"""

import re
from dataclasses import dataclass
from typing import Final

import httptools

from moongate.core.faults import FailedError, Fault, refuse

CHUNKED: Final = -1
"""The body's size where `Transfer-Encoding: chunked` frames it."""

MOST_FIELDS: Final = 128
"""Header fields of one request; more are refused with 431. Official SDKs send about 20."""

_END = b"\r\n\r\n"
_VERSIONS = {b"HTTP/1.1": "1.1", b"HTTP/1.0": "1.0"}
_ORIGIN_FORM = re.compile(rb"(/[\w.~!$&'()*+,;=:@%/\-]*)(?:\?([!\x22$-~]*))?")
_ABSOLUTE_FORM = re.compile(
    rb"https?://([\w.~!$&'()*+,;=%\-]+(?::\d*)?|\[[0-9A-Fa-f:.]+\](?::\d*)?)"
    rb"(/[\w.~!$&'()*+,;=:@%/\-]*)?(?:\?([!\x22$-~]*))?",
    re.IGNORECASE,
)
_HOST = re.compile(rb"(?:[\w.~!$&'()*+,;=%\-]+|\[[0-9A-Fa-f:.]+\])(?::\d*)?")

_FRAMING = frozenset((b"host", b"content-length", b"transfer-encoding"))
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


@dataclass(slots=True)
class RequestHead:
    """Request line and headers of one request.

    `path` and `query` are the target's own bytes, not percent-decoded; `path` starts with `/` or is `*`.
    `headers` has lower-case names; a repeated list header is one value joined by `, `.
    `peer` is the client's address as text, or `unix`; `version` is `1.0` or `1.1`.
    """

    method: str
    path: str
    query: bytes
    headers: dict[bytes, bytes]
    peer: str
    version: str


def bad_request(why: str) -> FailedError:
    """The refusal of a request whose bytes cannot be trusted to mean one thing."""
    return refuse(Fault.INVALID_REQUEST, f"This is not a valid HTTP/1.1 request: {why}.")


class HeadReader:
    """Reads one request head, in whatever pieces it comes.

    `field_bytes` bounds each line, `head_bytes` all of it. Once `feed` has returned an offset, `head` is set, `size`
    is the announced length of the body in bytes (0: none, `CHUNKED`: unknown), `keep_alive` says whether the client
    wants the connection kept, `expects_continue` whether it waits for `100 Continue` before it sends the body.
    """

    __slots__ = (
        "_complete",
        "_fields",
        "_half_line",
        "_headers",
        "_parser",
        "_raw",
        "_repeated",
        "expects_continue",
        "field_bytes",
        "head",
        "head_bytes",
        "keep_alive",
        "size",
    )

    def __init__(self, field_bytes: int, head_bytes: int) -> None:
        self.field_bytes = field_bytes
        self.head_bytes = head_bytes
        self.head: RequestHead | None = None
        self.size = 0
        self.keep_alive = False
        self.expects_continue = False
        self._headers: dict[bytes, bytes] = {}
        self._fields = 0
        self._repeated = b""
        self._complete = False
        self._half_line = False
        self._raw = b""
        self._parser = httptools.HttpRequestParser(self)

    @property
    def started(self) -> bool:
        """Whether a byte of the request line was seen; empty lines before it do not count (RFC 9112 2.2)."""
        return bool(self._raw)

    def feed(self, data: bytes) -> int:
        """Take the next bytes, at least one: the offset just behind the head, or -1 while it is incomplete.

        Raises FailedError (400 or 431) for a head that is refused; the reader is spent then.
        """
        raw = self._raw
        start = 0 if raw or (data[0] > 32 and not self._half_line) else self._blank_lines(data)
        if start == len(data):
            return -1
        if raw:
            seam = raw[-3:]
            end = (seam + data).find(_END) - len(seam)
            found = end >= -len(seam)
        else:
            end = data.find(_END, start)
            found = end >= 0
        cut = end + 4 if found else len(data)
        room = self.head_bytes - len(raw)
        if cut - start > room:
            self._parse(data[start : start + room], last=False)
            raise refuse(Fault.HEADER_TOO_LARGE, f"All headers together may have {self.head_bytes} bytes.")
        piece = data[start:cut]
        self._parse(piece, last=found)
        self._raw = raw + piece if raw else piece
        if not found:
            return -1
        self._settle()
        return cut

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header from the parser."""
        self._fields += 1
        if self._fields > MOST_FIELDS:
            return
        name = name.lower()
        value = value.rstrip(b" \t")
        before = self._headers.get(name)
        if before is None:
            self._headers[name] = value
        elif name in _FRAMING or (name in _SINGLE and before != value):
            self._repeated = name
        elif name not in _SINGLE:
            self._headers[name] = before + (b"; " if name == b"cookie" else b", ") + value

    def on_headers_complete(self) -> None:
        """Note that the parser, too, has seen the end of the head."""
        self._complete = True

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

    def _parse(self, piece: bytes, *, last: bool) -> None:
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            if upgrade.args[0] != len(piece):
                raise bad_request("its end is ambiguous") from None
        except httptools.HttpParserError as error:
            raise bad_request(str(error)) from None
        if self._complete != last:
            raise bad_request("its end is ambiguous")

    def _settle(self) -> None:
        raw = self._raw
        if self._fields > MOST_FIELDS:
            raise refuse(Fault.HEADER_TOO_LARGE, f"At most {MOST_FIELDS} header fields are taken.")
        if len(raw) > self.field_bytes and any(len(line) > self.field_bytes for line in raw.split(b"\r\n")):
            raise refuse(Fault.HEADER_TOO_LARGE, f"One header may have {self.field_bytes} bytes.")
        if self._repeated:
            raise bad_request(f"{self._repeated.decode('latin-1')} may be given once only")
        line = raw[: raw.find(b"\r\n")].split(b" ")
        version = _VERSIONS.get(line[-1], "")
        if len(line) != 3 or not version:
            raise bad_request("the request line is not `method target HTTP/1.1`")
        path, query = self._target(line[0], line[1])
        self._check_host(version)
        self._frame(version)
        self.head = RequestHead(
            line[0].decode("ascii"), path.decode("ascii"), query, self._headers, "", version
        )

    def _target(self, method: bytes, target: bytes) -> tuple[bytes, bytes]:
        """Path and query of the request target; RFC 9112 section 3.2."""
        if method == b"CONNECT":
            raise bad_request("CONNECT is not served here")
        origin = _ORIGIN_FORM.fullmatch(target)
        if origin is not None:
            return origin[1], origin[2] or b""
        if target == b"*" and method == b"OPTIONS":
            return target, b""
        absolute = _ABSOLUTE_FORM.fullmatch(target)
        if absolute is None:
            raise bad_request("the target must be a path, percent-encoded and without a fragment")
        if b"host" in self._headers and self._headers[b"host"].lower() != absolute[1].lower():
            raise bad_request("target and Host name different hosts")
        return absolute[2] or b"/", absolute[3] or b""

    def _check_host(self, version: str) -> None:
        host = self._headers.get(b"host")
        if host is None:
            if version == "1.1":
                raise bad_request("Host is missing")
        elif _HOST.fullmatch(host) is None:
            raise bad_request("Host is not a host name")

    def _frame(self, version: str) -> None:
        """Decide where the body ends and what becomes of the connection; RFC 9112 sections 6.3 and 9.3."""
        headers = self._headers
        length = headers.get(b"content-length")
        coding = headers.get(b"transfer-encoding")
        if coding is not None:
            if length is not None:
                raise bad_request("it has both Content-Length and Transfer-Encoding")
            if version == "1.0" or coding.lower() != b"chunked":
                raise bad_request("the only Transfer-Encoding is chunked, in HTTP/1.1")
            self.size = CHUNKED
        elif length is not None:
            if not length.isdigit() or len(length) > 18:
                raise bad_request("Content-Length is not a number")
            self.size = int(length)
        tokens = headers.get(b"connection", b"").lower()
        if version == "1.1":
            self.keep_alive = not (tokens and _has_token(tokens, b"close"))
            self.expects_continue = headers.get(b"expect", b"").lower() == b"100-continue"
        else:
            self.keep_alive = _has_token(tokens, b"keep-alive") and not _has_token(tokens, b"close")


def _has_token(value: bytes, token: bytes) -> bool:
    return token in (item.strip() for item in value.split(b","))
