"""Looks at a target without paying for it: its list of models, its balance, its gauges.

A completion would cost money and a bare TCP connection would call a dead API healthy; the list of models is free, and
every provider of this wire format has it or says 404; Moonshot tells the balance for nothing, and vLLM and SGLang how
busy they are (KIMI.md sections 5 and 12). Each look is one GET on a connection of its own.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Final, TypeVar

import httptools
import msgspec

from moongate.core.faults import FACTS, Fault
from moongate.core.gauges import load_of
from moongate.core.settings import Target
from moongate.upstream.names import Names
from moongate.upstream.tcp import connect

T = TypeVar("T")

OK: Final = "ok"
_LONGEST_LINE: Final = 16 * 1024
_LONGEST_PAGE: Final = 4 * 1024 * 1024


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

    @classmethod
    def of(cls, name: str, target: Target, path: str) -> "Look":
        """A look at this path of a target, as its settings say how to reach it."""
        return cls(
            target=name,
            host=target.url.host,
            port=target.url.port,
            path=path,
            authority=target.url.authority,
            key=target.key.text if target.key is not None else "",
            secure=target.url.secure,
            ca_file=target.ca_file or "",
            server_name=target.server_name or "",
        )


async def look_at(look: Look, seconds: float, names: Names) -> str:
    """`ok`, or the public code of the fault that a call would meet. Never raises for what the network does.

    An answer of 429 is `ok`: whoever counts our requests is there. So is 404: not every host lists its models.
    """
    try:
        async with asyncio.timeout(seconds):
            status = await _asked(look, names, _status_of)
    except TimeoutError:
        return FACTS[Fault.KIMI_NETWORK_TIMEOUT].code
    except ssl.SSLError:
        return FACTS[Fault.KIMI_TLS_REFUSED].code
    except (OSError, UnicodeError):  # the latter: no valid host name
        return FACTS[Fault.KIMI_NETWORK_UNREACHABLE].code
    except (ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return FACTS[Fault.KIMI_BAD_RESPONSE].code
    return word_for(status)


async def balance_of(look: Look, seconds: float, names: Names) -> float | None:
    """What an account of Moonshot's has left, in its currency; None where that cannot be learnt."""
    page = await _page_of(look, seconds, names)
    try:
        return None if page is None else msgspec.json.decode(page, type=_Balance).data.available_balance
    except msgspec.DecodeError:
        return None


async def load_at(look: Look, dialect: str, seconds: float, names: Names) -> float | None:
    """How busy a self-hosted server of this dialect says it is (`core/gauges`); None where that cannot be learnt."""
    page = await _page_of(look, seconds, names)
    return None if page is None else load_of(page, dialect)


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


class _Money(msgspec.Struct):
    available_balance: float


class _Balance(msgspec.Struct):
    data: _Money


async def _asked(look: Look, names: Names, read: Callable[[asyncio.StreamReader], Awaitable[T]]) -> T:
    """Ask, and return what `read` makes of the answer."""
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
            "Accept: application/json, text/plain\r\nUser-Agent: moongate\r\nConnection: close\r\n\r\n".encode()
        )
        return await read(reader)
    finally:
        writer.transport.abort()


async def _status_of(reader: asyncio.StreamReader) -> int:
    line = await reader.readuntil(b"\r\n")
    version, status = line.split(maxsplit=2)[:2]
    if not version.startswith(b"HTTP/1."):
        raise ValueError("no HTTP/1 answer")
    return int(status)


async def _page_of(look: Look, seconds: float, names: Names) -> bytes | None:
    """The body of a whole answer of 200; None for anything else."""
    page = _Page()
    try:
        async with asyncio.timeout(seconds):
            await _asked(look, names, page.read)
    except (OSError, ValueError, httptools.HttpParserError):  # a time-out and a TLS failure are OSErrors
        return None
    return bytes(page.body) if page.is_whole and page.status == HTTPStatus.OK else None


class _Page:
    """An answer as httptools reads it."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.status = 0
        self.is_framed = False
        self.is_whole = False

    async def read(self, reader: asyncio.StreamReader) -> None:
        """Read to the answer's end, or to that of the connection where nothing else tells it."""
        parser = httptools.HttpResponseParser(self)
        while not self.is_whole and len(self.body) <= _LONGEST_PAGE:
            data = await reader.read(65536)
            if not data:
                self.is_whole = self.status != 0 and not self.is_framed
                return
            parser.feed_data(data)
            self.status = parser.get_status_code()

    def on_header(self, name: bytes, _: bytes) -> None:
        """Note whether the answer tells its own length."""
        self.is_framed = self.is_framed or name.lower() in (b"content-length", b"transfer-encoding")

    def on_body(self, body: bytes) -> None:
        """Keep it."""
        self.body += body

    def on_message_complete(self) -> None:
        """Note the end."""
        self.is_whole = True


@lru_cache(maxsize=16)
def _tls(ca_file: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_file or None)
