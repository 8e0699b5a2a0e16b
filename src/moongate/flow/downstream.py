"""What the flow pushes an answer into. `edge/downstream` is the one over HTTP/1.1; tests bring their own."""

from dataclasses import dataclass
from typing import Protocol

from moongate.core.faults import Fault


@dataclass(slots=True)
class Head:
    """Status and headers of an answer; made for each, so it is frozen by agreement only.

    `headers` are whole lines, CRLF included, without Content-Length, Transfer-Encoding, Connection and Date, which
    belong to the edge. `stream` True: the body follows in pieces of unknown total size.
    """

    status: int
    headers: bytes
    stream: bool = False


class Watcher(Protocol):
    """Who wants to know what becomes of a downstream. Called synchronously; must not raise."""

    def downstream_ready(self) -> None:
        """It fell below its low-water mark after it had been above the high one."""

    def downstream_gone(self) -> None:
        """The client left, or took nothing for too long; `gone` says which."""


class Downstream(Protocol):
    """One answer on its way to one client. Nothing here waits but `drain`; nothing raises once the client is gone.

    `answered`: what the flow is told of, if the client leaves so soon after the whole answer that it may not have it.
    """

    answered: object

    @property
    def gone(self) -> Fault | None:
        """`CLIENT_CLOSED` or `SLOW_CLIENT` once nobody reads any more, else None."""

    @property
    def ready(self) -> bool:
        """Whether less than the high-water mark (64 KB) waits to be taken."""

    @property
    def started(self) -> bool:
        """Whether a byte of the answer was handed over: from here on there is no other answer."""

    def watch(self, watcher: Watcher | None) -> None:
        """Tell this watcher (one at a time) from now on; None: nobody."""

    def start(self, head: Head) -> None:
        """Hold the head until the first `write`, so that both leave together."""

    def write(self, data: bytes) -> None:
        """Send body bytes of a stream now; never waits, never blocks."""

    def end(self) -> None:
        """Finish a stream cleanly."""

    def respond(self, head: Head, body: bytes) -> None:
        """Send a whole answer in one write, with its Content-Length."""

    def abort(self) -> None:
        """Cut the connection: the client must not take what it has for an answer."""

    async def drain(self) -> None:
        """Wait until `ready` or `gone`."""
