"""What the three health paths say, and how checks of Kimi become one word. Pure: who calls them has the facts."""

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

import msgspec

OK: Final = "ok"
OFF: Final = "off"
LEDGER: Final = "ledger"
PARTS: Final = ("nginx", "cache_proxy", "kimi_api", "redis", "gpu_memory", LEDGER)
"""The checks of `/healthz`, in the order shown; a part that is not configured is `off`."""

UNKNOWN: Final = "unknown"
"""A configured part that has not been looked at yet."""
DEGRADED: Final = "degraded"


def all_off() -> dict[str, str]:
    """The checks when nothing is configured."""
    return dict.fromkeys(PARTS, OFF)


def healthz(checks: Mapping[str, str], *, detailed: bool) -> tuple[int, bytes]:
    """Status and JSON body of `/healthz`: 200 `ok`, 200 `degraded` (it still answers), or 503 `failing`.

    The shape is `{"status":"ok","checks":{"nginx":"off",...}}`; without `detailed` the checks stay untold. A part's
    word is `off`, `ok`, a measurement such as `18.2GB/24GB`, `unknown` (not looked at yet), what is wrong (a fault's
    code), or `degraded:` and what is wrong with some of it.
    """
    ill = [word for word in checks.values() if not is_well(word)]
    failing = [word for word in ill if word != UNKNOWN and not word.startswith(DEGRADED)]
    answer: dict[str, object] = {"status": "failing" if failing else DEGRADED if ill else OK}
    if detailed:
        answer["checks"] = dict.fromkeys(PARTS, OFF) | dict(checks)
    status = HTTPStatus.SERVICE_UNAVAILABLE if failing else HTTPStatus.OK
    return int(status), msgspec.json.encode(answer)


def is_well(word: str) -> bool:
    """Whether a check's word is good news; measurements begin with a digit."""
    return word in (OK, OFF) or word[:1].isdigit()


def livez() -> tuple[int, bytes]:
    """The process runs and its loop turns: whoever can answer, may."""
    return HTTPStatus.OK, b'{"status":"ok"}'


def readyz(*, ready: bool, draining: bool, ledger: str = OK) -> tuple[int, bytes]:
    """Whether new calls are welcome: not before the state is loaded, and not once a drain began.

    `ledger`: its word on `/healthz`. While it fails, paid calls are refused and everything else goes on: said, and
    still 200.
    """
    if draining:
        return HTTPStatus.SERVICE_UNAVAILABLE, b'{"status":"draining"}'
    if not ready:
        return HTTPStatus.SERVICE_UNAVAILABLE, b'{"status":"starting"}'
    if not is_well(ledger) and not ledger.startswith(DEGRADED):
        return HTTPStatus.OK, msgspec.json.encode({"status": OK, LEDGER: ledger})
    return HTTPStatus.OK, b'{"status":"ok"}'


class Trusted:
    """Who may see details: loopback, and the networks of `edge.trusted` (CIDR, or `unix` for the Unix sockets)."""

    def __init__(self, trusted: Iterable[str]) -> None:
        named = list(trusted)
        self._unix = "unix" in named
        self._networks = [ip_network(name) for name in named if name != "unix"]

    def may_see(self, peer: str) -> bool:
        """`peer` is the IP address at the other end of the connection, or `unix`."""
        if peer == "unix":
            return self._unix
        address = plain_address(peer)
        if address is None:
            return False
        return address.is_loopback or any(address in network for network in self._networks)


def plain_address(text: str) -> IPv4Address | IPv6Address | None:
    """The address in a text, an IPv4 one out of its IPv6 clothes (RFC 4291 section 2.5.5.2), or None."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
