"""What the server asks of the API behind it, the limits it keeps, and what its connections share."""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from moongate.core.faults import Failure, Fault
from moongate.core.heads import RequestHead
from moongate.core.held import Held
from moongate.flow.downstream import Downstream, Head


class Api(Protocol):
    """What stands behind the server."""

    def screen(self, head: RequestHead) -> object:
        """Judge a request at the end of its headers, before its body is read; returns whatever `handle` needs.

        Raises FailedError to refuse; the connection then answers, and closes if a body was announced.
        """

    async def handle(self, head: RequestHead, screened: object, body: bytes, down: Downstream) -> None:
        """Answer one request through `down`, and return when nothing more is to be done for it.

        The server never cancels this because the client left: it sets `down.gone` and tells the watcher.
        A FailedError that leaves it before the answer was started is rendered; anything else is `gateway_error`.
        """

    def refuse(self, failure: Failure, head: RequestHead | None, screened: object, down: Downstream) -> None:
        """Answer for a request that the server ended; `screened` None: before `screen` let it pass.

        Called before anything was answered, also where `handle` left without an answer.
        """

    def forsaken(self, answered: object) -> None:
        """A client left just after an answer to which the API had given `answered`: it may not have it all."""

    def render(self, failure: Failure, head: RequestHead | None) -> tuple[Head, bytes]:
        """Write a refusal of the server's own; `head` is None where none could be read."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of the server, in bytes, seconds and connections; DESIGN sections 1, 4 and 14."""

    header_field_bytes: int = 16_384
    header_bytes: int = 65_536
    body_bytes: int = 32 * 1024 * 1024
    header_seconds: float = 10.0
    body_seconds: float = 60.0
    keep_alive_seconds: float = 75.0
    slow_client_seconds: float = 30.0
    high_water_bytes: int = 65_536
    connections: int = 20_000
    linger_seconds: float = 5.0


class Swept(Protocol):
    """A connection, as the sweeper and the server see it."""

    due: float

    def expire(self, now: float) -> None:
        """Its time is up: act on it, or set `due` anew."""

    def close_if_idle(self) -> None:
        """Close it unless a request is being read or answered."""

    def cut(self, fault: Fault) -> None:
        """End it now, whatever it does."""


@dataclass(slots=True, eq=False)
class Shared:
    """What all connections of one server share.

    `rest` is called when a connection ended, and when a request ended while draining.
    """

    api: Api
    limits: ServerLimits
    held: Held
    clock: Callable[[], float]
    rest: Callable[[], None]
    loop: AbstractEventLoop
    connections: set[Swept] = field(default_factory=set)
    arriving: int = 0  # accepted, not yet in `connections`
    active: int = 0
    refused: dict[Fault, int] = field(default_factory=dict)
    draining: bool = False
    date: bytes = b""
