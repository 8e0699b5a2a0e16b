"""What a client sees of the server: answers, order, connection life, limits."""

import asyncio
import socket
from pathlib import Path

import pytest

from moongate.core.faults import Fault
from moongate.edge.server import RequestHead
from moongate.flow.downstream import Downstream
from tests.edge.toy import PLAIN, STREAM, echo, run, serving, settle, statuses, turns

LOOPS = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
GET = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n"
CLOSE = b"Connection: close\r\n\r\n"


def post(body: bytes, *lines: bytes) -> bytes:
    return b"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n%b\r\n%b" % (
        len(body),
        b"".join(lines),
        body,
    )


@LOOPS
def test_a_request_is_answered_and_the_connection_kept(loop: str) -> None:
    async def main() -> None:
        async with serving() as stage:
            client = await stage.client()
            for number in range(3):
                await client.send(post(b"body %d" % number))
                await client.until(b"body %d" % number)
            head, _, body = bytes(client.got).partition(b"\r\n\r\n")
            assert head.split(b"\r\n") == [
                b"HTTP/1.1 200 OK",
                b"Content-Type: text/plain",
                b"Date: Sun, 06 Nov 1994 08:49:37 GMT",
                b"Content-Length: 14",
            ]
            assert body.startswith(b"POST /p body 0" + head)
            assert b"Server" not in client.got
            assert [head.peer for head, _ in stage.api.seen] == ["127.0.0.1"] * 3

    run(main(), loop)


@LOOPS
def test_unix_sockets_are_served(loop: str, tmp_path: Path) -> None:
    async def main() -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        async with serving(listener=listener) as stage:
            assert statuses(await stage.ask(b"GET / HTTP/1.1\r\nHost: a\r\n" + CLOSE)) == [200]
            assert stage.api.seen[0][0].peer == "unix"

    run(main(), loop)


@LOOPS
def test_pipelined_requests_are_answered_in_order_one_at_a_time(loop: str) -> None:
    running = 0

    async def slow(head: RequestHead, body: bytes, down: Downstream) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0.001)
        running -= 1
        await echo(head, body, down)

    async def main() -> None:
        async with serving(slow) as stage:
            client = await stage.client()
            await client.send(b"".join(post(b"n%d." % number) for number in range(50)))
            await client.until(b"n49.")
            assert [body for _, body in stage.api.seen] == [b"n%d." % number for number in range(50)]
            assert [client.got.index(b"n%d." % n) for n in range(50)] == sorted(
                client.got.index(b"n%d." % n) for n in range(50)
            )

    run(main(), loop)


@LOOPS
def test_pipelined_bytes_are_bounded(loop: str) -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def wait(head: RequestHead, body: bytes, down: Downstream) -> None:
            await go.wait()
            await echo(head, body, down)

        async with serving(wait) as stage:
            client = await stage.client()
            sender = asyncio.create_task(client.send(GET + post(b"x" * 4_000_000) + GET))
            await settle(lambda: stage.server.active)
            await asyncio.sleep(0.05)
            assert 65_536 < len(stage.connection._pending) < 65_536 + 262_145
            assert not sender.done()
            go.set()
            await sender
            await client.until(b"GET /a", 2)
            assert [len(body) for _, body in stage.api.seen] == [0, 4_000_000, 0]

    run(main(), loop)


@LOOPS
def test_answers_that_nobody_reads_stop_the_parsing_of_more_requests(loop: str) -> None:
    async def big(_head: RequestHead, _body: bytes, down: Downstream) -> None:
        down.respond(PLAIN, b"x" * 1_000_000)

    async def main() -> None:
        async with serving(big) as stage:
            client = await stage.client()
            await client.send(GET * 40)
            await asyncio.sleep(0.05)
            assert len(stage.api.seen) < 20
            while len(client.got) < 40_000_000:
                await client.some(1 << 20)
            await settle(lambda: len(stage.api.seen) == 40)

    run(main(), loop)


