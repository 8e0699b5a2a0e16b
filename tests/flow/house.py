"""The flow with nothing real around it: scripted upstreams, clients in memory, time that jumps.

Real: gateway, admission, flights, exchange, relays, ledger, journal (in a temporary directory), the chat surface.
Ours: the transport (network border), the downstream (network border), the world (clock, dice, ids).
"""

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from moongate.core.addresses import Url
from moongate.core.body import RawBody
from moongate.core.call import Call, Principal
from moongate.core.chat import CHAT
from moongate.core.faults import Fault, Reach
from moongate.core.held import Held
from moongate.core.parking import Parking
from moongate.core.pricing import PRICES, PriceTable
from moongate.core.record import CallRecord, decode
from moongate.core.replicas import Replicas
from moongate.core.routing import Candidate, Route
from moongate.core.settings import Target as TargetSettings
from moongate.flow.admission import Admission
from moongate.flow.drains import Bounds, Drains, Policy
from moongate.flow.exchange import Exchange
from moongate.flow.flight import Flights
from moongate.flow.gateway import Gateway, RouteTimes
from moongate.flow.idempotency import Idempotency
from moongate.flow.ledger import Ledger
from moongate.store.answers import MemoryAnswers
from moongate.store.frames import Kind, scan, seed
from moongate.store.journal import Journal
from moongate.store.owners import segments
from moongate.upstream.target import Target
from moongate.upstream.transport import Ended, Headers, Outbound, Phase, Sink, Timeouts
from tests.flow import client

Client = client.Client
Dialect = Literal["moonshot", "vllm", "sglang", "generic"]
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

    async def open_valve(self) -> None:
        """Wait while the sink holds the exchange back."""
        while self.paused and not self.cut_by:  # noqa: ASYNC110 - two reasons to go on, and time costs nothing here
            await asyncio.sleep(0.01)

    async def until_cut(self) -> Ended:
        await self._struck.wait()
        fault, detail = self.cut_by[0]
        return Ended(Reach.HEAD, fault, Phase.IDLE, detail)


Act = Callable[[Play], Awaitable[Ended]]


class Scripted:
    """A transport that plays one act an exchange, in order."""

    def __init__(self, acts: Sequence[Act]) -> None:
        self.acts = list(acts)
        self.plays: list[Play] = []
        self.in_use = 0
        self.idle = 0

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


def _settings(name: str, dialect: Dialect, connections: int) -> TargetSettings:
    return TargetSettings(Url("http", name, 80, "/v1"), dialect=dialect, connections=connections)


def _target(name: str, settings: TargetSettings, transport: Scripted, world: PlayedWorld) -> Target:
    return Target(name, settings, ("X-Request-Id",), transport, world.wall)


def _ledger(world: PlayedWorld, journal: Journal, records: list[CallRecord]) -> Ledger:
    return Ledger(world, journal, PriceTable(PRICES), records.append, slot=0, owner="owner")


def _drains(targets: Iterable[str], concurrency: int, policy: Policy) -> Drains:
    return Drains(Bounds(dict.fromkeys(targets, concurrency), dict.fromkeys(("kimi-k2.5", "twice"), policy)))


def _routes(targets: Iterable[str]) -> dict[str, Route]:
    """Two routes over all targets in order; `twice` may pay twice."""
    plan = tuple(Candidate(name, name, "kimi-k2.5") for name in targets)
    return {"kimi-k2.5": Route("kimi-k2.5", plan, 3, False), "twice": Route("twice", plan, 3, True)}


