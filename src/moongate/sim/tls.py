"""An own certificate authority, and the certificates that go wrong.

Needs the `cryptography` package (extra `tls`). Keys are P-256 and live as long as the directory does. The
CA's certificate is `ca.pem` there; trust it and only `good` passes.
"""

import asyncio
import ssl
import tempfile
import warnings
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from moongate.sim.config import HostConfig
    from moongate.sim.host import Host

_DAY: Final = timedelta(days=1)
NAMES: Final = ("localhost", "kimi.test", "api.moonshot.test")
ADDRESSES: Final = ("127.0.0.1", "127.0.0.2", "::1")


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


class Authority:
    """A CA and the server contexts it makes. `path` is the file to trust."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / "ca.pem"
        self._key, self._certificate = self._root("moongate simulator CA")
        self._strange = self._root("a CA that nobody trusts")
        self.path.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    @staticmethod
    def _root(common: str) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(common))
            .issuer_name(_name(common))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + 3650 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        return key, builder.sign(key, hashes.SHA256())

    def context(self, host: "HostConfig") -> ssl.SSLContext:
        """The server side for a host: its certificate is good or spoiled as `host.tls` says."""
        kind = host.tls
        chain = self._issue(kind)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        if kind == "tls10":
            context.set_ciphers("ALL:@SECLEVEL=0")
            context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # that it is old is the point
                context.maximum_version = ssl.TLSVersion.TLSv1
        offered = [name for name in host.alpn if host.http2 or name != "h2"]
        if offered:
            context.set_alpn_protocols(offered)
        return context

    def _issue(self, kind: str) -> Path:
        key = ec.generate_private_key(ec.SECP256R1())
        ca_key, ca = self._strange if kind == "unknown_ca" else (self._key, self._certificate)
        now = datetime.now(UTC)
        until = now - _DAY if kind == "expired" else now + 365 * _DAY
        names: list[x509.GeneralName] = [x509.DNSName(name) for name in NAMES]
        names += [x509.IPAddress(ip_address(address)) for address in ADDRESSES]
        if kind == "wrong_name":
            names = [x509.DNSName("somebody-else.test")]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_name("kimi.test"))
            .issuer_name(ca.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 30 * _DAY)
            .not_valid_after(until)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
            )
            .sign(ca_key, hashes.SHA256())
        )
        path = self._directory / f"{kind}.pem"
        path.touch(mode=0o600)
        path.write_bytes(_pem(key) + certificate.public_bytes(serialization.Encoding.PEM))
        return path


class OldTls(asyncio.Protocol):
    """Speaks TLS 1.0 and nothing newer, and nothing inside it: a modern client gets the alert a server owes it.

    asyncio's own TLS drops the alert with the connection, and a client would see no more than a reset.
    """

    def __init__(self, host: "Host", context: ssl.SSLContext) -> None:
        self._host = host
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the client's hello."""
        self._transport = cast("asyncio.Transport", transport)
        self._host.connected(self)

    def data_received(self, data: bytes) -> None:
        """Go on with the handshake."""
        self._incoming.write(data)
        failed = False
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            failed = True
        self._transport.write(self._outgoing.read())
        if failed:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let it go."""
        del exc
        self._host.disconnected(self)

    def reset(self) -> None:
        """Drop it."""
        self._transport.abort()


def authority(directory: Path | None) -> Authority:
    """A new authority in that directory, or in a temporary one."""
    return Authority(directory or Path(tempfile.mkdtemp(prefix="moongate-sim-ca-")))
