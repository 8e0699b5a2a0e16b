"""The flow with nothing real around it: scripted upstreams, clients in memory, time that jumps.

Real: gateway, admission, flights, exchange, relays, ledger, journal (in a temporary directory), the chat surface.
Ours: the transport (network border), the downstream (network border), the world (clock, dice, ids).
"""

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from moongate.core.body import RawBody
from moongate.core.call import Call, Principal
from moongate.core.chat import ChatCompletions
from moongate.core.faults import Failure, Fault, Reach
from moongate.core.held import Held
from moongate.core.pricing import PRICES, PriceTable
from moongate.core.record import CallRecord
from moongate.core.routing import Candidate, Route
from moongate.flow.admission import Admission
from moongate.flow.downstream import Head, Watcher
from moongate.flow.exchange import Exchange
from moongate.flow.flight import Flights
from moongate.flow.gateway import Gateway, RouteTimes
from moongate.flow.ledger import Ledger
from moongate.store.journal import Journal
from moongate.upstream.transport import Ended, Headers, Outbound, Phase, Sink, Timeouts

JSON: Headers = [(b"content-type", b"application/json")]
SSE: Headers = [(b"content-type", b"text/event-stream")]


class _JumpingSelector(selectors.DefaultSelector):
    """Never sleeps: whoever would wait for a timer finds that its time has come."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout:
            self.now += timeout
        return super().select(0)


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


class PlayedWorld:
    """The loop's time, counted ids, no chance."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ids = 0

    def clock(self) -> float:
        return self._loop.time()

    def wall(self) -> float:
        return 1_780_000_000.0 + self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def draw(self) -> float:
        return 0.5

    def new_id(self) -> str:
        self._ids += 1
        return f"{self._ids:028x}"

    def new_secret(self) -> str:
        return "s" * 43


class Client:
    """A downstream in memory. `room` False: it is above its high-water mark."""

    def __init__(self) -> None:
        self.head: Head | None = None
        self.body = b""
        self.ended = False
        self.aborted = False
        self.gone: Fault | None = None
        self.ready = True
        self.watcher: Watcher | None = None
        self.writes: list[bytes] = []
        self.on_write: Callable[[bytes], None] = lambda _data: None

    @property
    def started(self) -> bool:
        return self.head is not None

    def watch(self, watcher: Watcher | None) -> None:
        self.watcher = watcher

    def start(self, head: Head) -> None:
        assert self.head is None, "a second head"
        self.head = head

    def write(self, data: bytes) -> None:
        assert self.head is not None, "bytes before the head"
        assert not self.ended, "bytes after the end"
        self.body += data
        self.writes.append(data)
        self.on_write(data)

    def end(self) -> None:
        assert not self.ended, "a second end"
        self.ended = True

    def respond(self, head: Head, body: bytes) -> None:
        self.start(head)
        self.body = body
        self.end()

    def abort(self) -> None:
        self.aborted = True

    async def drain(self) -> None:
        return None

    def leave(self, fault: Fault = Fault.CLIENT_CLOSED) -> None:
        self.gone = fault
        if self.watcher is not None:
            self.watcher.downstream_gone()

    def make_room(self) -> None:
        self.ready = True
        if self.watcher is not None:
            self.watcher.downstream_ready()

    @property
    def status(self) -> int:
        return self.head.status if self.head is not None else 0


class Play:
    """One scripted exchange, and the valve its sink holds."""

    def __init__(self, outbound: Outbound, sink: Sink) -> None:
        self.outbound = outbound
        self.sink = sink
        self.paused = False
        self.pauses = 0
        self.beats = 0
        self.cut_by: list[tuple[Fault | None, str]] = []
        self._struck = asyncio.Event()

    def pause(self) -> None:
        self.paused = True
        self.pauses += 1

    def resume(self) -> None:
        self.paused = False

    def beat(self) -> None:
        self.beats += 1

    def cut(self, fault: Fault | None, detail: str = "") -> None:
        self.cut_by.append((fault, detail))
        self._struck.set()

    async def until_cut(self) -> Ended:
        await self._struck.wait()
        fault, detail = self.cut_by[0]
        return Ended(Reach.HEAD, fault, Phase.IDLE, detail)


Act = Callable[[Play], Awaitable[Ended]]


class Upstream:
    """A target whose transport plays one act an exchange; `prepared` bodies are the client's own."""

    def __init__(self, name: str, acts: Sequence[Act]) -> None:
        self.name = name
        self.currency = "USD"
        self.acts = list(acts)
        self.plays: list[Play] = []
        self.in_use = 0
        self.idle = 0
        self.transport = self

    async def exchange(self, outbound: Outbound, sink: Sink) -> Ended:
        play = Play(outbound, sink)
        self.plays.append(play)
        self.in_use += 1
        try:
            return await self.acts[len(self.plays) - 1](play)
        finally:
            self.in_use -= 1

    async def close(self) -> None:
        return None


@dataclass
class House:
    """A gateway over scripted upstreams; `calls` are the closed records, in order."""

    gateway: Gateway
    world: PlayedWorld
    journal: Journal
    records: list[CallRecord] = field(default_factory=list)

    def call(self, *, stream: bool = False, model: str = "kimi-k2.5", seconds: float = 600.0) -> Call:
        flag = b"true" if stream else b"false"
        body = b'{"model":"%b","messages":[{"role":"user","content":"hi"}],"stream":%b}' % (model.encode(), flag)
        now = self.world.clock()
        call_id = self.world.new_id()
        return Call(
            call_id, f"r-{call_id}", Principal("k1", "acme"), "", "", "kimi-k2.5", model, RawBody(body), stream,
            include_usage=False, arrived=now, created=self.world.wall(), deadline=now + seconds,
        )  # fmt: skip

    def at_rest(self) -> None:
        """Nothing is left behind."""
        assert self.gateway.flights.live == set()
        assert self.gateway.admission.in_flight == 0
        assert self.gateway.ledger.open_calls == 0
        assert len(asyncio.all_tasks()) == 1
