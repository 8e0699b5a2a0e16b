"""Workers that die, workers that cannot start, workers told to leave alone."""

import os
import signal
import time
from functools import partial
from http import HTTPStatus
from pathlib import Path

import pytest

from moongate.processes.slots import pause_before_start
from tests.processes.house import Gateway, Load, eventually, is_alive


def test_a_killed_worker_is_replaced_and_no_connection_is_refused(tmp_path: Path) -> None:
    with Gateway(tmp_path) as gateway, Load(gateway) as load:
        eventually(lambda: load.answers)
        killed = gateway.serving_pid()
        load.failures.clear()
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: load.answers[-1] != killed)
        after = len(load.answers)
        eventually(lambda: len(load.answers) > after + 50)
        assert not [f for f in load.failures if "Refused" in f or "timed out" in f]
        assert len(load.failures) <= len(load.threads), "only calls that ran in the killed worker may be lost"


def test_a_worker_that_is_told_to_leave_is_replaced_without_a_lost_call(tmp_path: Path) -> None:
    with Gateway(tmp_path) as gateway, Load(gateway) as load:
        leaving = gateway.serving_pid()
        os.kill(leaving, signal.SIGTERM)
        eventually(lambda: not is_alive(leaving))
        eventually(lambda: load.answers[-1] not in (None, leaving))
        assert not load.failures


def test_a_slot_without_a_worker_is_answered_503_after_5_s_until_one_is_back(tmp_path: Path) -> None:
    with Gateway(tmp_path, workers=2) as gateway:
        (tmp_path / "control.json").write_text('{"switches": {"no start": "1"}}')
        eventually(lambda: b"no start" in gateway.get("/", 0)[1])
        os.kill(gateway.serving_pid(0), signal.SIGKILL)
        status, body = gateway.get("/", 0)
        assert status == HTTPStatus.SERVICE_UNAVAILABLE
        assert b'"code":"gateway_overloaded"' in body
        assert gateway.get("/", 1)[0] == HTTPStatus.OK
        assert gateway.workers()[0]["state"] == "stood in for"
        (tmp_path / "control.json").write_text("{}")
        eventually(lambda: gateway.get("/", 0)[0] == HTTPStatus.OK)
        assert {gateway.get()[0] for _ in range(40)} == {HTTPStatus.OK}


def is_served_by_another(gateway: Gateway, pid: int) -> bool:
    return gateway.serving_pid() != pid


def test_dead_workers_leave_neither_zombies_nor_descriptors(tmp_path: Path) -> None:
    with Gateway(tmp_path) as gateway:
        pid = gateway.supervisor.pid
        time.sleep(0.3)  # until our own question to the admin listener is closed there too
        before = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        inside = gateway.get()[1]
        for _ in range(3):
            killed = gateway.serving_pid()
            os.kill(killed, signal.SIGKILL)
            eventually(partial(is_served_by_another, gateway, killed))
        eventually(gateway.is_ready)
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert children == [str(gateway.serving_pid())]
        eventually(lambda: len(list(Path(f"/proc/{pid}/fd").iterdir())) == before)
        assert inside.split(b'"fds"')[1] == gateway.get()[1].split(b'"fds"')[1]


@pytest.mark.parametrize(
    ("early_deaths", "pause"), [(0, 0.0), (1, 0.0), (2, 0.1), (3, 0.2), (7, 3.2), (8, 5.0), (500, 5.0)]
)
def test_restarts_are_at_once_then_ever_slower(early_deaths: int, pause: float) -> None:
    assert pause_before_start(early_deaths) == pytest.approx(pause)
