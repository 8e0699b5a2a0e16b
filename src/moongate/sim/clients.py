"""Clients on plain sockets: they see every byte, and they behave as badly as a test needs.

`Client` writes what it is told and reads strictly: an answer that is cut short raises `CutError` with what
had come. The rest are habits: reading slowly, closing one half, leaving in the middle, sending ahead. All are
async and bound to the running loop; times are seconds.
"""

import asyncio
import contextlib
import json
import socket
import struct
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

_READ: Final = 65_536
_LINGER_NONE: Final = struct.pack("ii", 1, 0)


class CutError(Exception):
    """The peer ended the connection inside an answer; `head` and `body` had come by then."""

    def __init__(self, *, head: "Head | None", body: bytes, reset: bool) -> None:
        super().__init__(f"cut {'by reset' if reset else 'cleanly'} after {len(body)} bytes of body")
        self.head = head
        self.body = body
        self.reset = reset


@dataclass(slots=True)
class Head:
    """Status and headers, names in lower case, in order."""

    status: int
    headers: list[tuple[str, str]]

    def get(self, name: str, default: str = "") -> str:
        """The first header of that name."""
        return next((value for key, value in self.headers if key == name), default)


@dataclass(slots=True)
class Response:
    """A whole answer. `interim` are the 1xx statuses before it."""

    head: Head
    body: bytes
    interim: list[int] = field(default_factory=list)

    @property
    def status(self) -> int:
        """The status code."""
        return self.head.status

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    def events(self) -> list[str]:
        """The data of each event, for bodies with LF lines and one data line an event."""
        return [
            line[5:].removeprefix(" ") for line in self.body.decode().split("\n") if line.startswith("data:")
        ]

    def objects(self) -> list[Any]:
        """Each event but `[DONE]` as JSON."""
        return [json.loads(data) for data in self.events() if data != "[DONE]"]

    def text(self, member: str = "content") -> str:
        """The text that the deltas of a stream, or the message of a whole answer, make together."""
        if not self.head.get("content-type").startswith("text/event-stream"):
            return str(self.json()["choices"][0]["message"].get(member) or "")
        deltas = (choice["delta"] for one in self.objects() for choice in one.get("choices", []))
        return "".join(delta.get(member) or "" for delta in deltas)


def request_bytes(
    method: str,
    target: str,
    body: bytes = b"",
    headers: dict[str, str] | None = None,
    host: str = "kimi.test",
) -> bytes:
    """A request as HTTP/1.1 bytes with `Host`, and `Content-Length` where there is a body."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}"]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def chat_bytes(members: dict[str, Any] | None = None, key: str = "sk-sim", **headers: str) -> bytes:
    """A chat completion request; `members` are laid over a short default body, headers' `_` become `-`."""
    body = {"model": "kimi-k2.5", "messages": [{"role": "user", "content": "hello"}], **(members or {})}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    head = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", **named}
    raw = json.dumps(body, ensure_ascii=False).encode()
    return request_bytes("POST", "/v1/chat/completions", raw, head)


class Client:
    """One connection. Use as an async context, or `open` and `close` it."""

    def __init__(self, port: int, host: str = "127.0.0.1", receive_buffer: int = 0) -> None:
        self._address = (host, port)
        self._receive_buffer = receive_buffer
        self._sock: socket.socket
        self._held = b""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def open(self) -> None:
        """Connect; OSError as the kernel gives it."""
        family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        self._sock = socket.socket(family, socket.SOCK_STREAM)
        if self._receive_buffer:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        self._sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(self._sock, self._address)
        except BaseException:
            self._sock.close()
            raise

    def close(self) -> None:
        """Close both halves."""
        self._sock.close()

    def reset(self) -> None:
        """Close so that the peer sees a reset."""
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
        self._sock.close()

    def half_close(self) -> None:
        """Say that nothing more will be sent; reading goes on."""
        self._sock.shutdown(socket.SHUT_WR)

    async def send(self, data: bytes) -> None:
        """Write all of it."""
        await asyncio.get_running_loop().sock_sendall(self._sock, data)

    async def receive(self, at_most: int = _READ) -> bytes:
        """Some bytes; none when the peer has ended cleanly. A reset raises ConnectionResetError."""
        if self._held:
            data, self._held = self._held[:at_most], self._held[at_most:]
            return data
        return await asyncio.get_running_loop().sock_recv(self._sock, at_most)

    async def at_end(self, within: float = 1.0) -> bool:
        """Whether the peer closes within that time without sending anything more."""
        try:
            return await asyncio.wait_for(self.receive(1), within) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False

    async def request(self, raw: bytes) -> Response:
        """Send a request and read its answer."""
        await self.send(raw)
        return await self.response()

    async def response(self) -> Response:
        """Read one whole answer, however its end is told."""
        reader = _Reader(self)
        response = await reader.response()
        self._held = reader.rest + self._held
        return response

    async def until(self, mark: bytes, limit: int = 64 * 1024 * 1024) -> bytes:
        """Read until the bytes that have come hold a mark; what is behind it stays for the next read."""
        data = b""
        while mark not in data:
            more = await self.receive()
            if not more or len(data) > limit:
                raise CutError(head=None, body=data, reset=False)
            data += more
        at = data.index(mark) + len(mark)
        self._held = data[at:] + self._held
        return data[:at]


