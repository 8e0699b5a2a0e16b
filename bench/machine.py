"""What the kernel says about processes and about the machine: CPU time, memory, load, steal, pressure. Linux only."""

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on (state); empty if the process is gone."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []


def family(root: int) -> set[int]:
    """The process and all its living descendants."""
    parents = {
        int(p.name): int(fields[1])
        for p in PROC.iterdir()
        if p.name.isdigit() and (fields := stat(int(p.name)))
    }
    found = {root} & parents.keys()
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return found
        found |= more


def cpu_seconds(root: int) -> float:
    """CPU time, user and system, of a process tree so far.

    Of living threads by the scheduler's clock (nanoseconds) where the kernel keeps one, else by ticks; of children
    that have ended by ticks.
    """
    return sum(cpu_by_process(root).values())


def cpu_by_process(root: int) -> dict[int, float]:
    """The same, process by process."""
    found = {}
    for pid in family(root):
        fields = stat(pid)
        if fields:
            own = _running_seconds(pid) or (int(fields[11]) + int(fields[12])) / TICK
            found[pid] = own + (int(fields[13]) + int(fields[14])) / TICK
    return found


def _running_seconds(pid: int) -> float:
    """Time on a CPU of all threads of one process; 0 where the kernel does not say."""
    nanoseconds = 0
    try:
        for thread in (PROC / str(pid) / "task").iterdir():
            nanoseconds += int((thread / "schedstat").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0
    return nanoseconds / 1e9


def resident_bytes(root: int) -> int:
    """Resident memory of a process tree; pages that its processes share count once for each."""
    total = 0
    for pid in family(root):
        try:
            total += int((PROC / str(pid) / "statm").read_text().split()[1]) * PAGE
        except OSError:
            continue
    return total


def processor() -> str:
    """The processor's name: figures of different processors are not compared."""
    for line in (PROC / "cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return os.uname().machine


def two_cores() -> tuple[int, int]:
    """The core for what is measured and the core for everything else; the same one if there is but one."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[-1]


@dataclass(frozen=True, slots=True)
class Reading:
    """The machine's counters at one moment, all in seconds since boot; `ours` is the bench's own process tree."""

    busy: float
    steal: float
    total: float
    waiting: float | None
    ours: float

    @staticmethod
    def now() -> "Reading":
        """Read them. `waiting`: time in which some task waited for a CPU (pressure), None where not kept."""
        fields = [int(n) / TICK for n in (PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
        user, nice, system, idle, iowait, irq, softirq, steal = fields
        try:
            some = (PROC / "pressure" / "cpu").read_text().splitlines()[0]
            waiting = int(some.rpartition("total=")[2]) / 1e6
        except (OSError, ValueError, IndexError):
            waiting = None
        busy = user + nice + system + irq + softirq
        return Reading(busy, steal, busy + idle + iowait + steal, waiting, cpu_seconds(os.getpid()))


@dataclass(frozen=True, slots=True)
class Weather:
    """How quiet the machine was between two readings, as shares of all its CPU time (`waiting`: of the time)."""

    load: float
    steal: float
    others: float
    waiting: float | None

    @staticmethod
    def between(first: Reading, last: Reading) -> "Weather":
        """`others`: CPU time taken by processes that are not the bench's."""
        total = max(last.total - first.total, 1e-9)
        others = max(0.0, (last.busy - first.busy) - (last.ours - first.ours)) / total
        waiting = None
        if first.waiting is not None and last.waiting is not None:
            waiting = (last.waiting - first.waiting) / (total / (os.cpu_count() or 1))
        return Weather(os.getloadavg()[0], (last.steal - first.steal) / total, others, waiting)

    @property
    def quiet(self) -> bool:
        """Whether figures of latency may be believed: little stolen, little taken by others."""
        return self.steal < 0.02 and self.others < 0.10

    def __str__(self) -> str:
        """One line for the table's foot."""
        waiting = "not kept" if self.waiting is None else f"{self.waiting:.0%} of the time"
        return (
            f"load {self.load:.1f}, steal {self.steal:.1%}, others' CPU {self.others:.1%}, CPU pressure {waiting}: "
            + ("quiet" if self.quiet else "NOT QUIET, latencies do not count")
        )
