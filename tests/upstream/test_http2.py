"""What HTTP/2 adds to the contract: streams that share a connection, and every way in which one may end."""

import asyncio
import time

import pytest

from moongate.core.faults import Fault, Reach
from moongate.upstream.transport import Valve
from tests.upstream.client import Kept, failed, outbound, pool2, send, until
from tests.upstream.conftest import Run
from tests.upstream.raw2 import RawServer2, Stream, answering

NO_ERROR, INTERNAL, STREAM_CLOSED, REFUSED, CANCEL, CALM = 0, 2, 5, 7, 8, 11


async def open_stream(stream: Stream) -> None:
    """Answer with a head and an event, and go on for ever."""
    await stream.request()
    await stream.head()
    await stream.piece(b"data: {}\n\n")
    await stream.left()


def test_exchanges_share_one_connection(run: Run) -> None:
    async def main() -> None:
        async with RawServer2(answering) as server, pool2(server.port) as transport:
            ended = [one for one, _ in await asyncio.gather(*(send(transport) for _ in range(100)))]
            assert {each.fault for each in ended} == {None}
            assert sorted(each.reused for each in ended) == [False] + [True] * 99
            assert (server.opened, transport.idle, transport.in_use) == (1, 1, 0)

    run(main())


def test_what_is_sent(run: Run) -> None:
    heads: list[list[tuple[bytes, bytes]]] = []

    async def script(stream: Stream) -> None:
        heads.append(stream.headers)
        await answering(stream)

    async def main() -> None:
        async with RawServer2(script) as server, pool2(server.port) as transport:
            await send(transport, outbound(b"abc"))
            await send(transport, outbound(b""))
            await send(transport, outbound(b"", method=b"GET"))
            line = [
                (b":path", b"/v1/chat/completions"),
                (b":scheme", b"http"),
                (b":authority", b"127.0.0.1:%d" % server.port),
                (b"authorization", b"Bearer sk-test"),
                (b"content-type", b"application/json"),
            ]
            assert [sorted(head) for head in heads] == [
                sorted([(b":method", b"POST"), *line, (b"content-length", b"3")]),
                sorted([(b":method", b"POST"), *line, (b"content-length", b"0")]),
                sorted([(b":method", b"GET"), *line]),
            ]

    run(main())


@pytest.mark.parametrize("variable", ["http_proxy", "HTTPS_PROXY", "ALL_PROXY"])
def test_no_proxy_and_no_netrc_of_the_environment(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: object, variable: str
) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:1")
    monkeypatch.setenv("HOME", str(tmp_path))

    async def main() -> None:
        async with RawServer2(answering) as server, pool2(server.port) as transport:
            assert (await send(transport))[0].fault is None

    run(main())


@pytest.mark.parametrize("together", [False, True])
def test_a_refused_stream_was_not_executed(run: Run, together: bool) -> None:
    executed = 0

    async def script(stream: Stream) -> None:
        nonlocal executed
        if await stream.request() == b"refuse":
            stream.reset(REFUSED)
            return
        executed += 1
        await stream.head()
        await asyncio.sleep(0.1)
        await stream.end()

    async def main() -> None:
        async with RawServer2(script) as server, pool2(server.port) as transport:
            await send(transport)
            other = asyncio.create_task(send(transport)) if together else None
            await asyncio.sleep(0.02)
            ended, sink = await send(transport, outbound(b"refuse"))
            failed(ended, Fault.KIMI_STREAM_REFUSED)
            assert (ended.reach, sink.status) == (Reach.NOTHING_SENT, 0)
            if other is not None:
                assert (await other)[0].fault is None
            assert executed == 1 + together
            assert (await send(transport))[0].fault is None

    run(main())


@pytest.mark.parametrize("error", [INTERNAL, CANCEL, CALM, NO_ERROR])
@pytest.mark.parametrize("after", ["request", "head", "data"])
def test_a_reset_stream_harms_no_other(run: Run, error: int, after: str) -> None:
    async def script(stream: Stream) -> None:
        if await stream.request() == b"whole":
            await stream.head()
            for _ in range(10):
                await stream.piece(b"x")
                await asyncio.sleep(0.01)
            await stream.end()
            return
        if after != "request":
            await stream.head()
        if after == "data":
            await stream.piece(b"x")
        await asyncio.sleep(0.03)
        stream.reset(error)

    async def main() -> None:
        async with RawServer2(script) as server, pool2(server.port) as transport:
            whole = asyncio.create_task(send(transport, outbound(b"whole")))
            await asyncio.sleep(0.02)
            ended, sink = await send(transport)
            if after != "request" and error == NO_ERROR:  # which libcurl does not tell from an end
                assert (ended.fault, ended.framed, sink.body) == (None, False, b"x" * (after == "data"))
            elif after == "request":
                failed(
                    ended, Fault.KIMI_BAD_RESPONSE if error == NO_ERROR else Fault.KIMI_NETWORK_UNREACHABLE
                )
                assert ended.reach is Reach.SENT
            else:
                failed(ended, Fault.KIMI_STREAM_TRUNCATED)
                assert (ended.reach, sink.body) == (Reach.HEAD, b"x" * (after == "data"))
            other, kept = await whole
            assert (other.fault, kept.body, server.opened) == (None, b"x" * 10, 1)

    run(main())


