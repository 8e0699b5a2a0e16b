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
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tests.wire import descriptors, looking
from tests.wire.answer import Answer

ROOT = Path(__file__).parents[2]
SIM_KEY = "sk-wire-pool-key"
T = TypeVar("T")
# the simulator offers TLS 1.0 on purpose
_STRICT = ("-W", "error", "-W", "ignore:ssl.TLSVersion.TLSv1 is deprecated:DeprecationWarning")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until(seconds: float, look: Callable[[], T], what: str, show: Callable[[], object] = str) -> T:
    """Look until something true is seen, and return it; fail with `what` and `show` after so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}: {show()}"
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

    def __init__(self, arguments: list[str], log: Path, before: Sequence[str] = ()) -> None:
        self.log = log
        with log.open("ab") as output:
            self.child = subprocess.Popen(
                [*before, sys.executable, *_STRICT, "-m", "moongate", *arguments],
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

    @property
    def lives(self) -> bool:
        """True; a process that ended fails whoever waits for it."""
        assert self.child.poll() is None, self.printed()
        return True

    def printed(self) -> str:
        return self.log.read_text(errors="replace")


class House:
    """A gateway over simulated upstreams. `hosts` are listeners of the simulator, each a target of its name.

    `settings` is YAML of its own; where it has no `routes`, there is one, `kimi-k2.5`, over every host. A host with
    `tls` is trusted by the simulator's own authority.
    """

    def __init__(self, folder: Path, settings: str = "", hosts: list[dict[str, Any]] | None = None) -> None:
        self.folder = folder
        self.hosts = hosts or [{"name": "kimi"}]
        self.port, self.admin = free_port(), free_port()
        self.state = folder / "state"
        self.cleared = time.time()
        self.before: list[str] = []
        """What the gateway's command line begins with, for one that runs in surroundings of its own."""
        self.inside: list[str] = []
        """What a command begins with that looks into these surroundings."""
        self._started: list[Process] = []
        self.settings = folder / "moongate.yaml"
        try:
            self._start_sim()
            self.settings.write_text(self._written(settings))
            self.key = self.add_key("acme")
            self.gateway = self.start_gateway()
            self.baseline = self._descriptors()
        except BaseException:
            self.close()
            raise

    def _start_sim(self) -> None:
        script = self.folder / "script.json"
        script.write_text(json.dumps({"hosts": [*self.hosts, {"name": "control", "kind": "control"}]}))
        ports = self.folder / "ports"
        ports.unlink(missing_ok=True)
        sim = self._start(
            ["sim", "--script", str(script), "--port-file", str(ports), "--tls-dir", str(self.folder)],
            self.folder / "sim.log",
        )
        until(
            20,
            lambda: sim.lives and ports.exists() and "control=" in ports.read_text(),
            "the simulator is up",
        )
        self.ports = {
            name: int(port) for name, _, port in (line.partition("=") for line in ports.read_text().split())
        }

    def _start(self, arguments: list[str], log: Path, before: Sequence[str] = ()) -> Process:
        process = Process(arguments, log, before)
        self._started.append(process)
        return process

    def _written(self, settings: str) -> str:
        targets = "".join(self._target(host) for host in self.hosts)
        names = ", ".join(host["name"] for host in self.hosts)
        defaults = {
            "routes": f"{{kimi-k2.5: {{aliases: [kimi-2.5], targets: [{names}]}}}}",
            "log": f"{{access: {self.folder}/access.log, sample: 1}}",
            "drain": "{grace_seconds: 2}",
        }
        given = {line.partition(":")[0] for line in settings.splitlines()}
        more = "".join(f"{name}: {value}\n" for name, value in defaults.items() if name not in given)
        written = f"targets:\n{targets}{settings}{more}"
        listen = f"listen: 127.0.0.1:{self.port}\nadmin: {{listen: '127.0.0.1:{self.admin}'}}\n"
        return f"{listen}state: {self.state}\n{written}"

    def _target(self, host: dict[str, Any]) -> str:
        scheme = "https" if host.get("tls") or host.get("kind") == "tls_stall" else "http"
        trust = f", ca_file: {self.folder}/ca.pem" if host.get("tls") else ""
        url = f"{scheme}://127.0.0.1:{self.ports[host['name']]}/v1"
        face = host.get("face", "moonshot")
        return f"  {host['name']}: {{url: '{url}', key: '${{env:SIM_KEY}}', dialect: {face}{trust}}}\n"

    # -- processes ---------------------------------------------------------------------------------------------

    def start_gateway(self, *flags: str) -> Process:
        serve = ["serve", "-c", str(self.settings), *flags]
        self.gateway = self._start(serve, self.folder / "gateway.log", self.before)
        self.wait_ready()
        return self.gateway

    def wait_ready(self) -> None:
        def ready() -> bool:
            try:
                answers = self.gateway.lives and get(self.port, "/readyz")[0] == 200
                return answers and {worker["state"] for worker in self.workers()} == {"ready"}
            except OSError:
                return False

        until(20, ready, "the gateway is ready")

    def worker_pids(self) -> list[int]:
        return [worker["pid"] for worker in self.workers()]

    def workers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(get(self.admin, "/api/workers")[1])["workers"]
        return found

    def _descriptors(self) -> int:
        return sum(len(descriptors.links(pid)) for pid in self.worker_pids())

    def close(self) -> None:
        for process in reversed(self._started):
            process.stop()

    # -- commands ----------------------------------------------------------------------------------------------

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *_STRICT, "-m", "moongate", *arguments],
            cwd=ROOT, capture_output=True, text=True, timeout=30, check=False, env=os.environ | {"SIM_KEY": SIM_KEY},
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
    ) -> Answer:
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
    ) -> Answer:
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
        return looking.rows(self.state / "ledger.db", question, values, self.inside)

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

    def begin(self) -> None:
        """Forget what the simulator remembers: a test looks at what it did itself."""
        self.cleared = time.time()
        for path in ("/_sim/book", "/_sim/requests", "/_sim/script"):
            self.tell_sim("DELETE", path)

    def received(self) -> list[dict[str, Any]]:
        """Requests as they arrived upstream; probes are left out."""
        every: list[dict[str, Any]] = self.sim("/_sim/requests?limit=1000")["requests"]
        return [one for one in every if one["method"] == "POST"]

    def executions(self) -> list[dict[str, Any]]:
        """What the simulated provider ran, the oldest first."""
        rows: list[dict[str, Any]] = self.sim("/_sim/book?limit=100000")["executions"]
        return rows

    def at_rest(self) -> None:
        """Nobody calls: nothing may be left behind, and all books must agree."""
        until(10, lambda: self.total("moongate_in_flight") == 0, "no call in flight")
        until(10, lambda: self.total("moongate_connections") == 0, "no connection of a client")
        until(10, lambda: self.sim("/_sim/book/totals")["open"] == 0, "no execution upstream")
        until(
            10,
            lambda: self._tallies()[0] == self._tallies()[1],
            "metrics agree with the ledger",
            self._tallies,
        )
        assert not self.rows("SELECT call_id FROM calls WHERE outcome = ''"), "an open record"
        assert not self.rows(
            "SELECT attempt_id FROM attempts WHERE state IN ('reserved', 'sent', 'first_event')"
        ), "an open attempt"
        self.audit()
        until(10, lambda: self._descriptors() <= self._most_descriptors(), "descriptors at their baseline")
        for word in ("Traceback", "unraisable", "ResourceWarning", "never awaited"):
            assert word not in self.gateway.printed(), self.gateway.printed()

    def _most_descriptors(self) -> int:
        """The baseline, connections kept to upstreams, and a few for what comes and goes of itself."""
        return self.baseline + 8 + descriptors.outbound(self.worker_pids(), self.port)

    def _tallies(self) -> tuple[dict[str, float], dict[str, float]]:
        """Calls and attempts as the metrics count them, and as the ledger holds them."""
        calls = self.rows("SELECT route, outcome, code, COUNT(*) AS n FROM calls GROUP BY 1, 2, 3")
        attempts = self.rows("SELECT target, code, reach, COUNT(*) AS n FROM attempts GROUP BY 1, 2, 3")
        metrics = self.metrics()
        counted = {
            name: value
            for name, value in metrics.items()
            if name.startswith(("moongate_calls_total{", "moongate_attempts_total{"))
        }
        told = {
            f'moongate_calls_total{{fault="{row["code"] or "none"}",outcome="{row["outcome"]}",'
            f'route="{row["route"] or "other"}"}}': row["n"]
            for row in calls
        } | {
            f'moongate_attempts_total{{fault="{row["code"] or "none"}",reach="{row["reach"]}",'
            f'target="{row["target"]}"}}': row["n"]
            for row in attempts
        }
        return counted, told

    def _puzzle(self) -> object:
        """What is needed to find out why the ledger lags behind."""
        journals = {path.name: path.stat().st_size for path in (self.state / "journal").iterdir()}
        return (
            self._tallies(),
            self.rows("SELECT * FROM checkpoints"),
            journals,
            self.gateway.printed()[-2000:],
        )

    def audit(self) -> None:
        """Hold the ledger against the provider's book, for what ran since `begin`."""
        book: dict[str, list[dict[str, Any]]] = {}
        for execution in self.executions():
            book.setdefault(execution["request_id"], []).append(execution)
        rows = self.rows(
            "SELECT c.request_id, a.* FROM attempts a JOIN calls c USING (call_id) WHERE a.started >= ?",
            self.cleared,
        )
        told: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            told.setdefault(row["request_id"], []).append(row)
        for request_id, executions in book.items():
            charged = [one for one in executions if one["cost_micro"]]
            open_ended = [row for row in told.get(request_id, []) if row["state"] != "released"]
            assert len(charged) <= len(open_ended), f"paid, but released or unknown: {charged}"
            settled = [row for row in open_ended if row["state"] == "settled"]
            if len(charged) == len(settled) == 1 and charged[0]["how"] == "completed":
                ours = [settled[0][name] for name in ("input", "output", "cached", "reasoning", "cost_micro")]
                theirs = [f"{name}_tokens" for name in ("input", "output", "cached", "reasoning")]
                assert ours == [charged[0][name] for name in (*theirs, "cost_micro")]


@contextlib.contextmanager
def lived_in(folder: Path, settings: str = "", hosts: list[dict[str, Any]] | None = None) -> Iterator[House]:
    """A house that is at rest when it is left."""
    house = House(folder, settings, hosts)
    try:
        yield house
        house.at_rest()
    finally:
        house.close()
