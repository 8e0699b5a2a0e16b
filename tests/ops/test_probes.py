"""A look at a target that costs nothing, over real sockets."""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from moongate.core.names import Address
from moongate.upstream.names import Names
from moongate.upstream.probes import Look, balance_of, load_at, look_at, word_for

T = TypeVar("T")
HERE = Look("a", "127.0.0.1", 1, "/", "a")
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def nearby(host: str) -> list[Address]:
    """One name is this machine's, no other is known."""
    if host != "kimi.nearby":
        raise socket.gaierror(socket.EAI_NONAME, "unknown")
    return [Address("127.0.0.1")]


def asked(
    answer: Answer,
    ask: Callable[[Look, Names], Awaitable[T]],
    tls: ssl.SSLContext | None = None,
    **said: object,
) -> T:
    """What a look learns from a server that answers like this."""

    async def main() -> T:
        over: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            over.add(asyncio.current_task())  # type: ignore[arg-type]
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await answer(reader, writer)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
        port = server.sockets[0].getsockname()[1]
        usual: dict[str, object] = {"target": "a", "host": "127.0.0.1", "port": port, "path": "/v1/models"}
        look = Look(**(usual | {"authority": "kimi.example"} | said))  # type: ignore[arg-type]
        learnt = await ask(look, Names(time.monotonic, lookup=nearby))
        server.close()
        if over:
            await asyncio.wait(over)
        await asyncio.sleep(0.02)
        return learnt

    return asyncio.run(main())


def seen_by(answer: Answer, seconds: float = 2.0, tls: ssl.SSLContext | None = None, **said: object) -> str:
    """What a look at a server shows that answers like this."""
    return asked(answer, lambda look, names: look_at(look, seconds, names), tls, **said)


def saying(text: bytes, heard: list[bytes] | None = None) -> Answer:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if heard is not None:
            heard.append(head)
        writer.write(text)

    return answer


def test_the_list_of_models_is_asked_for_with_the_targets_key() -> None:
    heard: list[bytes] = []
    assert seen_by(saying(b"HTTP/1.1 200 OK\r\n\r\n{}", heard), key="sk-1") == "ok"
    assert heard[0].startswith(
        b"GET /v1/models HTTP/1.1\r\nHost: kimi.example\r\nAuthorization: Bearer sk-1\r\n"
    )


def test_without_a_key_none_is_sent() -> None:
    heard: list[bytes] = []
    assert seen_by(saying(b"HTTP/1.1 200 OK\r\n\r\n{}", heard)) == "ok"
    assert b"Authorization" not in heard[0]


@pytest.mark.parametrize(
    ("status", "word"),
    [
        (200, "ok"),
        (302, "kimi_bad_response"),
        (401, "kimi_auth_failed"),
        (403, "kimi_auth_failed"),
        (404, "ok"),
        (429, "ok"),
        (500, "kimi_server_error"),
        (502, "kimi_server_error"),
        (503, "kimi_unavailable"),
    ],
)
def test_each_status_has_its_word(status: int, word: str) -> None:
    assert word_for(status) == word


@pytest.mark.parametrize(
    "text", [b"", b"SSH-2.0-hello\r\n", b"HTTP/1.1 two hundred\r\n", b"\r\n", b"x" * 40_000]
)
def test_what_is_no_http_is_a_bad_response(text: bytes) -> None:
    assert seen_by(saying(text)) == "kimi_bad_response"


def test_who_says_nothing_is_a_time_out() -> None:
    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    assert seen_by(silent, seconds=0.1) == "kimi_network_timeout"


def test_who_is_not_there_is_unreachable() -> None:
    assert asyncio.run(look_at(HERE, 2.0, Names(time.monotonic))) == "kimi_network_unreachable"


def test_names_are_looked_up_as_those_of_calls_are() -> None:
    assert seen_by(saying(b"HTTP/1.1 200 OK\r\n\r\n"), host="kimi.nearby") == "ok"
    assert seen_by(saying(b""), host="kimi.elsewhere") == "kimi_network_unreachable"


def self_signed(folder: Path, name: str) -> tuple[ssl.SSLContext, str]:
    """A server's context with a certificate for this name, and the file that a client must trust for it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = folder / "certificate.pem"
    pem.write_bytes(certificate.public_bytes(Encoding.PEM))
    secret = folder / "key.pem"
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem, secret)
    return context, str(pem)


def test_only_a_certificate_of_a_trusted_authority_for_the_right_name_will_do(tmp_path: Path) -> None:
    tls, pem = self_signed(tmp_path, "kimi.example")
    well = saying(b"HTTP/1.1 200 OK\r\n\r\n")
    name = "kimi.example"
    assert seen_by(well, tls=tls, secure=True, ca_file=pem, server_name=name) == "ok"
    assert seen_by(well, tls=tls, secure=True, ca_file=pem) == "kimi_network_unreachable"
    assert seen_by(well, tls=tls, secure=True, server_name=name) == "kimi_network_unreachable"


def balance(answer: Answer, seconds: float = 2.0) -> float | None:
    return asked(answer, lambda look, names: balance_of(look, seconds, names))


MONEY = (
    b'{"code":0,"data":{"available_balance":12.5,"voucher_balance":2.5,"cash_balance":10.0},"status":true}'
)


@pytest.mark.parametrize(
    "text",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(MONEY), MONEY),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(MONEY), MONEY),
        b"HTTP/1.1 200 OK\r\n\r\n" + MONEY,
    ],
)
def test_a_balance_is_read_however_it_is_framed(text: bytes) -> None:
    assert balance(saying(text)) == 12.5


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"SSH-2.0-hello\r\n",
        b"HTTP/1.1 401 Unauthorized\r\nContent-Length: %d\r\n\r\n%b" % (len(MONEY), MONEY),
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n" + MONEY,
        b"HTTP/1.1 200 OK\r\n\r\n<html>moon</html>",
        b"HTTP/1.1 200 OK\r\n\r\n" + MONEY.replace(b"12.5", b'"plenty"'),
    ],
)
def test_what_does_not_tell_a_balance_tells_none(text: bytes) -> None:
    assert balance(saying(text)) is None


def test_a_balance_that_does_not_come_is_none() -> None:
    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    assert balance(silent, seconds=0.1) is None


def test_gauges_are_read_from_the_page_of_their_dialect() -> None:
    page = b"vllm:num_requests_waiting 3\nvllm:kv_cache_usage_perc 0.5\n" + b"# padding\n" * 20_000
    answer = saying(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(page), page))
    assert asked(answer, lambda look, names: load_at(look, "vllm", 5.0, names)) == 3.5
    assert asked(answer, lambda look, names: load_at(look, "sglang", 5.0, names)) is None


def test_a_page_without_end_is_not_kept() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"vllm:num_requests_waiting 3\n" * 2000)
            await writer.drain()

    assert asked(endless, lambda look, names: load_at(look, "vllm", 20.0, names)) is None
