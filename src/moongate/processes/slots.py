"""Slots, the worker processes in them, and what is written down of both for the next supervisor."""

import asyncio
import logging
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from moongate.ops.house import WorkerView
from moongate.processes.channel import Channel, Message, State
from moongate.processes.listening import Pair, shown
from moongate.processes.stand_in import StandIn

log: Final = logging.getLogger(__name__)

LONG_LIVED: Final = 10.0
"""Seconds; a worker that dies sooner after its start dies early."""
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0


def pause_before_start(early_deaths: int) -> float:
    """Seconds to wait before a worker is started again, by how many in a row died within 10 s of their start.

    The first time at once: it may have been an accident. Then 0.1 s, doubled up to 5 s.
    """
    if early_deaths <= 1:
        return 0.0
    return float(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (min(early_deaths, 12) - 2)))


@dataclass(slots=True, eq=False)
class Process:
    """One worker process as its supervisor sees it. `started` is in monotonic seconds."""

    slot: int
    pid: int
    generation: int
    started: float
    pidfd: int
    child: subprocess.Popen[bytes] | None = None
    channel: Channel | None = None
    state: State = field(default_factory=lambda: State(serving=False, ready=False, draining=False))

    @property
    def name(self) -> str:
        """What its metrics are filed under."""
        return f"{self.slot}.{self.generation}.{self.pid}"

    @property
    def word(self) -> str:
        """What it does, in one word."""
        if self.state.draining:
            return "draining"
        return "ready" if self.state.ready else "serving" if self.state.serving else "starting"

    def tell(self, message: Message) -> None:
        """Send, if there is a channel."""
        if self.channel is not None:
            self.channel.send(message)


@dataclass(slots=True, eq=False)
class Slot:
    """One place for a worker. `unserved` is when it lost its last serving worker, None while it has one."""

    number: int
    pair: Pair | None = None
    worker: Process | None = None
    generation: int = 0
    restarts: int = 0
    early_deaths: int = 0
    unserved: float | None = None
    stand_in: StandIn | None = None
    timers: list[asyncio.TimerHandle] = field(default_factory=list)

    def view(self, now: float) -> WorkerView:
        """As the admin listener shows it."""
        worker = self.worker
        away = "stood in for" if self.stand_in is not None else "starting"
        return WorkerView(
            slot=self.number,
            pid=worker.pid if worker is not None else None,
            generation=self.generation,
            state=worker.word if worker is not None and self.stand_in is None else away,
            restarts=self.restarts,
            seconds=round(now - worker.started, 3) if worker is not None else 0.0,
            addresses=[shown(self.pair.tcp), shown(self.pair.unix)] if self.pair is not None else [],
        )

    def cancel_timers(self) -> None:
        """Forget what was to be done later."""
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()


class Heritage(msgspec.Struct, frozen=True):
    """One worker as it is written down for the next supervisor. `born` tells it from a later owner of its pid.

    `in_place`: it holds its slot; else it drains and another already has it.
    """

    slot: int
    pid: int
    generation: int
    restarts: int
    born: int
    in_place: bool

    @property
    def lives(self) -> bool:
        """Whether that very process still runs."""
        return self.born != 0 and born(self.pid) == self.born


def reap(process: Process) -> str:
    """How it ended, in words."""
    try:
        _, status = os.waitpid(process.pid, 0)
    except ChildProcessError:
        return "another supervisor's child"
    code = os.waitstatus_to_exitcode(status)
    if process.child is not None:
        process.child.returncode = code
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def tell_end(process: Process, code: str, then: str = "") -> None:
    """Log how a worker ended and what follows; a clean end of one that had given up its place before is no news."""
    if then or code != "exit code 0":
        log.warning("worker %d (process %d) ended: %s%s", process.slot, process.pid, code, then)


def born(pid: int) -> int:
    """When a process started, in clock ticks since boot (proc(5), stat field 22); 0 if it is gone or a zombie."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if after_name[0] in "ZX" else int(after_name[19])


def write_down(path: Path, workers: Sequence[Heritage]) -> None:
    """Leave word of the workers for a supervisor that comes after our sudden end.

    On a disk that cannot be written the former word stands: those who are gone are seen to be, and those who are not
    named call by themselves.
    """
    draft = path.with_suffix(".tmp")
    try:
        draft.write_bytes(msgspec.json.encode(workers))
        draft.replace(path)
    except OSError as error:
        log.warning("the workers cannot be written down in %s: %s", path, error)


def written_down(path: Path) -> list[Heritage]:
    """The workers that the last supervisor left and that still run."""
    try:
        workers = msgspec.json.decode(path.read_bytes(), type=list[Heritage])
    except (OSError, msgspec.MsgspecError):
        return []
    return [worker for worker in workers if worker.lives]
