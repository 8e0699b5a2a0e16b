"""Ports that misbehave before HTTP begins, TLS that goes wrong, and a name server that lies."""

import asyncio
import socket
import ssl
import struct
from pathlib import Path
from typing import Any

import pytest

from moongate.sim.clients import Client, chat_bytes
from moongate.sim.config import Config, HostConfig
from moongate.sim.dns import NameServer
from tests.sim.world import World, run

pytestmark = pytest.mark.usefixtures("both_loops")

KINDS = ("refused", "full_backlog", "silent", "reset", "tls_stall")
TROUBLE = Config(hosts=(HostConfig(), *(HostConfig(name=kind, kind=kind) for kind in KINDS)))


def test_a_refused_port_refuses() -> None:
    async def story(world: World) -> None:
        with pytest.raises(ConnectionRefusedError):
            await world.chat(port=world.running.ports["refused"])

    run(story, TROUBLE)


def test_a_full_backlog_lets_connecting_hang() -> None:
    async def story(world: World) -> None:
        client = Client(world.running.ports["full_backlog"])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.open(), 0.4)
        client.close()

    run(story, TROUBLE)


def test_a_silent_port_accepts_and_never_answers() -> None:
    async def story(world: World) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(world.chat(port=world.running.ports["silent"]), 0.3)

    run(story, TROUBLE)


def test_a_resetting_port_resets() -> None:
    async def story(world: World) -> None:
        async with Client(world.running.ports["reset"]) as client:
            with pytest.raises(ConnectionResetError):
                await client.receive()

    run(story, TROUBLE)


def test_a_handshake_that_stalls() -> None:
    async def story(world: World) -> None:
        context = ssl.create_default_context()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(tls(world.running.ports["tls_stall"], context), 0.3)

    run(story, TROUBLE)


async def tls(port: int, context: ssl.SSLContext, name: str = "kimi.test") -> tuple[bytes, str | None]:
    """One request over TLS; its first bytes and the protocol that ALPN agreed on."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
    try:
        protocol = writer.get_extra_info("ssl_object").selected_alpn_protocol()
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-sim\r\n\r\n")
        return await reader.read(17), protocol
    finally:
        writer.close()


def trusting(world: World, **options: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(world.running.ca))
    for name, value in options.items():
        setattr(context, name, value)
    return context


def secure(kind: str, directory: Path, **more: Any) -> Config:
    return Config(hosts=(HostConfig(tls=kind, **more),), tls_dir=directory)


def test_a_good_certificate_passes(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        for name in ("kimi.test", "localhost", "127.0.0.1"):
            head, protocol = await tls(world.running.port, trusting(world), name)
            assert head == b"HTTP/1.1 200 OK\r\n"
            assert protocol is None
        assert world.running.url.startswith("https://")
        assert world.running.ca == tmp_path / "ca.pem"

    run(story, secure("good", tmp_path))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("expired", "certificate has expired"),
        ("wrong_name", "Hostname mismatch"),
        ("unknown_ca", "unable to get local issuer certificate"),
    ],
)
def test_a_bad_certificate_does_not(kind: str, reason: str, tmp_path: Path) -> None:
    async def story(world: World) -> None:
        with pytest.raises(ssl.SSLCertVerificationError, match=reason):
            await tls(world.running.port, trusting(world))

    run(story, secure(kind, tmp_path))


def test_tls_1_0_alone_is_not_spoken_by_modern_clients(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        with pytest.raises(ssl.SSLError, match=r"(?i)version|alert|protocol|sigalg"):
            await tls(world.running.port, trusting(world))

    run(story, secure("tls10", tmp_path))


def test_a_reset_under_tls_is_a_reset(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        port, context = world.running.port, trusting(world)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname="kimi.test"
        )
        writer.write(chat_bytes({"stream": True, "sim": {"fault": "reset_mid_stream"}}))
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        (row,) = world.running.sim.book.rows({}, 10)
        assert row["how"] == "reset_mid_stream"

    run(story, secure("good", tmp_path))


@pytest.mark.parametrize(
    ("more", "agreed"), [({}, "h2"), ({"http2": False}, "http/1.1"), ({"alpn": ("http/1.1",)}, "http/1.1")]
)
def test_alpn_offers_http2_unless_it_is_refused(more: Any, agreed: str, tmp_path: Path) -> None:
    async def story(world: World) -> None:
        context = trusting(world)
        context.set_alpn_protocols(["h2", "http/1.1"])
        head, protocol = await tls(world.running.port, context)
        assert protocol == agreed
        assert head.startswith(b"HTTP/1.1 200") is (agreed != "h2")

    run(story, secure("good", tmp_path, **more))


# names


def question(name: str, kind: int = 1) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!HHHHHH", 0x1234, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)


async def resolve(port: int, name: str, kind: int = 1) -> tuple[int, list[str], int]:
    """Response code, addresses, TTL of the first."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.connect(("127.0.0.1", port))
        asked = question(name, kind)
        await loop.sock_sendall(sock, asked)
        reply = await asyncio.wait_for(loop.sock_recv(sock, 1500), 0.3)
    number, flags, _, answers, _, _ = struct.unpack_from("!HHHHHH", reply)
    assert number == 0x1234
    assert flags & 0x8000
    at, found, ttl = len(asked), [], 0
    for _ in range(answers):
        _, _, _, ttl, size = struct.unpack_from("!HHHIH", reply, at)
        raw = reply[at + 12 : at + 12 + size]
        found.append(socket.inet_ntop(socket.AF_INET if size == 4 else socket.AF_INET6, raw))
        at += 12 + size
    return flags & 15, found, ttl


