"""The shell of a worker process: it takes its sockets and settings from the supervisor, serves, drains and exits.

What it serves is the `App` that a builder makes; `moongate.app` has the real one. A worker outlives its supervisor by
`ORPHAN_SECONDS`: whoever shows it the same state lock within that time is its new supervisor.
"""

import asyncio
import contextlib
import gc
import hashlib
import os
import resource
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from moongate import __version__
from moongate.core.parking import Refused as Refusal
from moongate.ops import log
from moongate.ops.metrics import Cells, Row
from moongate.processes.channel import (
    Channel,
    Checks,
    Control,
    Drain,
    Hello,
    Load,
    Message,
    Park,
    Refused,
    Scrape,
    Snapshot,
    State,
    Welcome,
    connect,
)
from moongate.processes.state_lock import is_held_by
from moongate.world import RealWorld, World

ORPHAN_SECONDS: Final = 10.0
"""How long a worker serves without a supervisor before it drains."""
PUSH_SECONDS: Final = 1.0
"""Between two unasked metric snapshots: what a worker that is killed may take with it."""
_TICK: Final = 0.05
_FULL_COLLECTION_SECONDS: Final = 60.0
_LATEST_COLLECTION_SECONDS: Final = 600.0

NEVER_WELCOME: Final = 3
"""Exit code of a worker that no supervisor took in."""


FAILED: Final = 1
"""Exit code of a worker that ended because its app could not go on."""


class Birth(msgspec.Struct, frozen=True):
    """What a worker is told on its command line, as JSON: its slot, its inherited sockets, whom to call."""

    slot: int
    generation: int
    channel: str
    lock: str
    identity: str
    tcp: int
    unix: int


class App(Protocol):
    """The data plane, as the shell drives it. All on one event loop."""

    @property
    def failed(self) -> bool:
        """Whether it ended the process itself, since it could not go on: the exit code says so."""

    @property
    def ready(self) -> bool:
        """Whether new calls are welcome: looked at every 50 ms."""

    @property
    def in_flight(self) -> int:
        """Calls that run now; at 0 the shell may spend a moment on memory."""

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Accept on these listening sockets (TCP, Unix). They are duplicates: the app may close them, not unlink."""

    def set_control(self, document: bytes) -> None:
        """Follow this control document (JSON) from now on."""

    def take_refused(self) -> Sequence[Refusal]:
        """What Kimi refused for good since this was last asked; looked at every 50 ms, for the supervisor to park."""

    def set_health(self, checks: Mapping[str, str]) -> None:
        """Show these checks on `/healthz` from now on."""

    def set_load(self, load: Mapping[str, float]) -> None:
        """Send calls to the least busy of these self-hosted replicas from now on."""

    def begin_drain(self) -> None:
        """Readiness off, no new connections; what runs goes on. Called once."""

    async def drained(self, grace_seconds: float) -> None:
        """Return when all calls have ended; those still live after the grace get an honest end first.

        May be cancelled and called again with less time: someone is in a hurry.
        """

    def metrics(self) -> list[Row]:
        """All series as they stand."""

    async def stop(self) -> None:
        """Release everything; called once, last."""


Build = Callable[[bytes, bytes, World, int], App]
"""Makes the app out of settings (JSON), control document (JSON), world and slot number."""


def main(argv: Sequence[str], build: Build | None = None) -> int:
    """Run the worker that these arguments describe and return its exit code. `build` None: the real app."""
    import uvloop  # noqa: PLC0415 - this module is imported by the supervisor, which needs no uvloop

    birth = msgspec.json.decode(argv[0].encode(), type=Birth)
    raise_descriptor_limit()
    log.set_up()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Worker(birth, build or _real_build(), RealWorld()).run())


def _real_build() -> Build:
    from moongate.app import build  # noqa: PLC0415 - the whole data plane: for real workers only

    return build


def raise_descriptor_limit() -> int:
    """Raise the soft limit on open files to the hard one and return it: each call takes two."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def settings_digest(settings: bytes) -> str:
    """A short name for one version of the settings."""
    return hashlib.sha256(settings).hexdigest()[:16]


