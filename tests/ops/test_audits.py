"""`moongate ledger verify` says where journals are damaged and of which days a lost view knew calls."""

from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from moongate import commands
from moongate.ops.audits import verify
from moongate.store.frames import Kind
from moongate.store.journal import Journal
from moongate.store.records import Folder
from tests.stores.journals import LATER, OWNER, call, closed, last_segment


def test_damage_and_lost_days_are_told(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal", OWNER)
    for number in range(3):
        closed(journal, call(f"c{number}"))
    journal.close()
    folder = Folder(tmp_path / "journal", tmp_path / "ledger.db")
    folder.fold()
    folder.retire(1e12, row_days=1e9)
    folder.close()
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    journal = Journal.open(tmp_path / "journal", LATER)
    journal.append(Kind.CLOSED, b"no record", now=True)
    closed(journal, call("c9"))
    journal.close()
    document: dict[str, Any] = verify(folder, lambda: 0.0).document()
    assert document["lost_days"] == {"1970-01-01": 3}
    [hole] = document["journal_damage"]
    assert (hole["segment"], hole["missing"]) == (last_segment(tmp_path / "journal", LATER).name, 1)
    folder.close()
    told = CliRunner().invoke(commands.app, ["ledger", "verify", "--state", str(tmp_path)])
    assert "1970-01-01: at most 3 calls" in told.output
    assert f"{hole['segment']}, offset {hole['offset']}" in told.output
