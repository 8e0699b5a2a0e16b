"""Ask the simulator's name server, as the system's resolver would: A and AAAA, over UDP, with time-outs.

It takes the place of getaddrinfo(3), whose resolv.conf no test may write: the border is this function, and what goes
over the wire to the name server is real.
"""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable

from moongate.core.names import Address

A, AAAA = 1, 28
PATIENCE = 0.3


async def _ask(port: int, host: str, kind: int) -> list[Address]:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in host.split("."))
    asked = struct.pack("!HHHHHH", kind, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.connect(("127.0.0.1", port))
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, asked)
        try:
            reply = await asyncio.wait_for(loop.sock_recv(sock, 1500), PATIENCE)
        except TimeoutError:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution") from None
    code, count = reply[3] & 15, struct.unpack_from("!H", reply, 6)[0]
    if code:
        raise socket.gaierror(socket.EAI_NONAME if code == 3 else socket.EAI_AGAIN, f"response code {code}")
    at, found = len(asked), []
    for _ in range(count):
        size = struct.unpack_from("!H", reply, at + 10)[0]
        raw = reply[at + 12 : at + 12 + size]
        found.append(Address(socket.inet_ntop(socket.AF_INET if size == 4 else socket.AF_INET6, raw)))
        at += 12 + size
    return found


def resolver(port: int) -> Callable[[str], Awaitable[list[Address]]]:
    """A lookup that asks the name server on this port."""

    async def lookup(host: str) -> list[Address]:
        four, six = await asyncio.gather(_ask(port, host, A), _ask(port, host, AAAA))
        if not four + six:
            raise socket.gaierror(socket.EAI_NONAME, "no address")
        return six + four

    return lookup
