"""Start the simulator, in this process or from the command line."""

import argparse
import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, Final

from moongate.sim import fault_answers, fault_bodies, fault_events, fault_http2, fault_streams
from moongate.sim.config import (
    CERTIFICATES,
    DEFAULT_AS_OF,
    KINDS,
    Config,
    HostConfig,
    accounts_from,
    hosts_from,
)
from moongate.sim.dns import serve_names
from moongate.sim.faces import FACES
from moongate.sim.host import Sim
from moongate.sim.listen import Listening, listen
from moongate.sim.script import ScriptError, load, rules_from

CATALOGUES = (fault_answers, fault_bodies, fault_streams, fault_events, fault_http2)
"""Imported so that their faults are entered."""


@dataclass(slots=True)
class Running:
    """A simulator that answers. `port` and `url` are the first host's; `ports` has every host's by name."""

    sim: Sim
    listening: list[Listening]
    ca: Path | None = None

    @property
    def port(self) -> int:
        """The first host's port."""
        return self.listening[0].port

    @property
    def url(self) -> str:
        """The first host's address without a path."""
        return self.listening[0].url

    @property
    def ports(self) -> dict[str, int]:
        """Every host's port by its name."""
        return {one.host.config.name: one.port for one in self.listening}

    @property
    def dns_port(self) -> int:
        """The name server's UDP port; 0 where none runs."""
        return self.sim.names.port if self.sim.names else 0

    @property
    def urls(self) -> dict[str, str]:
        """Every host's address by its name."""
        return {one.host.config.name: one.url for one in self.listening}

    async def stop(self) -> None:
        """Close every listener and drop every connection; what ran is booked as aborted."""
        if self.sim.names is not None:
            self.sim.names.close()
        for one in self.listening:
            await one.stop()


async def start(config: Config | None = None) -> Running:
    """Start every host of a configuration on the running loop; a wrong script raises `ScriptError`."""
    config = config or Config()
    sim = Sim(config)
    if config.script:
        sim.script.rules = rules_from(config.script)
        sim.script.began = time.monotonic()
    ca = None
    if any(host.tls for host in config.hosts):
        from moongate.sim.tls import authority  # noqa: PLC0415 - certificates need a library that plain HTTP does not

        ca = authority(config.tls_dir)
    listening: list[Listening] = []
    try:
        for host in config.hosts:
            one = await listen(sim, host, ca)
            listening.append(one)
        if config.dns is not None:
            port, records = int(config.dns.get("port", 0)), config.dns.get("records", {})
            sim.names = await serve_names(config.hosts[0].host, port, records)
    except BaseException:
        for one in listening:
            await one.stop()
        raise
    return Running(sim, listening, ca.path if ca else None)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    arguments = argparse.ArgumentParser(prog="moongate sim", description="A simulated Kimi.")
    for name, options in FLAGS.items():
        arguments.add_argument(name, **options)
    return arguments


FLAGS: Final[dict[str, dict[str, Any]]] = {
    "--port": {"type": int, "default": 9000, "help": "0 lets the kernel choose (default 9000)"},
    "--host": {"default": "127.0.0.1", "help": "address to listen on (default 127.0.0.1)"},
    "--script": {"type": Path, "help": "JSON or YAML file: rules, and optionally hosts, accounts, settings"},
    "--as-of": {
        "type": date.fromisoformat,
        "help": f"the day for models and prices (default {DEFAULT_AS_OF})",
    },
    "--seed": {"help": "what all words and ids follow from (default moon)"},
    "--first-token": {"type": float, "default": 0.0, "metavar": "SECONDS", "help": "time to it (default 0)"},
    "--tokens-per-second": {"type": float, "default": 0.0, "metavar": "N", "help": "0: at once (default)"},
    "--sampling": {"action": "store_true", "help": "let equal requests get different answers"},
    "--face": {"choices": FACES, "default": "moonshot", "help": "which server to look like"},
    "--tls": {"choices": CERTIFICATES, "default": "", "help": "speak TLS with this kind of certificate"},
    "--tls-dir": {"type": Path, "help": "where ca.pem is kept (default: a temporary directory)"},
    "--no-http2": {"action": "store_true", "help": "refuse HTTP/2, in ALPN too"},
    "--also": {
        "action": "append",
        "default": [],
        "metavar": "KIND=PORT",
        "help": f"a further port: {', '.join(KINDS[1:])}",
    },
    "--dns": {
        "type": int,
        "metavar": "PORT",
        "help": "run a name server on this UDP port; 0 lets the kernel choose",
    },
    "--port-file": {"type": Path, "help": "write name=port lines here once all ports listen"},
}


