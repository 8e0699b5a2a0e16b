"""Requests as bytes, good and bad, and a reader of whole connections put together from the core's parts."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from moongate.core.bodies import ChunkedBody, SizedBody
from moongate.core.faults import FailedError, Fault
from moongate.core.heads import CHUNKED, HeadReader, RequestHead

HEAD = b"POST /v1/chat/completions?a=b HTTP/1.1\r\nHost: a:80\r\n"
CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n"

GOOD = {
    "plain": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "sized": HEAD + b"Content-Length: 5\r\n\r\nhello",
    "chunked": HEAD + CHUNKS + b'5\r\nhello\r\n006;a="b;\\"";c\r\n world\r\n0;x=1\r\nT: 1\r\nU:\r\n\r\n',
    "pipelined": b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\n"
    + HEAD
    + b"Content-Length: 2\r\n\r\nhi\r\n\r\nGET /3 HTTP/1.1\r\nHost: a\r\n\r\n",
    "upgrade": HEAD
    + b"Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 4\r\n\r\nabcdGET /2 HTTP/1.1\r\nHost: a\r\n\r\n",
    "old": b"GET / HTTP/1.0\r\n\r\n",
    "blank lines first": b"\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "absolute": b"GET http://A:80/b?c HTTP/1.1\r\nHost: a:80\r\n\r\n",
    "options": b"OPTIONS * HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
}

BAD = {
    "two lengths": HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "same length twice": HEAD + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "length list": HEAD + b"Content-Length: 5, 5\r\n\r\nhello",
    "signed length": HEAD + b"Content-Length: +5\r\n\r\nhello",
    "hex length": HEAD + b"Content-Length: 0x5\r\n\r\nhello",
    "empty length": HEAD + b"Content-Length:\r\n\r\nhello",
    "huge length": HEAD + b"Content-Length: 9999999999999999999999\r\n\r\n",
    "length of nineteen digits": HEAD + b"Content-Length: 0000000000000000005\r\n\r\nhello",
    "length and chunked": HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked and length": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "chunked in 1.0": b"POST / HTTP/1.0\r\nHost: a\r\n" + CHUNKS + b"0\r\n\r\n",
    "unknown coding": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "identity coding": HEAD + b"Transfer-Encoding: identity\r\n\r\n",
    "almost chunked": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "tab before chunked is fine, vertical tab is not": HEAD
    + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "chunked twice": HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "empty coding": HEAD + b"Transfer-Encoding:\r\n\r\n",
    "space before colon": HEAD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "same host twice": b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
    "empty host": b"GET / HTTP/1.1\r\nHost:\r\n\r\n",
    "host list": b"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n",
    "host with path": b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
    "host with user": b"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n",
    "obs-fold": b"GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\n 2\r\n\r\n",
    "fold at once": b"GET / HTTP/1.1\r\n Host: a\r\n\r\n",
    "bare LF": b"GET / HTTP/1.1\nHost: a\n\n",
    "bare LF in a header": b"GET / HTTP/1.1\r\nHost: a\nX: 1\r\n\r\n",
    "bare LF at the end": b"GET / HTTP/1.1\r\nHost: a\r\n\n",
    "bare CR": b"GET / HTTP/1.1\r\nHost: a\rX: 1\r\n\r\n",
    "bare CR before": b"\rGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "bare LF before": b"\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "space before": b" GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "NUL in a value": b"GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n",
    "NUL in a name": b"GET / HTTP/1.1\r\nHost: a\r\nX\0: a\r\n\r\n",
    "NUL in the target": b"GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n",
    "control byte": b"GET / HTTP/1.1\r\nHost: a\r\nX: \x1b[1m\r\n\r\n",
    "delete byte": b"GET / HTTP/1.1\r\nHost: a\r\nX: \x7f\r\n\r\n",
    "no name": b"GET / HTTP/1.1\r\nHost: a\r\n: a\r\n\r\n",
    "no colon": b"GET / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n",
    "CONNECT": b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
    "CONNECT to a path": b"CONNECT / HTTP/1.1\r\nHost: a:443\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\nHost: a\r\n\r\n",
    "HTTP/2": b"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
    "other protocol": b"OPTIONS / RTSP/1.0\r\nHost: a\r\n\r\n",
    "unknown method": b"FOO / HTTP/1.1\r\nHost: a\r\n\r\n",
    "lower-case method": b"get / HTTP/1.1\r\nHost: a\r\n\r\n",
    "two spaces": b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
    "tab": b"GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "space at the end": b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n",
    "fragment": b"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n",
    "asterisk": b"GET * HTTP/1.1\r\nHost: a\r\n\r\n",
    "no slash": b"GET a HTTP/1.1\r\nHost: a\r\n\r\n",
    "high bytes in the target": b"GET /\xc3\xa4 HTTP/1.1\r\nHost: a\r\n\r\n",
    "other scheme": b"GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "user in the target": b"GET http://u:p@a/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "target of another host": b"GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "two keys": HEAD + b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
    "two ids": HEAD + b"X-Request-Id: a\r\nX-Request-Id: b\r\n\r\n",
    "TLS": b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03",
    "chunk size with sign": HEAD + CHUNKS + b"+5\r\nhello\r\n0\r\n\r\n",
    "chunk size with prefix": HEAD + CHUNKS + b"0x5\r\nhello\r\n0\r\n\r\n",
    "chunk size with underscore": HEAD + CHUNKS + b"0_5\r\nhello\r\n0\r\n\r\n",
    "chunk size with space": HEAD + CHUNKS + b"5 \r\nhello\r\n0\r\n\r\n",
    "chunk size of nine digits": HEAD + CHUNKS + b"000000005\r\nhello\r\n0\r\n\r\n",
    "chunk size empty": HEAD + CHUNKS + b"\r\nhello\r\n0\r\n\r\n",
    "chunk size line with bare LF": HEAD + CHUNKS + b"5\nhello\r\n0\r\n\r\n",
    "chunk extension with CR": HEAD + CHUNKS + b"5;a\rb\r\nhello\r\n0\r\n\r\n",
    "chunk extension without name": HEAD + CHUNKS + b"5;\r\nhello\r\n0\r\n\r\n",
    "chunk extension too long": HEAD + CHUNKS + b"5;a=" + b"b" * 300 + b"\r\nhello\r\n0\r\n\r\n",
    "chunk longer than said": HEAD + CHUNKS + b"4\r\nhello\r\n0\r\n\r\n",
    "chunk with bare LF behind": HEAD + CHUNKS + b"5\r\nhello\n0\r\n\r\n",
    "chunk with CR and no LF behind": HEAD + CHUNKS + b"5\r\nhello\rX0\r\n\r\n",
    "trailer without colon": HEAD + CHUNKS + b"0\r\nX\r\n\r\n",
    "trailer with bare LF": HEAD + CHUNKS + b"0\r\nX: 1\n\r\n",
    "trailer with space before colon": HEAD + CHUNKS + b"0\r\nX : 1\r\n\r\n",
    "trailers too long": HEAD + CHUNKS + b"0\r\n" + b"X: 1234567890\r\n" * 600 + b"\r\n",
}


@dataclass
class Read:
    """What was read from one connection's bytes: requests in order, and the fault that ended it, if any."""

    requests: list[tuple[RequestHead, bytes]] = field(default_factory=list)
    fault: Fault | None = None
    unfinished: bool = False