@LOOPS
def test_expect_is_answered_after_the_key_was_found_good(loop: str) -> None:
    async def main() -> None:
        async with serving() as stage:
            client = await stage.client()
            head, _, body = post(b"hello", b"Expect: 100-Continue\r\n").partition(b"\r\n\r\n")
            await client.send(head + b"\r\n\r\n")
            assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            await client.send(body)
            await client.until(b"hello")
            refused = post(b"hello", b"Expect: 100-continue\r\n", b"Authorization: Bearer bad\r\n")
            answer = await stage.ask(refused.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
            assert statuses(answer) == [401]
            assert b"Connection: close" in answer

    run(main(), loop)


@pytest.mark.parametrize(
    "request_", [post(b"hello", b"Expect: 100-continue\r\n"), post(b"", b"Expect: 100-continue\r\n")]
)
def test_no_continue_where_nothing_is_waited_for(request_: bytes) -> None:
    async def main() -> None:
        async with serving() as stage:
            client = await stage.client()
            await client.send(request_)
            await client.until(b"POST /p")
            assert statuses(client.got) == [200]

    run(main())


@LOOPS
def test_head_gets_the_headers_of_get_and_no_body(loop: str) -> None:
    async def main() -> None:
        async with serving() as stage:
            client = await stage.client()
            await client.send(b"HEAD /abc HTTP/1.1\r\nHost: a\r\n\r\n" + GET)
            await client.until(b"GET /a")
            first, _, second = client.got.partition(b"\r\n\r\n")
            assert b"Content-Length: 10" in first
            assert second.startswith(b"HTTP/1.1 200")

    run(main(), loop)


def test_head_of_a_stream_has_no_body_either() -> None:
    async def stream(_head: RequestHead, _body: bytes, down: Downstream) -> None:
        down.start(STREAM)
        down.write(b"one")
        down.write(b"two")
        down.end()

    async def main() -> None:
        async with serving(stream) as stage:
            answer = await stage.ask(b"HEAD / HTTP/1.1\r\nHost: a\r\n" + CLOSE)
            assert answer.endswith(b"Connection: close\r\n\r\n")

    run(main())


@LOOPS
def test_chunked_requests_and_their_trailers(loop: str) -> None:
    async def main() -> None:
        async with serving() as stage:
            client = await stage.client()
            head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-Late\r\n\r\n"
            await client.send(
                head + b"5\r\nhello\r\n6;a=b\r\n world\r\n0\r\nX-Late: 1\r\nContent-Length: 3\r\n\r\n" + GET
            )
            await client.until(b"GET /a")
            (first, body), (second, _) = stage.api.seen
            assert body == b"hello world"
            assert not {b"x-late", b"content-length"} & (first.headers.keys() | second.headers.keys())

    run(main(), loop)


def test_a_great_many_tiny_chunks_do_not_stop_the_loop() -> None:
    async def main() -> None:
        async with serving() as stage:
            client = await stage.client()
            await client.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
            await client.send(b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n" + GET)
            await client.until(b"GET /a")
            assert stage.api.seen[0][1] == b"x" * 100_000

    run(main())


@LOOPS
def test_http_1_0_closes_unless_asked_and_ends_streams_by_closing(loop: str) -> None:
    async def stream(head: RequestHead, body: bytes, down: Downstream) -> None:
        if head.path != "/stream":
            await echo(head, body, down)
            return
        down.start(STREAM)
        down.write(b"one,")
        down.write(b"two")
        down.end()

    async def main() -> None:
        async with serving(stream) as stage:
            answer = await stage.ask(b"GET /x HTTP/1.0\r\n\r\n")
            assert b"Connection: close\r\n" in answer
            client = await stage.client()
            await client.send(b"GET /x HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n")
            assert b"Connection: keep-alive\r\n" in await client.until(b"GET /x")
            await client.send(b"GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + GET)
            streamed = (await client.rest()).partition(b"GET /x")[2]
            assert streamed.endswith(b"Connection: close\r\n\r\none,two")
            assert b"chunked" not in streamed
            assert len(stage.api.seen) == 3

    run(main(), loop)


@LOOPS
def test_streams_are_chunked_and_the_head_leaves_with_the_first_chunk(loop: str) -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def stream(_head: RequestHead, _body: bytes, down: Downstream) -> None:
            down.start(STREAM)
            await go.wait()
            started = [down.started]
            down.write(b"one")
            assert [*started, down.started] == [False, True]
            down.write(b"")
            down.write(b"two")
            down.end()
            down.write(b"late")
            down.end()

        async with serving(stream) as stage:
            client = await stage.client()
            await client.send(GET)
            await settle(lambda: stage.server.active)
            await turns()
            with pytest.raises(BlockingIOError):
                client.sock.recv(1)
            go.set()
            answer = await client.until(b"0\r\n\r\n")
            assert answer.partition(b"\r\n\r\n")[2] == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"

    run(main(), loop)


@LOOPS
def test_a_stream_that_waits_goes_on_when_its_reader_does(loop: str) -> None:
    async def stream(_head: RequestHead, _body: bytes, down: Downstream) -> None:
        down.start(STREAM)
        down.write(b"x" * 20_000_000)
        await down.drain()
        down.write(b"the end")
        down.end()
        await down.drain()

    async def main() -> None:
        async with serving(stream) as stage:
            client = await stage.client()
            await client.send(GET)
            await settle(lambda: stage.api.downs and not stage.api.downs[0].ready)
            while not client.got.endswith(b"the end\r\n0\r\n\r\n"):
                await client.some(1 << 20)
            await settle(lambda: stage.server.active == 0)

    run(main(), loop)


def test_an_empty_stream_and_an_answer_without_body_are_whole_answers() -> None:
    async def answer(head: RequestHead, _body: bytes, down: Downstream) -> None:
        if head.path == "/empty":
            down.start(STREAM)
            down.end()
        else:
            down.respond(type(PLAIN)(204, b""), b"ignored")
            down.respond(PLAIN, b"a second answer is none")

    async def main() -> None:
        async with serving(answer) as stage:
            client = await stage.client()
            await client.send(b"GET /empty HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await client.until(b"0\r\n\r\n")).endswith(b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
            await client.send(b"GET /none HTTP/1.1\r\nHost: a\r\n" + CLOSE)
            none = (await client.rest()).partition(b"0\r\n\r\n")[2]
            assert none.startswith(b"HTTP/1.1 204 No Content\r\n")
            assert b"Length" not in none
            assert none.endswith(CLOSE)

    run(main())


def test_a_refusal_of_the_key_keeps_the_connection_unless_a_body_was_announced() -> None:
    async def main() -> None:
        async with serving() as stage:
            client = await stage.client()
            bad = b"Authorization: Bearer bad\r\n"
            await client.send(
                GET.replace(b"\r\n\r\n", b"\r\n" + bad + b"\r\n") + GET + post(b"x" * 100, bad) + GET
            )
            assert statuses(await client.rest()) == [401, 200, 401]
            assert b"WWW-Authenticate: Bearer" in client.got
            assert stage.server.refused == {Fault.UNAUTHENTICATED: 2}
            assert len(stage.api.seen) == 1

    run(main())


@LOOPS
def test_a_refusal_reaches_a_client_that_is_still_sending(loop: str) -> None:
    async def main() -> None:
        async with serving() as stage:
            client = await stage.client()
            sender = asyncio.create_task(
                client.send(post(b"x" * 30_000_000, b"Authorization: Bearer bad\r\n"))
            )
            assert statuses(await client.rest()) == [401]
            await sender
            assert not stage.api.seen

    run(main(), loop)


def test_errors_of_the_gateway_itself() -> None:
    async def broken(head: RequestHead, _body: bytes, down: Downstream) -> None:
        if head.path == "/started":
            down.start(STREAM)
            down.write(b"one")
        if head.path == "/held-head":
            down.start(STREAM)
        if head.path == "/unfinished":
            return
        raise ZeroDivisionError

    async def main() -> None:
        async with serving(broken) as stage:
            for path in (b"/at-once", b"/held-head", b"/unfinished", b"/broken-screen"):
                answer = await stage.ask(b"GET %b HTTP/1.1\r\nHost: a\r\n" % path + CLOSE)
                assert statuses(answer) == [500]
                assert b"gateway_error" in answer
            answer = await stage.ask(b"GET /started HTTP/1.1\r\nHost: a\r\n\r\n")
            assert answer.endswith(b"3\r\none\r\n")
            assert await stage.ask(b"GET /broken-render HTTP/1.1\r\nHost: a\r\n\r\n") == b""

    run(main())


def test_a_failure_raised_by_the_api_is_rendered() -> None:
    async def refuse_it(_head: RequestHead, _body: bytes, _down: Downstream) -> None:
        from moongate.core.faults import refuse  # noqa: PLC0415 - for this one test

        raise refuse(Fault.MODEL_NOT_FOUND)

    async def main() -> None:
        async with serving(refuse_it) as stage:
            client = await stage.client()
            await client.send(post(b"x"))
            await client.until(b"model_not_found")
            await client.send(post(b"x"))
            assert statuses(await client.until(b"model_not_found", 2)) == [404, 404]

    run(main())
