"""Damage anywhere: what is sound is found, what is not is told, and nothing stands in the way of the rest."""

import errno
import os
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.record import encode
from moongate.store import frames, owners, retired
from moongate.store.frames import Kind
from moongate.store.journal import Journal
from moongate.store.records import DAY, Folder
from tests.stores.journals import (
    LATER,
    OWNER,
    call,
    close,
    closed,
    files_no_larger_than,
    last_segment,
    only,
    rows,
    sent,
)

edits = st.tuples(
    st.sampled_from(["flip", "cut", "insert", "copy", "zero"]),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 400),
    st.randoms(use_true_random=False),
)


def harmed(data: bytes, kind: str, at: float, size: int, dice: random.Random) -> bytes:
    place = int(at * len(data))
    if kind == "flip":
        changed = bytearray(data)
        changed[place] ^= 1 << dice.randrange(8)
        return bytes(changed)
    if kind == "cut":
        return data[:place] + data[place + size :]
    if kind == "zero":
        return data[:place] + bytes(min(size, len(data) - place)) + data[place + size :]
    other = dice.randrange(len(data))
    added = data[other : other + size] if kind == "copy" else dice.randbytes(size)
    return data[:place] + added + data[place:]


@given(st.lists(edits, min_size=1, max_size=4))
def test_random_damage_costs_what_it_touched_and_is_told(
    plan: list[tuple[str, float, int, random.Random]],
) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        journal = Journal.open(folder / "journal", OWNER)
        for number in range(30):
            closed(journal, call(f"c{number:02d}"))
        journal.close()
        path = last_segment(folder / "journal")
        whole = path.read_bytes()
        found, _, _ = frames.scan(whole, frames.seed(OWNER), 0)
        data = whole
        for edit in plan:
            data = harmed(data, *edit)
        path.write_bytes(data)
        sound = {
            f"c{frame.sequence - 1:02d}" for frame in found[1:] if whole[_begin(frame) : frame.end] in data
        }
        view = Folder(folder / "journal", folder / "ledger.db")
        folded = view.fold()
        names = {str(row[0]) for row in rows(folder / "ledger.db", "SELECT call_id FROM calls")}
        assert names == sound
        assert folded.waits == ""
        if data != whole:
            assert sum(hole.size + hole.missing for hole in folded.holes), "nothing was told"
        assert all(hole.segment.startswith(OWNER) for hole in folded.holes)
        after = max((int(name[1:]) + 1 for name in sound), default=0)
        missing = sum(hole.missing for hole in folded.holes)
        gone = len([n for n in range(after) if f"c{n:02d}" not in sound])
        copied = any(edit[0] == "copy" for edit in plan)  # a copy before its time makes others look missing
        assert missing == gone or (copied and missing > gone)
        view.close()
    finally:
        shutil.rmtree(folder)


def _begin(frame: frames.Frame) -> int:
    return frame.end - len(frame.payload) - frames.OVERHEAD


def test_one_journal_that_cannot_be_read_does_not_keep_the_others_away(
    places: tuple[Path, Path], folder: Folder
) -> None:
    for owner in (OWNER, LATER):
        journal = Journal.open(places[0], owner)
        closed(journal, call(owner))
        journal.close()
    path = last_segment(places[0])
    path.rename(path.with_suffix(".away"))
    path.mkdir()
    folded = folder.fold()
    assert path.name in folded.waits
    assert folder.outcomes() == {"completed": 1}
    path.rmdir()
    path.with_suffix(".away").rename(path)
    assert folder.fold().waits == ""
    assert folder.outcomes() == {"completed": 2}


