"""Network places as settings name them: where to listen, where upstream is, whom to trust."""

import re
from dataclasses import dataclass
from typing import Final

from moongate.core.kinds import Kind, WrongError, shown

_PORTS: Final = {"http": 80, "https": 443}
_HOST: Final = re.compile(r"(?!-)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")
_PLACE: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:/@?#\s]+)):([0-9]{1,5})")
_URL: Final = re.compile(
    r"([A-Za-z]+)://(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:/@?#\s]+))(?::([0-9]{1,5}))?(/[^?#\s]*)?"
)


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen: a host or IP address without brackets, and a TCP port (0: the kernel's choice)."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{_bracketed(self.host)}:{self.port}"


@dataclass(frozen=True, slots=True)
class Url:
    """The base of an upstream's API. `path` is empty or begins with `/`, and never ends with `/`."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def secure(self) -> bool:
        """Whether TLS is spoken."""
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """What the Host header says: the port only where it is not the scheme's own (RFC 9110, 7.2)."""
        own = self.port == _PORTS[self.scheme]
        return _bracketed(self.host) if own else f"{_bracketed(self.host)}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Whether a host, as written, is this machine's loopback: `localhost`, 127.0.0.0/8 or ::1."""
    return host in ("localhost", "::1") or re.fullmatch(r"127(\.[0-9]{1,3}){3}", host) is not None


def _host(six: str | None, other: str | None) -> str | None:
    """A host that can be one (IPv6 without its brackets), else None."""
    from ipaddress import AddressValueError, IPv4Address, IPv6Address  # noqa: PLC0415 - for whoever reads a file only

    try:
        if six is not None:
            return str(IPv6Address(six))
        if other is not None and re.fullmatch(r"[0-9.]+", other):
            return str(IPv4Address(other))
    except AddressValueError:
        return None
    return other if other is not None and _HOST.fullmatch(other) and len(other) <= 253 else None


class Listening(Kind):
    """`host:port`."""

    word = "host:port"

    def parse(self, value: object) -> Address:
        """As in `Kind`."""
        found = _PLACE.fullmatch(value) if isinstance(value, str) else None
        host = _host(found[1], found[2]) if found else None
        if found is None or host is None or int(found[3]) > 65535:
            mend = 'write host:port: "127.0.0.1:8080", "[::1]:8080", or "0.0.0.0:8080" for every interface'
            raise WrongError(f"{shown(value)} is not an address to listen on", mend)
        return Address(host, int(found[3]))

    def schema(self) -> dict[str, object]:
        """As in `Kind`."""
        return {"type": "string", "pattern": r"^(\[[0-9A-Fa-f:.]+\]|[^\[\]:/@?#\s]+):[0-9]{1,5}$"}


class Base(Kind):
    """An http or https URL: an API's base, version included, without query, fragment and userinfo."""

    word = "http or https URL"

    def parse(self, value: object) -> Url:
        """As in `Kind`. A URL that may hold a credential (userinfo, query) is not repeated in the mistake."""
        text = value if isinstance(value, str) else ""
        if "@" in text or "?" in text or "#" in text:
            mend = (
                "write scheme, host and path only, such as https://api.moonshot.ai/v1, and the key in `key`"
            )
            raise WrongError("a URL here holds no userinfo, query or fragment", mend)
        found = _URL.fullmatch(text)
        host = _host(found[2], found[3]) if found else None
        scheme = found[1].lower() if found else ""
        if found is None or host is None or scheme not in _PORTS or int(found[4] or 1) not in range(1, 65536):
            raise WrongError(
                f"{shown(value)} is not an http or https URL", "write one such as https://api.moonshot.ai/v1"
            )
        return Url(scheme, host.lower(), int(found[4] or _PORTS[scheme]), (found[5] or "").rstrip("/"))

    def schema(self) -> dict[str, object]:
        """As in `Kind`."""
        return {"type": "string", "pattern": r"^https?://[^@?#\s]+$"}


class Network(Kind):
    """A network in CIDR form, an IP address, or `unix`."""

    word = "CIDR or `unix`"

    def parse(self, value: object) -> str:
        """As in `Kind`; the network as `ipaddress` writes it."""
        from ipaddress import ip_network  # noqa: PLC0415 - for whoever reads a file only

        if value == "unix":
            return "unix"
        try:
            return str(ip_network(value if isinstance(value, str) else ""))
        except ValueError:
            mend = 'write one such as "10.0.0.0/8" (no bits set behind the mask), "192.0.2.7", or "unix"'
            raise WrongError(f"{shown(value)} is not a network", mend) from None

    def schema(self) -> dict[str, object]:
        """As in `Kind`."""
        return {"type": "string", "pattern": r"^(unix|[0-9A-Fa-f:.]+(/[0-9]{1,3})?)$"}
