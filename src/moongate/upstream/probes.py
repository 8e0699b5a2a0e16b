"""Looks at a target without paying for it: one `GET {base}/models` on a connection of its own.

A completion would cost money and a bare TCP connection would call a dead API healthy; the list of models is free, and
every provider of this wire format has it or says 404 (KIMI.md section 5).
"""

import asyncio
import ssl
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Final

from moongate.core.faults import FACTS, Fault
from moongate.upstream.names import Names
from moongate.upstream.tcp import connect

OK: Final = "ok"
_LONGEST_LINE: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class Look:
    """Where and how to look. `path` begins with `/`; `authority` is the Host header; empty `ca_file`: the system's."""

    target: str
    host: str
    port: int
    path: str
    authority: str
    key: str = ""
    secure: bool = False
    ca_file: str = ""
    server_name: str = ""


async def look_at(look: Look, seconds: float, names: Names) -> str:
    """`ok`, or the public code of the fault that a call would meet. Never raises for what the network does.

    An answer of 429 is `ok`: whoever counts our requests is there. So is 404: not every host lists its models.
    """
    try:
        async with asyncio.timeout(seconds):
            status = await _status_of(look, names)
    except TimeoutError:
        return FACTS[Fault.KIMI_NETWORK_TIMEOUT].code
    except ssl.SSLError:
        return FACTS[Fault.KIMI_TLS_REFUSED].code
    except (OSError, UnicodeError):  # the latter: no valid host name
        return FACTS[Fault.KIMI_NETWORK_UNREACHABLE].code
    except (ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return FACTS[Fault.KIMI_BAD_RESPONSE].code
    return word_for(status)


def word_for(status: int) -> str:
    """What an HTTP status says about the target's health."""
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return FACTS[Fault.KIMI_AUTH_FAILED].code
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        return FACTS[Fault.KIMI_UNAVAILABLE].code
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return FACTS[Fault.KIMI_SERVER_ERROR].code
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:  # redirects are never followed
        return FACTS[Fault.KIMI_BAD_RESPONSE].code
    return OK


async def _status_of(look: Look, names: Names) -> int:
    tls = _tls(look.ca_file) if look.secure else None
    name = (look.server_name or look.host) if look.secure else None
    sock = await connect(names.place(look.host), look.port)
    try:
        reader, writer = await asyncio.open_connection(
            sock=sock, ssl=tls, server_hostname=name, limit=_LONGEST_LINE
        )
    except BaseException:
        sock.close()
        raise
    try:
        authorization = f"Authorization: Bearer {look.key}\r\n" if look.key else ""
        writer.write(
            f"GET {look.path} HTTP/1.1\r\nHost: {look.authority}\r\n{authorization}"
            "Accept: application/json\r\nUser-Agent: moongate\r\nConnection: close\r\n\r\n".encode()
        )
        line = await reader.readuntil(b"\r\n")
    finally:
        writer.transport.abort()
    version, status = line.split(maxsplit=2)[:2]
    if not version.startswith(b"HTTP/1."):
        raise ValueError("no HTTP/1 answer")
    return int(status)


@lru_cache(maxsize=16)
def _tls(ca_file: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_file or None)
