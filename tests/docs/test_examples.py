"""Examples in the pages work: settings can be used, questions can be asked of the databases, JSON can be read."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from moongate.core.reading import check
from moongate.sim.config import accounts_from, hosts_from
from moongate.sim.script import rules_from
from moongate.sim.serve import CATALOGUES
from moongate.store.control import FILE, ControlStore
from moongate.store.records import Folder
from tests.docs.pages import PAGES, REFERENCE, Block, blocks
from tests.source import relative

SCRIPTS = REFERENCE / "simulator.md"


def all_of(*kinds: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page, *kinds)]


def name(block: Block) -> str:
    return f"{relative(block.page)}-{block.text.splitlines()[0][:30]}"


@pytest.mark.parametrize("block", [block for block in all_of("yaml") if block.page != SCRIPTS], ids=name)
def test_settings_can_be_used(block: Block) -> None:
    pem = "-----BEGIN CERTIFICATE-----"
    lines, code = check(
        block.text,
        origin="page",
        read_env=lambda _: "sk-1",
        read_file=lambda path: pem if path.endswith(".pem") else "sk-1",
    )
    assert code == 0, lines


@pytest.mark.parametrize("block", blocks(SCRIPTS, "yaml"), ids=name)
def test_scripts_can_be_played(block: Block) -> None:
    assert CATALOGUES
    script = yaml.safe_load(block.text)
    assert rules_from(script)
    assert hosts_from(script["hosts"])
    assert accounts_from(script["accounts"])


@pytest.mark.parametrize("block", all_of("json"), ids=name)
def test_json_can_be_read(block: Block) -> None:
    assert json.loads(block.text)


def ledger(folder: Path) -> Path:
    path = folder / "ledger.db"
    folder.joinpath("journal").mkdir()
    folds = Folder(folder / "journal", path)
    folds.fold()
    folds.close()
    return path


def control(folder: Path) -> Path:
    ControlStore.open(folder).close()
    return folder / FILE


DATABASES: dict[str, Callable[[Path], Path]] = {
    "docs/operate/ledger.md": ledger,
    "docs/operate/keys.md": control,
}


@pytest.mark.parametrize("block", all_of("sql"), ids=name)
def test_questions_can_be_asked(block: Block, tmp_path: Path) -> None:
    path = DATABASES[relative(block.page)](tmp_path)
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        database.execute(block.text)
