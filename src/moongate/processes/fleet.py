"""The workers of all slots: started, watched, replaced when they die, taken over from a supervisor before us.

Every slot keeps its listening sockets whatever becomes of its worker. A worker is watched through a pidfd
(pidfd_open(2)), which tells of its end whether it is our child or was another supervisor's.
"""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import msgspec

from moongate.core.faults import Fault
from moongate.processes import listening
from moongate.processes.channel import Channel, Drain, Hello, Message, Park, Refused, Snapshot, State, Welcome
from moongate.processes.slots import (
    LONG_LIVED,
    Heritage,
    Process,
    Slot,
    born,
    pause_before_start,
    reap,
    tell_end,
    write_down,
    written_down,
)
from moongate.processes.stand_in import StandIn
from moongate.processes.worker import Birth, settings_digest
from moongate.world import World

WORKERS_FILE: Final = "workers.json"
STAND_IN_SECONDS: Final = 5.0
"""How long a slot may be without a serving worker before the supervisor answers for it."""
ADOPT_SECONDS: Final = 10.0
"""How long a new supervisor waits for workers of a dead one; they give up after as long themselves."""

log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Terms:
    """What the fleet must know of the settings. `command` starts a worker; one JSON argument follows it."""

    host: str
    port: int
    count: int
    run: Path
    lock: Path
    identity: str
    channel: Path
    command: Sequence[str]


class Owner(Protocol):
    """Whom the fleet serves."""

    def welcome(self) -> Welcome:
        """What a worker gets when it is taken in."""

    def heard(self, process: Process, message: Snapshot | Park) -> None:
        """Take what a worker says that is not the fleet's own affair."""

    def ended(self, process: Process) -> None:
        """Note that a worker is gone, after its last words were taken."""


