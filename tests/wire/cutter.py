"""A network that drops connections where it is told to: a TCP forwarder between a client and a port of this machine."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass

_RESET = struct.pack("ii", 1, 0)
PIECE = 65_536


@dataclass(frozen=True)
class Cut:
    """Where one connection breaks, for both ends at once.

    `up` and `down`: after so many bytes of the request, and of the answer, went through; None: never there.
    """

    up: int | None = None
    down: int | None = None


class Cutter:
    """Forwards connections to `port`; the first ones break as `cuts` say, in order, the others never."""

    def __init__(self, port: int, cuts: list[Cut]) -> None:
        self._to = port
        self._cuts = list(cuts)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.accepted = 0
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            cut = self._cuts.pop(0) if self._cuts else Cut()
            server = socket.create_connection(("127.0.0.1", self._to))
            self._ends += [client, server]
            for source, sink, most in ((client, server, cut.up), (server, client, cut.down)):
                thread = threading.Thread(target=self._forward, args=(source, sink, most), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _forward(self, source: socket.socket, sink: socket.socket, most: int | None) -> None:
        left = most
        with contextlib.suppress(OSError):
            while left is None or left > 0:
                data = source.recv(PIECE if left is None else min(left, PIECE))
                if not data:
                    with contextlib.suppress(OSError):
                        sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)
                left = None if left is None else left - len(data)
            _break(source)
            _break(sink)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._ends:
            _break(end)
        for thread in self._threads:
            thread.join(10)
        for end in self._ends:
            end.close()


def _break(end: socket.socket) -> None:
    """End it for whoever still holds it, with a reset."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def cutting(port: int, *cuts: Cut) -> Iterator[Cutter]:
    cutter = Cutter(port, list(cuts))
    try:
        yield cutter
    finally:
        cutter.close()
