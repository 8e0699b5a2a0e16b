"""Frames between the supervisor and its workers, over one Unix socket.

A frame is four bytes of length, big-endian, then one message as MessagePack. Listening sockets travel beside a
`Hello` as SCM_RIGHTS (unix(7)). Both ends check that the other runs under the same user.
"""

import asyncio
import contextlib
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from moongate.ops.metrics import Row

LONGEST_FRAME: Final = 16 * 1024 * 1024
"""Bytes; a longer frame, or as much unsent, ends the channel."""
_MOST_FDS: Final = 16
_LENGTH: Final = struct.Struct(">I")
_CREDENTIALS: Final = struct.Struct("3i")


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A worker's first words on every connection; its two listening sockets come with them.

    `identity` is that of the state lock its supervisor held (see `state_lock`), `settings` the digest of what it
    was built from.
    """

    slot: int
    pid: int
    generation: int
    identity: str
    version: str
    settings: str
    serving: bool
    ready: bool
    draining: bool
    fds: int = 0


class State(msgspec.Struct, frozen=True, tag="state"):
    """What a worker does now: `serving` it accepts connections, `ready` it may be given calls."""

    serving: bool
    ready: bool
    draining: bool


class Snapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    """A worker's metrics since its start. `answers` is the number of the `Scrape`, 0 when pushed unasked."""

    rows: list[Row]
    answers: int = 0


class Park(msgspec.Struct, frozen=True, tag="park"):
    """Kimi refused an account, or `account/model`, for good: have nobody ask it until somebody looks.

    `fault` is the cause's name, `target` the one that told, `detail` its words, redacted.
    """

    name: str
    fault: str
    target: str
    detail: str = ""


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The supervisor takes the worker in: what it needs to serve. `settings` and `control` are JSON."""

    identity: str
    settings: bytes
    control: bytes
    checks: dict[str, str]
    grace_seconds: float
    load: dict[str, float] = {}


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The supervisor has no place for this worker: drain and exit."""

    reason: str


class Control(msgspec.Struct, frozen=True, tag="control"):
    """The control document changed; `document` is JSON."""

    document: bytes


class Checks(msgspec.Struct, frozen=True, tag="checks"):
    """What `/healthz` shows from now on."""

    checks: dict[str, str]


class Load(msgspec.Struct, frozen=True, tag="load"):
    """How busy self-hosted replicas are by their gauges: target -> 0 for idle, no upper bound."""

    load: dict[str, float]


class Scrape(msgspec.Struct, frozen=True, tag="scrape"):
    """Answer with a `Snapshot` now."""

    number: int


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Accept no more, finish what runs within this time, exit. A second one shortens the time."""

    grace_seconds: float


Message = Hello | State | Snapshot | Park | Welcome | Refused | Control | Checks | Load | Scrape | Drain


class Receiver(Protocol):
    """Who reads a channel. Called on the event loop; must not raise."""

    def received(self, channel: "Channel", message: Message, fds: list[int]) -> None:
        """Take one message; whoever takes descriptors closes them."""

    def closed(self, channel: "Channel") -> None:
        """The other end is gone. Called once, never after `close()`."""


class Channel:
    """One connection, both directions. Nothing here waits."""

    def __init__(self, sock: socket.socket, receiver: Receiver) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Message)
        self._inbox = bytearray()
        self._fds: list[int] = []
        self._outbox: deque[tuple[memoryview, Sequence[int]]] = deque()
        self._unsent = 0
        self._open = True
        self._loop.add_reader(sock.fileno(), self._readable)

    @property
    def is_open(self) -> bool:
        """Whether the other end may still hear us."""
        return self._open

    @property
    def unsent(self) -> int:
        """Bytes that the other end has not taken yet."""
        return self._unsent if self._open else 0

    @property
    def peer_pid(self) -> int:
        """The process id at the other end when it connected."""
        return peer_of(self._sock)[0]

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send one message; dropped if the channel is closed. The descriptors stay the sender's to close."""
        if not self._open:
            return
        body = self._encoder.encode(message)
        frame = memoryview(_LENGTH.pack(len(body)) + body)
        self._outbox.append((frame, fds))
        self._unsent += len(frame)
        if self._unsent > LONGEST_FRAME:
            self._lost()
        elif len(self._outbox) == 1:
            self._flush()

    def take_rest(self) -> None:
        """Hand over what already arrived: the last words of a process that has just ended."""
        while self._open and self._readable():
            pass

    def close(self) -> None:
        """End the channel without a word to the receiver. Idempotent."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        self._outbox.clear()
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()

    def _lost(self) -> None:
        self.close()
        self._receiver.closed(self)

    def _readable(self) -> bool:
        """Read once; False when there was nothing to read."""
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, 65536, _MOST_FDS, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data, fds = b"", []
        self._fds += fds
        self._inbox += data
        if data:
            self._deliver()
        else:
            self._lost()
        return True

    def _deliver(self) -> None:
        while self._open and len(self._inbox) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._inbox)
            end = _LENGTH.size + length
            if length > LONGEST_FRAME:
                self._lost()
                return
            if len(self._inbox) < end:
                return
            body = bytes(self._inbox[_LENGTH.size : end])
            del self._inbox[:end]
            try:
                message = self._decoder.decode(body)
            except msgspec.DecodeError:  # another version's word: the rest may still be understood
                continue
            count = message.fds if isinstance(message, Hello) else 0
            fds, self._fds = self._fds[:count], self._fds[count:]
            self._receiver.received(self, message, fds)

    def _flush(self) -> None:
        while self._outbox:
            frame, fds = self._outbox[0]
            try:
                sent = socket.send_fds(self._sock, [frame], fds) if fds else self._sock.send(frame)
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._sock.fileno(), self._flush)
                return
            except OSError:
                self._lost()
                return
            self._unsent -= sent
            if sent < len(frame):
                self._outbox[0] = (frame[sent:], ())
            else:
                self._outbox.popleft()
        self._loop.remove_writer(self._sock.fileno())


def peer_of(sock: socket.socket) -> tuple[int, int]:
    """Process and user id at the other end of a Unix socket (SO_PEERCRED, unix(7))."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


def connect(path: Path, receiver: Receiver) -> Channel | None:
    """Open a channel to the supervisor that listens there; None if nobody of our user does."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.connect(os.fspath(path))
        if peer_of(sock)[1] == os.geteuid():
            return Channel(sock, receiver)
    except OSError:
        pass
    sock.close()
    return None


def listen(path: Path) -> socket.socket:
    """Bind the supervisor's end, for its own user only; a stale socket file is replaced. Raises OSError."""
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        sock.bind(os.fspath(path))
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(before)
    sock.listen(128)
    sock.setblocking(False)
    return sock


def adopt(fd: int) -> socket.socket:
    """The supervisor's end out of an inherited descriptor."""
    return socket.socket(fileno=fd)


class Reception:
    """Accepts workers on the supervisor's socket and gives each connection a receiver."""

    def __init__(self, sock: socket.socket, receiver: Callable[[], Receiver]) -> None:
        self.sock = sock
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock.fileno(), self._acceptable)
        self.channels: set[Channel] = set()

    def _acceptable(self) -> None:
        with contextlib.suppress(OSError):
            sock, _ = self.sock.accept()
            if peer_of(sock)[1] != os.geteuid():
                sock.close()
                return
            self.channels = {channel for channel in self.channels if channel.is_open}
            self.channels.add(Channel(sock, self._receiver()))

    def close(self) -> None:
        """Hang up on everybody; the listening socket stays open for whoever comes next."""
        self._loop.remove_reader(self.sock.fileno())
        for channel in self.channels:
            channel.close()
