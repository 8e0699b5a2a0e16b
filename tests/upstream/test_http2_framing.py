"""Which frames are an answer, and which a peer's abuse (FAULTS rows 51 and 52)."""

import asyncio
import resource
from collections.abc import Awaitable, Callable

import pytest
from hpack import Encoder

from moongate.core.faults import Fault, Reach
from tests.upstream.client import failed, outbound, pool2, send
from tests.upstream.conftest import Run
from tests.upstream.raw2 import RawServer2, Stream, answering

DATA, HEADERS, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 5, 6, 7, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
Say = Callable[[Stream], Awaitable[None]]


async def interim(stream: Stream, count: int) -> None:
    for _ in range(count):
        stream.link.h2.send_headers(stream.number, [(":status", "103"), ("link", "</x>")])
    await answering(stream)


async def with_fields(stream: Stream, *fields: tuple[str, str]) -> None:
    await stream.head(200, *fields)
    await stream.piece(b"{}")
    await stream.end()


async def with_length(stream: Stream, length: int) -> None:
    await stream.head(200, ("content-length", str(length)))
    stream.link.frame(DATA, END_STREAM, stream.number, b"four")
    await stream.left()


async def with_trailers(stream: Stream) -> None:
    await stream.head()
    await stream.piece(b"{}")
    stream.link.h2.send_headers(
        stream.number, [("x-api-key", "secret"), ("content-encoding", "br")], end_stream=True
    )
    stream.link.flush()


GOOD: dict[str, Say] = {
    "ten interim answers": lambda stream: interim(stream, 10),
    "trailers": with_trailers,
    "a line break in a field": lambda stream: with_fields(stream, ("x-api-key", "a\r\ny: b")),
    "NUL in a field": lambda stream: with_fields(stream, ("x-api-key", "a\x00b")),
    "1000 fields": lambda stream: with_fields(stream, *[("x", "a")] * 999),
    "a field of 16 KB": lambda stream: with_fields(stream, ("x", "a" * 16_000)),
    "the length that was told": lambda stream: with_length(stream, 4),
}
BAD: dict[str, Say] = {
    "eleven interim answers": lambda stream: interim(stream, 11),
    "1001 fields": lambda stream: with_fields(stream, *[("x", "a")] * 1001),
    "a field of 17 KB": lambda stream: with_fields(stream, ("x", "a" * 17_000)),
    "70 KB of fields": lambda stream: with_fields(stream, *[("x", "a" * 7_000)] * 10),
    "br": lambda stream: with_fields(stream, ("content-encoding", "br")),
    "more than the length": lambda stream: with_length(stream, 3),
    "less than the length": lambda stream: with_length(stream, 5),
    "an upper-case name": lambda stream: crafted(stream, [(":status", "200"), ("X", "a")]),
    "no status": lambda stream: crafted(stream, [("x", "a")]),
    "two statuses": lambda stream: crafted(stream, [(":status", "200"), (":status", "500")]),
    "a field of HTTP/1.1": lambda stream: crafted(
        stream, [(":status", "200"), ("transfer-encoding", "chunked")]
    ),
}


async def crafted(stream: Stream, fields: list[tuple[str, str]]) -> None:
    block = Encoder().encode(fields, huffman=False)
    stream.link.frame(HEADERS, END_HEADERS | END_STREAM, stream.number, block)
    await stream.left()


@pytest.mark.parametrize("name", GOOD)
def test_what_is_an_answer(run: Run, name: str) -> None:
    async def script(stream: Stream) -> None:
        await stream.request()
        await GOOD[name](stream)

    async def main() -> None:
        async with RawServer2(script) as server, pool2(server.port) as transport:
            for _ in range(2):
                ended, sink = await send(transport)
                assert (ended.fault, ended.reach, sink.status) == (None, Reach.HEAD, 200), ended
                assert sink.body in (b"{}", b"four")
                assert b"x-api-key" not in dict(
                    sink.headers
                )  # trailers and fields that may not be are left out
            assert server.opened == 1

    run(main())


@pytest.mark.parametrize("name", BAD)
def test_what_is_none_harms_no_other(run: Run, name: str) -> None:
    async def script(stream: Stream) -> None:
        if await stream.request() == b"bad":
            await BAD[name](stream)
            return
        await stream.head()
        await asyncio.sleep(0.1)
        await stream.piece(b"{}")
        await stream.end()

    async def main() -> None:
        async with RawServer2(script) as server, pool2(server.port) as transport:
            other = asyncio.create_task(send(transport))
            await asyncio.sleep(0.03)
            ended, sink = await send(transport, outbound(b"bad"))
            failed(ended, Fault.KIMI_BAD_RESPONSE)
            assert ended.reach in (Reach.SENT, Reach.HEAD)
            ended, sink = await other
            assert (ended.fault, sink.body, server.opened) == (None, b"{}", 1)

    run(main())


