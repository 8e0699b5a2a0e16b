"""Which bytes are an HTTP/1.1 answer, and which are not."""

import asyncio
import gzip
import json
import zlib

import h11
import pytest

from moongate.core.faults import Fault, Reach
from moongate.upstream.transport import Headers
from tests.recorded import DATA, needs_data
from tests.upstream.client import Kept, failed, outbound, pool, send
from tests.upstream.conftest import Run
from tests.upstream.raw import Peer, RawServer

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
EMPTY = b"Content-Length: 0\r\n\r\n"
PACKED = gzip.compress(b"hello" * 100)


def gzipped(body: bytes) -> bytes:
    return OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body) + body


NO_ANSWER = {
    "html": b"<html></html>",
    "http09": b"hello",
    "version 2": b"HTTP/2.0 200 OK\r\n" + EMPTY,
    "version 0.9": b"HTTP/0.9 200 OK\r\n" + EMPTY,
    "status 999": b"HTTP/1.1 999 X\r\n" + EMPTY,
    "status 99": b"HTTP/1.1 099 X\r\n" + EMPTY,
    "switching": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "switching, bare": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    "obs-fold": OK + b"X: a\r\n b\r\n" + EMPTY,
    "NUL": OK + b"X: a\x00b\r\n" + EMPTY,
    "bare CR": OK + b"X: a\rb\r\n" + EMPTY,
    "bare LF": OK + b"X: a\nY: b\r\n" + EMPTY,
    "space before colon": OK + b"Content-Length : 0\r\n\r\n",
    "header of 17 KB": OK + b"X: " + b"a" * 17_000 + b"\r\n" + EMPTY,
    "headers of 70 KB": OK + b"X: %b\r\n" % (b"a" * 7_000) * 10 + EMPTY,
    "endless header": OK + b"X: " + b"a" * 700_000,
    "endless reason": b"HTTP/1.1 200 " + b"a" * 700_000,
    "1001 headers": OK + b"X: a\r\n" * 1001 + EMPTY,
    "two lengths": OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "same length twice": OK + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\na",
    "list of lengths": OK + b"Content-Length: 1, 1\r\n\r\na",
    "negative length": OK + b"Content-Length: -1\r\n\r\n",
    "length and chunks": OK + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": OK + b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n",
    "chunked twice": OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "other coding": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked in 1.0": b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "eleven interim answers": b"HTTP/1.1 103 Early Hints\r\n\r\n" * 11 + OK + EMPTY,
    "br": OK + b"Content-Encoding: br\r\n" + EMPTY,
    "zstd": OK + b"Content-Encoding: zstd\r\n" + EMPTY,
    "gzip twice": OK + b"Content-Encoding: gzip, gzip\r\n" + EMPTY,
}
BAD_BODY = {
    "chunk size": CHUNKED + b"xyz\r\n",
    "negative chunk": CHUNKED + b"-1\r\n",
    "huge chunk": CHUNKED + b"FFFFFFFFFFFFFFFFF\r\n",
    "chunk too long": CHUNKED + b"1\r\nab\r\n0\r\n\r\n",
    "bare LF in chunks": CHUNKED + b"1\na\n0\n\n",
    "endless chunk extension": CHUNKED + b"1;" + b"x" * 700_000,
    "endless trailer": CHUNKED + b"1\r\na\r\n0\r\nX: " + b"x" * 700_000,
    "length as a trailer": CHUNKED + b"1\r\na\r\n0\r\nContent-Length: 9\r\n\r\n",
    "another answer": OK + b"Content-Length: 1\r\n\r\na" + OK + EMPTY,
    "bytes after the end": OK + b"Content-Length: 1\r\n\r\nabc",
    "bytes after the last": OK + b"Connection: close\r\nContent-Length: 1\r\n\r\nab",
    "bytes after chunks": CHUNKED + b"1\r\na\r\n0\r\n\r\nmore",
    "no gzip": gzipped(b"hello"),
    "gzip checksum": gzipped(PACKED[:-5] + b"\x00" + PACKED[-4:]),
    "after gzip": gzipped(PACKED + b"x"),
    "after gzip, later": CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    + b"%x\r\n%b\r\n1\r\nx\r\n0\r\n\r\n" % (len(PACKED), PACKED),
    "gzip bomb": gzipped(gzip.compress(bytes(3_000_000))),
}
CUT_SHORT = {
    "length": OK + b"Content-Length: 3\r\n\r\nab",
    "length, no byte": OK + b"Content-Length: 3\r\n\r\n",
    "chunks, no last": CHUNKED + b"1\r\na\r\n",
    "within a chunk": CHUNKED + b"5\r\nab",
    "within the last": CHUNKED + b"1\r\na\r\n0\r\n",
    "within trailers": CHUNKED + b"1\r\na\r\n0\r\nX: y\r\n",
    "gzip": gzipped(PACKED[:-4]),
    "gzip, no byte": gzipped(b""),
}
GOOD = {
    "length": (OK + b"Content-Length: 5\r\n\r\nhello", b"hello"),
    "no body": (OK + EMPTY, b""),
    "chunks": (CHUNKED + b"2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n", b"hello"),
    "trailers": (CHUNKED + b"5\r\nhello\r\n0\r\nX-Api-Key: x\r\nX: y\r\n\r\n", b"hello"),
    "coding in capitals": (OK + b"TRANSFER-ENCODING: Chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", b"a"),
    "no reason": (b"HTTP/1.1 200\r\n" + EMPTY, b""),
    "blank lines before": (
        b"\r\n\r\n" + OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b" % (len(PACKED), PACKED),
        b"hello" * 100,
    ),
    "1.0 with length": (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na", b"a"),
    "ten interim answers": (b"HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n" * 10 + OK + EMPTY, b""),
    "interim, then gzip": (b"HTTP/1.1 100 Continue\r\n\r\n" + gzipped(PACKED), b"hello" * 100),
    "gzip": (gzipped(PACKED), b"hello" * 100),
    "x-gzip": (gzipped(PACKED).replace(b": gzip", b": X-GZIP"), b"hello" * 100),
    "gzip, no bomb": (gzipped(gzip.compress(bytes(1_000_000))), bytes(1_000_000)),
    "identity": (OK + b"Content-Encoding: identity\r\n" + EMPTY, b""),
    "1000 headers": (OK + b"X: a\r\n" * 999 + EMPTY, b""),
    "header of 16 KB": (OK + b"X: " + b"a" * 16_000 + b"\r\n" + EMPTY, b""),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "304": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", b""),
}


def played(run: Run, raw: bytes, *, step: int = 0) -> tuple[list[object], bytes]:
    """What becomes of these bytes, all at once or `step` at a time, when the server closes after them."""
    seen: list[object] = []
    sink = Kept()

    async def script(peer: Peer) -> None:
        await peer.request()
        for at in range(0, len(raw), step or len(raw)):
            await peer.send(raw[at : at + (step or len(raw))])
            if step:
                await asyncio.sleep(0)

    async def main() -> None:
        async with RawServer(script) as server, pool(server.port) as transport:
            ended, _ = await send(transport, sink=sink)
            seen.extend((ended.fault, ended.reach, ended.framed, ended.detail))

    run(main())
    return seen, sink.body


@pytest.mark.parametrize("name", NO_ANSWER)
def test_what_is_no_answer(run: Run, name: str) -> None:
    (fault, reach, _, detail), body = played(run, NO_ANSWER[name])
    assert fault is Fault.KIMI_BAD_RESPONSE, detail
    assert reach is Reach.SENT
    assert body == b""


@pytest.mark.parametrize("name", BAD_BODY)
def test_what_is_no_body(run: Run, name: str) -> None:
    (fault, reach, _, detail), _ = played(run, BAD_BODY[name])
    assert fault is Fault.KIMI_BAD_RESPONSE, detail
    assert reach is Reach.HEAD


@pytest.mark.parametrize("name", CUT_SHORT)
def test_what_is_cut_short_is_never_an_end(run: Run, name: str) -> None:
    (fault, reach, _, detail), _ = played(run, CUT_SHORT[name])
    assert fault is Fault.KIMI_STREAM_TRUNCATED, detail
    assert reach is Reach.HEAD


@pytest.mark.parametrize("step", [0, 1, 7])
@pytest.mark.parametrize("name", GOOD)
def test_what_is_an_answer_however_it_is_cut(run: Run, name: str, step: int) -> None:
    raw, expected = GOOD[name]
    if len(raw) > 5000 and step == 1:
        step = 997
    (fault, reach, framed, detail), body = played(run, raw, step=step)
    assert (fault, reach, framed) == (None, Reach.HEAD, True), detail
    assert body == expected


@pytest.mark.parametrize("head", [OK, b"HTTP/1.0 200 OK\r\n", OK + b"Connection: close\r\n"])
def test_an_end_by_close_is_told_apart(run: Run, head: bytes) -> None:
    (fault, _, framed, _), body = played(run, head + b"Content-Type: text/plain\r\n\r\nhello", step=9)
    assert (fault, framed, body) == (None, False, b"hello")


def test_an_end_by_reset_is_none(run: Run) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK + b"\r\nhello")
        await asyncio.sleep(0.02)
        peer.reset()

    async def main() -> None:
        async with RawServer(script) as server, pool(server.port) as transport:
            failed((await send(transport))[0], Fault.KIMI_STREAM_TRUNCATED)

    run(main())


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (b"", Fault.KIMI_NETWORK_UNREACHABLE),
        (b"HTTP/1.1 200", Fault.KIMI_STREAM_TRUNCATED),
        (OK + b"X: y\r\n", Fault.KIMI_STREAM_TRUNCATED),
        (b"HTTP/1.1 100 Continue\r\n\r\n", Fault.KIMI_NETWORK_UNREACHABLE),
    ],
)
def test_a_close_before_the_head_is_whole(run: Run, raw: bytes, fault: Fault) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(raw)

    async def main() -> None:
        async with RawServer(script) as server, pool(server.port) as transport:
            ended = failed((await send(transport))[0], fault)
            assert ended.reach is Reach.SENT

    run(main())


