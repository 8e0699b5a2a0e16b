"""Bounds on headers and bodies, each with its fault; what a body unpacks to counts as well."""

import gzip
import zlib

import pytest

from tests.edge.test_server import CLOSE, LOOPS, post
from tests.edge.toy import run, serving, settle, statuses


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 16_000 + b"\r\n", 200),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 16_384 + b"\r\n", 431),
        (b"GET /" + b"x" * 16_384 + b" HTTP/1.1\r\nHost: a\r\n", 431),
        (
            b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(b"X%d: %b\r\n" % (n, b"x" * 6000) for n in range(10)),
            200,
        ),
        (
            b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(b"X%d: %b\r\n" % (n, b"x" * 6000) for n in range(11)),
            431,
        ),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(b"X%d: x\r\n" % n for n in range(126)), 200),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(b"X%d: x\r\n" % n for n in range(127)), 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 33554433\r\n", 413),
    ],
)
def test_limits_on_headers_and_announced_bodies(request_: bytes, status: int) -> None:
    async def main() -> None:
        async with serving() as stage:
            answer = await stage.ask(request_ + CLOSE)
            assert statuses(answer) == [status]
            assert b"Connection: close\r\n" in answer

    run(main())


@LOOPS
def test_a_header_without_end_is_refused_at_its_limit(loop: str) -> None:
    async def main() -> None:
        async with serving() as stage:
            client = await stage.client()
            await client.send(b"GET / HTTP/1.1\r\nX: " + b"x" * 65_600)
            assert statuses(await client.rest()) == [431]

    run(main(), loop)


@LOOPS
def test_bodies_are_counted_while_reading(loop: str) -> None:
    async def main() -> None:
        async with serving(body_bytes=1000, held_bytes=1500) as stage:
            chunked = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            assert statuses(await stage.ask(chunked + b"3e8\r\n" + b"x" * 1000 + b"\r\n1\r\nx\r\n")) == [413]
            assert statuses(await stage.ask(post(b"x" * 1001))) == [413]
            assert statuses(await stage.ask(post(b"x" * 1000, b"Connection: close\r\n"))) == [200]
            assert stage.held.used == 0
            first = await stage.client()
            await first.send(post(b"x" * 1000)[:-1])
            await settle(lambda: stage.held.used == 999)
            assert statuses(await stage.ask(post(b"x" * 600))) == [503]
            await first.send(b"x")
            await first.until(b"POST /p")
            await settle(lambda: stage.held.used == 0)

    run(main(), loop)


@LOOPS
def test_gzip_bodies_are_unpacked_and_counted(loop: str) -> None:
    async def main() -> None:
        async with serving(body_bytes=2_000_000, held_bytes=4_000_000) as stage:
            packed = b"Content-Encoding: gzip\r\n"
            client = await stage.client()
            bodies = [b"hello", bytes(range(256)) * 4000, b"x" * 2_000_000]
            for body in bodies:
                await client.send(post(gzip.compress(body), packed))
            await client.until(b"HTTP/1.1 200", 3)
            assert [body for _, body in stage.api.seen] == bodies
            assert stage.held.used == 0
            close = b"Connection: close\r\n"
            assert statuses(await stage.ask(post(gzip.compress(b"x" * 2_000_001), packed, close))) == [413]
            assert statuses(await stage.ask(post(b"", b"Content-Encoding: gzip\r\n", close))) == [200]
            broken = [
                gzip.compress(b"hello")[:-3],
                gzip.compress(b"hello") + b"x",
                b"no gzip at all",
                zlib.compress(b"hello"),
            ]
            for body in broken:
                assert statuses(await stage.ask(post(body, packed, close))) == [400]
            for coding in (b"br", b"deflate", b"gzip, gzip"):
                request = post(b"hello", b"Content-Encoding: %b\r\n" % coding)
                assert statuses(await stage.ask(request)) == [400]
            assert statuses(await stage.ask(post(b"hello", b"Content-Encoding: identity\r\n", close))) == [
                200
            ]

    run(main(), loop)


def test_a_gzip_bomb_stops_at_the_bound_for_all_bodies_too() -> None:
    async def main() -> None:
        async with serving(held_bytes=1_000_000) as stage:
            bomb = post(
                gzip.compress(b"x" * 30_000_000), b"Content-Encoding: gzip\r\n", b"Connection: close\r\n"
            )
            assert statuses(await stage.ask(bomb)) == [503]
            assert stage.held.used == 0

    run(main())
