"""Files of at most 400 lines, functions of at most 50; exemptions.toml names what is longer, and only shrinks."""

import tomllib
from pathlib import Path

from tests.source import ROOT, functions, python_files, relative

FILE_LINES = 400
FUNCTION_LINES = 50
MOST_EXEMPTIONS = 0
"""How many entries exemptions.toml may have: lower it with each that goes, never raise it."""


def sizes(paths: list[Path]) -> dict[str, int]:
    """Lines of each file and, as `file::function`, of each function that is over its budget."""
    long = {}
    for path in paths:
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > FILE_LINES:
            long[relative(path)] = lines
        for function in functions(path):
            if function.lines > FUNCTION_LINES:
                long[f"{relative(path)}::{function.name}"] = function.lines
    return long


LONG = sizes(python_files("src", "tests", "bench", "tools", ".ci"))
EXEMPTIONS = ROOT / "tests/meta/exemptions.toml"
EXEMPT: dict[str, int] = tomllib.loads(EXEMPTIONS.read_text(encoding="utf-8"))["lines"]


def test_nothing_is_longer_than_its_budget() -> None:
    assert not {what: lines for what, lines in LONG.items() if lines > EXEMPT.get(what, 0)}


def test_exemptions_are_still_needed_and_exact() -> None:
    assert {what: LONG.get(what) for what in EXEMPT} == EXEMPT


def test_exemptions_only_shrink() -> None:
    assert len(EXEMPT) == MOST_EXEMPTIONS
