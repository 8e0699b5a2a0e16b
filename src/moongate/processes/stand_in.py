"""Answers for a slot whose worker is away: an honest 503 instead of a connection that hangs."""

import asyncio
import contextlib
import socket
from collections.abc import Iterable
from typing import Final

import msgspec

from moongate.core.faults import FACTS, Fault

RETRY_AFTER: Final = 5
"""Seconds; the longest pause between two starts of a worker."""
_PATIENCE: Final = 2.0
_MOST_AT_ONCE: Final = 512


class StandIn:
    """Accepts on listening sockets beside, or instead of, their worker and answers every request with one fault."""

    def __init__(self, sockets: Iterable[socket.socket], fault: Fault) -> None:
        self._sockets = [sock.dup() for sock in sockets]
        self._answer = answer(fault)
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Accept from now on."""
        for sock in self._sockets:
            self._loop.add_reader(sock.fileno(), self.accept_waiting)

    def accept_waiting(self) -> int:
        """Accept whoever waits now and return how many; they are answered on the loop."""
        accepted = 0
        for sock in self._sockets:
            while len(self._tasks) < _MOST_AT_ONCE:
                try:
                    connection, _ = sock.accept()
                except OSError:
                    break
                task = self._loop.create_task(self._serve(connection))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                accepted += 1
        return accepted

    def stop(self) -> None:
        """Accept no more; answers under way go on."""
        for sock in self._sockets:
            self._loop.remove_reader(sock.fileno())
            sock.close()
        self._sockets.clear()

    async def finish(self) -> None:
        """Stop, and wait for the answers under way: a few seconds at most."""
        self.stop()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=connection)
        try:
            async with asyncio.timeout(_PATIENCE):
                with contextlib.suppress(asyncio.LimitOverrunError):
                    await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer)
                await writer.drain()
                if writer.can_write_eof():
                    writer.write_eof()
                while await reader.read(65536):  # unread bytes at close would reset what we just said
                    pass
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def answer(fault: Fault) -> bytes:
    """A whole HTTP/1.1 response in the shape of every error of ours; the connection closes after it."""
    facts = FACTS[fault]
    error = {
        "message": facts.message,
        "type": facts.kind,
        "code": facts.code,
        "param": None,
        "request_id": None,
    }
    body = msgspec.json.encode({"error": error})
    head = (
        f"HTTP/1.1 {facts.status} Service Unavailable\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nRetry-After: {RETRY_AFTER}\r\nx-should-retry: true\r\n"
        f"Proxy-Status: moongate; error={facts.proxy_status}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
