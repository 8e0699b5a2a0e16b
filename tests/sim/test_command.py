"""The command line, independence, and what the simulator costs."""

import ast
import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import moongate.sim
from moongate.sim.config import Config
from moongate.sim.host import Host, Sim
from moongate.sim.reply import Act, Request
from moongate.sim.script import ScriptError
from moongate.sim.serve import configure

SOURCE = Path(moongate.sim.__file__).parent


@pytest.mark.parametrize("path", sorted(SOURCE.glob("*.py")), ids=lambda path: path.name)
def test_the_judge_shares_no_code_with_the_judged(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names = [node.module or ""]
        for name in names:
            top = name.partition(".")[0]
            allowed = {"httptools", "msgspec", "uvloop", "yaml", "h2", "cryptography"}
            assert name.startswith("moongate.sim") or top in sys.stdlib_module_names | allowed, name


def test_plain_http_needs_neither_certificates_nor_http_2() -> None:
    code = (
        "import sys, moongate.sim.serve as s; s.configure(['--port', '0']);"
        "assert not {'cryptography', 'h2', 'yaml'} & {m.partition('.')[0] for m in sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_the_command_line_is_understood() -> None:
    config = configure(
        ["--port", "0", "--as-of", "2026-09-01", "--seed", "x", "--first-token", "0.5", "--tokens-per-second", "30",
         "--face", "vllm", "--also", "refused=0", "--also", "control=7000", "--sampling", "--no-http2", "--dns", "0"]
    )  # fmt: skip
    first, refused, control = config.hosts
    assert (first.first_token, first.tokens_per_second, first.face, first.sampling) == (
        0.5,
        30.0,
        "vllm",
        True,
    )
    assert (first.http2, first.alpn) == (False, ("http/1.1",))
    assert (refused.kind, control.kind, control.port) == ("refused", "control", 7000)
    assert (config.as_of, config.seed, config.dns) == (date(2026, 9, 1), "x", {"records": {}, "port": 0})
    assert configure([]).hosts[0].port == 9000


def test_a_script_file_may_hold_hosts_and_accounts(tmp_path: Path) -> None:
    path = tmp_path / "script.yaml"
    path.write_text(
        "seed: s\nas_of: 2026-11-30\nhosts:\n- {name: cn, port: 0}\n- {name: own, face: vllm, models: [tiny]}\n"
        "accounts:\n- {id: a, keys: [sk-a], tier: 0, balance: 3.5}\nrules:\n- {fault: '503', times: 1}\n"
        "dns: {port: 0, records: {kimi.test: 127.0.0.1}}\n"
    )
    config = configure(["--script", str(path)])
    assert [host.name for host in config.hosts] == ["cn", "own"]
    assert config.hosts[1].models == ("tiny",)
    assert (config.accounts[0].tier.rpm, config.accounts[0].balance_micro) == (3, 3_500_000)
    assert (config.seed, config.as_of) == ("s", date(2026, 11, 30))
    assert config.script == [{"fault": "503", "times": 1}]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rules: [{fault: nope}]", "no fault is called"),
        ("hosts: [{nme: x}]", "nme"),
        ("accounts: [{id: a, tier: 9}]", "9"),
    ],
)
def test_a_wrong_script_ends_with_its_reason(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "script.yaml"
    path.write_text(text)
    with pytest.raises(ScriptError, match=words):
        configure(["--script", str(path)])
    command = [sys.executable, "-m", "moongate.sim", "--port", "0", "--script", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_it_says_where_it_listens_and_ends_on_a_signal(tmp_path: Path) -> None:
    ports = tmp_path / "ports"
    command = [
        sys.executable,
        "-m",
        "moongate.sim",
        "--port",
        "0",
        "--also",
        "silent=0",
        "--port-file",
        str(ports),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        found = re.fullmatch(r"sim listening on (http://127\.0\.0\.1:(\d+))\n", line)
        assert found, line
        with urllib.request.urlopen(f"{found[1]}/_sim", timeout=5) as answer:  # noqa: S310 - our own address
            assert json.load(answer)["seed"] == "moon"
        assert child.stdout.readline().startswith("sim silent on http://127.0.0.1:")
        deadline = time.monotonic() + 5
        while not ports.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert f"kimi={found[2]}\n" in ports.read_text()
        child.send_signal(signal.SIGTERM)
        assert child.wait(5) == 0
        assert child.stderr is not None
        assert child.stderr.read() == ""


def test_a_taken_port_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [sys.executable, "-m", "moongate.sim", "--port", str(taken.getsockname()[1])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "in use" in done.stderr


def cost(many: int, stream: bool, body: dict[str, Any]) -> float:
    """CPU seconds for one answer, socket apart, at best of five."""
    sim = Sim(Config())
    host = Host(sim, sim.config.hosts[0])
    raw = json.dumps({"model": "kimi-k2.5", "stream": stream, **body}).encode()
    head = [(b"Authorization", b"Bearer sk-sim"), (b"Content-Type", b"application/json")]
    request = Request("POST", "/v1/chat/completions", head, raw, time.time())
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        for _ in range(many):
            exchange = host.begin(request)
            for item in exchange.reply.items:
                assert not isinstance(item, Act)
            host.finish(exchange, complete=True)
        best = min(best, (time.process_time() - began) / many)
    return best


def test_a_reply_costs_at_most_300_microseconds_and_a_chunk_40() -> None:
    ask = {"messages": [{"role": "user", "content": "x" * 1600}], "sim": {"output_tokens": 60}}
    reply = cost(300, stream=False, body=ask)
    few = cost(30, stream=True, body={**ask, "sim": {"output_tokens": 100}})
    many = cost(30, stream=True, body={**ask, "sim": {"output_tokens": 600}})
    chunk = (many - few) / 500
    print(f"reply {reply * 1e6:.0f} us, chunk {chunk * 1e6:.1f} us")
    assert reply < 300e-6
    assert chunk < 40e-6
