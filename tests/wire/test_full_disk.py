"""A disk that is full or broken under the running gateway: FAULTS rows 61, 62 and 64 over real sockets."""

import json
import os
import resource
import signal
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.wire.house import ROOT, House, get, until
from tests.wire.small_disk import Disk, is_full, small_disk
from tests.wire.test_lifecycle import Reader

LONG = {"tokens_per_second": 20, "output_tokens": 40}


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    try:
        yield house
    finally:
        house.close()


def health(house: House, path: str) -> tuple[int, str]:
    """The status of a health path, and the ledger's word on it."""
    status, body = get(house.port, path)
    said = json.loads(body)
    return status, said.get("checks", said).get("ledger", "")


def refused(house: House, stream: bool) -> None:
    answer = house.ask(stream=stream)
    assert (answer.status, answer.error["code"]) == (503, "ledger_unavailable")
    assert (answer.headers["x-should-retry"], answer.headers["retry-after"]) == ("true", "5")


def until_refused(house: House, disk: Disk, *, stream: bool = False) -> int:
    """Fill the disk and ask until that is refused; returns how many calls still went well.

    The journal's last page may have room, and the ledger's view gives some back when it cannot be written.
    """
    for went_well in range(50):
        disk.fill()
        answer = house.ask(stream=stream)
        if answer.status != 200:
            assert (answer.status, answer.error["code"]) == (503, "ledger_unavailable")
            assert (answer.headers["x-should-retry"], answer.headers["retry-after"]) == ("true", "5")
            return went_well
    raise AssertionError("the disk is not full")


def test_a_full_disk_stops_paid_work_and_nothing_else(house: House) -> None:
    disk = small_disk(house)
    assert house.ask().status == 200
    with ThreadPoolExecutor(1) as pool:
        runs = pool.submit(house.ask, LONG, stream=True)
        until(20, lambda: house.sim("/_sim/book/totals")["open"] == 1, "it runs")
        paid, refusals = _while_full(house, disk)
        assert runs.result(20).events[-1] == "[DONE]", "who was let in is served to the end"
    assert len(house.received()) == paid
    disk.free()
    assert house.ask().status == 200, "the first call with room again"
    assert health(house, "/readyz") == (200, "")
    until(20, lambda: health(house, "/healthz") == (200, "ok"), "all is well")
    house.at_rest()
    states = house.rows("SELECT state, count(*) AS n FROM attempts GROUP BY 1")
    assert [tuple(row.values()) for row in states] == [("settled", paid + 1)], "full for a while is no doubt"
    codes = house.rows("SELECT code, count(*) AS n FROM calls GROUP BY 1 ORDER BY 1")
    assert [tuple(row.values()) for row in codes] == [("", paid + 1), ("ledger_unavailable", refusals)]
    assert house.total("moongate_journal_lost_total") == 0
    printed = house.gateway.printed()
    assert 1 <= printed.count("page: ledger_unavailable") == printed.count("paid calls go on"), (
        "each time once"
    )


def _while_full(house: House, disk: Disk) -> tuple[int, int]:
    """See what is refused and what is not; returns how many calls were paid until then, and how many refused."""
    disk.fill()
    assert is_full(disk)
    paid, refusals = 2, 0

    def seen() -> bool:
        nonlocal paid, refusals
        paid += until_refused(house, disk, stream=refusals % 2 == 0)
        refusals += 1
        shown = health(house, "/healthz") == (503, "ledger_unavailable")
        ready = health(house, "/readyz") == (200, "ledger_unavailable")  # what costs nothing is welcome
        return shown and ready and house.total("moongate_journal_unwritable") == 1 and refusals > 5

    until(20, seen, "it is refused and shown")
    bearer = {"Authorization": f"Bearer {house.key}"}
    assert get(house.port, "/v1/models", bearer)[0] == 200
    return paid, refusals


def test_a_worker_that_dies_while_the_disk_is_full_is_replaced(house: House) -> None:
    disk = small_disk(house)
    assert house.ask().status == 200
    until_refused(house, disk)
    [pid] = house.worker_pids()
    os.kill(pid, signal.SIGKILL)
    until(20, lambda: house.worker_pids() not in ([pid], []) and _answers(house), "another one serves")
    until_refused(house, disk)
    disk.free()
    until(20, lambda: house.ask().status == 200, "paid calls go on")
    paid = len(house.received())
    closed = "SELECT 1 FROM calls JOIN attempts USING (call_id) WHERE outcome <> ''"
    until(20, lambda: len(house.rows(closed)) == paid, "whatever was sent has an end")
    assert not house.rows("SELECT 1 FROM attempts WHERE state = 'ambiguous' AND cause <> 'gateway_crash'")
    house.audit()


def _answers(house: House) -> bool:
    try:
        return get(house.port, "/v1/models", {"Authorization": f"Bearer {house.key}"})[0] == 200
    except OSError:
        return False


