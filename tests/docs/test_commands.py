"""Commands that the documents tell a reader to type exist."""

import re
from pathlib import Path

import pytest

from tests.docs.vocabulary import verbs
from tests.source import ROOT, relative, tracked

PAGES = [path for path in tracked() if path.suffix == ".md"]
BLOCK = re.compile(r"^```(?:sh|bash|shell|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
VERBS = {"run", "test", "check", "bench", "chaos", "soak", "docs", "fix", "lock", "clean", "help"}


def typed(path: Path) -> list[list[str]]:
    """The commands of a page's shell blocks as words, without prompts, assignments before them and comments."""
    text = "".join(BLOCK.findall(path.read_text("utf-8"))).replace("\\\n", " ")
    words = [line.strip().removeprefix("$ ").partition(" #")[0].split() for line in text.splitlines()]
    return [cut for line in words if (cut := list(without_assignments(line)))]


def without_assignments(words: list[str]) -> list[str]:
    first = next((n for n, word in enumerate(words) if not re.match(r"[A-Z_]+=", word)), len(words))
    return words[first:]


def test_make_alone_lists_every_verb() -> None:
    described = set(re.findall(r"^([a-z]+): .*## \w", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert described == VERBS


@pytest.mark.parametrize("path", PAGES, ids=relative)
def test_make_verbs_exist(path: Path) -> None:
    asked = {words[1] for words in typed(path) if words[0] == "make" and len(words) > 1}
    assert {verb for verb in asked if verb not in TARGETS and "=" not in verb} == set()


@pytest.mark.parametrize("path", PAGES, ids=relative)
def test_verbs_of_the_command_line_exist(path: Path) -> None:
    known = {verb.partition(" ")[0] for verb in verbs()}
    asked = {words[1] for words in typed(path) if words[0].endswith("moongate") and len(words) > 1}
    if known:
        assert {verb for verb in asked if not verb.startswith("-")} <= known
