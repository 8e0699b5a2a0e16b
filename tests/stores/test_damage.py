"""Damage to journals or view and deaths of their writers cost nothing but what they touched, and are reported."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from moongate.core.ledger import State, broken_invariants
from moongate.core.record import OwnerRecord, encode
from moongate.store import frames, owners, reader, view
from moongate.store.database import Database
from moongate.store.frames import Kind
from moongate.store.journal import Journal
from moongate.store.records import DAY, Folder
from tests.stores.journals import LATER, OWNER, call, closed, last_segment, only, rows, sent, start_writer


def test_damaged_records_are_passed_over_and_reported(places: tuple[Path, Path], folder: Folder) -> None:
    journal = Journal.open(places[0], OWNER)
    for number in range(7):
        closed(journal, call(f"c{number}"))
    journal.flush()
    path = last_segment(places[0])
    data = bytearray(path.read_bytes())
    found, _, _ = frames.scan(bytes(data), frames.seed(OWNER), 0)
    data[found[2].end + 30] ^= 4
    data[found[3].end + 2] ^= 4
    data[found[6].end - 1] ^= 4
    path.write_bytes(data)
    folded = folder.fold()
    assert folder.outcomes() == {"completed": 4}
    assert [(hole.offset, hole.size, hole.missing) for hole in folded.holes] == [
        (found[2].end, found[4].end - found[2].end, 2),
        (found[5].end, found[6].end - found[5].end, 1),
    ]
    assert folder.holes() == folded.holes
    assert folder.fold().holes == []
    journal.close()


def test_a_header_that_is_damaged_costs_nothing_else(places: tuple[Path, Path], folder: Folder) -> None:
    journal = Journal.open(places[0], OWNER)
    closed(journal, call("c1"))
    journal.close()
    path = last_segment(places[0])
    path.write_bytes(b"\0" * 20 + path.read_bytes()[20:])
    assert folder.outcomes() == {"completed": 1}
    assert [hole.missing for hole in folder.holes()] == [0]


def test_an_unfinished_end_waits_while_its_writer_lives(places: tuple[Path, Path], folder: Folder) -> None:
    journal = Journal.open(places[0], OWNER)
    closed(journal, call("c1"))
    journal.flush()
    path = last_segment(places[0])
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    assert folder.outcomes() == {}
    assert folder.holes() == []
    path.write_bytes(whole)
    assert folder.outcomes() == {"completed": 1}
    path.write_bytes(whole + b"torn")
    journal.close()
    assert [(hole.offset, hole.size) for hole in folder.holes()] == [(len(whole), 4)]


def test_records_that_were_never_written_are_reported(places: tuple[Path, Path], folder: Folder) -> None:
    journal = Journal.open(places[0], OWNER, segment_bytes=1 << 22)
    closed(journal, call("c1"))
    journal.flush()
    big = call("big", detail="x" * (1 << 20))
    for _ in range(17):
        closed(journal, big)
    closed(journal, call("c2"))
    journal.close()
    assert journal.lost == 2
    assert sum(hole.missing for hole in folder.holes()) == 2
    assert folder.outcomes() == {"completed": 3}


def test_a_segment_that_is_gone_is_reported(places: tuple[Path, Path], folder: Folder) -> None:
    journal = Journal.open(places[0], OWNER, segment_bytes=1000)
    for number in range(9):
        closed(journal, sent(journal, f"c{number}"))
    journal.close()
    first, second, *_ = owners.segments(places[0])[OWNER]
    lost = owners.segments(places[0])[OWNER][2].first - second.first
    second.path.unlink()
    assert first.path.exists()
    assert [hole.missing for hole in folder.holes()] == [lost]


def test_what_cannot_be_understood_is_a_hole_and_what_is_from_a_later_version_is_not(
    places: tuple[Path, Path], folder: Folder
) -> None:
    journal = Journal.open(places[0], OWNER)
    journal.append(Kind.CLOSED, b"no record", now=True)
    journal.append(29, b"something new", now=True)
    closed(journal, call("c1"))
    journal.close()
    assert folder.outcomes() == {"completed": 1}
    assert [(hole.missing, hole.what.partition(":")[0]) for hole in folder.holes()] == [(1, "not understood")]


def test_a_closing_word_that_is_not_understood_leaves_the_open_one(
    places: tuple[Path, Path], folder: Folder
) -> None:
    journal = Journal.open(places[0], OWNER)
    record = sent(journal, "c1")
    journal.append(Kind.CLOSED, encode(record)[:-1] + b"\x01", now=True)
    journal.append(Kind.SENT, b"\xdc", now=True)
    assert folder.outcomes() == {"open": 1}
    assert [hole.missing for hole in folder.holes()] == [1, 1]
    journal.close()


def test_a_view_of_an_unknown_layout_is_moved_aside(places: tuple[Path, Path], folder: Folder) -> None:
    journal = Journal.open(places[0], OWNER)
    closed(journal, call("c1"))
    journal.flush()
    for number, layout in enumerate(("TABLE calls (call_id TEXT)", "TABLE records (call_id TEXT)"), 1):
        places[1].unlink(missing_ok=True)
        with sqlite3.connect(places[1]) as other:
            other.execute(f"CREATE {layout}")
        other.close()
        assert folder.outcomes() == {"completed": 1}
        assert Path(f"{places[1]}.corrupt-{number}").exists()
        folder.close()
    journal.close()


def test_a_record_that_is_damaged_in_the_view_is_taken_from_the_journal_again(
    places: tuple[Path, Path], folder: Folder
) -> None:
    journal = Journal.open(places[0], OWNER)
    closed(journal, call("c1"))
    journal.flush()
    before = only(folder, "c1")
    with sqlite3.connect(places[1]) as other:
        other.execute("UPDATE records SET record = replace(record, '[', '{')")
    other.close()
    assert only(folder, "c1") == before
    journal.close()


def test_a_later_format_stays_unread_and_whole(places: tuple[Path, Path], folder: Folder) -> None:
    places[0].mkdir()
    header = frames.pack(frames.seed(OWNER), 0, Kind.OWNER, encode(OwnerRecord(99, OWNER)))
    owners.segment_path(places[0], OWNER, 1).write_bytes(header + b"whatever")
    journal = Journal.open(places[0], LATER)
    closed(journal, call("c1"))
    journal.flush()
    assert "format 99" in folder.fold().waits
    assert folder.outcomes() == {"completed": 1}
    assert folder.retire(time.time() + 99 * DAY) == 0
    journal.close()


def test_a_damaged_stretch_longer_than_one_read(places: tuple[Path, Path]) -> None:
    journal = Journal.open(places[0], OWNER)
    for number in range(40):
        closed(journal, call(f"c{number:02d}"))
    journal.close()
    segment = owners.segments(places[0])[OWNER][0]
    data = segment.path.read_bytes()
    segment.path.write_bytes(data[:40] + b"\0" * 2000 + data[2040:])
    offset, sequence, seen = 0, 0, 0
    for _ in range(1000):
        piece = reader.read(segment, offset, sequence, final=True, piece=300)
        offset, sequence, seen = piece.offset, piece.sequence, seen + piece.records
        if piece.ended:
            break
    assert offset == len(data)
    assert sequence == 40
    assert 40 - 2000 // 150 - 4 < seen < 40


@pytest.mark.parametrize("at", [0, 5000, 20_000])
def test_a_corrupt_view_is_moved_aside_and_rebuilt(
    places: tuple[Path, Path], folder: Folder, at: int
) -> None:
    journal = Journal.open(places[0], OWNER)
    for number in range(400):
        closed(journal, sent(journal, f"c{number}"))
    journal.close()
    folder.fold()
    folder.close()
    data = bytearray(places[1].read_bytes())
    data[at : at + 60_000] = os.urandom(len(data[at : at + 60_000]))
    places[1].write_bytes(data)
    aside = folder.fold().aside
    if aside is None:  # only a question reaches the damaged page
        assert only(folder, "c399").call_id == "c399"
        folder.find("c1")
    assert folder.outcomes() == {"completed": 400}
    assert broken_invariants(folder.tally(0.0)) == []
    assert Path(f"{places[1]}.corrupt-1").exists()


def test_what_only_the_corrupt_view_had_is_salvaged(places: tuple[Path, Path], folder: Folder) -> None:
    journal = Journal.open(places[0], OWNER)
    for number in range(2000):
        closed(journal, sent(journal, f"c{number:04d}"))
    journal.close()
    folder.fold()
    assert folder.retire(time.time() + 8 * DAY, row_days=1e6) == 1
    journal = Journal.open(places[0], LATER)
    closed(journal, call("new"))
    journal.flush()
    folder.close()
    page = rows(places[1], "PRAGMA page_size")[0][0]
    assert isinstance(page, int)
    data = bytearray(places[1].read_bytes())
    middle = data.find(b"c1000r-c1000") // page * page
    assert middle > 0
    data[middle : middle + page] = b"\xff" * page
    places[1].write_bytes(data)
    assert folder.find("c1000") == []
    outcomes = folder.outcomes()
    assert 1900 < outcomes["completed"] < 2001
    assert only(folder, "c0000").attempts[0].cost_micro == 42
    assert only(folder, "c1999").billed_micro == 42
    assert only(folder, "new").outcome == "completed"
    places[1].unlink()
    assert folder.fold().salvaged == outcomes["completed"] - 1, "the old one is still there to be read"
    assert folder.fold().salvaged == 0
    assert folder.outcomes() == outcomes
    journal.close()


def test_a_database_is_moved_aside_by_the_first_who_finds_it(tmp_path: Path) -> None:
    one, two = (Database(tmp_path / "ledger.db", view.create, patience=1.0) for _ in range(2))
    one.connect()
    two.connect()
    assert one.move_aside() == tmp_path / "ledger.db.corrupt-1"
    one.connect()
    assert two.move_aside() is None
    assert two.connect().execute("SELECT count(*) FROM calls").fetchone() == (0,)
    one.close()
    two.close()


def test_two_processes_that_find_the_same_damage_move_it_aside_once(places: tuple[Path, Path]) -> None:
    journal = Journal.open(places[0], OWNER)
    closed(journal, call("c1"))
    journal.close()
    one, two = Folder(*places), Folder(*places)
    one.fold()
    two.fold()
    one.close()
    for end in ("", "-wal"):
        if (path := Path(f"{places[1]}{end}")).exists():
            path.write_bytes(b"not a database" * 500)
    assert one.outcomes() == {"completed": 1}
    assert two.outcomes() == {"completed": 1}
    assert two.find("c1") == one.find("c1")
    assert not Path(f"{places[1]}.corrupt-2").exists()
    one.close()
    two.close()


FOLD = "import sys; from pathlib import Path; from moongate.store.records import Folder;"
FOLD += " Folder(Path(sys.argv[1]), Path(sys.argv[2])).fold()"


def test_folding_that_is_killed_goes_on_where_it_was(places: tuple[Path, Path]) -> None:
    journal = Journal.open(places[0], OWNER, segment_bytes=30_000)
    for number in range(3000):
        record = sent(journal, f"c{number:04d}")
        if number % 4:
            closed(journal, record)
    journal.close()
    dice = random.Random(7)
    for _ in range(8):
        process = subprocess.Popen([sys.executable, "-c", FOLD, *map(str, places)])
        time.sleep(dice.uniform(0.1, 0.4))
        process.send_signal(signal.SIGKILL)
        process.wait()
    folder = Folder(*places)
    folder.fold()
    assert folder.outcomes() == {"completed": 2250, "failed": 750}
    assert broken_invariants(folder.tally(0.0)) == []
    assert folder.tally(0.0).by_state == {State.SETTLED: 2250, State.AMBIGUOUS: 750}
    assert folder.holes() == []
    folder.close()


def test_after_a_kill_every_call_has_one_row_and_one_end(places: tuple[Path, Path], folder: Folder) -> None:
    dice = random.Random(65)
    heard: dict[str, int] = {}
    for run in range(6):
        owner = f"{run:028x}"
        writer = start_writer(places[0], owner)
        assert writer.stdout is not None
        for _ in range(dice.randrange(1, 300)):
            heard[owner] = int(writer.stdout.readline())
            if heard[owner] % 40 == 0:
                folder.fold()
        writer.kill()
        heard[owner] = max([heard[owner], *map(int, writer.stdout.read().split("\n")[:-1])])
        writer.wait()
        writer.stdout.close()
    folder.fold()
    assert folder.fold().recovered == 0
    for owner, number in heard.items():
        for name in (f"{owner}c000001", f"{owner}c{number:06d}"):
            record = only(folder, name)
            assert record.outcome in {"completed", "failed"}
            assert record.attempts[0].state in {State.SETTLED, State.AMBIGUOUS}
    count = rows(places[1], "SELECT count(*) FROM calls")[0][0]
    assert sum(heard.values()) <= count <= sum(heard.values()) + len(heard)  # type: ignore[operator]
    assert "open" not in folder.outcomes()
    assert broken_invariants(folder.tally(0.0)) == []