class House:
    """A gateway over scripted upstreams; `records` are the closed ones, in order. Made on a running loop."""

    def __init__(
        self,
        folder: Path,
        acts: Mapping[str, Sequence[Act]],
        *,
        most: int | None = None,
        dialect: Dialect = "generic",
        on_abandon: Policy = "cancel",
        concurrency: int = 100,
        connections: int = 1024,
    ) -> None:
        self.world = PlayedWorld()
        self.records: list[CallRecord] = []
        loop = asyncio.get_running_loop()
        self._journals = folder / "journal"
        self.journal = Journal.open(self._journals, "owner", loop=loop, clock=self.world.clock)
        self.upstreams = {name: Scripted(played) for name, played in acts.items()}
        targets = {
            name: _target(name, _settings(name, dialect, connections), transport, self.world)
            for name, transport in self.upstreams.items()
        }
        self.drains = _drains(acts, concurrency, on_abandon)
        self.flights = Flights(loop, self.drains)
        admission = Admission(most, self.drains.give_way)
        self.held = Held(1 << 20)
        self.parking = Parking()
        self.replicas = Replicas()
        self.answers = MemoryAnswers(self.world.wall)
        self.idempotency = Idempotency(self.world, self.answers, self.flights, self.look)
        self.gateway = Gateway(
            surface=CHAT,
            admission=admission,
            flights=self.flights,
            idempotency=self.idempotency,
            exchange=Exchange(
                self.world,
                targets,
                admission,
                CHAT,
                self.held,
                drains=self.drains,
                parking=self.parking,
                replicas=self.replicas,
                routes=_routes(acts),
            ),
            ledger=_ledger(self.world, self.journal, self.records),
            routes=_routes(acts),
            times=dict.fromkeys(("kimi-k2.5", "twice"), RouteTimes(Timeouts(), Timeouts())),
        )

    async def look(self, call_id: str) -> CallRecord | None:
        """What the ledger's view would say of a call."""
        await asyncio.sleep(0)
        found = [record for _, record in self.written() if record.call_id == call_id]
        return found[-1] if found else None

    def call(
        self,
        *,
        stream: bool = False,
        route: str = "kimi-k2.5",
        seconds: float = 600.0,
        key: str = "",
        retry: int = -1,
        after: str = "",
        words: str = "hi",
    ) -> Call:
        flag = b"true" if stream else b"false"
        text = words.encode()
        body = b'{"model":"kimi-k2.5","messages":[{"role":"user","content":"%b"}],"stream":%b}' % (text, flag)
        now = self.world.clock()
        call_id = self.world.new_id()
        return Call(
            call_id=call_id,
            request_id=f"r-{call_id[-4:]}",
            principal=Principal("k1", "acme"),
            user="",
            session="",
            route=route,
            model="kimi-k2.5",
            body=RawBody(body),
            stream=stream,
            include_usage=False,
            arrived=now,
            created=self.world.wall(),
            deadline=now + seconds,
            idempotency_key=key,
            retry_count=retry,
            last_event_id=after,
        )

    def written(self) -> list[tuple[Kind, CallRecord]]:
        """What the journal holds, in order, without the owners' headers."""
        self.journal.flush()
        found: list[tuple[Kind, CallRecord]] = []
        for segment in segments(self._journals).get("owner", []):
            frames, gaps, _ = scan(segment.path.read_bytes(), seed("owner"), 0)
            assert not gaps
            found += [(Kind(f.kind), decode(f.payload)) for f in frames if f.kind != Kind.OWNER]
        return found

    def at_rest(self) -> None:
        """Nothing is left behind, and every call has one closed record."""
        assert self.gateway.flights.live == set()
        assert self.drains.live == {}
        assert self.gateway.admission.in_flight == 0
        assert self.gateway.ledger.open_calls == 0
        assert self.held.used == 0
        assert all(upstream.in_use == 0 for upstream in self.upstreams.values())
        assert len(asyncio.all_tasks()) == 1
        closed = [record.call_id for kind, record in self.written() if kind is Kind.CLOSED]
        assert closed == [record.call_id for record in self.records]
        assert len(set(closed)) == len(closed)


def played(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a story on a loop whose time jumps."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(story())


def chunk(content: str, finish: str | None = None, usage: str = "") -> bytes:
    """One event as Kimi sends it."""
    told = f'"{finish}"' if finish else "null"
    return (
        f'data: {{"id":"c-1","object":"chat.completion.chunk","created":1,"model":"kimi-k2.5","choices":'
        f'[{{"index":0,"delta":{{"content":"{content}"}},"finish_reason":{told}{usage}}}]}}\n\n'
    ).encode()


USAGE = ',"usage":{"prompt_tokens":8,"completion_tokens":3,"total_tokens":11}'
DONE = b"data: [DONE]\n\n"
WHOLE = (
    b'{"id":"c-1","object":"chat.completion","created":1,"model":"kimi-k2.5","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"hello"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":8,"completion_tokens":3,"total_tokens":11}}'
)


def streams(*chunks: bytes, fault: Fault | None = None, detail: str = "") -> Act:
    """An act: a stream of these chunks, one a turn, then its end."""

    async def act(play: Play) -> Ended:
        play.sink.open(play)
        play.sink.head(200, SSE)
        for data in chunks:
            await asyncio.sleep(0)
            await play.open_valve()
            if play.cut_by:
                return await play.until_cut()
            play.sink.data(data)
        return Ended(Reach.HEAD, fault, Phase.IDLE, detail)

    return act


def answers(body: bytes, status: int = 200, headers: Headers = JSON) -> Act:
    """An act: a plain answer."""

    async def act(play: Play) -> Ended:
        play.sink.open(play)
        play.sink.head(status, headers)
        await asyncio.sleep(0)
        play.sink.data(body)
        return Ended(Reach.HEAD, None, Phase.IDLE)

    return act


def fails(fault: Fault, reach: Reach, phase: Phase = Phase.CONNECT) -> Act:
    """An act: nothing comes but this fault."""

    async def act(play: Play) -> Ended:
        if reach > Reach.NOTHING_SENT:
            play.sink.open(play)
        await asyncio.sleep(0)
        return Ended(reach, fault, phase, "scripted")

    return act


def hangs(*, opened: bool) -> Act:
    """An act: an exchange that never ends by itself."""

    async def act(play: Play) -> Ended:
        if opened:
            play.sink.open(play)
            return await play.until_cut()
        await asyncio.sleep(10_000)
        raise AssertionError("nobody cancelled it")

    return act