def test_a_read_only_disk_is_as_a_full_one_and_needs_no_restart(house: House) -> None:
    disk = small_disk(house, read_only="journal")
    for stream in (False, True):
        refused(house, stream=stream)
    assert health(house, "/healthz") == (503, "ledger_unavailable")
    assert not house.received()
    disk.free()
    assert house.ask().status == 200
    house.at_rest()
    assert house.gateway.printed().count("page: ledger_unavailable") == 1


def test_a_ledger_that_is_locked_for_long_stops_nothing(house: House) -> None:
    assert house.ask().status == 200
    until(20, lambda: house.rows("SELECT 1 FROM calls WHERE outcome <> ''"), "it is folded")
    holder = sqlite3.connect(house.state / "ledger.db", isolation_level=None, timeout=20)
    holder.execute("BEGIN EXCLUSIVE")
    for stream in (False, True):
        assert house.ask(stream=stream).status == 200
    until(20, lambda: house.total("moongate_ledger_waits") == 1, "folding waits")
    until(20, lambda: health(house, "/healthz") == (200, "degraded: its view waits"), "and that is seen")
    assert house.total("moongate_journal_unwritable") == 0
    holder.execute("ROLLBACK")
    holder.close()
    until(20, lambda: len(house.rows("SELECT 1 FROM calls WHERE outcome <> ''")) == 3, "all are folded")
    until(20, lambda: health(house, "/healthz") == (200, "ok"), "all is well")
    house.at_rest()


@pytest.mark.parametrize("harm", [b"not a database " * 4000, b"", None], ids=["garbage", "empty", "gone"])
def test_a_ledger_that_is_overwritten_or_removed_while_it_is_used_is_made_anew(
    house: House, harm: bytes | None
) -> None:
    assert house.ask().status == 200
    until(20, lambda: _rows(house) == 1, "folded")
    path = house.state / "ledger.db"
    if harm is None:
        path.unlink()
    else:
        with path.open("r+b") as file:
            file.write(harm)
            file.truncate(len(harm))
    assert house.ask(stream=True).status == 200
    until(20, lambda: _rows(house) == 2, "all is there again", house.gateway.printed)
    until(20, lambda: health(house, "/healthz") == (200, "ok"), "all is well")
    house.at_rest()


def _rows(house: House) -> int:
    try:
        return len(house.rows("SELECT 1 FROM calls WHERE outcome <> ''"))
    except sqlite3.Error:
        return -1


LYING = """import os
_fdatasync = os.fdatasync
def fdatasync(file):
    if os.path.exists({flag!r}) and str(os.getpid()) in open({flag!r}).read().split():
        raise OSError(5, "Input/output error")
    _fdatasync(file)
os.fdatasync = fdatasync
"""


def test_a_failed_fsync_ends_the_worker_and_no_call_is_lost(tmp_path: Path) -> None:
    """The disk lies at the border of the operating system: fdatasync of that worker fails from then on."""
    flag = tmp_path / "lies"
    (tmp_path / "sitecustomize.py").write_text(LYING.format(flag=str(flag)))
    house = House(tmp_path, "ledger: {fsync: true}\ndrain: {grace_seconds: 20}\n")
    try:
        house.gateway.stop()
        house.before = ["env", f"PYTHONPATH={tmp_path}:{ROOT}"]
        house.start_gateway()
        assert house.ask().status == 200
        runs = Reader(house, LONG)
        until(20, lambda: house.sim("/_sim/book/totals")["open"] == 1, "it runs")
        [pid] = house.worker_pids()
        flag.write_text(str(pid))
        refused(house, stream=False)
        until(20, lambda: f"(process {pid}) ended: exit code 1" in house.gateway.printed(), "it ended",
              house.gateway.printed)  # fmt: skip
        runs.join(20)
        assert runs.answer is not None
        assert runs.answer.events[-1] == "[DONE]"
        until(20, lambda: house.worker_pids() not in ([pid], []) and _answers(house), "another one serves")
        assert house.ask().status == 200
        house.at_rest()
        states = house.rows("SELECT state, count(*) AS n FROM attempts GROUP BY 1")
        assert [tuple(row.values()) for row in states] == [("settled", 3)]
        assert house.gateway.printed().count("page: fsync of the journal failed") == 1
        assert len(house.received()) == 3
    finally:
        house.close()


def test_files_that_may_not_grow_are_as_a_full_disk(house: House) -> None:
    [pid] = house.worker_pids()
    assert house.ask().status == 200
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, hard))
    refused(house, stream=False)
    assert get(house.port, "/livez")[0] == 200
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
    assert house.ask().status == 200
    house.at_rest()


def test_a_state_that_cannot_be_used_is_said_in_a_sentence(house: House, tmp_path: Path) -> None:
    state = tmp_path / "bad"
    state.mkdir()
    (state / "control.db").write_bytes(b"not a database" * 1000)
    done = house.command("serve", "-c", str(house.settings), "--state", str(state))
    assert done.returncode == 1
    assert done.stderr.startswith("moongate: Cannot start: ")
    assert "control.db" in done.stderr
    assert "Traceback" not in done.stderr
