"""Whom HTTP/2 trusts, and what becomes of a peer that does not choose it."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable

import pytest

from moongate.core.faults import Fault, Reach
from moongate.upstream.transport import Phase
from tests.upstream.certificates import Authority
from tests.upstream.client import Kept, failed, outbound, pool2, send, until
from tests.upstream.conftest import Run
from tests.upstream.raw import Peer, RawServer, serving
from tests.upstream.raw2 import RawServer2, Stream, answering


@pytest.fixture
def authorities(authority: Authority, stranger: Authority) -> tuple[Authority, Authority]:
    """Ours, and one that nobody trusts."""
    return authority, stranger


def test_a_trusted_server(run: Run, authority: Authority) -> None:
    async def main() -> None:
        async with (
            RawServer2(answering, authority.server("127.0.0.1")) as server,
            pool2(server.port, tls=True, ca_file=authority.ca_file) as transport,
        ):
            for turn in range(3):
                ended, sink = await send(transport, outbound(b"x" * 3_000_000))
                assert (ended.fault, ended.reused, sink.body) == (None, turn > 0, b"{}")
            await asyncio.gather(*(send(transport) for _ in range(20)))
            assert (transport.idle, transport.alpn_fallbacks) == (1, 0)
            await until(lambda: sum(not link.gone.is_set() for link in server.links) == 1)

    run(main())


def test_the_name_that_is_asked_for(run: Run, authority: Authority) -> None:
    names: list[str | None] = []
    hosts: list[bytes] = []

    async def script(stream: Stream) -> None:
        hosts.extend(value for name, value in stream.headers if name == b":authority")
        await answering(stream)

    async def main() -> None:
        context = authority.server("kimi.test")
        context.sni_callback = lambda _, name, __: names.append(name)
        async with (
            RawServer2(script, context) as server,
            pool2(server.port, tls=True, ca_file=authority.ca_file, server_name="kimi.test") as transport,
        ):
            assert (await send(transport))[0].fault is None
            assert hosts == [b"127.0.0.1:%d" % server.port]
        assert set(names) == {"kimi.test"}

    run(main())


@pytest.mark.parametrize(
    ("why", "served"),
    [
        ("name", lambda ours, _: ours.server("other.test")),
        ("unknown authority", lambda _, stranger: stranger.server("127.0.0.1")),
        ("expired", lambda ours, _: ours.server("127.0.0.1", expired=True)),
    ],
)
@pytest.mark.parametrize("known", [False, True], ids=["first", "later"])
def test_who_is_refused(
    run: Run,
    authorities: tuple[Authority, Authority],
    known: bool,
    why: str,
    served: Callable[[Authority, Authority], ssl.SSLContext],
) -> None:
    async def main() -> None:
        async with (
            RawServer2(answering, served(*authorities)) as server,
            pool2(server.port, tls=True, ca_file=authorities[0].ca_file) as transport,
        ):
            if known:  # the choice is remembered, so that it is libcurl that meets the certificate
                transport._chosen_until = transport._clock() + 100
            ended, sink = await send(transport)
            failed(ended, Fault.KIMI_TLS_REFUSED)
            assert (ended.reach, ended.phase, sink.opened) == (Reach.NOTHING_SENT, Phase.TLS, 0), why
            assert ended.detail.startswith("tls: ")
            assert sum(transport.place.refused.values()) == 1

    run(main())


def test_no_system_certificate_vouches_for_ours(run: Run, authority: Authority) -> None:
    async def main() -> None:
        async with (
            RawServer2(answering, authority.server("127.0.0.1")) as server,
            pool2(server.port, tls=True) as transport,
        ):
            transport._chosen_until = transport._clock() + 100
            failed((await send(transport))[0], Fault.KIMI_TLS_REFUSED)

    run(main())


async def silent(peer: Peer) -> None:
    await peer.gone()


async def too_old(peer: Peer) -> None:
    """Speak TLS 1.0 only: a fatal alert, protocol_version (RFC 5246 section 7.2)."""
    await peer.byte()
    await peer.send(bytes.fromhex("15 0301 0002 02 46"))
    await peer.gone()


async def hanging_up(peer: Peer) -> None:
    await peer.byte()


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        (silent, Fault.KIMI_NETWORK_TIMEOUT),
        (too_old, Fault.KIMI_TLS_REFUSED),
        (hanging_up, Fault.KIMI_NETWORK_UNREACHABLE),
    ],
)
@pytest.mark.parametrize("known", [False, True], ids=["first", "later"])
def test_handshakes_that_fail(
    run: Run, authority: Authority, known: bool, script: Callable[[Peer], Awaitable[None]], fault: Fault
) -> None:
    async def main() -> None:
        async with (
            RawServer(script) as server,
            pool2(server.port, tls=True, ca_file=authority.ca_file) as transport,
        ):
            if known:
                transport._chosen_until = transport._clock() + 100
            results = await asyncio.gather(
                *(send(transport, outbound(phases={"tls": 0.5})) for _ in range(3))
            )
            for ended, _ in results:
                failed(ended, fault)
                assert (ended.reach, ended.phase) == (Reach.NOTHING_SENT, Phase.TLS)

    run(main())


def test_whoever_leaves_in_the_handshake_takes_nobody_along(run: Run, authority: Authority) -> None:
    async def main() -> None:
        async with (
            RawServer2(answering, authority.server("127.0.0.1")) as server,
            pool2(server.port, tls=True, ca_file=authority.ca_file) as transport,
        ):
            await send(transport)
            for link in list(transport._links):
                link.is_retired = True
            for turns in range(30):
                first = asyncio.create_task(transport.exchange(outbound(), Kept()))
                second = asyncio.create_task(send(transport))
                for _ in range(turns):
                    await asyncio.sleep(0)
                first.cancel()
                assert (await second)[0].fault is None
                await asyncio.wait([first])
                for link in list(transport._links):
                    link.is_retired = True

    run(main())


def test_a_peer_that_does_not_choose_http_2(
    run: Run, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """FAULTS row 7."""

    async def main() -> None:
        context = authority.server("127.0.0.1")
        context.set_alpn_protocols(["http/1.1"])
        async with (
            RawServer(serving, context) as server,
            pool2(server.port, tls=True, ca_file=authority.ca_file, max_connections=2) as transport,
        ):
            results = await asyncio.gather(*(send(transport) for _ in range(5)))
            assert [(ended.fault, sink.body) for ended, sink in results] == [(None, b"{}")] * 5
            assert (await send(transport))[0].reused
            assert transport.alpn_fallbacks == 6
            transport._chosen_until = 0.0  # ten minutes later it is asked again
            assert (await send(transport))[0].reused

    with caplog.at_level(logging.WARNING):
        run(main())
    assert [record.message.partition(":")[0] for record in caplog.records] == ["alpn_fallback"] * 2


def test_a_peer_that_changes_its_mind(run: Run, authority: Authority) -> None:
    """It chose HTTP/2 when it was asked, and refuses that later: another machine behind the same name."""

    async def main() -> None:
        context = authority.server("127.0.0.1")
        context.set_alpn_protocols(["http/1.1"])
        async with (
            RawServer(serving, context) as server,
            pool2(server.port, tls=True, ca_file=authority.ca_file) as transport,
        ):
            transport._chosen_until = transport._clock() + 100
            for _ in range(3):
                ended, sink = await send(transport)
                assert (ended.fault, sink.body) == (None, b"{}")

    run(main())