def configure(argv: Sequence[str]) -> Config:
    """The configuration that a command line asks for; what is wrong in a script file is a `ScriptError`."""
    given = parser().parse_args(argv)
    document: dict[str, Any] = {}
    if given.script:
        loaded = load(given.script)
        document = loaded if isinstance(loaded, dict) else {"rules": loaded}
    first = HostConfig(
        host=given.host,
        port=given.port,
        face=given.face,
        tls=given.tls,
        http2=not given.no_http2,
        alpn=("http/1.1",) if given.no_http2 else ("h2", "http/1.1"),
        first_token=given.first_token,
        tokens_per_second=given.tokens_per_second,
        sampling=given.sampling,
    )
    try:
        hosts = hosts_from(document.get("hosts", [])) or (first,)
        accounts = accounts_from(document.get("accounts", []))
        extra = tuple(_also(one, given.host) for one in given.also)
    except (TypeError, ValueError, KeyError) as error:
        raise ScriptError(f"{given.script or '--also'}: {error}") from None
    as_of = given.as_of or document.get("as_of") or DEFAULT_AS_OF
    dns = document.get("dns")
    if given.dns is not None:
        dns = {"records": {}, **(dns or {}), "port": given.dns}
    config = Config(
        hosts=(*hosts, *extra),
        seed=given.seed or str(document.get("seed", "moon")),
        as_of=as_of if isinstance(as_of, date) else date.fromisoformat(str(as_of)),
        accounts=accounts,
        script=document.get("rules"),
        tls_dir=given.tls_dir,
        dns=dns,
        port_file=given.port_file,
    )
    rules_from(config.script or [])
    return config


def _also(text: str, address: str) -> HostConfig:
    kind, _, port = text.partition("=")
    if kind not in KINDS[1:]:
        raise ValueError(f"--also {text}: one of {', '.join(KINDS[1:])} is wanted, then =PORT")
    return replace(HostConfig(), name=kind, kind=kind, host=address, port=int(port or 0))


async def run(config: Config) -> None:
    """Serve until SIGINT or SIGTERM; prints one line for each port that listens."""
    running = await start(config)
    first = running.listening[0]
    print(f"sim listening on {first.url}", flush=True)  # noqa: T201 - the line that scripts wait for
    for one in running.listening[1:]:
        print(f"sim {one.host.config.name} on {one.url}", flush=True)  # noqa: T201 - the same
    if running.dns_port:
        print(f"sim dns on udp port {running.dns_port}", flush=True)  # noqa: T201 - the same
    if running.ca:
        print(f"sim ca {running.ca}", flush=True)  # noqa: T201 - the same
    if config.port_file:
        lines = "".join(f"{name}={port}\n" for name, port in running.ports.items())
        config.port_file.write_text(lines, encoding="utf-8")
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, done.set)
    await done.wait()
    await running.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """The command `moongate sim`; 2 where the script is wrong or a port is taken."""
    try:
        config = configure(sys.argv[1:] if argv is None else argv)
        runner = asyncio.run
        with contextlib.suppress(ImportError):
            import uvloop  # noqa: PLC0415 - faster where it is installed

            runner = uvloop.run
        runner(run(config))
    except (ScriptError, OSError) as error:
        print(f"sim: {error}", file=sys.stderr)  # noqa: T201 - the reason for the exit code
        return 2
    return 0
