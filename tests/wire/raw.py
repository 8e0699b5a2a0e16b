"""A client on a plain socket: it sees every byte and leaves when it likes."""

import socket
import struct
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tests.wire.answer import Answer

_RESET = struct.pack("ii", 1, 0)


class CutError(Exception):
    """The other side ended inside an answer; `body` had come by then."""

    def __init__(self, body: bytes) -> None:
        super().__init__(f"cut after {len(body)} bytes")
        self.body = body


@dataclass
class Raw:
    """One connection to a port of this machine. Seconds without a byte are an error."""

    port: int
    buffer: int = 0
    seconds: float = 20.0

    def __post_init__(self) -> None:
        self.sock = socket.socket()
        if self.buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.buffer)
        self.sock.settimeout(self.seconds)
        try:
            self.sock.connect(("127.0.0.1", self.port))
        except OSError:
            self.sock.close()
            raise
        self.held = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.sock.close()

    def half_close(self) -> None:
        """Say that nothing more will be sent."""
        self.sock.shutdown(socket.SHUT_WR)

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def post(self, body: bytes, key: str, *lines: str, path: str = "/v1/chat/completions") -> None:
        """Send a whole request; `lines` are further headers."""
        head = [
            f"POST {path} HTTP/1.1",
            "Host: moongate.test",
            f"Authorization: Bearer {key}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *lines,
        ]
        self.send("\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body)

    def receive(self, most: int = 65_536) -> bytes:
        """Some bytes; none at a clean end."""
        if self.held:
            data, self.held = self.held[:most], self.held[most:]
            return data
        return self.sock.recv(most)

    def until(self, mark: bytes) -> bytes:
        """All that comes up to a mark, the mark included."""
        data = b""
        while mark not in data:
            more = self.receive()
            if not more:
                raise CutError(data)
            data += more
        at = data.index(mark) + len(mark)
        self.held = data[at:] + self.held
        return data[:at]

    def rest(self) -> bytes:
        """All that comes until the other side closes."""
        data = b""
        while more := self.receive():
            data += more
        return data

    def answer(self) -> Answer:
        """One whole answer, strictly framed; CutError if it is not whole."""
        status, headers = self.head()
        if headers.get("transfer-encoding") == "chunked":
            return Answer(status, headers, self._chunks())
        size = int(headers.get("content-length", "0"))
        return Answer(status, headers, self.exactly(size))

    def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of an answer, names in lower case."""
        first, *lines = self.until(b"\r\n\r\n").decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        pairs = (line.partition(": ") for line in lines)
        return int(first.split(" ")[1]), {name.lower(): value for name, _, value in pairs}

    def exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.receive(size - len(data))
            if not more:
                raise CutError(data)
            data += more
        return data

    def _chunks(self) -> bytes:
        body = b""
        try:
            while size := int(self.until(b"\r\n"), 16):
                body += self.exactly(size)
                assert self.exactly(2) == b"\r\n"
            assert self.exactly(2) == b"\r\n"
        except CutError as cut:
            raise CutError(body + cut.body) from None
        return body

    @property
    def at_end(self) -> bool:
        """Whether the other side closes now, without another byte."""
        try:
            return self.receive(1) == b""
        except ConnectionResetError:
            return True