@pytest.mark.parametrize("error", [NO_ERROR, CALM])
def test_goaway_with_live_streams(run: Run, error: int) -> None:
    """FAULTS row 45: streams up to the last named one finish, the others were never begun."""
    count, said = 200, asyncio.Event()
    executed: list[int] = []

    async def script(stream: Stream) -> None:
        await stream.request()
        if stream.link is server.links[0] and stream.number > count:
            if stream.number == 2 * count - 1:
                stream.link.goaway(count - 1, error)
                said.set()
            return
        executed.append(stream.number)
        await stream.head()
        await said.wait()
        await stream.piece(b"{}")
        await stream.end()

    server = RawServer2(script)

    async def main() -> None:
        async with server, pool2(server.port) as transport:
            results = await asyncio.gather(*(send(transport) for _ in range(count)))
            faults = [ended.fault for ended, _ in results]
            assert faults.count(None) == count // 2
            assert faults.count(Fault.KIMI_STREAM_REFUSED) == count // 2
            assert {ended.reach for ended, _ in results if ended.fault} == {Reach.NOTHING_SENT}
            assert len(executed) == count // 2
            began = time.monotonic()
            assert (await send(transport))[0].fault is None
            assert time.monotonic() - began < 5
            assert server.opened == 2

    run(main())


def test_goaway_sends_new_exchanges_elsewhere_at_once(run: Run) -> None:
    async def script(stream: Stream) -> None:
        if stream.link is not server.links[0]:
            await answering(stream)
            return
        await stream.request()
        await stream.head()
        stream.link.goaway(stream.number)
        await stream.left()

    server = RawServer2(script)

    async def main() -> None:
        async with server, pool2(server.port) as transport:
            sink = Kept()
            live = asyncio.create_task(transport.exchange(outbound(), sink))
            await until(lambda: sink.status == 200)
            await asyncio.sleep(0.02)
            ended, _ = await send(transport)
            assert (ended.fault, server.opened) == (None, 2)
            assert not live.done()
            live.cancel()
            await asyncio.wait([live])

    run(main())


@pytest.mark.parametrize("how", ["close", "goaway"])
def test_an_idle_connection_that_the_peer_closed_is_passed_over(run: Run, how: str) -> None:
    async def main() -> None:
        async with RawServer2(answering) as server, pool2(server.port) as transport:
            for turn in range(3):
                ended, _ = await send(transport)
                assert (ended.fault, ended.reused) == (None, False)
                link = server.links[turn]
                if how == "goaway":
                    link.goaway(1)
                link.transport.close()
                await asyncio.sleep(0.02)
            assert server.opened == 3
            await until(lambda: transport.idle == 0)

    run(main())


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("how", ["cut", "cancel"])
def test_who_leaves_harms_no_other(run: Run, how: str, inside: bool) -> None:
    codes: list[int | None] = []

    async def script(stream: Stream) -> None:
        if await stream.request() == b"leave":
            await stream.head()
            await stream.piece(b"x")
            await stream.left()
            codes.append(stream.error)
            return
        await stream.head()
        for _ in range(20):
            await stream.piece(b"x")
            await asyncio.sleep(0.01)
        await stream.end()

    async def main() -> None:
        async with RawServer2(script) as server, pool2(server.port) as transport:
            whole = asyncio.create_task(send(transport))
            await asyncio.sleep(0.02)
            sink = Kept(lambda sink, _: sink.held.cut(None) if inside and how == "cut" else None)
            leaver = asyncio.create_task(transport.exchange(outbound(b"leave"), sink))
            await until(lambda: bool(sink.pieces))
            if how == "cancel":
                leaver.cancel()
            elif not inside:
                sink.held.cut(None)
            await asyncio.wait([leaver])
            await until(lambda: codes == [STREAM_CLOSED])
            ended, kept = await whole
            assert (ended.fault, len(kept.body), server.opened) == (None, 20, 1)

    run(main())


def test_a_sink_that_will_not_begin_harms_no_other(run: Run) -> None:
    class Unwilling(Kept):
        def open(self, valve: Valve) -> None:
            super().open(valve)
            self.held.cut(Fault.LEDGER_UNAVAILABLE)

    async def main() -> None:
        async with RawServer2(open_stream) as server, pool2(server.port) as transport:
            sink = Kept()
            live = asyncio.create_task(transport.exchange(outbound(), sink))
            await until(lambda: bool(sink.pieces))
            ended, _ = await send(transport, sink=Unwilling())
            assert (ended.fault, ended.reach) == (Fault.LEDGER_UNAVAILABLE, Reach.NOTHING_SENT)
            await asyncio.sleep(0.05)
            assert not live.done()
            assert server.opened == 1
            live.cancel()
            await asyncio.wait([live])

    run(main())
