"""A name server that lies on demand: one UDP port, a handful of names, A and AAAA questions.

Each name answers by its mode: `answer` (its addresses, its TTL), `nxdomain`, `servfail`, `refused`, `silent`.
Names that nobody declared are `nxdomain`. Source: RFC 1035 section 4.
"""

import asyncio
import struct
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Final, cast

_A: Final = 1
_AAAA: Final = 28
_RCODES: Final = {"answer": 0, "servfail": 2, "nxdomain": 3, "refused": 5}
MODES: Final = (*_RCODES, "silent")


@dataclass(slots=True)
class Name:
    """What a name answers; `asked` counts the questions."""

    addresses: list[str] = field(default_factory=list)
    ttl: int = 1
    mode: str = "answer"
    asked: int = 0


class NameServer(asyncio.DatagramProtocol):
    """The server. `names` may be changed while it runs."""

    def __init__(self) -> None:
        self.names: dict[str, Name] = {}
        self._transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        """Answer a question, or not."""
        try:
            reply = self._reply(data)
        except (IndexError, struct.error, UnicodeDecodeError):
            return
        if reply:
            self._transport.sendto(reply, addr)

    @property
    def port(self) -> int:
        """The UDP port."""
        return int(self._transport.get_extra_info("sockname")[1])

    def close(self) -> None:
        """Stop."""
        self._transport.close()

    def declare(self, records: dict[str, Any]) -> None:
        """Set names from a document: an address, a list of them, or an object with `Name`'s members."""
        for name, wanted in records.items():
            members = wanted
            if isinstance(wanted, str):
                members = {"addresses": [wanted]}
            elif isinstance(wanted, list):
                members = {"addresses": wanted}
            entry = Name(**members)
            if entry.mode not in MODES:
                raise ValueError(f"dns {name}: mode must be one of {', '.join(MODES)}")
            for address in entry.addresses:
                ip_address(address)
            self.names[name.lower().rstrip(".")] = entry

    def _reply(self, question: bytes) -> bytes | None:
        at, labels = 12, []
        while question[at]:
            size = question[at]
            labels.append(question[at + 1 : at + 1 + size].decode("ascii"))
            at += size + 1
        kind = struct.unpack_from("!H", question, at + 1)[0]
        entry = self.names.get(".".join(labels).lower(), Name(mode="nxdomain"))
        entry.asked += 1
        if entry.mode == "silent":
            return None
        answers = []
        if entry.mode == "answer":
            for address in map(ip_address, entry.addresses):
                if (address.version == 4) == (kind == _A) and kind in {_A, _AAAA}:
                    packed = address.packed
                    answers.append(struct.pack("!HHHIH", 0xC00C, kind, 1, entry.ttl, len(packed)) + packed)
        flags = 0x8580 | _RCODES[entry.mode]
        head = question[:2] + struct.pack("!HHHHH", flags, 1, len(answers), 0, 0)
        return head + question[12 : at + 5] + b"".join(answers)


async def serve_names(host: str, port: int, records: dict[str, Any]) -> NameServer:
    """Start a name server; port 0 lets the kernel choose."""
    server = NameServer()
    server.declare(records)
    await asyncio.get_running_loop().create_datagram_endpoint(lambda: server, local_addr=(host, port))
    return server
