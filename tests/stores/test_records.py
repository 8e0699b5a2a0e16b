"""The view shows exactly what the journals hold: one row a call, whatever happens to journals, view and readers."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from moongate.core.ledger import State, broken_invariants
from moongate.core.record import CRASHED, AttemptRecord, CallRecord, OwnerRecord, encode
from moongate.store import frames, owners, reader
from moongate.store.frames import Kind
from moongate.store.journal import Journal
from moongate.store.records import DAY, Folder
from tests.stores.journals import OWNER, call, close, closed, files_no_larger_than, sent, start_writer

LATER = "0193e0f0ffffffffffffffffffff"


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "journal", tmp_path / "ledger.db"


@pytest.fixture
def folder(places: tuple[Path, Path]) -> "Folder":
    return Folder(*places, patience=0.05)


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    db = sqlite3.connect(path)
    try:
        return db.execute(query).fetchall()
    finally:
        db.close()


def only(folder: Folder, name: str) -> CallRecord:
    found = folder.find(name)
    assert len(found) == 1, f"{name}: {len(found)} rows"
    return found[0]


def last_segment(directory: Path, owner: str = OWNER) -> Path:
    return owners.segments(directory)[owner][-1].path


def test_a_record_comes_back_from_the_view_as_it_was_written(
    places: tuple[Path, Path], folder: Folder
) -> None:
    journal = Journal.open(places[0], OWNER)
    record = close(call("c1", session="s1", stream=True, edits=["model", 'use "x"'], deadline=601.5))
    record.attempts.insert(0, AttemptRecord("c1-0", "beta", reused=True, cost_micro=None, detail="失败"))
    record.attempts += [AttemptRecord(f"c1-{number}") for number in (2, 10)]
    record.owner = OWNER
    journal.append(Kind.CLOSED, encode(record), now=True)
    assert only(folder, "c1") == record
    assert type(only(folder, "c1").stream) is bool
    journal.close()


def test_it_is_found_by_every_name_it_has(places: tuple[Path, Path], folder: Folder) -> None:
    journal = Journal.open(places[0], OWNER)
    record = close(call("c1", session="s1"))
    record.attempts[0].provider_request_id, record.attempts[0].provider_trace_id = "msh-1", "trace-1"
    journal.append(Kind.CLOSED, encode(record), now=True)
    closed(journal, call("c2"))
    journal.close()
    for name in ("c1", "r-c1", "s1", "c1-1", "msh-1", "trace-1"):
        assert only(folder, name).call_id == "c1"
    assert folder.find("") == []
    assert folder.find("nobody") == []


def test_an_open_call_is_seen_and_its_end_replaces_it(places: tuple[Path, Path], folder: Folder) -> None:
    journal = Journal.open(places[0], OWNER)
    record = sent(journal, "c1")
    assert folder.outcomes() == {"open": 1}
    assert only(folder, "c1").attempts[0].state == State.SENT
    record.attempts.append(AttemptRecord("c1-2", state=State.SENT))
    journal.append(Kind.SENT, encode(record), now=True)
    assert len(only(folder, "c1").attempts) == 2
    closed(journal, record)
    journal.close()
    assert folder.outcomes() == {"completed": 1}
    assert [attempt.state for attempt in only(folder, "c1").attempts] == [State.SENT, State.SETTLED]


def test_a_later_word_on_a_closed_call_wins_whenever_it_is_read(
    places: tuple[Path, Path], folder: Folder
) -> None:
    ours, reconciler = Journal.open(places[0], LATER), Journal.open(places[0], OWNER)
    record = close(call("c1"), State.AMBIGUOUS)
    ours.append(Kind.CLOSED, encode(record), now=True)
    record.attempts[0].state = State.WRITTEN_OFF
    reconciler.append(Kind.AMENDED, encode(record), now=True)  # sorts before the journal that closed it
    assert only(folder, "c1").attempts[0].state == State.WRITTEN_OFF
    ours.append(Kind.SENT, encode(call("c1")), now=True)
    assert only(folder, "c1").attempts[0].state == State.WRITTEN_OFF
    ours.close()
    reconciler.close()


def test_folding_again_changes_nothing(places: tuple[Path, Path], folder: Folder) -> None:
    journal = Journal.open(places[0], OWNER, segment_bytes=2000)
    for number in range(50):
        closed(journal, sent(journal, f"c{number}"))
    journal.flush()
    assert folder.fold().records == 100
    before = rows(places[1], "SELECT * FROM calls") + rows(places[1], "SELECT * FROM attempts")
    assert folder.fold().records == 0
    places[1].unlink()
    assert folder.fold().records == 100
    assert rows(places[1], "SELECT * FROM calls") + rows(places[1], "SELECT * FROM attempts") == before
    journal.close()


def test_what_a_dead_owner_left_open_is_closed_once(places: tuple[Path, Path], folder: Folder) -> None:
    dead, alive = Journal.open(places[0], OWNER), Journal.open(places[0], LATER)
    waiting = call("waits", State.RESERVED)
    dead.append(Kind.RESERVED, encode(waiting), now=True)
    sent(dead, "sent")
    dead.append(Kind.FIRST_EVENT, encode(call("runs", State.FIRST_EVENT)), now=True)
    tried = call("tried", State.RELEASED)
    tried.attempts[0].cause = "kimi_unavailable"
    tried.attempts.append(AttemptRecord("tried-2", state=State.SENT))
    dead.append(Kind.SENT, encode(tried), now=True)
    closed(dead, sent(dead, "done"))
    sent(alive, "elsewhere")
    dead.flush()
    assert folder.fold().recovered == 0, "its owner lives"
    dead.close()
    assert folder.fold().recovered == 4
    assert folder.fold().recovered == 0
    assert folder.outcomes() == {"failed": 4, "completed": 1, "open": 1}
    states = {
        name: [one.state for one in only(folder, name).attempts]
        for name in ("waits", "sent", "runs", "tried")
    }
    assert states == {
        "waits": [State.RELEASED],
        "sent": [State.AMBIGUOUS],
        "runs": [State.AMBIGUOUS],
        "tried": [State.RELEASED, State.AMBIGUOUS],
    }
    record = only(folder, "tried")
    assert (record.cause, record.code, record.billed_micro) == (CRASHED, "gateway_error", 0)
    assert [attempt.cause for attempt in record.attempts] == ["kimi_unavailable", CRASHED]
    assert only(folder, "elsewhere").outcome == ""
    assert broken_invariants(folder.tally(now=0.0)) == []
    alive.close()


def test_recovery_is_the_same_after_the_view_was_lost(places: tuple[Path, Path], folder: Folder) -> None:
    journal = Journal.open(places[0], OWNER)
    sent(journal, "c1")
    journal.close()
    folder.fold()
    before = only(folder, "c1")
    places[1].unlink()
    assert only(folder, "c1") == before


def test_a_tally_counts_what_is_wrong(places: tuple[Path, Path], folder: Folder) -> None:
    journal = Journal.open(places[0], OWNER)
    journal.append(Kind.SENT, encode(call("late", deadline=100.0)), now=True)
    unpriced = close(call("unpriced"))
    unpriced.attempts[0].cost_micro = None
    journal.append(Kind.CLOSED, encode(unpriced), now=True)
    journal.append(Kind.CLOSED, encode(close(call("unnamed"), State.AMBIGUOUS)), now=True)
    assert folder.tally(now=100.0).overdue == 0
    tally = folder.tally(now=101.0)
    assert (tally.reservations, tally.overdue, tally.unnamed, tally.unpriced, tally.unclosed) == (
        3,
        1,
        1,
        1,
        0,
    )
    assert tally.by_state == {State.SENT: 1, State.SETTLED: 1, State.AMBIGUOUS: 1}
    journal.close()


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


def test_numbers_too_large_for_sqlite_stop_no_fold(places: tuple[Path, Path], folder: Folder) -> None:
    journal = Journal.open(places[0], OWNER)
    closed(journal, call("odd", input=(1 << 64) - 1))
    closed(journal, call("c1"))
    journal.close()
    assert folder.outcomes() == {"completed": 2}
    assert only(folder, "odd").input == (1 << 63) - 1


def test_a_locked_view_makes_folding_wait_and_hurts_nobody(places: tuple[Path, Path], folder: Folder) -> None:
    journal = Journal.open(places[0], OWNER)
    closed(journal, call("c1"))
    journal.flush()
    folder.fold()
    holder = sqlite3.connect(places[1], isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    closed(journal, call("c2"))
    journal.flush()
    assert "locked" in folder.fold().waits
    assert folder.outcomes() == {"completed": 1}, "what is there can be read"
    holder.execute("ROLLBACK")
    holder.close()
    assert folder.outcomes() == {"completed": 2}
    journal.close()


def test_a_full_disk_makes_folding_wait(places: tuple[Path, Path], folder: Folder) -> None:
    journal = Journal.open(places[0], OWNER)
    folder.fold()
    for number in range(300):
        closed(journal, call(f"c{number}"))
    journal.flush()
    with files_no_larger_than(100_000):
        assert folder.fold().waits
    assert folder.fold().waits == ""
    assert folder.outcomes() == {"completed": 300}
    journal.close()


def test_a_place_that_cannot_be_used_is_told_and_not_raised(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("x")
    folder = Folder(tmp_path / "journal", in_the_way / "ledger.db")
    assert "file" in folder.fold().waits
    with pytest.raises(OSError, match="file"):
        folder.outcomes()


def test_nothing_to_fold_is_no_error(folder: Folder) -> None:
    folded = folder.fold()
    assert (folded.records, folded.waits) == (0, "")
    assert folder.outcomes() == {}
    folder.close()
    assert folder.outcomes() == {}


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
    journal.close()


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


def test_a_view_of_an_older_version_gets_the_new_columns(places: tuple[Path, Path], folder: Folder) -> None:
    journal = Journal.open(places[0], OWNER)
    closed(journal, call("c1"))
    journal.close()
    folder.fold()
    folder.close()
    db = sqlite3.connect(places[1], isolation_level=None)
    db.execute("ALTER TABLE calls DROP COLUMN retry_after")
    db.execute("ALTER TABLE attempts DROP COLUMN reach")
    db.execute("ALTER TABLE attempts ADD COLUMN from_the_future TEXT DEFAULT 'x'")
    db.close()
    record = only(folder, "c1")
    assert record.retry_after == -1.0
    assert record.attempts[0].reach == ""


def test_segments_and_rows_are_kept_as_long_as_told(places: tuple[Path, Path], folder: Folder) -> None:
    dead, alive = Journal.open(places[0], OWNER), Journal.open(places[0], LATER, segment_bytes=1000)
    closed(dead, call("old"))
    dead.close()
    for number in range(9):
        closed(alive, sent(alive, f"c{number}"))
    sent(alive, "open")
    now = time.time()
    assert folder.retire(now + 8 * DAY, row_days=1e6) == 0, "nothing is folded yet"
    folder.fold()
    assert folder.retire(now + 6 * DAY, row_days=1e6) == 0
    many = len(owners.segments(places[0])[LATER])
    assert folder.retire(now + 8 * DAY, row_days=1e6) == many
    assert [path.name for path in places[0].iterdir() if OWNER in path.name] == []
    assert len(owners.segments(places[0])[LATER]) == 1, "the one that is written stays"
    assert rows(places[1], "SELECT owner FROM checkpoints") == [(LATER,)]
    assert folder.outcomes() == {"completed": 10, "open": 1}
    folder.retire(1.0 + 401 * DAY)
    assert folder.outcomes() == {"open": 1}, "what runs is never forgotten"
    assert folder.tally(0.0).reservations == 1
    alive.close()
    assert folder.fold().holes == []


def test_questions_from_several_threads(places: tuple[Path, Path]) -> None:
    folder = Folder(*places)
    journal = Journal.open(places[0], OWNER)
    seen: list[dict[str, int]] = []
    threads = [threading.Thread(target=lambda: seen.append(folder.outcomes())) for _ in range(8)]
    for number in range(100):
        closed(journal, call(f"c{number}"))
    journal.flush()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [{"completed": 100}] * 8
    journal.close()


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
