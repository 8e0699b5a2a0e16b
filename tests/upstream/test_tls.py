"""Whom the transport trusts over TLS, and what a refusal means."""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from moongate.core.faults import Fault, Reach
from moongate.upstream.http1 import Http1
from moongate.upstream.origin import Origin
from moongate.upstream.transport import Phase
from tests.upstream.certificates import Authority
from tests.upstream.client import Kept, failed, outbound, pool, send, until
from tests.upstream.conftest import Run
from tests.upstream.raw import Peer, RawServer, serving


def test_a_trusted_server(run: Run, authority: Authority) -> None:
    async def main() -> None:
        async with (
            RawServer(serving, authority.server("127.0.0.1")) as server,
            pool(server.port, tls=True, ca_file=authority.ca_file) as transport,
        ):
            for turn in range(3):
                ended, sink = await send(transport, outbound(b"x" * 3_000_000))
                assert (ended.fault, ended.reused, sink.body) == (None, turn > 0, b"{}")
            await asyncio.gather(*(send(transport) for _ in range(20)))
            assert transport.idle == 20

    run(main())


def test_the_name_that_is_asked_for(run: Run, authority: Authority) -> None:
    names: list[str | None] = []

    async def main() -> None:
        context = authority.server("kimi.test")
        context.sni_callback = lambda _, name, __: names.append(name)
        async with (
            RawServer(serving, context) as server,
            pool(server.port, tls=True, ca_file=authority.ca_file, server_name="kimi.test") as transport,
        ):
            assert (await send(transport))[0].fault is None
        assert names == ["kimi.test"]

    run(main())


@pytest.mark.parametrize(
    ("why", "served"),
    [
        ("wrong_name", lambda ours, _: ours.server("other.test")),
        ("unknown_ca", lambda _, stranger: stranger.server("127.0.0.1")),
        ("expired", lambda ours, _: ours.server("127.0.0.1", expired=True)),
    ],
)
def test_who_is_refused(
    run: Run,
    authority: Authority,
    stranger: Authority,
    why: str,
    served: Callable[[Authority, Authority], ssl.SSLContext],
) -> None:
    async def main() -> None:
        async with (
            RawServer(serving, served(authority, stranger)) as server,
            pool(server.port, tls=True, ca_file=authority.ca_file) as transport,
        ):
            ended, sink = await send(transport)
            failed(ended, Fault.KIMI_TLS_REFUSED)
            assert (ended.reach, ended.phase, sink.opened) == (Reach.NOTHING_SENT, Phase.TLS, 0), why
            assert ended.detail.startswith("tls: ")
            assert transport.place.refused == {why: 1}

    run(main())


def test_no_system_certificate_vouches_for_ours(run: Run, authority: Authority) -> None:
    async def main() -> None:
        async with (
            RawServer(serving, authority.server("127.0.0.1")) as server,
            pool(server.port, tls=True) as transport,
        ):
            failed((await send(transport))[0], Fault.KIMI_TLS_REFUSED)

    run(main())


async def silent(peer: Peer) -> None:
    await peer.gone()


async def plain(peer: Peer) -> None:
    await peer.byte()
    await peer.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    await peer.gone()


async def too_old(peer: Peer) -> None:
    """Speak TLS 1.0 only: a fatal alert, protocol_version (RFC 5246 section 7.2)."""
    await peer.byte()
    await peer.send(bytes.fromhex("15 0301 0002 02 46"))
    await peer.gone()


async def hanging_up(peer: Peer) -> None:
    await peer.byte()


async def resetting(peer: Peer) -> None:
    await asyncio.sleep(0.02)
    peer.reset()


