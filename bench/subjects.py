"""What is measured, and what stands behind it: how each is configured, started, found ready and stopped."""

import contextlib
import http.client
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import machine

HERE = Path(__file__).parent
READY_SECONDS = 30.0
MODEL = "kimi-k2.5"

# The gateway under measurement, in one place. {python} is the interpreter that runs the bench; the rest is made below.
GATEWAY = "{python} -m moongate serve -c {dir}/moongate.yaml"
ADD_KEY = "{python} -m moongate keys add bench --state {dir}/state"
SETTINGS = """\
listen: 127.0.0.1:{port}
admin: {{listen: "127.0.0.1:{admin}"}}
state: {dir}/state
run: {dir}/run
targets:
  bench: {{url: "{scheme}://127.0.0.1:{upstream}/v1", dialect: moonshot, connections: 8192{trust}}}
routes:
  {model}: {{targets: [bench]}}
log: {{access: {dir}/access.log}}
"""

NGINX = """\
daemon off; master_process on; worker_processes 1; pid {dir}/nginx.pid; error_log stderr crit;
worker_rlimit_nofile 65536;
events {{ worker_connections 16384; }}
http {{
  access_log off; keepalive_requests 1000000000; keepalive_timeout 75s;
  client_body_buffer_size 256k; client_max_body_size 32m; client_body_temp_path {dir}/body;
  proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/fastcgi; uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;
  {http}
}}
"""
PROXY = """
  upstream up {{ server 127.0.0.1:{upstream}; keepalive 4096; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass {scheme}://up; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
      proxy_buffer_size 16k; proxy_buffers 16 16k; proxy_busy_buffers_size 32k; proxy_read_timeout 600s;
    }}
  }}
"""
ANSWERS = """
  server {{
    listen 127.0.0.1:{port} backlog=4096{secure}; default_type application/json;
    location / {{ return 200 '{answer}'; }}
  }}
"""
ANSWER = (
    '{"id":"chatcmpl-6a2b1c0d9e8f","object":"chat.completion","created":1780272000,"model":"kimi-k2.5","choices":'
    '[{"index":0,"message":{"role":"assistant","content":"' + "A sentence of an answer. " * 23 + '"},'
    '"finish_reason":"stop"}],"usage":{"prompt_tokens":512,"completion_tokens":150,"total_tokens":662}}'
)


def free_port() -> int:
    """A port that the kernel holds free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU seconds by process at one moment."""

    by_process: dict[int, float]

    def since(self, before: "Cpu") -> tuple[float, float]:
        """Seconds used since then: by the whole tree, and by the process that used most."""
        used = [seconds - before.by_process.get(pid, 0.0) for pid, seconds in self.by_process.items()]
        return sum(used), max(used, default=0.0)


@dataclass(slots=True)
class Running:
    """A started server: where it answers, the key it wants, its root process, and what its start took in seconds."""

    name: str
    port: int
    pid: int
    key: str = "none"
    start_cpu: float = 0.0
    start_wall: float = 0.0

    def cpu(self) -> "Cpu":
        """CPU time of its process tree so far."""
        return Cpu(machine.cpu_by_process(self.pid))

    def resident(self) -> int:
        """Bytes of resident memory of its process tree."""
        return machine.resident_bytes(self.pid)


@dataclass(frozen=True, slots=True)
class Subject:
    """One gateway or proxy. `command` is a template; `ready` the path that answers 200 when it may be measured."""

    name: str
    command: str = ""
    ready: str = ""
    files: dict[str, str] = field(default_factory=dict)
    add_key: str = ""


def nginx_command(folder: str) -> str:
    """The command that runs nginx in the foreground with the configuration in `folder`."""
    return f"{shutil.which('nginx')} -p {folder} -e stderr -c {folder}/nginx.conf"


def yardstick() -> Subject:
    """Make the subject that relays and does nothing else; every figure is divided by its."""
    return Subject("nginx", nginx_command("{dir}"), files={"nginx.conf": NGINX.replace("{http}", PROXY)})


