"""Listeners: ports that answer, and ports that misbehave before HTTP begins."""

import asyncio
import contextlib
import socket
import struct
from typing import Any, cast

from moongate.sim.config import HostConfig
from moongate.sim.host import Host, Sim
from moongate.sim.upstream import Http1

_BACKLOG = 4096
_LINGER_NONE = struct.pack("ii", 1, 0)


def bind(address: str, port: int) -> socket.socket:
    """A bound TCP socket that does not listen yet."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setblocking(False)
    try:
        sock.bind((address, port))
    except OSError:
        sock.close()
        raise
    return sock


class Mute(asyncio.Protocol):
    """Accepts, reads, says nothing."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        self.transport = transport
        self._host.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let it go."""
        del exc
        self._host.disconnected(self)

    def reset(self) -> None:
        """Drop it."""
        cast("asyncio.Transport", self.transport).abort()


class Rude(Mute):
    """Resets whatever it accepts."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Reset."""
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
        self.reset()


_PROTOCOLS: dict[str, type[Any]] = {
    "api": Http1,
    "control": Http1,
    "silent": Mute,
    "tls_stall": Mute,
    "reset": Rude,
}


class Listening:
    """One host's socket."""

    def __init__(self, host: Host, tls: Any = None) -> None:
        self.host = host
        self.port = 0
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The address without a path."""
        config = self.host.config
        name = f"[{config.host}]" if ":" in config.host else config.host
        return f"http{'s' if config.tls else ''}://{name}:{self.port}"

    async def start(self) -> None:
        """Bind and serve."""
        config = self.host.config
        sock = bind(config.host, self.port or config.port)
        self.port = sock.getsockname()[1]
        if config.kind == "refused":
            self._sockets.append(sock)
        elif config.kind == "full_backlog":
            self._fill(sock)
        else:
            await self._serve(sock)

    async def _serve(self, sock: socket.socket) -> None:
        protocol, loop = _PROTOCOLS[self.host.config.kind], asyncio.get_running_loop()
        if self.host.config.tls == "tls10":
            from moongate.sim.tls import OldTls  # noqa: PLC0415 - needs a library that plain HTTP does not

            self._server = await loop.create_server(
                lambda: OldTls(self.host, self._tls), sock=sock, backlog=_BACKLOG
            )
            return
        self._server = await loop.create_server(
            lambda: protocol(self.host), sock=sock, backlog=_BACKLOG, ssl=self._tls
        )

    def _fill(self, sock: socket.socket) -> None:
        """Take every place in the queue ourselves, so that the kernel drops the next SYN."""
        sock.listen(0)
        self._sockets.append(sock)
        for _ in range(4):
            filler = socket.socket(sock.family, socket.SOCK_STREAM)
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(sock.getsockname())
            self._sockets.append(filler)

    def down(self) -> None:
        """Stop accepting and reset every connection."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for protocol in list(self.host.connections):
            protocol.reset()

    def up(self) -> None:
        """Accept again on the same port."""
        if self._server is None and not self._tasks:
            task = asyncio.get_running_loop().create_task(self.start())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Close everything."""
        for task in list(self._tasks):
            task.cancel()
        self.down()
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()
        for _ in range(3):
            await asyncio.sleep(0)


async def listen(sim: Sim, config: HostConfig, ca: Any) -> Listening:
    """Start one host."""
    host = Host(sim, config)
    tls = ca.context(config) if config.tls and ca else None
    listening = Listening(host, tls)
    host.listener = listening
    await listening.start()
    sim.hosts.append(host)
    return listening