@pytest.mark.parametrize(
    ("script", "fault", "reason"),
    [
        (silent, Fault.KIMI_NETWORK_TIMEOUT, ""),
        (plain, Fault.KIMI_TLS_REFUSED, "other"),
        (too_old, Fault.KIMI_TLS_REFUSED, "version"),
        (hanging_up, Fault.KIMI_NETWORK_UNREACHABLE, ""),
        (resetting, Fault.KIMI_NETWORK_UNREACHABLE, ""),
    ],
)
def test_handshakes_that_fail(
    run: Run, authority: Authority, script: Callable[[Peer], Awaitable[None]], fault: Fault, reason: str
) -> None:
    async def main() -> None:
        async with (
            RawServer(script) as server,
            pool(server.port, tls=True, ca_file=authority.ca_file) as transport,
        ):
            began = time.monotonic()
            ended, _ = await send(transport, outbound(phases={"tls": 0.3}))
            failed(ended, fault)
            assert (ended.reach, ended.phase) == (Reach.NOTHING_SENT, Phase.TLS)
            assert transport.place.refused == ({reason: 1} if reason else {})
            assert time.monotonic() - began < 0.6

    run(main())


def test_cancelling_a_handshake_closes_at_once(run: Run, authority: Authority) -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.gone()
        left.set()

    async def main() -> None:
        async with (
            RawServer(script) as server,
            pool(server.port, tls=True, ca_file=authority.ca_file) as transport,
        ):
            task = asyncio.create_task(transport.exchange(outbound(), Kept()))
            await until(lambda: server.opened > 0)
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(left.wait(), 1)
            await until(lambda: transport.in_use == 0)

    run(main())


def test_closing_the_pool_ends_handshakes(run: Run, authority: Authority) -> None:
    async def main() -> None:
        async with (
            RawServer(silent) as server,
            pool(server.port, tls=True, ca_file=authority.ca_file) as transport,
        ):
            task = asyncio.create_task(transport.exchange(outbound(), Kept()))
            await until(lambda: server.opened > 0)
            await transport.close()
            failed(await task, Fault.GATEWAY_DRAINING)

    run(main())


def test_a_stream_is_cut_and_truncated_over_tls_too(run: Run, authority: Authority) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        await asyncio.sleep(0.02)

    async def main() -> None:
        async with (
            RawServer(script, authority.server("127.0.0.1")) as server,
            pool(server.port, tls=True, ca_file=authority.ca_file) as transport,
        ):
            ended, sink = await send(transport)
            failed(ended, Fault.KIMI_STREAM_TRUNCATED)
            assert (ended.reach, sink.body) == (Reach.HEAD, b"a")

    run(main())


def test_a_peer_that_does_not_read_over_tls(run: Run, authority: Authority) -> None:
    async def script(peer: Peer) -> None:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(30)

    async def main() -> None:
        async with (
            RawServer(script, authority.server("127.0.0.1")) as server,
            pool(server.port, tls=True, ca_file=authority.ca_file) as transport,
        ):
            ended, _ = await send(transport, outbound(b"x" * 20_000_000, phases={"write": 0.4}))
            failed(ended, Fault.KIMI_NETWORK_TIMEOUT)
            assert (ended.phase, ended.reach) == (Phase.WRITE, Reach.PARTLY_SENT)

    run(main())


def test_when_a_large_request_had_gone_out_over_tls(run: Run, authority: Authority) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await asyncio.sleep(0.3)
        await peer.answer()

    async def main() -> None:
        async with (
            RawServer(script, authority.server("127.0.0.1")) as server,
            pool(server.port, tls=True, ca_file=authority.ca_file) as transport,
        ):
            ended, _ = await send(transport, outbound(b"x" * 20_000_000))
            assert ended.fault is None
            assert 0.2 < ended.head_at - ended.sent_at < 0.5

    run(main())


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_a_ca_file_that_cannot_be_used(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "ca.pem"
    if text is not None:
        path.write_text(text)
    with pytest.raises(OSError):  # noqa: PT011 - ssl says it in its own kinds of OSError
        Http1(Origin("127.0.0.1", 443, ca_file=str(path)), time.monotonic)


@pytest.mark.parametrize(
    ("host", "port", "tls", "authority"),
    [
        ("a.test", 443, True, "a.test"),
        ("a.test", 80, False, "a.test"),
        ("a.test", 80, True, "a.test:80"),
        ("::1", 8443, True, "[::1]:8443"),
    ],
)
def test_what_the_host_header_says(host: str, port: int, tls: bool, authority: str) -> None:
    assert Origin(host, port, tls=tls).authority == authority
