"""The supervisor's chore: once an hour it writes off what is too old and uses what was imported."""

import resource
from pathlib import Path

import pytest

from moongate.core.ledger import State
from moongate.core.statement import Charged, Statement
from moongate.processes.reconciler import EVERY_SECONDS, Reconciler
from moongate.store import statements
from moongate.store.amendments import correcting
from moongate.store.journal import Journal
from moongate.store.records import DAY, Folder
from tests.stores.journals import OWNER, call, closed, only

ID = f"{1500:012x}{'1' * 16}"


class Clock:
    """A world of which only the wall clock and ids are asked."""

    now = 2.0

    def wall(self) -> float:
        return self.now

    def new_id(self) -> str:
        return f"{int(self.now * 1000):012x}{'f' * 16}"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    journal = Journal.open(tmp_path / "journal", OWNER)
    record = call(ID)
    record.attempts[0].provider_request_id = "msh-1"
    record.attempts[0].cause = "kimi_bad_response"
    closed(journal, record, State.AMBIGUOUS)
    journal.close()
    return tmp_path


def made(state: Path, clock: Clock) -> tuple[Reconciler, Folder]:
    folder = Folder(state / "journal", state / "ledger.db")
    return Reconciler(state, folder, clock, "the supervisor"), folder  # type: ignore[arg-type]


def test_what_is_too_old_is_written_off_and_logged(state: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    clock = Clock()
    reconciler, folder = made(state, clock)
    reconciler.act(14)
    assert only(folder, ID).attempts[0].state == "ambiguous"
    clock.now = 15 * DAY
    reconciler.act(14)
    record = only(folder, ID)
    assert record.attempts[0].state == "written_off"
    assert (record.corrections[0].who, record.corrections[0].at) == ("the supervisor", 15 * DAY)
    assert f"{ID}-1: ambiguous becomes written_off: no proof was found in 14 days" in caplog.text
    folder.close()


def test_imported_statements_are_looked_at_but_only_once_an_hour(state: Path) -> None:
    clock = Clock()
    reconciler, folder = made(state, clock)
    reconciler.act(14)
    row = Charged("1970-01-01", "kimi-k2.6", "USD", 77, input=3, output=2, request_id="msh-1")
    statements.keep(state, Statement((row,)))
    clock.now += EVERY_SECONDS - 1
    reconciler.act(14)
    assert only(folder, ID).attempts[0].state == "ambiguous"
    clock.now += 1
    reconciler.act(14)
    record = only(folder, ID)
    assert (record.attempts[0].state, record.attempts[0].cost_micro, record.billed_micro) == (
        "settled",
        77,
        77,
    )
    folder.close()


def test_it_gives_way_to_another_and_says_when_it_cannot_write(
    state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    clock.now = 15 * DAY
    reconciler, folder = made(state, clock)
    with correcting(state):
        reconciler.act(14)
    assert only(folder, ID).attempts[0].state == "ambiguous"
    clock.now += EVERY_SECONDS
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (0, hard)
    )  # Python ignores SIGXFSZ: every write fails with EFBIG
    try:
        reconciler.act(14)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "corrections could not be written" in caplog.text
    assert only(folder, ID).attempts[0].state == "ambiguous"
    folder.close()
