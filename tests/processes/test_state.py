"""The state lock and the listening sockets."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from moongate.core.addresses import Url
from moongate.core.secret import Secret
from moongate.core.settings import Settings, Target
from moongate.ops.masked import masked
from moongate.processes import listening
from moongate.processes.slots import Heritage, born, write_down, written_down
from moongate.processes.state_lock import StateLock, StateLockedError, is_held_by


def test_one_at_a_time(tmp_path: Path) -> None:
    lock = StateLock.take(tmp_path / "state")
    with pytest.raises(StateLockedError, match=rf"process {os.getpid()}.*--state"):
        StateLock.take(tmp_path / "state")
    lock.release()
    StateLock.take(tmp_path / "state").release()


def test_a_dead_holder_holds_nothing(tmp_path: Path) -> None:
    program = (
        "import sys, os; from pathlib import Path; from moongate.processes.state_lock import StateLock\n"
    )
    program += f"StateLock.take(Path({str(tmp_path)!r})); os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    StateLock.take(tmp_path).release()


def test_a_worker_knows_its_own_supervisor(tmp_path: Path) -> None:
    lock = StateLock.take(tmp_path / "a")
    other = StateLock.take(tmp_path / "b")
    path = tmp_path / "a/lock"
    assert is_held_by(path, lock.identity, os.getpid())
    assert not is_held_by(path, lock.identity, os.getpid() + 1)
    assert not is_held_by(path, other.identity, os.getpid())
    assert not is_held_by(tmp_path / "nowhere", lock.identity, os.getpid())
    lock.release()
    other.release()


def test_slots_share_a_port_that_strangers_do_not(tmp_path: Path) -> None:
    first = listening.bind_slot("127.0.0.1", 0, tmp_path / "0.sock")
    port = first.tcp.getsockname()[1]
    second = listening.bind_slot("127.0.0.1", port, tmp_path / "1.sock")
    with pytest.raises(listening.InUseError, match=f"127.0.0.1:{port}"):
        listening.check_free("127.0.0.1", port)
    assert listening.shown(second.unix) == f"unix:{tmp_path}/1.sock"
    for pair in (first, second):
        pair.close()
    listening.check_free("127.0.0.1", port)
    assert not list(tmp_path.iterdir())


def test_addresses_are_shown_as_people_write_them() -> None:
    with listening.bind_tcp("::1", 0) as sock:
        assert listening.shown(sock) == f"[::1]:{sock.getsockname()[1]}"


def test_an_adopted_pair_must_be_reachable_where_we_look_for_it(tmp_path: Path) -> None:
    path = tmp_path / "0.sock"
    pair = listening.bind_slot("127.0.0.1", 0, path)
    adopted = listening.adopt(os.dup(pair.tcp.fileno()), os.dup(pair.unix.fileno()))
    assert listening.is_reusable_with(adopted, path)
    assert not listening.is_reusable_with(adopted, tmp_path / "1.sock")
    adopted.tcp.close()
    adopted.unix.close()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    pair.close()


def test_only_workers_that_still_live_are_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "workers.json"
    assert written_down(path) == []
    me = Heritage(0, os.getpid(), 1, 0, born(os.getpid()), in_place=True)
    heir_of_my_pid = Heritage(1, os.getpid(), 1, 0, born(os.getpid()) + 1, in_place=True)
    gone = Heritage(2, 2**22 + 1, 1, 0, 0, in_place=True)
    write_down(path, [me, heir_of_my_pid, gone])
    assert written_down(path) == [me]
    path.write_text("half a file")
    assert written_down(path) == []


def test_settings_are_shown_without_their_secrets() -> None:
    target = Target(Url("https", "kimi.example", 443, "/v1"), Secret("planted-secret"))
    shown = masked(Settings(targets={"kimi": target}))
    assert b"planted-secret" not in shown
    assert b'"key":"***"' in shown
    assert b'"url":"https://kimi.example/v1"' in shown
    assert b'"listen":"127.0.0.1:8080"' in shown
