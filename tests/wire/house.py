"""A whole gateway and a whole simulated Kimi as processes, and a look into both. Nothing of moongate is imported.

`House` is one pair of them. `at_rest` holds what must be true whenever nobody calls: no call in flight, no
connection or descriptor left, one closed record for each authenticated call, metrics that agree with the ledger.
"""

import contextlib
import http.client
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).parents[2]
SIM_KEY = "sk-wire-pool-key"
T = TypeVar("T")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until(seconds: float, look: Callable[[], T], what: str) -> T:
    """Look until something true is seen, and return it; fail with `what` after so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def get(port: int, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path, headers=dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


class Process:
    """One `moongate ...` process and what it printed."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self.child = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "moongate", *arguments],
                cwd=ROOT,
                stdout=output,
                stderr=output,
                env=os.environ | {"SIM_KEY": SIM_KEY},
            )

    def stop(self, sent: signal.Signals = signal.SIGTERM, seconds: float = 40) -> int:
        if self.child.poll() is None:
            self.child.send_signal(sent)
        try:
            return self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
            raise AssertionError(f"it did not end:\n{self.printed()}") from None

    def printed(self) -> str:
        return self.log.read_text(errors="replace")


class House:
    """A gateway over simulated upstreams. `hosts` are listeners of the simulator, each a target of every route."""

    def __init__(self, folder: Path, settings: str = "", hosts: list[dict[str, Any]] | None = None) -> None:
        self.folder = folder
        self.hosts = hosts or [{"name": "kimi"}]
        self.port, self.admin = free_port(), free_port()
        self.state = folder / "state"
        self._sim = self._start_sim()
        self.settings = folder / "moongate.yaml"
        self.settings.write_text(self._written(settings))
        self.key = self.add_key("acme")
        self.gateway = self.start_gateway()
        self.baseline = self._descriptors()

    def _start_sim(self) -> Process:
        script = self.folder / "script.json"
        script.write_text(json.dumps({"hosts": [*self.hosts, {"name": "control", "kind": "control"}]}))
        ports = self.folder / "ports"
        ports.unlink(missing_ok=True)
        sim = Process(["sim", "--script", str(script), "--port-file", str(ports)], self.folder / "sim.log")
        until(20, lambda: ports.exists() and "control=" in ports.read_text(), "the simulator is up")
        self.ports = {
            name: int(port) for name, _, port in (line.partition("=") for line in ports.read_text().split())
        }
        return sim

    def _written(self, settings: str) -> str:
        targets = "".join(
            f"  {host['name']}: {{url: 'http://127.0.0.1:{self.ports[host['name']]}/v1', "
            f"key: '${{env:SIM_KEY}}', dialect: {host.get('face', 'moonshot')}}}\n"
            for host in self.hosts
        )
        names = ", ".join(host["name"] for host in self.hosts)
        written = settings or f"routes: {{kimi-k2.5: {{aliases: [kimi-2.5], targets: [{names}]}}}}\n"
        return (
            f"listen: 127.0.0.1:{self.port}\nadmin: {{listen: '127.0.0.1:{self.admin}'}}\n"
            f"state: {self.state}\ntargets:\n{targets}{written}"
            + ("" if "log:" in settings else f"log: {{access: {self.folder}/access.log, sample: 1}}\n")
            + ("" if "drain:" in settings else "drain: {grace_seconds: 2}\n")
        )

    # -- processes ---------------------------------------------------------------------------------------------

    def start_gateway(self) -> Process:
        gateway = Process(["serve", "-c", str(self.settings)], self.folder / "gateway.log")
        self.gateway = gateway
        self.wait_ready()
        return gateway

    def wait_ready(self) -> None:
        def ready() -> bool:
            assert self.gateway.child.poll() is None, self.gateway.printed()
            try:
                return get(self.port, "/readyz")[0] == 200
            except OSError:
                return False

        until(20, ready, "the gateway is ready")

    def worker_pids(self) -> list[int]:
        workers = json.loads(get(self.admin, "/api/workers")[1])["workers"]
        return [worker["pid"] for worker in workers]

    def _descriptors(self) -> int:
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in self.worker_pids())

    def close(self) -> None:
        self.gateway.stop()
        self._sim.stop()

    # -- commands ----------------------------------------------------------------------------------------------

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", "-m", "moongate", *arguments],
            cwd=ROOT, capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip

    def add_key(self, tenant: str, *more: str) -> str:
        done = self.command("keys", "add", tenant, "--state", str(self.state), *more)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    # -- calls -------------------------------------------------------------------------------------------------

    def ask(
        self,
        sim: Mapping[str, Any] | str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        **members: Any,
    ) -> "Answer":
        """One call over a connection of its own; `sim` is what the simulator is to do (a fault's name, or members)."""
        return self.post(self.body(sim, **members), headers=headers)

    def body(self, sim: Mapping[str, Any] | str | None = None, **members: Any) -> bytes:
        asked: dict[str, Any] = {
            "model": "kimi-k2.5",
            "messages": [{"role": "user", "content": "Hello, Kimi!"}],
        }
        asked |= members
        if sim is not None:
            asked["sim"] = {"fault": sim} if isinstance(sim, str) else dict(sim)
        return json.dumps(asked, ensure_ascii=False).encode()

    def post(
        self, body: bytes, *, headers: Mapping[str, str] | None = None, path: str = "/v1/chat/completions"
    ) -> "Answer":
        given = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"} | dict(
            headers or {}
        )
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", path, body, given)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    # -- looking in --------------------------------------------------------------------------------------------

    def sim(self, path: str) -> Any:
        """What the simulator's control face says."""
        return json.loads(get(self.ports["control"], path)[1])

    def tell_sim(self, method: str, path: str, document: Any = None) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.ports["control"], timeout=10)
        connection.request(method, path, None if document is None else json.dumps(document))
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        assert answer.status < 300, text

    def rows(self, question: str, *values: Any) -> list[dict[str, Any]]:
        """Rows of the ledger's view."""
        path = self.state / "ledger.db"
        if not path.exists():
            return []
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)) as db:
            db.row_factory = sqlite3.Row
            return [dict(row) for row in db.execute(question, values)]

    def record(self, call_id: str) -> dict[str, Any]:
        """The closed record of a call, with its attempts; waits until it is folded."""
        found = until(
            10,
            lambda: self.rows("SELECT * FROM calls WHERE call_id = ? AND outcome <> ''", call_id),
            f"a record of {call_id}",
        )[0]
        found["attempts"] = self.rows("SELECT * FROM attempts WHERE call_id = ? ORDER BY attempt_id", call_id)
        return found

    def metrics(self) -> dict[str, float]:
        """Every series by its exposition name, labels included."""
        text = get(self.admin, "/metrics")[1].decode()
        series = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in series}

    def total(self, family: str, **labels: str) -> float:
        """The sum of a family's series that have these labels."""
        wanted = [f'{name}="{value}"' for name, value in labels.items()]
        return sum(
            value
            for name, value in self.metrics().items()
            if name.partition("{")[0] == family and all(label in name for label in wanted)
        )

    def logged(self) -> list[dict[str, Any]]:
        """The access log's lines."""
        path = self.folder / "access.log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def at_rest(self) -> None:
        """Nobody calls: nothing may be left behind."""
        until(10, lambda: self.total("moongate_in_flight") == 0, "no call in flight")
        until(10, lambda: self.total("moongate_connections") == 0, "no connection of a client")
        until(10, lambda: self.sim("/_sim/book/totals")["open"] == 0, "no execution upstream")

        def agreed() -> bool:
            counted = self.rows(
                "SELECT COUNT(*) AS calls, COUNT(DISTINCT call_id) AS ids FROM calls WHERE outcome <> ''"
            )
            calls = counted[0]["calls"] if counted else 0
            return calls == self.total("moongate_calls_total")

        until(10, agreed, "as many closed records as counted calls")
        assert not self.rows("SELECT call_id FROM calls WHERE outcome = ''"), "an open record"
        idle = sum(target.get("idle_connections", 0) for target in self.hosts)
        until(
            10, lambda: self._descriptors() <= self.baseline + idle + 64, "descriptors back at their baseline"
        )
        for word in ("Traceback", "unraisable", "ResourceWarning", "never awaited"):
            assert word not in self.gateway.printed()