def gateway(command: str = GATEWAY) -> Subject:
    """Make the subject that it is all about, as it is run: with journal, metrics and sampled log on."""
    return Subject(
        "moongate", command, "/readyz", {"moongate.yaml": SETTINGS}, ADD_KEY if command == GATEWAY else ""
    )


def over_http2(subject: Subject) -> Subject:
    """Make the same gateway with HTTP/2 spoken upstream, for the scenarios over TLS."""
    settings = SETTINGS.replace("{trust}", "{trust}, protocol: http2")
    return replace(subject, name=f"{subject.name} http2", files={"moongate.yaml": settings})


def peer(text: str) -> Subject:
    """NAME=COMMAND from the command line; the command holds {port} and {upstream}."""
    name, _, command = text.partition("=")
    return Subject(name, command)


def is_ready(port: int, path: str) -> bool:
    """Whether something listens there and, if a path is given, answers 200."""
    try:
        if not path:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return True
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
        connection.request("GET", path)
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False


@contextlib.contextmanager
def spawned(argv: Sequence[str], core: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command pinned to one core, in a process group of its own that ends with the scope."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["taskset", "-c", str(core), *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_ready(process: subprocess.Popen[bytes], port: int, path: str, log: Path) -> None:
    """Return once the server is ready; raise with the end of its log if it ends or takes too long."""
    deadline = time.monotonic() + READY_SECONDS
    while not is_ready(port, path):
        if process.poll() is not None or time.monotonic() > deadline:
            message = f"did not become ready: {shlex.join(map(str, process.args))}\n{log.read_text()[-2000:]}"  # type: ignore[arg-type]
            raise RuntimeError(message)
        time.sleep(0.01)


@contextlib.contextmanager
def running(
    subject: Subject, upstream: int, folder: Path, certificate: Path | None = None
) -> Iterator[Running]:
    """Configure and start a subject in front of an upstream's port, pinned to the measured core.

    `certificate`: the upstream is spoken to over TLS, and this is what it shows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    places = {
        "python": sys.executable,
        "dir": str(folder),
        "port": port,
        "admin": free_port(),
        "upstream": upstream,
        "scheme": "http" if certificate is None else "https",
        "trust": "" if certificate is None else f", ca_file: {certificate}",
    }
    for name, template in subject.files.items():
        (folder / name).write_text(template.format(**places, model=MODEL))
    key = "none"
    if subject.add_key:
        said = subprocess.run(
            shlex.split(subject.add_key.format(**places)), capture_output=True, text=True, check=True
        )
        key = re.findall(r"\bmg_[\w-]+", said.stdout)[-1]
    log = folder / "output.log"
    began = time.monotonic()
    with spawned(shlex.split(subject.command.format(**places)), machine.two_cores()[0], log) as process:
        wait_ready(process, port, subject.ready, log)
        wall = time.monotonic() - began
        yield Running(subject.name, port, process.pid, key, machine.cpu_seconds(process.pid), wall)


@contextlib.contextmanager
def plain_upstream(folder: Path, certificate: Path | None = None) -> Iterator[int]:
    """Run an nginx that answers every request with the same completion of 0.9 KB; gives its port.

    With a certificate it speaks HTTP/1.1 or HTTP/2 over TLS, as the client likes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    secure = ""
    if certificate is not None:
        secure = f" ssl http2; ssl_certificate {certificate}; ssl_certificate_key {certificate}"
    http_part = ANSWERS.format(port=port, answer=ANSWER, secure=secure)
    (folder / "nginx.conf").write_text(NGINX.format(dir=folder, http=http_part))
    log = folder / "output.log"
    with spawned(shlex.split(nginx_command(str(folder))), machine.two_cores()[1], log) as process:
        wait_ready(process, port, "/" if certificate is None else "", log)
        yield port


@contextlib.contextmanager
def stream_upstream(folder: Path, *options: str) -> Iterator[int]:
    """The bench's own streaming upstream (upstream.py) with these options; gives its port."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    log = folder / "upstream.log"
    argv = [sys.executable, str(HERE / "upstream.py"), "--port", str(port), *options]
    with spawned(argv, machine.two_cores()[1], log) as process:
        wait_ready(process, port, "", log)
        yield port