def read(
    pieces: Iterable[bytes], field_bytes: int = 16_384, head_bytes: int = 65_536, *, anew: bool = False
) -> Read:
    """Read a connection's bytes as they come; after a refusal nothing is read any more.

    `anew`: with a new reader for each head, else with the same one where it says that it may be.
    """
    result = Read()
    reader = HeadReader(field_bytes, head_bytes)
    body: SizedBody | ChunkedBody | None = None
    whole = b""
    try:
        for piece in pieces:
            data = piece
            while data:
                if body is None:
                    end = reader.feed(data)
                    if end < 0:
                        break
                    data, whole = data[end:], b""
                    assert reader.head is not None
                    body = ChunkedBody() if reader.head.size == CHUNKED else SizedBody(reader.head.size)
                if data and not body.done:
                    part, used = body.feed(data)
                    data = data[used:]
                    whole += part
                if body.done:
                    assert reader.head is not None
                    result.requests.append((reader.head, whole))
                    if anew or not reader.pass_over(whole):
                        reader = HeadReader(field_bytes, head_bytes)
                    body = None
    except FailedError as error:
        result.fault = error.failure.fault
    result.unfinished = result.fault is None and (reader.started or body is not None)
    return result


def two_way_splits(data: bytes) -> Iterable[list[bytes]]:
    """Every way to cut these bytes into two reads."""
    return ([data[:cut], data[cut:]] for cut in range(1, len(data)))
