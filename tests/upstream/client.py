"""What a test needs to hold a transport: a sink that remembers, an outbound request, a pool that must be at rest."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from moongate.core.faults import Fault
from moongate.upstream.http1 import Http1
from moongate.upstream.http2 import Http2
from moongate.upstream.origin import Origin
from moongate.upstream.transport import Ended, Headers, Outbound, Timeouts, Transport, Valve

PATIENT = Timeouts(5, 5, 5, 5, 5, 5, 10)


@dataclass
class Kept:
    """A sink that keeps everything; `on_data` may act upon each piece."""

    on_data: Callable[["Kept", bytes], None] | None = None
    status: int = 0
    headers: Headers = ()
    pieces: list[bytes] = field(default_factory=list)
    opened: int = 0
    valve: Valve | None = None

    def open(self, valve: Valve) -> None:
        self.opened += 1
        self.valve = valve

    def head(self, status: int, headers: Headers) -> None:
        assert self.status == 0
        assert not self.pieces
        self.status, self.headers = status, headers

    def data(self, chunk: bytes) -> None:
        assert chunk
        self.pieces.append(chunk)
        if self.on_data is not None:
            self.on_data(self, chunk)

    @property
    def held(self) -> Valve:
        assert self.valve is not None
        return self.valve

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)


def outbound(
    body: bytes = b'{"model":"kimi-k2.5"}',
    *,
    method: bytes = b"POST",
    timeouts: Timeouts = PATIENT,
    seconds: float = 10.0,
    phases: dict[str, float] | None = None,
) -> Outbound:
    """A request with patience, but for the phases that are named."""
    return Outbound(
        method,
        b"/v1/chat/completions",
        b"Authorization: Bearer sk-test\r\nContent-Type: application/json\r\n",
        body,
        replace(timeouts, **(phases or {})),
        time.monotonic() + seconds,
    )


async def send(
    transport: Transport, request: Outbound | None = None, sink: Kept | None = None
) -> tuple[Ended, Kept]:
    """Carry one request to its end."""
    sink = sink or Kept()
    return await transport.exchange(request or outbound(), sink), sink


async def until(true: Callable[[], bool]) -> None:
    """Wait for what must become true within two seconds."""
    ends = time.monotonic() + 2
    while not true():
        assert time.monotonic() < ends
        await asyncio.sleep(0.001)


def origin(port: int, *, host: str = "127.0.0.1", tls: bool = False, **settings: Any) -> Origin:
    """One port of ours."""
    return replace(Origin(host, port, tls=tls), **settings)


@asynccontextmanager
async def pool(port: int, **settings: Any) -> AsyncIterator[Http1]:
    """A pool to one port of ours; afterwards nothing of it may be left."""
    async with resting(Http1(origin(port, **settings), time.monotonic)) as transport:
        yield transport


@asynccontextmanager
async def pool2(port: int, *, silent_seconds: float = 12.0, **settings: Any) -> AsyncIterator[Http2]:
    """The same over HTTP/2."""
    made = Http2(origin(port, **settings), time.monotonic, silent_seconds=silent_seconds)
    async with resting(made) as transport:
        yield transport


T = TypeVar("T", Http1, Http2)


@asynccontextmanager
async def resting(transport: T) -> AsyncIterator[T]:
    """A pool; afterwards nothing of it may be left."""
    try:
        yield transport
        assert transport.waiting == 0
        assert transport.in_use == 0
    finally:
        await transport.close()
    assert transport.idle == 0
    assert transport.in_use == 0


def failed(ended: Ended, fault: Fault) -> Ended:
    """Assert the fault, with the detail in sight."""
    assert ended.fault is fault, ended
    return ended