async def flood(stream: Stream, frame: bytes, count: int) -> None:
    for _ in range(count // 100):
        await stream.link.writable.wait()
        if stream.link.transport.is_closing():
            raise ConnectionResetError
        stream.link.raw(frame * 100)
        await asyncio.sleep(0)


def framed(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


async def continuation_flood(stream: Stream) -> None:
    stream.link.frame(HEADERS, 0, stream.number, b"\x88")
    await flood(stream, framed(CONTINUATION, 0, stream.number, b"\x40\x01x" + b"\x7d" + b"a" * 125), 200_000)
    await stream.left()


async def hpack_bomb(stream: Stream) -> None:
    """One field of 4 KB in the dynamic table, referred to again and again."""
    block = b"\x88\x40\x01x" + b"\x7f\x81\x1e" + b"a" * 3968 + b"\xbe" * 12_000
    stream.link.frame(HEADERS, END_HEADERS, stream.number, block)
    await stream.left()


async def raw_text(stream: Stream) -> None:
    stream.link.raw(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    await stream.left()


async def push(stream: Stream) -> None:
    block = Encoder().encode([(":method", "GET"), (":path", "/"), (":scheme", "http"), (":authority", "x")])
    stream.link.frame(PUSH, END_HEADERS, stream.number, (2).to_bytes(4, "big") + block)
    await stream.left()


def sent(kind: int, flags: int, number: int, payload: bytes) -> Say:
    async def say(stream: Stream) -> None:
        stream.link.frame(kind, flags, number if number >= 0 else stream.number, payload)
        await stream.left()

    return say


def flooding(kind: int, flags: int, payload: bytes) -> Say:
    async def say(stream: Stream) -> None:
        await flood(stream, framed(kind, flags, 0, payload), 100_000)
        await stream.left()

    return say


ABUSES: dict[str, Say] = {
    "CONTINUATION flood": continuation_flood,
    "HPACK bomb": hpack_bomb,
    "SETTINGS flood": flooding(SETTINGS, 0, b"\0\3\0\0\0\x64"),
    "PING flood": flooding(PING, 0, b"12345678"),
    "PUSH_PROMISE": push,
    "DATA on stream 0": sent(DATA, 0, 0, b"x"),
    "DATA before a head": sent(DATA, 0, -1, b"x"),
    "HEADERS on a stream of nobody's": sent(HEADERS, END_HEADERS, 1001, b"\x88"),
    "unknown HPACK index": sent(HEADERS, END_HEADERS, -1, b"\xff\xff\x7f"),
    "WINDOW_UPDATE beyond all measure": sent(WINDOW, 0, 0, b"\x7f\xff\xff\xff"),
    "SETTINGS of odd size": sent(SETTINGS, 0, 0, b"abc"),
    "a frame longer than allowed": sent(DATA, 0, -1, b"x" * 100_000),
    "no HTTP/2 at all": raw_text,
}
FLOODS = (
    "SETTINGS flood",
    "PING flood",
)  # answered, as the standard has it; only the exchange's own time ends them


@pytest.mark.parametrize("reused", [False, True])
@pytest.mark.parametrize("name", ABUSES)
def test_an_abuse_ends_the_connection_and_proves_nothing(run: Run, name: str, reused: bool) -> None:
    async def script(stream: Stream) -> None:
        if await stream.request() == b"good":
            await stream.head()
            await stream.piece(b"{}")
            await stream.end()
            return
        await ABUSES[name](stream)

    async def main() -> None:
        async with RawServer2(script) as server, pool2(server.port) as transport:
            if reused:
                await send(transport, outbound(b"good"))
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            patience = 1.0 if name in FLOODS else 5.0
            ended, _ = await send(
                transport, outbound(b"bad", phases={"head": patience, "first_event": patience})
            )
            failed(ended, Fault.KIMI_NETWORK_TIMEOUT if name in FLOODS else Fault.KIMI_BAD_RESPONSE)
            assert ended.reach >= Reach.SENT
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # KB
            assert (await send(transport, outbound(b"good")))[0].fault is None

    run(main())
