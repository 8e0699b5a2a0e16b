"""What an upstream transport promises, whichever protocol it speaks (http1 and http2 alike).

A transport carries one request to one target and pushes the answer, as it arrives, into a `Sink`. It never raises
for what the network or the peer does: it returns an `Ended`. The only exception that leaves `exchange` is its own
cancellation, and then the exchange is closed at once, in whichever phase it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import msgspec

from moongate.core.faults import Fault, Reach

Headers = Sequence[tuple[bytes, bytes]]


class Phase(StrEnum):
    """Where an exchange is, and so which time-out runs."""

    CONNECT = "connect"
    TLS = "tls"
    WRITE = "write"
    HEAD = "head"
    FIRST_EVENT = "first_event"
    IDLE = "idle"
    TOTAL = "total"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds allowed in each phase (DESIGN section 6: the values for a stream)."""

    connect: float = 2.0
    tls: float = 3.0
    write: float = 30.0
    head: float = 30.0
    first_event: float = 60.0
    idle: float = 30.0
    total: float = 600.0


class Outbound(msgspec.Struct, gc=False):
    """One HTTP request, ready to be written; made for every attempt, so it is frozen by agreement only.

    `headers` are whole header lines without the final blank line and without Host, Content-Length and
    Connection, which the transport adds. `deadline` is in monotonic seconds: nothing starts at or after it.
    """

    method: bytes
    path: bytes
    headers: bytes
    body: bytes
    timeouts: Timeouts
    deadline: float


class Valve(Protocol):
    """What a sink may do to the exchange that feeds it."""

    def pause(self) -> None:
        """Stop reading from upstream; its timers stop too. Idempotent."""

    def resume(self) -> None:
        """Read on; the phase's time starts anew. Idempotent."""

    def beat(self) -> None:
        """Count a data event: the first ends phase `first_event`, each restarts `idle`. Comments do not beat."""

    def cut(self, fault: Fault | None, detail: str = "") -> None:
        """Read no more: close the connection and end the exchange with this fault (None: all is well)."""


class Sink(Protocol):
    """Where an answer goes. Called synchronously as bytes arrive; must neither wait nor raise."""

    def open(self, valve: Valve) -> None:
        """A connection is there and the request is about to be written."""

    def head(self, status: int, headers: Headers) -> None:
        """Take the final status and its headers, names in lower case; called once, before any data. 1xx never come."""

    def data(self, chunk: bytes) -> None:
        """Take body bytes, decoded of transfer coding and of gzip, never empty."""


class Ended(msgspec.Struct, gc=False):
    """How an exchange ended. `fault` None: the whole answer arrived with clean framing, or the sink cut it so.

    `reach` is as far as the transport can know: `nothing_sent` to `head`; that events were relayed the relay knows.
    `phase` is the phase in which it ended, `detail` a short text for record and log, never shown to a client.
    Times are monotonic seconds, 0.0 where that point was not reached. `framed` False: the answer ended with the
    connection alone (neither a length nor chunks), so its wholeness must be judged by what it says.
    """

    reach: Reach
    fault: Fault | None
    phase: Phase
    detail: str = ""
    reused: bool = False
    framed: bool = True
    connected_at: float = 0.0
    sent_at: float = 0.0
    head_at: float = 0.0
    ended_at: float = 0.0


class Transport(Protocol):
    """A pool of connections to one origin."""

    async def exchange(self, outbound: Outbound, sink: Sink) -> Ended:
        """Carry one request and push its answer into the sink. See the module's text for what it promises."""

    async def close(self) -> None:
        """Close every connection; exchanges under way end as `gateway_draining`."""

    @property
    def in_use(self) -> int:
        """Connections (or streams) that carry an exchange now; 0 at rest."""

    @property
    def idle(self) -> int:
        """Connections kept open for the next exchange."""