def test_a_head_request_has_no_body(run: Run) -> None:
    async def script(peer: Peer) -> None:
        head, _ = await peer.request()
        assert head.startswith(b"HEAD /v1/chat/completions HTTP/1.1\r\n")
        assert b"content-length" not in head.lower()
        await peer.send(OK + b"Content-Length: 5\r\n\r\n")
        await peer.gone()

    async def main() -> None:
        async with RawServer(script) as server, pool(server.port) as transport:
            ended, sink = await send(transport, outbound(b"", method=b"HEAD"))
            assert (ended.fault, sink.status, sink.body) == (None, 200, b"")
            assert transport.idle == 0

    run(main())


def test_a_request_is_written_as_it_should_be(run: Run) -> None:
    heads: list[bytes] = []

    async def script(peer: Peer) -> None:
        while True:
            heads.append((await peer.request())[0])
            await peer.answer()

    async def main() -> None:
        async with RawServer(script) as server, pool(server.port) as transport:
            await send(transport, outbound(b"abc"))
            await send(transport, outbound(b""))
            await send(transport, outbound(b"", method=b"GET"))
            ours = b"Authorization: Bearer sk-test\r\nContent-Type: application/json\r\n"
            line = b" /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % server.port
            assert heads == [
                b"POST" + line + ours + b"Content-Length: 3\r\n\r\n",
                b"POST" + line + ours + b"Content-Length: 0\r\n\r\n",
                b"GET" + line + ours + b"\r\n",
            ]

    run(main())


