"""Corrections are records like all others: they survive the loss of the view, and the newest holds."""

from pathlib import Path

import msgspec
import pytest

from moongate.core.ledger import State
from moongate.core.record import CallRecord, Correction, encode
from moongate.core.statement import Charged, Statement
from moongate.store import statements
from moongate.store.amendments import LOCK, BusyError, correcting, owner_after, write
from moongate.store.frames import Kind
from moongate.store.journal import Journal
from moongate.store.records import Folder
from tests.stores.journals import OWNER, call, close, closed, only

MINTED = "0193e0f0a1b2c3d4e5f607182940"


def amended(record: CallRecord, state: State, why: str) -> CallRecord:
    attempts = [msgspec.structs.replace(record.attempts[0], state=state)]
    corrections = (*record.corrections, Correction("c1-1", 2.0, "me", why, "ambiguous", state))
    return msgspec.structs.replace(record, attempts=attempts, corrections=corrections)


@pytest.fixture
def state(places: tuple[Path, Path]) -> Path:
    """A state directory with one call in doubt and one that is settled."""
    journal = Journal.open(places[0], OWNER)
    closed(journal, call("c1"), State.AMBIGUOUS)
    closed(journal, call("c2"))
    journal.close()
    return places[0].parent


def test_a_correction_is_in_the_journals_and_survives_the_view(
    state: Path, places: tuple[Path, Path], folder: Folder
) -> None:
    [record] = folder.unclear()
    assert record.call_id == "c1"
    with correcting(state):
        write(state, folder, [amended(record, State.WRITTEN_OFF, "too old")], MINTED, 9.0)
    assert only(folder, "c1").attempts[0].state == "written_off"
    assert folder.unclear() == []
    for name in ("", "-wal", "-shm"):
        Path(f"{places[1]}{name}").unlink(missing_ok=True)
    again = only(folder, "c1")
    assert (again.attempts[0].state, again.corrections[0].why) == ("written_off", "too old")
    assert only(folder, "c2").corrections == ()


def test_the_later_correction_holds_even_if_the_clock_went_back(state: Path, folder: Folder) -> None:
    [record] = folder.unclear()
    with correcting(state):
        first = amended(record, State.AMBIGUOUS, "first")
        write(state, folder, [first], MINTED, 9.0)
        write(state, folder, [amended(first, State.SETTLED, "second")], "0" * 28, 1.0)
    assert [one.why for one in only(folder, "c1").corrections] == ["first", "second"]
    assert folder.last_corrector() > MINTED


def test_a_corrector_is_named_after_all_before_it() -> None:
    assert owner_after("", MINTED) == MINTED
    assert owner_after(MINTED, "f" * 28) == "f" * 28
    assert owner_after(MINTED, MINTED) == MINTED[:-2] + "41"
    assert owner_after("f" * 12, "0" * 12) > "f" * 12 or len(owner_after("f" * 12, "0" * 12)) > 12


def test_nothing_to_correct_writes_nothing(state: Path, places: tuple[Path, Path], folder: Folder) -> None:
    before = sorted(places[0].iterdir())
    write(state, folder, [], MINTED, 9.0)
    assert sorted(places[0].iterdir()) == before


def test_one_process_corrects_at_a_time(state: Path) -> None:
    with correcting(state), pytest.raises(BusyError, match="another process"), correcting(state):
        pass
    with correcting(state):
        assert (state / LOCK).exists()


def test_calls_without_a_known_bill_are_looked_at_again(state: Path, folder: Folder) -> None:
    journal = Journal.open(state / "journal", MINTED)
    record = close(call("c3"))
    record.billed_micro = None
    journal.append(Kind.CLOSED, encode(record), now=True)
    journal.close()
    assert [one.call_id for one in folder.unclear()] == ["c1", "c3"]


def test_a_statement_is_kept_once_and_a_damaged_one_is_passed_over(tmp_path: Path) -> None:
    first = Statement((Charged("2026-11-30", "m", "USD", 5),), ("line 3: odd",))
    assert statements.kept(tmp_path) == []
    assert statements.keep(tmp_path, first)
    assert not statements.keep(tmp_path, first)
    second = Statement((Charged("2026-11-30", "m", "CNY", 5),))
    assert statements.keep(tmp_path, second)
    (tmp_path / "statements" / "zz.json").write_text("{")
    assert sorted(statements.kept(tmp_path), key=str) == sorted([first, second], key=str)
    assert all(
        path.stat().st_mode & 0o777 == 0o600 for path in (tmp_path / "statements").glob("[0-9a-f]*.json")
    )
