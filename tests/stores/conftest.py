"""What the tests of the view stand on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from moongate.store.records import Folder


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "journal", tmp_path / "ledger.db"


@pytest.fixture
def folder(places: tuple[Path, Path]) -> Iterator[Folder]:
    folder = Folder(*places, patience=0.05)
    yield folder
    folder.close()
