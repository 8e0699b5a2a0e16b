"""The supervisor dies, or replaces itself: the workers go on, and no call is lost."""

import os
import signal
import time
from pathlib import Path

from tests.processes.house import Gateway, Load, eventually, is_alive


def test_a_new_supervisor_takes_living_workers_over_and_no_call_is_lost(tmp_path: Path) -> None:
    with Gateway(tmp_path, workers=2) as gateway, Load(gateway) as load:
        before = {w["pid"] for w in gateway.workers()}
        gateway.supervisor.kill()
        gateway.supervisor.wait()
        time.sleep(0.5)
        gateway.start()
        assert {w["pid"] for w in gateway.workers()} == before
        asked = len(load.answers)
        eventually(lambda: len(load.answers) > asked + 50)
        assert not load.failures
        killed = gateway.serving_pid(0)
        load.over.set()
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: gateway.serving_pid(0) != killed)
        gateway.signal(signal.SIGTERM)
        assert gateway.supervisor.wait(20) == 0, gateway.log
        assert not [pid for pid in before if is_alive(pid)]


def test_without_a_new_supervisor_workers_serve_10_s_then_leave(tmp_path: Path) -> None:
    with Gateway(tmp_path) as gateway:
        worker = gateway.serving_pid()
        gateway.pids.add(worker)
        gateway.supervisor.kill()
        gateway.supervisor.wait()
        time.sleep(8.5)
        assert gateway.serving_pid() == worker
        eventually(lambda: not is_alive(worker), 5)


def test_sigusr2_replaces_the_supervisor_under_load_and_no_call_is_lost(tmp_path: Path) -> None:
    with Gateway(tmp_path, workers=2) as gateway:
        before = {w["pid"] for w in gateway.workers()}
        with Load(gateway) as load:
            for _ in range(2):
                eventually(lambda: len(load.answers) > 100)
                (tmp_path / "run/addresses.json").unlink()
                admin = gateway.addresses["admin"]
                gateway.signal(signal.SIGUSR2)
                eventually((tmp_path / "run/addresses.json").exists)
                eventually(gateway.is_ready)
                assert gateway.addresses["admin"] == admin
                load.answers.clear()
        assert not load.failures
        assert {w["pid"] for w in gateway.workers()} == before
        assert gateway.supervisor.poll() is None
        assert gateway.log.count("re-executing") == 2
        gateway.signal(signal.SIGTERM)
        assert gateway.supervisor.wait(20) == 0, gateway.log


def test_counters_never_go_back_when_the_supervisor_replaces_itself(tmp_path: Path) -> None:
    with Gateway(tmp_path) as gateway:
        killed = gateway.serving_pid()
        eventually(lambda: sum(gateway.metric("moongate_calls_total").values()) == 1)
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: gateway.serving_pid() != killed)
        eventually(lambda: sum(gateway.metric("moongate_calls_total").values()) >= 2)
        before = sum(gateway.metric("moongate_calls_total").values())
        (tmp_path / "run/addresses.json").unlink()
        gateway.signal(signal.SIGUSR2)
        eventually((tmp_path / "run/addresses.json").exists)
        eventually(lambda: sum(gateway.metric("moongate_calls_total").values()) == before)
        assert gateway.metric("moongate_worker_restarts_total") == {'{slot="0"}': 1.0}


def test_a_worker_that_dies_while_the_supervisor_replaces_itself_is_replaced(tmp_path: Path) -> None:
    with Gateway(tmp_path) as gateway:
        killed = gateway.serving_pid()
        gateway.signal(signal.SIGUSR2)
        eventually(lambda: "re-executing" in gateway.log)
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: gateway.serving_pid() != killed)
        pid = gateway.supervisor.pid
        eventually(lambda: len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()) == 1)


def test_a_sigterm_that_comes_while_the_supervisor_replaces_itself_is_not_lost(tmp_path: Path) -> None:
    with Gateway(tmp_path) as gateway:
        worker = gateway.serving_pid()
        gateway.signal(signal.SIGUSR2)
        eventually(lambda: "re-executing" in gateway.log)
        time.sleep(0.2)
        gateway.signal(signal.SIGTERM)
        assert gateway.supervisor.wait(10) == 0, gateway.log
        assert not is_alive(worker)


def test_a_second_supervisor_of_one_state_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with Gateway(tmp_path) as gateway:
        second = gateway.launch()
        gateway.supervisors.insert(0, second)
        assert second.wait(10) == 1
        assert f"is in use by another moongate (process {gateway.supervisor.pid})" in gateway.log
        assert gateway.get()[0] == 200


def test_a_strangers_port_is_refused_with_a_sentence(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with Gateway(first) as gateway:
        other = Gateway(second, port=gateway.port)
        assert other.launch().wait(10) == 1
        assert "choose another address" in other.log