NAMES = Config(
    dns={
        "records": {
            "kimi.test": {"addresses": ["127.0.0.1", "127.0.0.2", "::1"], "ttl": 7},
            "gone.test": {"mode": "nxdomain"},
            "broken.test": {"mode": "servfail"},
            "closed.test": {"mode": "refused"},
            "mute.test": {"mode": "silent"},
            "short.test": "127.0.0.3",
        }
    }
)


def test_names_answer_by_their_mode() -> None:
    async def story(world: World) -> None:
        port = world.running.dns_port
        assert await resolve(port, "kimi.test") == (0, ["127.0.0.1", "127.0.0.2"], 7)
        assert await resolve(port, "KIMI.test", 28) == (0, ["::1"], 7)
        assert await resolve(port, "kimi.test", 16) == (0, [], 0)
        assert await resolve(port, "short.test") == (0, ["127.0.0.3"], 1)
        assert (await resolve(port, "gone.test"))[0] == (await resolve(port, "unheard.test"))[0] == 3
        assert (await resolve(port, "broken.test"))[0] == 2
        assert (await resolve(port, "closed.test"))[0] == 5
        with pytest.raises(TimeoutError):
            await resolve(port, "mute.test")

    run(story, NAMES)


def test_a_name_can_move_and_questions_are_counted() -> None:
    async def story(world: World) -> None:
        await resolve(world.running.dns_port, "kimi.test")
        changed = await world.call("POST", "/_sim/dns", {"kimi.test": ["127.0.0.9"]})
        assert changed.json()["names"]["kimi.test"]["asked"] == 0
        assert (await resolve(world.running.dns_port, "kimi.test"))[1] == ["127.0.0.9"]
        shown = (await world.call("GET", "/_sim/dns")).json()
        assert shown["port"] == world.running.dns_port
        assert shown["names"]["kimi.test"]["asked"] == 1
        assert (await world.call("POST", "/_sim/dns", {"x": {"mode": "odd"}})).status == 400
        assert (await world.call("POST", "/_sim/dns", {"x": "not an address"})).status == 400

    run(story, NAMES)


def test_without_a_name_server_there_are_no_names() -> None:
    async def story(world: World) -> None:
        assert (await world.call("GET", "/_sim/dns")).json() == {"port": None, "names": {}}
        assert (await world.call("POST", "/_sim/dns", {"x": "127.0.0.1"})).status == 400

    run(story)


@pytest.mark.parametrize("junk", [b"", b"\0" * 12, question("kimi.test")[:-3], b"\xff" * 40])
def test_a_broken_question_gets_no_answer(junk: bytes) -> None:
    server = NameServer()
    server.datagram_received(junk, ("127.0.0.1", 1))
