"""The supervisor's log says once what keeps journals from the view, and what the journals lack."""

import logging
import sqlite3
import time
from pathlib import Path

import pytest

from moongate.processes.upkeep import RETIRE_SECONDS, Upkeep
from moongate.store import owners
from moongate.store.frames import Kind
from moongate.store.journal import Journal
from moongate.store.records import DAY, Folder
from moongate.world import RealWorld
from tests.stores.journals import LATER, OWNER, call, closed, rows, sent


class At(RealWorld):
    """Time stands where it is put."""

    def __init__(self) -> None:
        super().__init__()
        self.now = time.time()
        self.wall = lambda: self.now


@pytest.fixture
def world() -> At:
    return At()


@pytest.fixture
def upkeep(folder: Folder, world: At) -> Upkeep:
    return Upkeep(folder, world, segment_days=7.0, row_days=400.0)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("moongate"), "propagate", True)
    caplog.set_level(logging.INFO, "moongate.processes.upkeep")
    return caplog


def test_a_state_that_makes_folding_wait_is_logged_once_until_it_changes(
    places: tuple[Path, Path], upkeep: Upkeep, said: pytest.LogCaptureFixture
) -> None:
    journal = Journal.open(places[0], OWNER)
    upkeep.act()
    holder = sqlite3.connect(places[1], isolation_level=None)
    for _ in range(2):
        holder.execute("BEGIN EXCLUSIVE")
        closed(journal, call("c1"))
        journal.flush()
        upkeep.act()
        upkeep.act()
        holder.execute("ROLLBACK")
        upkeep.act()
        upkeep.act()
    holder.close()
    journal.close()
    levels = [record.levelname for record in said.records]
    assert levels == ["WARNING", "INFO"] * 2
    assert said.messages[:2] == [
        "the ledger's view waits: ledger.db: database is locked",
        "the ledger's view waits no more",
    ]


def test_each_hole_is_logged_once_even_if_the_view_is_made_anew(
    places: tuple[Path, Path], upkeep: Upkeep, said: pytest.LogCaptureFixture
) -> None:
    journal = Journal.open(places[0], OWNER)
    journal.append(Kind.CLOSED, b"no record", now=True)
    upkeep.act()
    places[1].unlink()
    upkeep.act()
    journal.append(Kind.CLOSED, b"nor this", now=True)
    upkeep.act()
    journal.close()
    assert [record.levelname for record in said.records] == ["WARNING"] * 2
    assert all("1 records missing" in message and OWNER in message for message in said.messages)


def test_what_was_recovered_and_what_was_corrupt_is_logged(
    places: tuple[Path, Path], folder: Folder, upkeep: Upkeep, said: pytest.LogCaptureFixture
) -> None:
    journal = Journal.open(places[0], OWNER)
    sent(journal, "c1")
    journal.close()
    upkeep.act()
    folder.close()
    places[1].write_bytes(b"not a database" * 500)
    upkeep.act()
    upkeep.act()
    assert [message.partition(";")[0] for message in said.messages] == [
        "1 calls of dead workers were closed",
        "the ledger's view was corrupt",
        "1 calls of dead workers were closed",
    ]


def test_old_segments_go_within_the_hour(places: tuple[Path, Path], upkeep: Upkeep, world: At) -> None:
    dead, alive = Journal.open(places[0], OWNER), Journal.open(places[0], LATER)
    closed(dead, call("c1"))
    dead.close()
    closed(alive, call("c2"))
    upkeep.act()
    world.now += RETIRE_SECONDS - 1
    upkeep.act()
    assert OWNER in owners.segments(places[0])
    world.now += 8 * DAY
    upkeep.act()
    assert OWNER not in owners.segments(places[0])
    assert rows(places[1], "SELECT count(*) FROM calls") == [(1,)]
    alive.close()
