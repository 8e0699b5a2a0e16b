"""The view shows exactly what the journals hold: one row a call, whatever happens to journals, view and readers."""

import json
import sqlite3
import threading
import time
from pathlib import Path

import msgspec
import pytest

from moongate.core.ledger import State, broken_invariants
from moongate.core.record import CRASHED, AttemptRecord, Correction, encode
from moongate.store import owners
from moongate.store.frames import Kind
from moongate.store.journal import Journal
from moongate.store.records import DAY, Folder
from tests.stores.journals import LATER, OWNER, call, close, closed, files_no_larger_than, only, rows, sent


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


def test_every_field_is_a_column(places: tuple[Path, Path], folder: Folder) -> None:
    journal = Journal.open(places[0], OWNER)
    record = close(call("c1", session="s1", stream=True, edits=["model"], retry_after=2.5, owner=OWNER))
    record.corrections = (Correction("c1-1", 2.5, "me", "why", billed_after=7),)
    journal.append(Kind.CLOSED, encode(record), now=True)
    bare = call("c2", owner=OWNER)
    bare.attempts = []
    journal.append(Kind.CLOSED, encode(bare), now=True)
    folder.fold()
    fields = msgspec.structs.asdict(record)
    (attempt,) = fields.pop("attempts")
    fields["edits"], fields["corrections"] = '["model"]', '[["c1-1",2.5,"me","why","","",null,7]]'
    query = f"SELECT {', '.join(fields)} FROM calls WHERE call_id = 'c1'"  # noqa: S608 - names of fields
    assert rows(places[1], query) == [tuple(fields.values())]
    fields = msgspec.structs.asdict(attempt)
    query = f"SELECT {', '.join(fields)}, call_id FROM attempts"  # noqa: S608 - names of fields
    assert rows(places[1], query) == [(*fields.values(), "c1")]
    joined = "SELECT call_id, a.attempt_id FROM calls c LEFT JOIN attempts a USING (call_id) ORDER BY 1"
    assert rows(places[1], joined) == [("c1", "c1-1"), ("c2", None)]
    journal.close()


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


def test_a_closed_call_stays_closed_whatever_comes_late(places: tuple[Path, Path], folder: Folder) -> None:
    journal = Journal.open(places[0], OWNER)
    journal.append(Kind.CLOSED, encode(close(call("c1"))), now=True)
    journal.append(Kind.FIRST_EVENT, encode(call("c1", State.FIRST_EVENT)), now=True)
    assert folder.outcomes() == {"completed": 1}
    journal.close()


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


def test_records_of_other_versions_are_read_with_every_column(
    places: tuple[Path, Path], folder: Folder
) -> None:
    journal = Journal.open(places[0], OWNER)
    closed(journal, call("c1"))
    journal.close()
    folder.fold()
    folder.close()
    db = sqlite3.connect(places[1], isolation_level=None)
    (text,) = db.execute("SELECT record FROM records").fetchone()
    fields = json.loads(text)
    older = json.dumps(fields[:-1]), json.dumps([*fields, "from the future"])
    db.execute("DROP VIEW calls")
    db.execute("CREATE VIEW calls AS SELECT call_id FROM records")
    for text in older:
        db.execute("UPDATE records SET record = ?", (text,))
        assert only(folder, "c1").detail == ""
        assert rows(places[1], "SELECT detail, owner FROM calls") == [("", OWNER)]
        folder.close()
    db.close()


def test_segments_and_rows_are_kept_as_long_as_told(places: tuple[Path, Path], folder: Folder) -> None:
    dead, alive = Journal.open(places[0], OWNER), Journal.open(places[0], LATER, segment_bytes=1000)
    closed(dead, call("00000000dead"))
    dead.close()
    for number in range(9):
        record = call(f"00000000{number:04x}")
        record.attempts[0].provider_request_id = f"msh-{number}"
        closed(alive, record)
    sent(alive, "00000000aaaa")
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
    assert only(folder, "msh-3").call_id == "000000000003"
    folder.retire(10 + 400 * DAY)
    assert folder.outcomes() == {"completed": 1, "open": 1}, "one was made after ten seconds"
    folder.retire(1.0 + 401 * DAY)
    assert folder.outcomes() == {"open": 1}, "what runs is never forgotten"
    assert rows(places[1], "SELECT * FROM provider_ids") == []
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
    folder.close()


def test_records_of_a_time_come_in_order_and_all_of_them(places: tuple[Path, Path], folder: Folder) -> None:
    journal = Journal.open(places[0], OWNER)
    made = [f"{second * 1000:012x}{number:016x}" for second in (10, 20, 30) for number in range(1500)]
    for name in made:
        closed(journal, call(name))
    journal.flush()
    assert [record.call_id for record in folder.records()] == made
    assert [record.call_id for record in folder.records(20.0)] == made[1500:]
    assert [record.call_id for record in folder.records(until=20.0)] == made[:1500]
    assert [record.call_id for record in folder.records(10.5, 29.9)] == made[1500:3000]
    assert list(folder.records(99.0)) == []
    assert folder.dead_owners() == frozenset()
    journal.close()
    assert folder.dead_owners() == frozenset({OWNER})


def test_calls_whose_retries_must_be_known_are_found_by_age(
    places: tuple[Path, Path], folder: Folder
) -> None:
    journal = Journal.open(places[0], OWNER)
    names = [f"{int(second * 1000):012x}{second:016x}" for second in (100, 200, 300, 400)]
    for name in names[:3]:
        closed(journal, call(name, fingerprint="ab" * 16, idempotency_key="k"))
    closed(journal, call(names[3]))  # nobody asks for it again
    journal.append(Kind.SENT, encode(call(names[3][:-1] + "f", fingerprint="cd" * 16)), now=True)
    found = folder.remembered(200.0)
    assert [record.call_id for record in found] == [names[1], names[2], names[3][:-1] + "f"]
    assert [record.outcome for record in found] == ["completed", "completed", ""]
    assert (found[0].fingerprint, found[0].idempotency_key) == ("ab" * 16, "k")
    journal.close()
    folder.fold()
    assert folder.remembered(400.0)[0].outcome == "failed"  # its owner is dead by now
    folder.retire(250.0 + 400 * DAY)
    assert [record.call_id for record in folder.remembered(0.0)] == [names[2], names[3][:-1] + "f"]


def test_a_call_whose_worker_died_is_billed_for_what_was_settled_before(
    places: tuple[Path, Path], folder: Folder
) -> None:
    journal = Journal.open(places[0], OWNER)
    record = close(call("c1"), State.SETTLED_EST)  # a stream that was cut, and is being continued
    record.outcome, record.billed_micro = "", None
    record.attempts[0].currency = "USD"
    record.attempts.append(AttemptRecord("c1-2", "beta", model="kimi-k2.6", state=State.SENT, currency="USD"))
    journal.append(Kind.SENT, encode(record), now=True)
    journal.close()
    found = only(folder, "c1")
    assert [one.state for one in found.attempts] == ["settled_est", "ambiguous"]
    assert [one.cause for one in found.attempts] == ["", CRASHED]
    assert (found.outcome, found.billed_micro, found.cause) == ("failed", 42, CRASHED)
