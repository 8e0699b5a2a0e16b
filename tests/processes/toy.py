"""A toy data plane under the real supervisor and the real worker shell.

`python -m tests.processes.toy serve JSON` is the supervisor, `... worker JSON` what it starts.
"""

import asyncio
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from time import sleep

import msgspec

from moongate.core.addresses import Address, Url
from moongate.core.parking import Refused
from moongate.core.record import CallRecord
from moongate.core.secret import Secret
from moongate.core.settings import Admin, Drain, HealthChecks, Settings, Target
from moongate.ops.health import healthz, livez, readyz
from moongate.ops.metrics import CallMetrics, Row
from moongate.processes import supervisor, worker
from moongate.processes.chores import Chore
from moongate.world import RealWorld, World


class Toy:
    """Answers GET requests: `/` says who serves, `/slow/N` takes N seconds, `/stall/N` holds the loop as long."""

    def __init__(self, settings: bytes, control: bytes, slot: int, world: World) -> None:
        self.settings, self.control, self.slot, self.world = (
            Settings.from_json(settings),
            control,
            slot,
            world,
        )
        if b"no start" in control:
            raise RuntimeError("told not to start")
        self.measured = CallMetrics(("toy",), ())
        self.ready = self.failed = False
        self.draining = False
        self.in_flight = 0
        self.refused: list[Refused] = []
        self.checks: dict[str, str] = {}
        self.servers: list[asyncio.Server] = []
        self.writers: set[asyncio.StreamWriter] = set()
        self.busy: set[asyncio.Task[None]] = set()

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        tcp, unix = sockets
        self.servers = [
            await asyncio.start_server(self.serve, sock=tcp, backlog=4096),
            await asyncio.start_unix_server(self.serve, sock=unix, backlog=4096),
        ]
        self.ready = True

    def set_control(self, document: bytes) -> None:
        self.control = document

    def take_refused(self) -> list[Refused]:
        refused, self.refused = self.refused, []
        return refused

    def set_health(self, checks: Mapping[str, str]) -> None:
        self.checks = dict(checks)

    def set_load(self, load: Mapping[str, float]) -> None:
        self.load = dict(load)

    def begin_drain(self) -> None:
        self.ready, self.draining = False, True
        for server in self.servers:
            server.close()
        for writer in self.writers - {getattr(task, "writer", None) for task in self.busy}:
            writer.close()

    async def drained(self, grace_seconds: float) -> None:
        if self.busy:
            await asyncio.wait(self.busy, timeout=grace_seconds)
        for task in self.busy:
            task.cancel()

    def metrics(self) -> list[Row]:
        self.measured.in_flight.set(self.in_flight)
        self.measured.connections.set(len(self.writers))
        return self.measured.snapshot()

    async def stop(self) -> None:
        for writer in self.writers:
            writer.close()
        await asyncio.sleep(0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                task = asyncio.ensure_future(self.answer(head.split()[1].decode(), writer))
                task.writer = writer  # type: ignore[attr-defined]
                self.busy.add(task)
                self.in_flight += 1
                try:
                    await task
                except asyncio.CancelledError:
                    writer.write(b"honest end\r\n")
                    return
                finally:
                    self.in_flight -= 1
                    self.busy.discard(task)
                if self.draining:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.writers.discard(writer)
            writer.close()

    async def answer(self, path: str, writer: asyncio.StreamWriter) -> None:
        status, body = self.reply(path)
        _, verb, *rest = path.split("/")
        if verb == "slow":
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nbegin ")
            await asyncio.sleep(float(rest[0]))
            writer.write(b"end\r\n")
            if not self.draining:
                writer.close()
            return
        if verb == "stall":
            sleep(float(rest[0]))  # noqa: ASYNC251 - a stalled loop is what this is about
        self.measured.observe(CallRecord("id", route="toy", outcome="completed", duration=0.01))
        close = "Connection: close\r\n" if self.draining else ""
        writer.write(f"HTTP/1.1 {status} X\r\n{close}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()

    def reply(self, path: str) -> tuple[int, bytes]:
        match path:
            case "/livez":
                return livez()
            case "/readyz":
                return readyz(ready=self.ready, draining=self.draining)
            case "/healthz":
                return healthz(self.checks, detailed=True)
        return HTTPStatus.OK, json.dumps(
            {
                "pid": os.getpid(),
                "slot": self.slot,
                "control": self.control.decode(),
                "fds": len(list(Path("/proc/self/fd").iterdir())),
            }
        ).encode()


def build(settings: bytes, control: bytes, world: World, slot: int) -> Toy:
    return Toy(settings, control, slot, world)


class ControlFile:
    """A control document in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen = b""

    def changed(self) -> bool:
        return self.path.read_bytes() != self.seen

    def to_json(self) -> bytes:
        self.seen = self.path.read_bytes()
        return self.seen

    def park(self, name: str, reason: str, *, now: float, who: str) -> bool:
        raise NotImplementedError

    def unpark(self, name: str, *, now: float, who: str, detail: str = "") -> None:
        raise NotImplementedError


class Given(msgspec.Struct):
    """What a test may set."""

    folder: str
    workers: int = 1
    grace: float = 10.0
    upstream: int = 0
    port: int = 0


def serve(given: Given) -> int:
    folder = Path(given.folder)
    url = Url("http", "127.0.0.1", given.upstream, "/v1")
    settings = Settings(
        listen=Address("127.0.0.1", given.port),
        workers=given.workers,
        state=str(folder / "state"),
        run=str(folder / "run"),
        admin=Admin(Address("127.0.0.1", 0)),
        drain=Drain(given.grace),
        health=HealthChecks(0.5),
        targets={"kimi": Target(url, Secret("planted-secret"))} if given.upstream else {},
        routes={},
    )
    notes = folder / "chores"
    chores = [Chore("count", 0.2, lambda: notes.write_text(str(os.getpid())))]
    command = (sys.executable, "-m", "tests.processes.toy", "worker")
    control = ControlFile(folder / "control.json")
    return supervisor.run(settings, control, RealWorld(), chores=chores, command=command)


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        sys.exit(worker.main(sys.argv[2:], build))
    sys.exit(serve(msgspec.json.decode(sys.argv[2], type=Given)))
