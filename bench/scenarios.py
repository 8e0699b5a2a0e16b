"""What the bench does to a subject, and the figures each way of loading it gives.

A figure is a plain number under a name that ends in its unit. `us` figures are CPU microseconds of the subject's whole
process tree, user and system.
"""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
from subjects import HERE, Running, Subject, plain_upstream, running, stream_upstream
from tls import write_certificate

Figures = dict[str, float]
SETTLE_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Scenario:
    """One way of loading. `measure(subject, folder, seconds)`; `most`: repetitions that are enough for it.

    `over_tls`: the upstream speaks TLS, and the gateway is measured with HTTP/2 as well.
    """

    name: str
    measure: Callable[[Subject, Path, float], Figures]
    most: int = 3
    over_tls: bool = False


def wrk(subject: Running, seconds: float, in_flight: int, *args: str) -> dict[str, Any]:
    """Load the subject with wrk on the other core; gives what calls.lua prints."""
    argv = [
        "taskset",
        "-c",
        str(machine.two_cores()[1]),
        "wrk",
        "-t1",
        f"-c{in_flight}",
        f"-d{max(1, round(seconds))}s",
    ]
    argv += [
        "--timeout",
        "20s",
        "-s",
        str(HERE / "calls.lua"),
        f"http://127.0.0.1:{subject.port}",
        "--",
        subject.key,
    ]
    said = subprocess.run([*argv, *args], capture_output=True, text=True, check=True).stdout
    found: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    if found["not_2xx"] or found["broken"] or not found["calls"]:
        message = f"{subject.name} failed under load: {found}"
        raise RuntimeError(message)
    return found


def plain(
    in_flight: int, size: int, kind: str = "unique", connection: str = "keep", *, over_tls: bool = False
) -> Callable[..., Figures]:
    """Plain calls of `size` bytes, `in_flight` at a time."""

    def measure(subject: Subject, folder: Path, seconds: float) -> Figures:
        args = (str(size), kind, connection)
        certificate = write_certificate(folder) if over_tls else None
        with (
            plain_upstream(folder / "upstream", certificate) as upstream,
            running(subject, upstream, folder / "subject", certificate) as server,
        ):
            wrk(server, 1, in_flight, *args)
            before = server.cpu()
            seen = wrk(server, seconds, in_flight, *args)
            used, busiest = server.cpu().since(before)
            return {
                "us_a_call": used / seen["calls"] * 1e6,
                "us_in_busiest_process": busiest / seen["calls"] * 1e6,
                "calls_a_second": seen["calls"] / seen["seconds"],
                "p50_ms": seen["p50"] * 1e3,
                "p99_ms": seen["p99"] * 1e3,
            }

    return measure