class Fleet:
    """All slots. Drive it from one event loop."""

    def __init__(self, terms: Terms, owner: Owner, world: World) -> None:
        self.terms = terms
        self.slots = [Slot(number) for number in range(terms.count)]
        self.processes: dict[int, Process] = {}
        self.stopping = False
        self._owner = owner
        self._world = world
        self._changed = asyncio.Event()

    def receiver(self) -> "_Line":
        """A receiver for one new connection."""
        return _Line(self)

    # --- sockets and start

    def bind(self) -> None:
        """Bind the slots that have no sockets. Raises `OSError`, `listening.InUseError`."""
        held = next((slot.pair for slot in self.slots if slot.pair is not None), None)
        port = self.terms.port if held is None else held.tcp.getsockname()[1]
        if held is None:
            listening.check_free(self.terms.host, port)
        for slot in self.slots:
            if slot.pair is None:
                path = listening.unix_path(self.terms.run, slot.number)
                slot.pair = listening.bind_slot(self.terms.host, port, path)
                port = slot.pair.tcp.getsockname()[1]

    def start_missing(self) -> None:
        """Start a worker in every slot that has none."""
        for slot in self.slots:
            if slot.worker is None:
                self._lose(slot)
                self._start(slot)

    def _start(self, slot: Slot) -> None:
        if self.stopping or slot.worker is not None or slot.pair is None:
            return
        slot.generation += 1
        tcp, unix = slot.pair.fds
        birth = Birth(
            slot.number,
            slot.generation,
            os.fspath(self.terms.channel),
            os.fspath(self.terms.lock),
            self.terms.identity,
            tcp,
            unix,
        )
        command = [*self.terms.command, msgspec.json.encode(birth).decode()]
        child = subprocess.Popen(command, pass_fds=(tcp, unix), stdin=subprocess.DEVNULL)  # noqa: S603 - our own
        slot.worker = self._watch(slot, child.pid, slot.generation, child)
        self._write_down()

    def _watch(
        self, slot: Slot, pid: int, generation: int, child: subprocess.Popen[bytes] | None = None
    ) -> Process:
        pidfd = os.pidfd_open(pid)
        process = Process(slot.number, pid, generation, self._world.clock(), pidfd, child)
        self.processes[pid] = process
        asyncio.get_running_loop().add_reader(pidfd, self._ended, process)
        return process

    # --- deaths

    def _ended(self, process: Process) -> None:
        """Reap a worker and see to its slot."""
        self._forget(process)
        code = reap(process)
        slot = self.slots[process.slot]
        self._changed.set()
        if slot.worker is not process:
            tell_end(process, code)
            return
        slot.worker = None
        if self.stopping:
            return
        lived = self._world.clock() - process.started
        slot.early_deaths = 0 if lived >= LONG_LIVED else slot.early_deaths + 1
        slot.restarts += 1
        pause = pause_before_start(slot.early_deaths)
        tell_end(process, code, f"; next start in {pause:.1f} s")
        self._lose(slot)
        self._write_down()
        slot.timers.append(asyncio.get_running_loop().call_later(pause, self._start, slot))

    def _forget(self, process: Process) -> None:
        asyncio.get_running_loop().remove_reader(process.pidfd)
        os.close(process.pidfd)
        if process.channel is not None:
            process.channel.take_rest()
            process.channel.close()
            process.channel = None
        self.processes.pop(process.pid, None)
        self._owner.ended(process)

    def _lose(self, slot: Slot) -> None:
        if slot.unserved is None:
            slot.unserved = self._world.clock()
            slot.timers.append(asyncio.get_running_loop().call_later(STAND_IN_SECONDS, self._stand_in, slot))

    def _stand_in(self, slot: Slot) -> None:
        if slot.unserved is not None and slot.stand_in is None and slot.pair and not self.stopping:
            log.error(
                "worker %d has been away for %.0f s: its calls are answered 503",
                slot.number,
                STAND_IN_SECONDS,
            )
            slot.stand_in = StandIn((slot.pair.tcp, slot.pair.unix), Fault.GATEWAY_OVERLOADED)
            slot.stand_in.start()

    def _serve(self, slot: Slot) -> None:
        slot.unserved = None
        slot.cancel_timers()
        if slot.stand_in is not None:
            slot.stand_in.stop()
            slot.stand_in = None

    # --- words of workers

    def hello(self, channel: Channel, hello: Hello, fds: list[int]) -> Process | None:
        """Take a worker in: one we started, one we were told of, or one of a dead supervisor of this state."""
        process = self.processes.get(hello.pid)
        if process is None and channel.peer_pid == hello.pid:
            process = self._adopted(hello, fds)
        for fd in fds:
            os.close(fd)
        if process is None:
            channel.send(Refused("this supervisor has no place for you"))
            return None
        process.channel = channel
        welcome = self._owner.welcome()
        if hello.settings not in ("", settings_digest(welcome.settings)):
            log.warning(
                "worker %d goes on with the settings it started with; restart to change them", hello.slot
            )
        channel.send(welcome)
        self.state(process, State(hello.serving, hello.ready, hello.draining))
        return process

    def _adopted(self, hello: Hello, fds: list[int]) -> Process | None:
        """Give a stranger's sockets and process a slot, if it has the right ones; descriptors used leave `fds`."""
        if hello.identity != self.terms.identity or hello.slot >= len(self.slots):
            return None
        slot = self.slots[hello.slot]
        if hello.draining:
            return self._watch(slot, hello.pid, hello.generation)
        if slot.worker is not None or self.stopping:
            return None
        if slot.pair is None and len(fds) == 2:
            pair = listening.adopt(fds[0], fds[1])
            fds.clear()
            if not listening.is_reusable_with(pair, listening.unix_path(self.terms.run, slot.number)):
                pair.tcp.close()
                pair.unix.close()
                return None
            slot.pair = pair
        elif slot.pair is None:
            return None
        slot.generation = max(slot.generation, hello.generation)
        slot.worker = self._watch(slot, hello.pid, hello.generation)
        self._write_down()
        log.info("worker %d (process %d) is taken over", slot.number, hello.pid)
        return slot.worker

    def state(self, process: Process, state: State) -> None:
        """Note what a worker does; one that drains unasked is replaced at once."""
        process.state = state
        slot = self.slots[process.slot]
        self._changed.set()
        if slot.worker is not process or self.stopping:
            return
        if state.serving:
            self._serve(slot)
        elif state.draining:
            log.info("worker %d (process %d) drains; another takes its place", slot.number, process.pid)
            slot.worker = None
            slot.restarts += 1
            self._lose(slot)
            self._start(slot)

    def heard(self, process: Process, message: Snapshot | Park) -> None:
        """Pass a worker's words on."""
        self._owner.heard(process, message)

    # --- those of a supervisor before us

    def _write_down(self) -> None:
        write_down(self.terms.run / WORKERS_FILE, self.heritage())

    def heritage(self) -> list[Heritage]:
        """All workers, for the next supervisor."""
        return [
            Heritage(
                process.slot,
                process.pid,
                process.generation,
                self.slots[process.slot].restarts,
                born(process.pid),
                self.slots[process.slot].worker is process,
            )
            for process in self.processes.values()
        ]

    async def take_over(self) -> None:
        """Wait for the workers of a dead supervisor: until all are here or gone, at most `ADOPT_SECONDS`."""
        expected = [worker for worker in written_down(self.terms.run / WORKERS_FILE) if worker.in_place]
        if not await self._until(
            lambda: all(w.pid in self.processes or not w.lives for w in expected), ADOPT_SECONDS
        ):
            log.warning("some workers of the supervisor before this one did not come; they are replaced")

    def inherit(self, pairs: Sequence[tuple[int, int]], workers: Sequence[Heritage]) -> None:
        """Go on with the sockets and workers of the image before us; a worker may have ended meanwhile."""
        if len(pairs) != len(self.slots):
            log.warning("%d workers go on: their number changes with a restart only", len(pairs))
            self.slots = [Slot(number) for number in range(len(pairs))]
        for slot, (tcp, unix) in zip(self.slots, pairs, strict=True):
            slot.pair = listening.adopt(tcp, unix)
        for worker in workers:
            slot = self.slots[worker.slot]
            slot.generation, slot.restarts = max(slot.generation, worker.generation), worker.restarts
            with contextlib.suppress(ProcessLookupError):
                process = self._watch(slot, worker.pid, worker.generation)
                slot.worker = process if worker.in_place else slot.worker

    # --- the end

    async def drain(self, grace: float) -> None:
        """Stop all workers: no new connections, then what runs has `grace` seconds. Returns when all are told."""
        self._keep_still()
        self.tell_all(Drain(grace))
        await self._until(lambda: all(p.state.draining for p in self.processes.values()), 1.0)
        await self._turn_away()

    async def _turn_away(self) -> None:
        """Answer those who got through to a socket and to no worker, then close it."""
        pairs = [slot.pair for slot in self.slots if slot.pair is not None]
        last = StandIn((sock for pair in pairs for sock in (pair.tcp, pair.unix)), Fault.GATEWAY_DRAINING)
        last.accept_waiting()
        for slot in self.slots:
            if slot.pair is not None:
                slot.pair.close()
                slot.pair = None
        await last.finish()

    async def gone(self, seconds: float) -> bool:
        """Wait for every worker to end; whether all did."""
        return await self._until(lambda: not self.processes, seconds)

    def kill(self) -> None:
        """End those that would not."""
        for process in self.processes.values():
            log.error("worker %d (process %d) does not end and is killed", process.slot, process.pid)
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process.pidfd, signal.SIGKILL)

    async def _until(self, done: Callable[[], bool], seconds: float) -> bool:
        end = self._world.clock() + seconds
        while not done():
            left = end - self._world.clock()
            if left <= 0:
                return False
            self._changed.clear()
            with contextlib.suppress(TimeoutError):  # pids of the expected may end without a word to us
                await asyncio.wait_for(self._changed.wait(), min(left, 0.2))
        return True

    def let_go(self) -> tuple[list[Heritage], list[tuple[int, int]]]:
        """Forget all workers and sockets without a word: the next image goes on with what is returned."""
        workers = self.heritage()
        self._keep_still()
        for process in self.processes.values():
            asyncio.get_running_loop().remove_reader(process.pidfd)
            os.close(process.pidfd)
            if process.child is not None:
                process.child.returncode = 0  # the next image reaps it; this object shall not warn
        self.processes.clear()
        pairs = [slot.pair for slot in self.slots if slot.pair is not None]
        return workers, [(pair.tcp.detach(), pair.unix.detach()) for pair in pairs]

    def _keep_still(self) -> None:
        self.stopping = True
        for slot in self.slots:
            slot.cancel_timers()
            if slot.stand_in is not None:
                slot.stand_in.stop()

    def tell_all(self, message: Message) -> None:
        """Send to every worker."""
        for process in self.processes.values():
            process.tell(message)

    @property
    def addresses(self) -> list[str]:
        """Where the slots listen: the TCP address that they share, then each Unix socket."""
        pairs = [slot.pair for slot in self.slots if slot.pair is not None]
        return (
            [listening.shown(pairs[0].tcp), *(listening.shown(pair.unix) for pair in pairs)] if pairs else []
        )


class _Line:
    """One worker's connection."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._process: Process | None = None

    def received(self, channel: Channel, message: Message, fds: list[int]) -> None:
        match message:
            case Hello():
                self._process = self._fleet.hello(channel, message, fds)
            case State() if self._process is not None:
                self._fleet.state(self._process, message)
            case Snapshot() | Park() if self._process is not None:
                self._fleet.heard(self._process, message)
            case _:
                pass

    def closed(self, channel: Channel) -> None:
        if self._process is not None and self._process.channel is channel:
            self._process.channel = None