class Answer:
    """A whole answer."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error of a JSON body, or of the last event of a stream."""
        if self.headers["content-type"].startswith("text/event-stream"):
            error: dict[str, Any] = self.events[-1]["error"]
            return error
        error = self.json["error"]
        return error

    @property
    def events(self) -> list[Any]:
        """The data of each event of a stream; `[DONE]` as that text."""
        payloads = [
            line.removeprefix("data:").strip()
            for line in self.body.decode().splitlines()
            if line.startswith("data:")
        ]
        return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]

    @property
    def text(self) -> str:
        """The content of a stream's deltas, or of a plain answer."""
        if not self.headers["content-type"].startswith("text/event-stream"):
            content: str = self.json["choices"][0]["message"]["content"]
            return content
        return "".join(
            event["choices"][0]["delta"].get("content") or ""
            for event in self.events
            if event != "[DONE]" and event.get("choices")
        )

    @property
    def call_id(self) -> str:
        return self.headers["x-moongate-call-id"]


@contextlib.contextmanager
def lived_in(folder: Path, settings: str = "", hosts: list[dict[str, Any]] | None = None) -> Iterator[House]:
    """A house that is at rest when it is left."""
    house = House(folder, settings, hosts)
    try:
        yield house
        house.at_rest()
    finally:
        house.close()