def test_sectors_that_cannot_be_read_cost_what_they_hold(
    places: tuple[Path, Path], folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.open(places[0], OWNER)
    for number in range(200):
        closed(journal, call(f"c{number:03d}"))
    journal.close()
    pread = os.pread

    def ill(file: int, size: int, offset: int) -> bytes:
        if offset < 12_288 and offset + size > 8192:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(file, size, offset)

    monkeypatch.setattr(os, "pread", ill)
    folded = folder.fold()
    assert folded.waits == ""
    [count] = folder.outcomes().values()
    assert 150 < count < 200
    assert sum(hole.missing for hole in folded.holes) == 200 - count


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_json_does_not_have_are_no_damage(
    places: tuple[Path, Path], folder: Folder, odd: float
) -> None:
    journal = Journal.open(places[0], OWNER)
    record = close(call("odd"))
    record.duration = record.attempts[0].sent = odd
    journal.append(Kind.CLOSED, encode(record), now=True)
    closed(journal, call("c1"))
    journal.close()
    assert folder.outcomes() == {"completed": 2}
    assert only(folder, "odd").billed_micro == 42
    assert folder.fold().aside is None
    assert not list(places[1].parent.glob("*corrupt*"))


def test_a_view_that_is_damaged_again_and_again_fills_no_disk(
    places: tuple[Path, Path], folder: Folder
) -> None:
    journal = Journal.open(places[0], OWNER)
    closed(journal, call("c1"))
    journal.close()
    for _ in range(15):
        folder.close()
        places[1].write_bytes(b"not a database" * 1000)
        waits = folder.fold().waits
    assert "ledger.db.corrupt" in waits
    assert len(list(places[1].parent.glob("*corrupt*"))) < 10
    for path in places[1].parent.glob("*corrupt*"):
        path.unlink()
    assert folder.outcomes() == {"completed": 1}


def _drop(db: sqlite3.Connection) -> None:
    db.execute("DROP TABLE checkpoints")


def _rename(db: sqlite3.Connection) -> None:
    db.execute("ALTER TABLE records RENAME TO elsewhere")


def _mar(db: sqlite3.Connection) -> None:
    db.execute("UPDATE records SET record = substr(record, 1, 40)")


@pytest.mark.parametrize("harm", [_drop, _rename, _mar])
def test_a_view_that_is_sound_for_sqlite_but_not_ours_is_made_anew(
    places: tuple[Path, Path], folder: Folder, harm: Callable[[sqlite3.Connection], None]
) -> None:
    journal = Journal.open(places[0], OWNER)
    closed(journal, sent(journal, "c1"))
    journal.flush()
    folder.fold()
    other = sqlite3.connect(places[1], isolation_level=None)
    harm(other)
    other.close()
    closed(journal, call("c2"))
    journal.flush()
    folder.tally(0.0)
    assert folder.outcomes() == {"completed": 2}
    assert only(folder, "c1").billed_micro == 42
    journal.close()


@given(st.randoms(use_true_random=False), st.integers(1, 5), st.sampled_from(["", "-wal"]), st.booleans())
def test_random_damage_to_the_view_costs_nothing_that_journals_have(
    dice: random.Random, places_hit: int, end: str, cut: bool
) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        journal = Journal.open(folder / "journal", OWNER)
        for number in range(120):
            closed(journal, sent(journal, f"c{number:03d}"))
        journal.flush()
        path = folder / "ledger.db"
        view = Folder(folder / "journal", path)
        view.fold()
        _damage(Path(f"{path}{end}"), dice, places_hit, cut=cut)
        closed(journal, sent(journal, "late"))
        journal.close()
        for _ in range(3):
            view.fold()
            view.tally(0.0)
        view.close()
        fresh = Folder(folder / "journal", path)
        fresh.tally(0.0)
        assert fresh.outcomes() == {"completed": 121}
        assert fresh.find("late")
        fresh.close()
    finally:
        shutil.rmtree(folder)


def _damage(path: Path, dice: random.Random, times: int, *, cut: bool) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(times):
        at = dice.randrange(len(data))
        data[at : at + 512] = dice.randbytes(len(data[at : at + 512]))
    with path.open("r+b") as file:
        file.write(data)
        if cut:
            file.truncate(dice.randrange(len(data)))


def test_bad_pages_in_several_places_cost_only_what_they_held(
    places: tuple[Path, Path], folder: Folder
) -> None:
    journal = Journal.open(places[0], OWNER)
    for number in range(3000):
        closed(journal, call(f"c{number:04d}"))
    journal.close()
    folder.fold()
    folder.retire(1e12, row_days=1e9)
    assert not owners.segments(places[0])
    folder.close()
    page = rows(places[1], "PRAGMA page_size")[0][0]
    assert isinstance(page, int)
    data = bytearray(places[1].read_bytes())
    for name in (b"c0500", b"c1500", b"c2500"):
        at = data.find(name + b"r-" + name) // page * page
        data[at : at + page] = b"\xff" * page
    places[1].write_bytes(data)
    with pytest.raises(AssertionError):
        only(folder, "c1500")
    assert folder.outcomes()["completed"] > 2900


def test_what_cannot_be_had_back_is_told_by_day(places: tuple[Path, Path], folder: Folder) -> None:
    journal = Journal.open(places[0], OWNER)
    for number in range(10):
        closed(journal, call(f"c{number}"))
    journal.close()
    folder.fold()
    assert folder.retire(1e12, row_days=1e9) == 1
    assert folder.lost_days() == {}
    folder.close()
    for path in places[1].parent.glob("ledger.db*"):
        path.unlink()
    journal = Journal.open(places[0], LATER)
    closed(journal, call("new"))
    journal.close()
    folded = folder.fold()
    assert folded.lost_days == {"1970-01-01": 10}
    assert folder.fold().lost_days == {}, "told once"
    assert folder.lost_days() == {"1970-01-01": 10}
    assert folder.outcomes() == {"completed": 1}


def test_rows_go_in_steps_and_their_room_is_given_back(places: tuple[Path, Path], folder: Folder) -> None:
    journal = Journal.open(places[0], OWNER)
    for number in range(5000):
        record = call(f"{number:012x}")
        record.attempts[0].provider_request_id = f"msh-{number}"
        closed(journal, record)
    closed(journal, call(f"{int(500 * DAY * 1000):012x}young"))
    journal.close()
    folder.fold()
    folder.close()
    before = places[1].stat().st_size
    steps = 0
    while folder.forget(401 * DAY, most=500):
        steps += 1
    assert steps >= 10
    assert folder.outcomes() == {"completed": 1}
    assert rows(places[1], "SELECT * FROM provider_ids") == []
    folder.close()
    assert places[1].stat().st_size < before / 4


def test_old_segments_make_room_on_a_disk_that_is_full(places: tuple[Path, Path], folder: Folder) -> None:
    journal = Journal.open(places[0], OWNER)
    closed(journal, call("c1"))
    journal.close()
    folder.fold()
    with files_no_larger_than(1), pytest.raises((sqlite3.Error, OSError)):
        folder.retire(1e12, row_days=1e9)
    assert not owners.segments(places[0])
    assert folder.retire(1e12, row_days=1e9) == 0
    assert folder.outcomes() == {"completed": 1}


def test_words_on_deleted_segments_outlive_damage_and_go_with_the_rows(tmp_path: Path) -> None:
    segments = []
    for number in range(3):
        owner = f"{number:028x}"
        journal = Journal.open(tmp_path, owner)
        closed(journal, call("c", detail="x"))
        journal.close()
        segments.append(owners.segments(tmp_path)[owner][0])
    retired.remove(tmp_path, segments[0])
    with (tmp_path / retired.FILE).open("ab") as file:
        file.write(b'{"segment": "cut')
    retired.remove(tmp_path, segments[1])
    assert retired.by_day(tmp_path) == {"1970-01-01": 2}
    shutil.copy(segments[2].path, tmp_path / "again")
    retired.remove(tmp_path, segments[2])
    shutil.copy(tmp_path / "again", segments[2].path)
    retired.remove(tmp_path, segments[2])
    assert retired.by_day(tmp_path) == {"1970-01-01": 3}, "noted twice, it counts once"
    retired.forget(tmp_path, "1970-01-01")
    assert retired.by_day(tmp_path) == {"1970-01-01": 3}
    retired.forget(tmp_path, "1970-01-02")
    assert retired.by_day(tmp_path) == {}
