"""What the tests of the view stand on."""

from pathlib import Path

import pytest

from moongate.store.records import Folder


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "journal", tmp_path / "ledger.db"


@pytest.fixture
def folder(places: tuple[Path, Path]) -> "Folder":
    return Folder(*places, patience=0.05)
