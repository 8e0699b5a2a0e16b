"""`moongate demo`: three upstreams that misbehave, twenty calls, and what became of each.

What it prints of a call is read from the ledger afterwards, not remembered: the same record that an operator sees.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from moongate.core.audit import compare
from moongate.core.book import Execution, read_book
from moongate.core.record import CallRecord
from moongate.store.control import ControlStore
from moongate.store.records import Folder
from moongate.world import RealWorld

NAMES: Final = ("alpha", "beta", "gamma")
_SIM_KEY: Final = "SIM_KEY"
_pause = threading.Event()


@dataclass(frozen=True, slots=True)
class Act:
    """One call: what it asks, what its upstreams do to it (`host` -> fault), whether its client leaves early."""

    says: str
    ask: dict[str, Any] = field(default_factory=dict)
    meets: dict[str, str] = field(default_factory=dict)
    leaves: bool = False
    body: bytes | None = None
    key: bool = True


STREAM: Final = {"stream": True}
TOOLS: Final = {
    "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}],
    "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
    "thinking": {"type": "disabled"},
}
ACTS: Final = (
    Act("a plain question"),
    Act("another"),
    Act("a stream", STREAM),
    Act("a stream without thinking", STREAM | {"thinking": {"type": "disabled"}}),
    Act("asked for as kimi-2.5, a name users type", {"model": "kimi-2.5"}),
    Act("a temperature that Kimi refuses", {"temperature": 0.2}),
    Act("alpha answers 503", {}, {"alpha": "status;code=503"}),
    Act("alpha's engine is overloaded", STREAM, {"alpha": "engine_overloaded"}),
    Act("alpha's account is at its request limit", {}, {"alpha": "429_with_retry_after"}),
    Act("a tool call", TOOLS),
    Act("the stream breaks in the middle", STREAM, {"alpha": "reset_mid_stream;after=6"}),
    Act("the client leaves in the middle", STREAM, leaves=True),
    Act("alpha and beta are overloaded", {}, {"alpha": "engine_overloaded", "beta": "engine_overloaded"}),
    Act("500: it may have run, so it is not sent again", {}, {"alpha": "status;code=500"}),
    Act("a page of HTML in place of an answer", {}, {"alpha": "html_200"}),
    Act("a stream without its end marker", STREAM, {"alpha": "no_done"}),
    Act("a model that is not there", {"model": "kimi-k9"}),
    Act("a body that is no JSON", body=b'{"model": "kimi-k2.5", '),
    Act("no key", key=False),
    Act("and a plain question again"),
)


def play(console: Console) -> int:
    """Run the demo and print it; 0 if ledger and book agree."""
    with tempfile.TemporaryDirectory(prefix="moongate-demo-") as name:
        folder = Path(name)
        console.print("Starting three upstreams and a gateway ...", style="dim")
        with _simulators(folder) as ports, _gateway(folder, ports) as (port, key):
            ids = [_call(port, key if act.key else "", number, act) for number, act in enumerate(ACTS, 1)]
            book = read_book(json.dumps(_get(ports["control"], "/_sim/book?limit=1000")).encode())
        folds = Folder(folder / "state" / "journal", folder / "state" / "ledger.db")
        folds.fold()
        records = [next(iter(folds.find(call_id)), None) if call_id else None for call_id in ids]
        folds.close()
    for number, (act, record) in enumerate(zip(ACTS, records, strict=True), 1):
        console.print(_line(number, act, record), soft_wrap=True, highlight=False)
    return _balance(console, [record for record in records if record is not None], book)


@contextmanager
def _simulators(folder: Path) -> Iterator[dict[str, int]]:
    rules = [
        {"fault": fault, "match": {"host": host, "text": _mark(number)}}
        for number, act in enumerate(ACTS, 1)
        for host, fault in act.meets.items()
    ]
    hosts = [{"name": name, "first_token": 0.05, "tokens_per_second": 400} for name in NAMES]
    script = folder / "script.json"
    script.write_text(json.dumps({"hosts": [*hosts, {"name": "control", "kind": "control"}], "rules": rules}))
    ports = folder / "ports"
    with _process(["sim", "--script", str(script), "--port-file", str(ports)], folder / "sim.log"):
        for _ in range(200):
            if ports.exists() and ports.read_text().count("\n") > len(NAMES):
                break
            _pause.wait(0.05)
        yield {
            name: int(port) for name, _, port in (line.partition("=") for line in ports.read_text().split())
        }


@contextmanager
def _gateway(folder: Path, ports: dict[str, int]) -> Iterator[tuple[int, str]]:
    world = RealWorld()
    port, admin = _free_port(), _free_port()
    targets = "".join(
        f"  {name}: {{url: 'http://127.0.0.1:{ports[name]}/v1', key: '${{env:{_SIM_KEY}}}', dialect: moonshot}}\n"
        for name in NAMES
    )
    settings = folder / "moongate.yaml"
    settings.write_text(
        f"listen: 127.0.0.1:{port}\nadmin: {{listen: '127.0.0.1:{admin}'}}\nstate: {folder}/state\n"
        f"log: {{access: 'off'}}\ntargets:\n{targets}"
        f"routes: {{kimi-k2.5: {{aliases: [kimi-2.5], targets: [{', '.join(NAMES)}]}}}}\n"
    )
    control = ControlStore.open(folder / "state")
    key, _ = control.add_demo_key(world.new_secret(), now=world.wall(), who="moongate demo")
    control.close()
    with _process(["serve", "-c", str(settings)], folder / "gateway.log"):
        for _ in range(400):
            with suppress(OSError):
                if _get(port, "/readyz"):
                    break
            _pause.wait(0.05)
        yield port, key


@contextmanager
def _process(arguments: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        child = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "moongate", *arguments],
            stdout=output,
            stderr=output,
            env=os.environ | {_SIM_KEY: "sk-sim"},
        )
        try:
            yield
        finally:
            child.send_signal(signal.SIGTERM)
            child.wait(30)


def _call(port: int, key: str, number: int, act: Act) -> str:
    """Make one call and return its id, empty where the gateway gave none."""
    ask: dict[str, Any] = {
        "model": "kimi-k2.5",
        "messages": [{"role": "user", "content": f"{_mark(number)} Tell me about {act.says}."}],
    }
    body = act.body if act.body is not None else json.dumps(ask | act.ask).encode()
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/chat/completions", body, headers)
    answer = connection.getresponse()
    if act.leaves:
        answer.readline()
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)
    else:
        answer.read()
    answer.close()
    connection.close()
    return answer.headers.get("X-Moongate-Call-Id", "")


def _get(port: int, path: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", path)
    answer = connection.getresponse()
    read = json.loads(answer.read())
    connection.close()
    return read if answer.status == 200 else None


def _line(number: int, act: Act, record: CallRecord | None) -> str:
    if record is None:
        return f"call {number:02}  refused    401, counted and never a record{'':12}{act.says}"
    way = " -> ".join(_step(attempt.target, attempt.code) for attempt in record.attempts)
    facts = [way] if way else []
    if record.code and record.code.removeprefix("kimi_") not in way:
        facts.append(f"{record.status} {record.code}")
    if record.first_event >= 0:
        facts.append(f"first {record.first_event:.2f} s")
    if record.input:
        facts.append(f"in {record.input} out {record.output}")
    if record.edits:
        facts.append(f"edited {', '.join(record.edits)}")
    return f"call {number:02}  {record.outcome!s:<10} {'  '.join(facts):<42}  {act.says}"


def _step(target: str, code: str) -> str:
    return f"{target} x {code.removeprefix('kimi_')}" if code else target


def _balance(console: Console, records: list[CallRecord], book: list[Execution]) -> int:
    """Hold the ledger against what the simulated Kimi says it will charge, to the last token."""
    states = Counter(attempt.state for record in records for attempt in record.attempts)
    made = compare(book, records, asked=RealWorld().wall())
    agree = not made.findings and not made.paid_twice
    console.print(
        f"\nKimi's book: {len(book)} executions. The ledger: {states['settled']} settled, "
        f"{states['settled_est']} cut and counted, {states['ambiguous']} ambiguous (no proof either way). "
        + ("Nothing was paid twice." if agree else "They do not agree."),
        style="bold",
    )
    for finding in made.findings:
        console.print(finding.what, style="red", soft_wrap=True)
    console.print("Your turn: `moongate serve --embedded` leaves a gateway running.")
    return 0 if agree else 1


def _mark(number: int) -> str:
    return f"(call {number:02})"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
