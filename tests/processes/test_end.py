"""SIGTERM: readiness off, no new connections, live answers finish in the grace time or end honestly."""

import signal
import socket
import threading
import time
from http import HTTPStatus
from pathlib import Path

from tests.processes.house import Gateway, eventually, exchange, is_alive


class Slow:
    """One answer that takes its time, read in a thread."""

    def __init__(self, gateway: Gateway, seconds: float) -> None:
        self.sock = socket.create_connection(("127.0.0.1", gateway.port), 20)
        self.body = b""
        self.thread = threading.Thread(target=self.read, args=(seconds,))
        self.thread.start()
        eventually(lambda: gateway.metric("moongate_in_flight") == {"": 1.0})

    def read(self, seconds: float) -> None:
        _, self.body = exchange(self.sock, f"/slow/{seconds}")

    def end(self) -> bytes:
        self.thread.join(20)
        self.sock.close()
        return self.body


def is_refused(gateway: Gateway) -> bool:
    try:
        gateway.get("/readyz")
    except (ConnectionRefusedError, ConnectionResetError):
        return True
    return False


def test_live_answers_finish_and_then_everybody_leaves(tmp_path: Path) -> None:
    with Gateway(tmp_path, workers=2) as gateway:
        workers = [w["pid"] for w in gateway.workers()]
        slow = Slow(gateway, 1.5)
        started = time.monotonic()
        gateway.signal(signal.SIGTERM)
        eventually(lambda: {w["state"] for w in gateway.workers()} <= {"draining", "starting"})
        eventually(lambda: is_refused(gateway))
        assert slow.end() == b"begin end\r\n"
        assert gateway.supervisor.wait(10) == 0
        assert 1.0 < time.monotonic() - started < 5.0
        assert not [pid for pid in workers if is_alive(pid)]
        assert not list((tmp_path / "run").iterdir())
        assert (tmp_path / "chores").read_text() == str(gateway.supervisor.pid)


def test_what_outlasts_the_grace_time_ends_honestly(tmp_path: Path) -> None:
    with Gateway(tmp_path, grace=0.5) as gateway:
        slow = Slow(gateway, 15)
        gateway.signal(signal.SIGTERM)
        assert slow.end() == b"begin honest end\r\n"
        assert gateway.supervisor.wait(5) == 0


def test_a_second_sigterm_hurries(tmp_path: Path) -> None:
    with Gateway(tmp_path, grace=15) as gateway:
        slow = Slow(gateway, 15)
        gateway.signal(signal.SIGTERM)
        eventually(lambda: "draining for at most 15 s" in gateway.log)
        time.sleep(0.3)
        started = time.monotonic()
        gateway.signal(signal.SIGTERM)
        assert slow.end() == b"begin honest end\r\n"
        assert gateway.supervisor.wait(5) == 0
        assert time.monotonic() - started < 3


def test_a_worker_that_does_not_end_is_killed(tmp_path: Path) -> None:
    with Gateway(tmp_path, grace=15) as gateway:
        worker = gateway.serving_pid()
        with socket.create_connection(("127.0.0.1", gateway.port)) as sock:
            sock.sendall(b"GET /stall/30 HTTP/1.1\r\n\r\n")
            time.sleep(0.2)
            gateway.signal(signal.SIGTERM)
            eventually(lambda: "draining" in gateway.log)
            gateway.signal(signal.SIGINT)
            assert gateway.supervisor.wait(10) == 0
        assert not is_alive(worker)


def test_sighup_says_not_yet_and_changes_nothing(tmp_path: Path) -> None:
    with Gateway(tmp_path) as gateway:
        gateway.signal(signal.SIGHUP)
        eventually(lambda: "not yet" in gateway.log)
        assert gateway.get()[0] == HTTPStatus.OK
