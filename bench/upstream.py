"""A streaming upstream for the bench: every POST is answered with the same paced chat completion stream.

Cheap and dumb on purpose: it must cost less than what is measured. `moongate sim` is the truthful one.
"""

import argparse
import asyncio
import json
import resource
from typing import cast

import uvloop

HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)
MODELS = b'{"object":"list","data":[]}'
LISTING = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
    len(MODELS),
    MODELS,
)


def chunked(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(delta: dict[str, str], finish: str | None = None, **more: object) -> bytes:
    """One chunk of a chat completion as Kimi frames it, in an HTTP chunk of its own."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish, **more}
    frame = {
        "id": "chatcmpl-6a2b1c0d9e8f",
        "object": "chat.completion.chunk",
        "created": 1780272000,
        "model": "kimi-k2.5",
        "choices": [choice],
        "system_fingerprint": "fpv0_bench",
    }
    return chunked(b"data: " + json.dumps(frame, separators=(",", ":")).encode() + b"\n\n")


class Script:
    """What every stream says, made once: `chunks` deltas and an end with usage."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.first: float = options.first
        self.pace: float = options.pace
        self.flood: bool = options.flood
        usage = {
            "prompt_tokens": 512,
            "completion_tokens": options.chunks,
            "total_tokens": 512 + options.chunks,
        }
        delta = event({"content": "x" * options.text if options.text else " token"})
        self.parts = [event({"role": "assistant", "content": ""}), *[delta] * options.chunks]
        self.end = event({}, "stop", usage=usage) + chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, script: Script, loop: asyncio.AbstractEventLoop) -> None:
        self.script = script
        self.loop = loop
        self.received = b""
        self.position = 0
        self.due = 0.0
        self.open = True
        self.writable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Say no more."""
        self.open = False

    def pause_writing(self) -> None:
        """Hold a flood back."""
        self.writable = False

    def resume_writing(self) -> None:
        """Let a flood go on."""
        self.writable = True
        if self.script.flood and self.position:
            self.pour()

    def data_received(self, data: bytes) -> None:
        """Answer once a request is there as a whole."""
        self.received += data
        head, separator, body = self.received.partition(b"\r\n\r\n")
        if not separator:
            return
        lowered = head.lower()
        start = lowered.find(b"\r\ncontent-length:")
        length = int(lowered[start + 17 :].split(b"\r\n", 1)[0]) if start >= 0 else 0
        if len(body) < length:
            return
        self.received = body[length:]
        if not head.startswith(b"POST"):
            self.transport.write(LISTING)
        elif self.script.flood:
            self.transport.write(HEAD)
            self.pour()
        else:
            self.due = self.loop.time() + self.script.first
            self.loop.call_at(self.due, self.say)

    def say(self) -> None:
        """Send the next part when it is due."""
        if not self.open:
            return
        part = self.script.parts[self.position]
        self.transport.write(part if self.position else HEAD + part)
        self.position += 1
        self.due += self.script.pace
        if self.position < len(self.script.parts):
            self.loop.call_at(self.due, self.say)
        else:
            self.position = 0
            self.loop.call_at(self.due, self.finish)

    def finish(self) -> None:
        """Send the end; the connection may be used again."""
        if self.open:
            self.transport.write(self.script.end)

    def pour(self) -> None:
        """Send as fast as the reader takes it."""
        while self.open and self.writable and self.position < len(self.script.parts):
            self.transport.write(self.script.parts[self.position])
            self.position += 1
        if self.position == len(self.script.parts):
            self.position = 0
            self.finish()


async def serve(options: argparse.Namespace) -> None:
    """Answer until killed."""
    script = Script(options)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Connection(script, loop), "127.0.0.1", options.port, backlog=4096
    )
    await server.serve_forever()


def main() -> None:
    """Read the options and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--chunks", type=int, default=100)
    parser.add_argument("--pace", type=float, default=0.02, help="seconds between chunks")
    parser.add_argument("--first", type=float, default=0.0, help="seconds before the first chunk")
    parser.add_argument("--text", type=int, default=0, help="bytes of text in a chunk; 0: one word")
    parser.add_argument("--flood", action="store_true", help="no pace: as fast as the reader takes it")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