class _Reader:
    """Reads one answer; `rest` is what came behind it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._head: Head | None = None
        self._body = b""
        self.rest = b""

    async def response(self) -> Response:
        interim: list[int] = []
        while True:
            self._head = None
            head = self._head = await self._read_head()
            if head.status >= 200:
                break
            interim.append(head.status)
        if head.status in {204, 304}:
            return Response(head, b"", interim)
        if "chunked" in head.get("transfer-encoding"):
            await self._chunks()
        elif head.get("content-length"):
            self._body = await self._exactly(int(head.get("content-length")))
        else:
            await self._to_end()
        return Response(head, self._body, interim)

    async def _more(self) -> bytes:
        try:
            data = await self._client.receive()
        except ConnectionResetError:
            raise CutError(head=self._head, body=self._body + self.rest, reset=True) from None
        if not data:
            raise CutError(head=self._head, body=self._body + self.rest, reset=False)
        return data

    async def _line(self) -> bytes:
        while b"\r\n" not in self.rest:
            self.rest += await self._more()
        line, _, self.rest = self.rest.partition(b"\r\n")
        return line

    async def _exactly(self, size: int) -> bytes:
        parts, have = [self.rest], len(self.rest)
        while have < size:
            try:
                more = await self._more()
            except CutError as cut:
                cut.body = self._body + b"".join(parts)
                raise
            parts.append(more)
            have += len(more)
        data = b"".join(parts)
        self.rest = data[size:]
        return data[:size]

    async def _read_head(self) -> Head:
        status = (await self._line()).split(b" ", 2)
        headers = []
        while line := await self._line():
            name, _, value = line.partition(b":")
            headers.append((name.decode("latin-1").lower(), value.strip().decode("latin-1")))
        return Head(int(status[1]), headers)

    async def _chunks(self) -> None:
        parts: list[bytes] = []
        while True:
            size = int((await self._line()).split(b";")[0], 16)
            data = await self._exactly(size + 2)
            if not size:
                return
            parts.append(data[:-2])
            self._body = b"".join(parts)

    async def _to_end(self) -> None:
        self._body, self.rest = self.rest, b""
        while True:
            try:
                self._body += await self._more()
            except CutError as cut:
                if cut.reset:
                    raise
                return


class SlowReader(Client):
    """Reads `size` bytes every `pause` seconds through a small receive buffer."""

    def __init__(self, port: int, host: str = "127.0.0.1", size: int = 1024, pause: float = 1.0) -> None:
        super().__init__(port, host, receive_buffer=4096)
        self._size = size
        self._pause = pause

    async def receive(self, at_most: int = _READ) -> bytes:
        """A few bytes, later."""
        await asyncio.sleep(self._pause)
        return await super().receive(min(at_most, self._size))


class HalfCloser(Client):
    """Closes its sending half right after the request."""

    async def request(self, raw: bytes) -> Response:
        """Send, half-close, read."""
        await self.send(raw)
        self.half_close()
        return await self.response()


class Leaver(Client):
    """Leaves once a mark has come, cleanly or with a reset."""

    async def leave_after(self, raw: bytes, mark: bytes = b"", *, reset: bool = False) -> bytes:
        """Send a request, read up to the mark (leave at once where it is empty), leave; what was read."""
        await self.send(raw)
        read = await self.until(mark) if mark else b""
        if reset:
            self.reset()
        else:
            self.close()
        return read


class Pipeliner(Client):
    """Sends all its requests before it reads the first answer."""

    async def pipeline(self, *requests: bytes) -> list[Response]:
        """The answers in order."""
        await self.send(b"".join(requests))
        return [await self.response() for _ in requests]
