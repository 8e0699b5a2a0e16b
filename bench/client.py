"""Streaming clients for the bench: opens streams at a rate, checks each to its end, and prints what it saw as JSON.

Prints a line `live` once every stream has had its first event. With `--stall` the clients then read no more until
standard input closes.
"""

import argparse
import asyncio
import contextlib
import json
import resource
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import cast

import uvloop

BODY_BYTES = 2048


@dataclass(slots=True)
class Tally:
    """What all clients saw. Times in seconds."""

    streams: int
    chunks: int
    ended: int = 0
    complete: int = 0
    live: int = 0
    events: int = 0
    gaps: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    all_live: asyncio.Event = field(default_factory=asyncio.Event)
    all_ended: asyncio.Event = field(default_factory=asyncio.Event)


def request(key: str, number: int) -> bytes:
    """A streamed chat call of 2 KB; each is another conversation."""
    body = {
        "model": "kimi-k2.5",
        "messages": [
            {"role": "system", "content": "You answer briefly."},
            {"role": "user", "content": f"Question {number}: " + "why? " * ((BODY_BYTES - 180) // 5)},
        ],
        "stream": True,
    }
    text = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {key}\r\nContent-Length: {len(text)}\r\n\r\n"
    )
    return head.encode() + text


class Client(asyncio.Protocol):
    """One connection; carries one stream after another."""

    def __init__(self, tally: Tally, idle: list["Client"], *, stall: bool) -> None:
        self.tally = tally
        self.idle = idle
        self.stall = stall
        self.busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)

    def start(self, message: bytes) -> None:
        """Send one call."""
        self.busy = True
        self.events = 0
        self.tail = b""
        self.done = False
        self.began = self.last = time.perf_counter()
        self.transport.write(message)

    def data_received(self, data: bytes) -> None:
        """Count events and the time between them."""
        now = time.perf_counter()
        text = self.tail + data
        seen = text.count(b"data: ")
        self.done = self.done or b"[DONE]" in text
        self.tail = text[-5:]  # what is looked for is longer, so nothing is seen twice
        if seen:
            if self.events:
                self.tally.gaps.append(now - self.last)
            else:
                self.tally.firsts.append(now - self.began)
                self.tally.live += 1
                if self.tally.live == self.tally.streams:
                    self.tally.all_live.set()
            self.last = now
            self.events += seen
            if self.stall:
                self.transport.pause_reading()
        elif not self.events and not data.startswith(b"HTTP/1.1 200"):
            self.tally.refusals.append(data[:300].decode("latin-1"))
        if text.endswith(b"0\r\n\r\n"):
            self.end(whole=self.done)

    def end(self, *, whole: bool) -> None:
        """Close the books on this stream: role, chunks, end and [DONE] make it complete."""
        self.busy = False
        self.tally.ended += 1
        self.tally.events += self.events
        if self.tally.ended == self.tally.streams:
            self.tally.all_ended.set()
            self.tally.all_live.set()
        self.tally.complete += whole and self.events == self.tally.chunks + 3
        if not self.transport.is_closing():
            self.idle.append(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """A stream that was not at its end is lost."""
        if self.busy:
            self.end(whole=False)


async def connect(port: int, tally: Tally, idle: list[Client], *, stall: bool) -> Client:
    """A new connection; a stalling one has a small receive buffer, so that it stalls early."""
    place = socket.socket()
    if stall:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    place.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(place, ("127.0.0.1", port))
    _, client = await loop.create_connection(lambda: Client(tally, idle, stall=stall), sock=place)
    return client


async def drive(options: argparse.Namespace) -> Tally:
    """Start the streams at their rate, wait for all of them."""
    tally = Tally(options.streams, options.chunks)
    idle: list[Client] = []
    loop = asyncio.get_running_loop()
    began = loop.time()
    clients: set[Client] = set()
    for number in range(options.streams):
        await asyncio.sleep(max(0.0, began + number / options.rate - loop.time()))
        while idle and idle[-1].transport.is_closing():
            idle.pop()
        client = idle.pop() if idle else await connect(options.port, tally, idle, stall=options.stall)
        clients.add(client)
        client.start(request(options.key, number))
    await tally.all_live.wait()
    print("live", flush=True)
    if options.stall:
        await loop.run_in_executor(None, sys.stdin.read)
        return tally
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(tally.all_ended.wait(), options.patience)
    return tally


def percentile(values: list[float], share: float) -> float:
    """The value below which this share lies; 0 for none."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--key", default="none")
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--chunks", type=int, default=100)
    parser.add_argument("--rate", type=float, default=50.0, help="streams begun in a second")
    parser.add_argument("--stall", action="store_true", help="read nothing after the first event")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for the ends")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    tally = uvloop.run(drive(options))
    seen = {
        "streams": tally.streams,
        "complete": tally.complete,
        "lost": tally.streams - tally.complete,
        "events": tally.events,
        "gap_p50": percentile(tally.gaps, 0.5),
        "gap_p99": percentile(tally.gaps, 0.99),
        "first_p50": percentile(tally.firsts, 0.5),
        "first_p99": percentile(tally.firsts, 0.99),
        "refusals": tally.refusals[:3],
    }
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main()
