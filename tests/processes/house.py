"""Starts the toy gateway as processes and asks it things over real sockets."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.source import ROOT

PATIENCE = 20.0


def eventually(true: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Wait until this is true, and return it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(OSError, ValueError, KeyError, IndexError):
            if found := true():
                return found
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s")


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Gateway:
    """One supervisor and its workers in a folder of their own; everything ends with the `with` block."""

    def __init__(self, folder: Path, **given: Any) -> None:
        self.folder = folder
        self.given = {"folder": str(folder), **given}
        self.pids: set[int] = set()
        self.supervisors: list[subprocess.Popen[bytes]] = []
        (folder / "control.json").write_text("{}")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, ValueError, KeyError, AssertionError):
            self.workers()
        for pid in (*(s.pid for s in self.supervisors if s.poll() is None), *self.pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for supervisor in self.supervisors:
            supervisor.wait()

    def start(self, *, ready: bool = True) -> None:
        """Start a supervisor and wait until it listens, and all its workers are ready."""
        (self.folder / "run/addresses.json").unlink(missing_ok=True)
        supervisor = self.launch()
        self.supervisors.append(supervisor)
        self.addresses = eventually(lambda: json.loads((self.folder / "run/addresses.json").read_bytes()))
        if ready:
            eventually(self.is_ready)

    def launch(self) -> subprocess.Popen[bytes]:
        """One more supervisor process."""
        command = [
            sys.executable,
            "-W",
            "error",
            "-m",
            "tests.processes.toy",
            "serve",
            json.dumps(self.given),
        ]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, stderr=log, stdout=log)

    @property
    def supervisor(self) -> subprocess.Popen[bytes]:
        return self.supervisors[-1]

    @property
    def port(self) -> int:
        return int(self.addresses["listen"][0].rpartition(":")[2])

    @property
    def admin_port(self) -> int:
        addresses = json.loads((self.folder / "run/addresses.json").read_bytes())
        return int(addresses["admin"].rpartition(":")[2])

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def is_ready(self) -> bool:
        return {w["state"] for w in self.workers()} == {"ready"}

    def workers(self) -> list[dict[str, Any]]:
        workers: list[dict[str, Any]] = json.loads(self.admin("/api/workers")[1])["workers"]
        self.pids |= {w["pid"] for w in workers if w["pid"]}
        return workers

    def admin(self, path: str, *, host: str = "127.0.0.1") -> tuple[int, bytes]:
        """Status and body of one request to the admin listener."""
        with socket.create_connection(("127.0.0.1", self.admin_port), PATIENCE) as sock:
            return exchange(sock, path, host)

    def get(self, path: str = "/", slot: int | None = None) -> tuple[int, bytes]:
        """Status and body of one request to the data plane: over TCP, or to one slot over its Unix socket."""
        if slot is None:
            with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as sock:
                return exchange(sock, path)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(PATIENCE)
            sock.connect(str(self.folder / f"run/worker-{slot}.sock"))
            return exchange(sock, path)

    def serving_pid(self, slot: int = 0) -> int:
        return int(json.loads(self.get("/", slot)[1])["pid"])

    def metric(self, name: str) -> dict[str, float]:
        """The samples of one name, by their labels as written."""
        lines = self.admin("/metrics")[1].decode().splitlines()
        found = [line for line in lines if line.partition("{")[0].partition(" ")[0] == name]
        return {line.rpartition(" ")[0].removeprefix(name): float(line.rpartition(" ")[2]) for line in found}

    def signal(self, number: signal.Signals) -> None:
        self.supervisor.send_signal(number)


def exchange(sock: socket.socket, path: str, host: str = "127.0.0.1") -> tuple[int, bytes]:
    """One request that says `Connection: keep-alive`, and its whole answer."""
    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    with sock.makefile("rb") as answer:
        status = int(answer.readline().split()[1])
        length = None
        while line := answer.readline().strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        return status, answer.read() if length is None else answer.read(length)


class Load:
    """Clients that ask without pause, each request on a new connection; what fails is kept."""

    def __init__(self, gateway: Gateway, clients: int = 4) -> None:
        self.gateway = gateway
        self.answers: list[int] = []
        self.failures: list[str] = []
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self.ask) for _ in range(clients)]

    def ask(self) -> None:
        while not self.over.is_set():
            try:
                status, body = self.gateway.get()
                if status != 200 or not body.endswith(b"}"):
                    self.failures.append(f"{status} {body!r}")
                self.answers.append(json.loads(body).get("pid"))
            except (OSError, ValueError, IndexError) as error:
                self.failures.append(repr(error))
            time.sleep(0.002)

    def __enter__(self) -> Self:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()