class Worker:
    """One worker process. `run` is its whole life."""

    def __init__(self, birth: Birth, build: Build, world: World) -> None:
        self._birth = birth
        self._build = build
        self._world = world
        self._fds = [birth.tcp, birth.unix]
        self._app: App | None = None
        self._channel: Channel | None = None
        self._welcome: Welcome | None = None
        self._control = b""
        self._checks: dict[str, str] = {}
        self._load: dict[str, float] = {}
        self._taken_in = asyncio.Event()
        self._leaving = asyncio.Event()
        self._hurried = asyncio.Event()
        self._end = 0.0
        self._told = State(serving=False, ready=False, draining=False)
        self._cells = Cells()
        self._stall = self._cells.spread("moongate_loop_stall_seconds")
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> int:
        """Serve until told to leave, or until no supervisor is left; return the exit code."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._leave, None)
        loop.add_signal_handler(signal.SIGINT, _nothing)
        self._tasks.append(loop.create_task(self._stay_connected()))
        await _first(self._taken_in, self._leaving)
        if self._welcome is None:
            return NEVER_WELCOME
        self._app = self._build(self._welcome.settings, self._control, self._world, self._birth.slot)
        self._app.set_health(self._checks)
        self._app.set_load(self._load)
        await self._app.start([socket.socket(fileno=os.dup(fd)) for fd in self._fds])
        _settle_memory()
        self._tell(State(serving=True, ready=self._app.ready, draining=False))
        self._tasks.append(loop.create_task(self._tick()))
        await self._leaving.wait()
        await self._drain(self._app)
        return FAILED if self._app.failed else 0

    async def _drain(self, app: App) -> None:
        app.begin_drain()
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        self._tell(State(serving=False, ready=False, draining=True))
        await self._drained(app)
        for task in self._tasks:
            task.cancel()
        await app.stop()
        if self._channel is not None:
            self._channel.send(Snapshot(self._rows()))
            while self._channel is not None and self._channel.unsent:
                await self._world.sleep(_TICK)

    async def _drained(self, app: App) -> None:
        """Wait for the last call; whoever hurries us shortens the wait that is under way."""
        while True:
            self._hurried.clear()
            draining = asyncio.ensure_future(app.drained(max(0.0, self._end - self._world.clock())))
            hurrying = asyncio.ensure_future(self._hurried.wait())
            await asyncio.wait((draining, hurrying), return_when=asyncio.FIRST_COMPLETED)
            hurrying.cancel()
            if draining.done():
                await draining
                return
            draining.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await draining

    def _leave(self, grace_seconds: float | None) -> None:
        """Begin to drain; asked again, never take longer. None: the grace that the supervisor named, then none."""
        now = self._world.clock()
        if self._leaving.is_set():
            sooner = now + (grace_seconds or 0.0)
            if sooner < self._end - _TICK:
                self._end = sooner
                self._hurried.set()
            return
        named = self._welcome.grace_seconds if self._welcome is not None else 0.0
        self._end = now + (named if grace_seconds is None else grace_seconds)
        self._leaving.set()

    async def _stay_connected(self) -> None:
        """Look for a supervisor whenever there is none; give up after `ORPHAN_SECONDS`."""
        while True:
            deadline = self._world.clock() + ORPHAN_SECONDS
            self._taken_in.clear()
            while not self._taken_in.is_set():
                if self._world.clock() >= deadline:
                    if not self._leaving.is_set():
                        self._leave(None)
                    return
                if self._channel is None:
                    self._connect()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._taken_in.wait(), _TICK)
            while self._channel is not None:
                await self._world.sleep(_TICK)

    def _connect(self) -> None:
        channel = connect(Path(self._birth.channel), self)
        if channel is None:
            return
        self._channel = channel
        digest = settings_digest(self._welcome.settings) if self._welcome is not None else ""
        hello = Hello(
            slot=self._birth.slot,
            pid=os.getpid(),
            generation=self._birth.generation,
            identity=self._birth.identity,
            version=__version__,
            settings=digest,
            serving=self._told.serving,
            ready=self._told.ready,
            draining=self._told.draining,
            fds=len(self._fds),
        )
        channel.send(hello, self._fds)

    def received(self, channel: Channel, message: Message, fds: list[int]) -> None:
        """Take a word of the supervisor's."""
        for fd in fds:
            os.close(fd)
        match message:
            case Welcome():
                self._enter(channel, message)
            case Scrape(number):
                channel.send(Snapshot(self._rows(), number))
            case Control(document):
                self._follow(document, self._checks)
            case Checks(checks):
                self._follow(self._control, checks)
            case Load(load):
                self._spread(load)
            case Drain(grace_seconds):
                self._leave(grace_seconds)
            case Refused():
                self._leave(None)
            case _:
                pass

    def closed(self, channel: Channel) -> None:
        """Note that the supervisor is gone."""
        if channel is self._channel:
            self._channel = None

    def _enter(self, channel: Channel, welcome: Welcome) -> None:
        """Accept this supervisor if it holds the lock of our state; else hang up and go on looking."""
        if welcome.identity != self._birth.identity or not is_held_by(
            Path(self._birth.lock), self._birth.identity, channel.peer_pid
        ):
            channel.close()
            self._channel = None
            return
        if self._welcome is None:  # settings stay as they are until a restart; the rest follows
            self._welcome = welcome
        self._follow(welcome.control, welcome.checks)
        self._spread(welcome.load)
        self._taken_in.set()

    def _follow(self, control: bytes, checks: dict[str, str]) -> None:
        if self._app is not None and control != self._control:
            self._app.set_control(control)
        if self._app is not None and checks != self._checks:
            self._app.set_health(checks)
        self._control, self._checks = control, checks

    def _spread(self, load: dict[str, float]) -> None:
        self._load = load
        if self._app is not None:
            self._app.set_load(load)

    def _tell(self, state: State) -> None:
        if state != self._told:
            self._told = state
            if self._channel is not None:
                self._channel.send(state)

    def _rows(self) -> list[Row]:
        rows = self._app.metrics() if self._app is not None else []
        return rows + self._cells.snapshot()

    async def _tick(self) -> None:
        """Measure stalls, tell readiness, push metrics, collect garbage when idle."""
        clock = self._world.clock
        pushed = collected = due = clock()
        while self._app is not None:
            due += _TICK
            await self._world.sleep(max(0.0, due - clock()))
            now = clock()
            self._stall.observe(max(0.0, now - due))
            due = max(due, now - _TICK)
            if not self._leaving.is_set():
                self._tell(State(serving=True, ready=self._app.ready, draining=False))
            if self._channel is not None:
                for refused in self._app.take_refused():
                    self._channel.send(Park(*refused))
            if now - pushed >= PUSH_SECONDS and self._channel is not None:
                pushed = now
                self._channel.send(Snapshot(self._rows()))
            idle = self._app.in_flight == 0
            if now - collected >= (_FULL_COLLECTION_SECONDS if idle else _LATEST_COLLECTION_SECONDS):
                gc.collect()
                collected = due = clock()


def _settle_memory() -> None:
    """Keep what the start made out of every later collection, and collections out of the calls' way.

    A call leaves no cycles behind, so the young generation fills with what is merely in flight: at Python's own
    threshold of 700 it is looked through several times a call.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 1_000_000)


async def _first(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def _nothing() -> None:
    """Ctrl-C reaches the whole terminal; when to leave is the supervisor's to say."""
