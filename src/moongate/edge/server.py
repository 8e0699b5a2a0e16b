"""The data plane's HTTP/1.1 server: accepts connections, keeps their time and drains them.

The listening sockets belong to whoever hands them in; the server only stops accepting from them.
"""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Sequence

from moongate.core.faults import Failure, Fault
from moongate.core.heads import RequestHead
from moongate.core.held import Held
from moongate.core.wire import date_line, response_head
from moongate.edge.connection import Connection
from moongate.edge.contract import Api, ServerLimits, Shared
from moongate.edge.sockets import bound_send_buffer

__all__ = ["Api", "RequestHead", "Server", "ServerLimits"]

_log = logging.getLogger("moongate.edge")

_ACCEPTS_A_TURN = 64
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_GONE = (errno.ECONNABORTED, errno.EPROTO, errno.EPERM)


class Server:
    """One worker's server; made inside the event loop that it runs on.

    `clock` gives monotonic seconds for time-outs, `wall` seconds since 1970 for the Date header. Counts to be read
    at any time: `connections`, `active` (requests handed to the API and not done), `refused` (requests that the
    server answered itself, by fault: they never reached the API's `handle`).
    """

    def __init__(
        self,
        api: Api,
        limits: ServerLimits,
        held: Held,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._shared = Shared(api, limits, held, clock, self._at_rest, asyncio.get_running_loop())
        self._limits = limits
        self._clock = clock
        self._wall = wall
        self._second = -1
        self._listeners: list[socket.socket] = []
        self._paused: list[socket.socket] = []
        self._adopting: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._spare = -1
        self._resting = asyncio.Event()
        seconds = (
            limits.header_seconds,
            limits.body_seconds,
            limits.keep_alive_seconds,
            limits.slow_client_seconds,
            limits.linger_seconds,
        )
        self._tick = max(0.005, min(1.0, min(seconds) / 4))

    @property
    def connections(self) -> int:
        """Connections open now."""
        return len(self._shared.connections) + self._shared.arriving

    @property
    def active(self) -> int:
        """Requests handed to the API that are not done."""
        return self._shared.active

    @property
    def refused(self) -> dict[Fault, int]:
        """Requests answered by the server itself since its start, by fault."""
        return dict(self._shared.refused)

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Accept from these listening sockets, TCP or Unix."""
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._sweep_on()
        for listener in sockets:
            listener.setblocking(False)
            bound_send_buffer(listener)
            self._listeners.append(listener)
            self._shared.loop.add_reader(listener.fileno(), self._accept, listener)

    def drain(self) -> None:
        """Accept no more, close idle connections, and close each other one after its next answer."""
        loop = self._shared.loop
        for listener in self._listeners:
            loop.remove_reader(listener.fileno())
        self._listeners.clear()
        self._paused.clear()
        self._shared.draining = True
        for connection in list(self._shared.connections):
            connection.close_if_idle()
        self._at_rest()

    async def closed(self, grace: float) -> bool:
        """After `drain`: wait, at most `grace` seconds, until every connection and request is done; whether it was."""
        try:
            await asyncio.wait_for(self._resting.wait(), grace)
        except TimeoutError:
            return False
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        return True

    def abort_all(self) -> None:
        """Cut every connection; requests under way see `gone` as GATEWAY_DRAINING and end themselves."""
        for connection in list(self._shared.connections):
            connection.cut(Fault.GATEWAY_DRAINING)

    def sweep(self) -> None:
        """Act on every time-out that is due; the server calls this itself, at least once a second."""
        now = self._clock()
        self._tell_date()
        for connection in [each for each in self._shared.connections if each.due <= now]:
            connection.expire(now)
        paused, self._paused = self._paused, []
        for listener in paused:
            self._shared.loop.add_reader(listener.fileno(), self._accept, listener)

    def _sweep_on(self) -> None:
        self._sweeper = self._shared.loop.call_later(self._tick, self._sweep_on)
        self.sweep()

    def _tell_date(self) -> None:
        wall = self._wall()
        if int(wall) != self._second:
            self._second = int(wall)
            self._shared.date = date_line(wall)

    def _at_rest(self) -> None:
        if self._shared.draining and not self.connections and not self._shared.active:
            self._resting.set()

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _FULL:
                    self._accept_with_spare(listener)
                elif error.errno not in _GONE:
                    _log.exception("accepting failed")
                    self._pause(listener)
                return
            if self.connections >= self._limits.connections:
                self._turn_away(sock)
            else:
                self._shared.arriving += 1
                task = self._shared.loop.create_task(self._adopt(sock, address))
                self._adopting.add(task)
                task.add_done_callback(self._adopting.discard)

    async def _adopt(self, sock: socket.socket, address: object) -> None:
        peer = "unix"
        if isinstance(address, tuple):
            peer = str(address[0]).removeprefix("::ffff:")
        try:
            await self._shared.loop.connect_accepted_socket(lambda: Connection(self._shared, peer), sock)
        except OSError:
            sock.close()
            self._shared.arriving -= 1
            self._at_rest()

    def _accept_with_spare(self, listener: socket.socket) -> None:
        """No descriptor is left: use the spare one to say so, else the listener would stay readable and spin."""
        os.close(self._spare)
        try:
            sock, _ = listener.accept()
        except OSError:
            self._pause(listener)
        else:
            self._turn_away(sock)
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _pause(self, listener: socket.socket) -> None:
        """Leave this listener alone until the next sweep."""
        self._shared.loop.remove_reader(listener.fileno())
        self._paused.append(listener)

    def _turn_away(self, sock: socket.socket) -> None:
        """Answer 503 without a connection of our own, and close."""
        refused = self._shared.refused
        refused[Fault.GATEWAY_OVERLOADED] = refused.get(Fault.GATEWAY_OVERLOADED, 0) + 1
        try:
            head, body = self._shared.api.render(Failure(Fault.GATEWAY_OVERLOADED), None)
            length = b"Content-Length: %d\r\n" % len(body)
            close = b"Connection: close\r\n"
            sock.setblocking(False)
            sock.send(response_head(head.status, head.headers, self._shared.date, length, close) + body)
            sock.shutdown(socket.SHUT_WR)
            sock.recv(65_536)
        except OSError:
            pass
        finally:
            sock.close()