@pytest.mark.parametrize("when", ["head", "data", "decoded"])
def test_a_sink_that_raises_ends_its_exchange_only(run: Run, when: str) -> None:
    class Broken(Kept):
        def head(self, status: int, headers: Headers) -> None:
            super().head(status if when != "head" else status // 0, headers)

        def data(self, chunk: bytes) -> None:
            super().data(chunk[: 1 // 0])

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(gzipped(PACKED) if when == "decoded" else OK + b"Content-Length: 1\r\n\r\na")

    async def main() -> None:
        async with RawServer(script) as server, pool(server.port) as transport:
            ended, _ = await send(transport, sink=Broken())
            failed(ended, Fault.GATEWAY_ERROR)
            assert "ZeroDivisionError" in ended.detail

    run(main())


def vectors() -> list[tuple[bytes, bool]]:
    """Recorded raw answers: the bytes, and whether a strict parser refuses them."""
    found = []
    for vector in json.loads((DATA / "conformance/llhttp_http_vectors.json").read_text("utf-8")):
        other = ("RTSP", "ICE")  # the parser speaks these too, and nobody asks us to
        if json.loads(vector["meta"])["type"] == "response" and not vector["text"].startswith(other):
            text = vector["text"].replace("\\\n", "").replace("\n", "\r\n")
            for escaped, meant in (("\\r", "\r"), ("\\n", "\n"), ("\\t", "\t")):
                text = text.replace(escaped, meant)
            found.append((text.encode(), vector["parser_error"] is not None))
    return found


def second_opinion(raw: bytes) -> bytes | None:
    """The body that h11 reads, None where it reads no whole answer."""
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    reader.send(h11.EndOfMessage())
    reader.receive_data(raw)
    reader.receive_data(b"")
    body = b""
    while True:
        try:
            event = reader.next_event()
        except h11.RemoteProtocolError:
            return None
        if isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            return body


@needs_data
def test_recorded_answers_are_read_as_another_parser_reads_them(run: Run) -> None:
    raws = vectors()
    turn = iter(raws)

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(next(turn)[0])

    async def main() -> None:
        whole = 0
        async with RawServer(script) as server, pool(server.port, max_idle=0) as transport:
            for raw, is_refused in raws:
                ended, sink = await send(transport, outbound(method=b"GET", body=b""))
                if is_refused:
                    assert ended.fault is not None, raw
                if ended.fault is None:
                    whole += 1
                    assert second_opinion(raw) in (sink.body, None), raw
        assert whole > 25

    assert len(raws) > 60
    run(main())


def test_zlib_is_not_gzip(run: Run) -> None:
    (fault, *_), _ = played(run, gzipped(zlib.compress(b"hello")))
    assert fault is Fault.KIMI_BAD_RESPONSE