class Clients:
    """The client program at work against one subject."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def wait_live(self) -> None:
        """Until every stream has had its first event."""
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def result(self) -> dict[str, Any]:
        """What they saw, once all streams have ended."""
        found: dict[str, Any] = json.loads(self.process.communicate()[0].strip().splitlines()[-1])
        return found


@contextlib.contextmanager
def clients(subject: Running, streams: int, rate: float, *options: str) -> Iterator[Clients]:
    """Run client.py on the other core; it ends with the scope."""
    argv = ["taskset", "-c", str(machine.two_cores()[1]), sys.executable, str(HERE / "client.py")]
    argv += [
        "--port",
        str(subject.port),
        "--key",
        subject.key,
        "--streams",
        str(streams),
        "--rate",
        str(rate),
    ]
    process = subprocess.Popen([*argv, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Clients(process)
    finally:
        process.kill()
        process.communicate()


def warm(server: Running, chunks: int) -> None:
    """A few streams, so that what is loaded on first use is not counted."""
    with clients(server, 8, 100, "--chunks", str(chunks)) as few:
        few.result()
    time.sleep(SETTLE_SECONDS)


def paced(streams: int, rate: float) -> Callable[..., Figures]:
    """Streams of 100 chunks 20 ms apart, begun evenly."""

    def measure(subject: Subject, folder: Path, seconds: float) -> Figures:
        del seconds
        with stream_upstream(folder) as upstream, running(subject, upstream, folder / "subject") as server:
            warm(server, 100)
            before = server.cpu()
            with clients(server, streams, rate) as many:
                seen = many.result()
            used, busiest = server.cpu().since(before)
        return {
            "us_a_chunk": used / max(1, seen["events"]) * 1e6,
            "us_in_busiest_process": busiest / max(1, seen["events"]) * 1e6,
            "gap_p99_ms": seen["gap_p99"] * 1e3,
            "first_p99_ms": seen["first_p99"] * 1e3,
            "lost": seen["lost"],
        }

    return measure


def live(streams: int) -> Callable[..., Figures]:
    """Many streams open at once, one chunk a second each."""

    def measure(subject: Subject, folder: Path, seconds: float) -> Figures:
        rate = 250
        chunks = round(streams / rate + max(4, seconds))
        pace = ("--chunks", str(chunks))
        with (
            stream_upstream(folder, *pace, "--pace", "1") as upstream,
            running(subject, upstream, folder / "subject") as server,
        ):
            with clients(server, 8, 100, "--chunks", str(chunks), "--stall") as few:
                few.wait_live()
            time.sleep(SETTLE_SECONDS)
            resident, before = server.resident(), server.cpu()
            with clients(server, streams, rate, *pace) as many:
                many.wait_live()
                time.sleep(2)
                grown = server.resident() - resident
                seen = many.result()
            used, _ = server.cpu().since(before)
        return {
            "kb_a_stream": grown / streams / 1e3,
            "us_a_chunk": used / max(1, seen["events"]) * 1e6,
            "lost": seen["lost"],
        }

    return measure


def slow(streams: int) -> Callable[..., Figures]:
    """Readers that stop after the first event while the upstream has 20 MB for each: memory must stay bounded."""

    def measure(subject: Subject, folder: Path, seconds: float) -> Figures:
        text = ("--flood", "--chunks", "5000", "--text", "4000")
        with (
            stream_upstream(folder, *text) as upstream,
            running(subject, upstream, folder / "subject") as server,
        ):
            with clients(server, 4, 100, "--stall") as few:
                few.wait_live()
                time.sleep(SETTLE_SECONDS)
            time.sleep(SETTLE_SECONDS)
            resident = server.resident()
            with clients(server, streams, 100, "--stall") as many:
                many.wait_live()
                time.sleep(max(3, seconds))
                before = server.cpu()
                time.sleep(1)
                return {
                    "kb_a_stream": (server.resident() - resident) / streams / 1e3,
                    "us_a_second": server.cpu().since(before)[0] * 1e6,
                }

    return measure


def first_byte(rate: float) -> Callable[..., Figures]:
    """Calls at a steady rate to a model that takes 1.1 s to its first chunk: what the subject adds to that."""

    def measure(subject: Subject, folder: Path, seconds: float) -> Figures:
        streams = round(rate * max(5, seconds))
        pace = ("--chunks", "3")
        with (
            stream_upstream(folder, *pace, "--first", "1.1") as upstream,
            running(subject, upstream, folder / "subject") as server,
        ):
            warm(server, 3)
            with clients(server, streams, rate, *pace) as many:
                seen = many.result()
        return {
            "added_p50_ms": (seen["first_p50"] - 1.1) * 1e3,
            "added_p99_ms": (seen["first_p99"] - 1.1) * 1e3,
            "lost": seen["lost"],
        }

    return measure


def start(subject: Subject, folder: Path, seconds: float) -> Figures:
    """CPU and wall time from the command to the first 200 from its readiness path."""
    del seconds
    with (
        plain_upstream(folder / "upstream") as upstream,
        running(subject, upstream, folder / "subject") as server,
    ):
        time.sleep(SETTLE_SECONDS)
        return {
            "cpu_s": server.start_cpu,
            "wall_s": server.start_wall,
            "resident_mb": server.resident() / 1e6,
        }


SCENARIOS = [
    Scenario("start", start),
    Scenario("plain 2 KB, 1 in flight", plain(1, 2048)),
    Scenario("plain 2 KB, 64 in flight", plain(64, 2048)),
    Scenario("plain 2 KB, 200 in flight", plain(200, 2048)),
    Scenario("plain 2 KB, equal bodies, 64 in flight", plain(64, 2048, "equal")),
    Scenario("plain 2 KB over TLS, 64 in flight", plain(64, 2048, over_tls=True), over_tls=True),
    Scenario("plain 64 KB, 1 in flight", plain(1, 65536)),
    Scenario("plain 64 KB, 64 in flight", plain(64, 65536)),
    Scenario("plain 64 KB, 200 in flight", plain(200, 65536)),
    Scenario("plain 2 KB, a connection for each", plain(64, 2048, "unique", "close")),
    Scenario("streams of 100 chunks, 20 ms apart", paced(200, 50)),
    Scenario("500 live streams", live(500), 1),
    Scenario("2,000 live streams", live(2000), 1),
    Scenario("50 readers that stall", slow(50), 1),
    Scenario("time to first byte, 200 calls/s", first_byte(200)),
]
