"""A tiny HTTP server that answers each request as its script says, and remembers what it was asked."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from moongate.core.addresses import Base, Url

OVERLOADED = json.dumps({"error": {"code": "engine_overloaded", "message": "m"}}).encode()


def stream(*events: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    """An event stream as it goes over the wire, each event in a chunk of its own."""
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events)
    return (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        + chunks
        + end
    )


def answer(input_tokens: int = 10, output_tokens: int = 2, cached: int = 0) -> bytes:
    """A whole answer with its usage."""
    usage = {"prompt_tokens": input_tokens, "completion_tokens": output_tokens}
    if cached:
        usage["cached_tokens"] = cached
    said = json.dumps({"model": "kimi-k2.5", "choices": [{"delta": {"content": "hi"}}]}).encode()
    last = json.dumps({"model": "kimi-k2.5", "choices": [], "usage": usage}).encode()
    return stream(b": hello\n\n", b"data: %b\n\n" % said, b"data: %b\n\n" % last, b"data: [DONE]\n\n")


def refusal(status: int, body: bytes = OVERLOADED) -> bytes:
    """An answer that is no stream."""
    return b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        status,
        len(body),
        body,
    )


class Server:
    """`script` says what to answer to the nth request (from 0); None: close without an answer, b"": never answer."""

    def __init__(
        self, script: Callable[[int], bytes | None], clock: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.asked: list[dict[str, Any]] = []
        self.heads: list[bytes] = []
        self.moments: list[float] = []
        self.connections = 0
        self.base: Url
        self._script = script
        self._clock = clock

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                number = len(self.heads)
                self.heads.append(head)
                self.moments.append(self._clock())
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                self.asked.append(json.loads(await reader.readexactly(length)))
                said = self._script(number)
                if said is None:
                    return
                writer.write(said)
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()


@asynccontextmanager
async def serving(script: Callable[[int], bytes | None], **more: Any) -> AsyncIterator[Server]:
    """A server on a port of the kernel's choice."""
    server = Server(script, **more)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    server.base = Base().parse(f"http://127.0.0.1:{port}/v1")
    try:
        yield server
    finally:
        listening.close()
