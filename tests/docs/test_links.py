"""Links lead somewhere, files that pages name are there, and ARCHITECTURE.md's hops exist in their order."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, REFERENCE, anchors, links, quoted
from tests.source import PACKAGE, ROOT, functions, relative, tree

MOST_LINES = 120
MOST_HOPS = 8
TO_BE_WRITTEN = {"tests/wire/test_maintenance.py"}  # by whoever follows the worked example
HOP = re.compile(r"^(\d+)\. `([\w/]+\.py):([\w.]+)`", re.MULTILINE)
NAMED = re.compile(r"`([\w/]+\.py):([\w.]+)`")
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")


def broken(page: Path) -> list[str]:
    """Every relative link of the page that leads nowhere."""
    wrong = []
    for link in links(page):
        if re.match(r"\w+:", link):
            continue
        place, _, anchor = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_every_page_can_be_reached_from_the_first() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        waiting += [
            (page.parent / link.partition("#")[0]).resolve() for link in links(page) if "://" not in link
        ]
    assert set(PAGES) - seen == set()


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_files_that_are_named_exist(page: Path) -> None:
    named = {name for name in quoted(page) if re.fullmatch(r"[\w./-]+/[\w.-]+\.(?:py|md|toml|json)", name)}
    places = (ROOT, PACKAGE, PACKAGE.parent, ROOT / "docs" / "decisions", page.parent)
    assert {
        name for name in named - TO_BE_WRITTEN if not any((place / name).exists() for place in places)
    } == set()


@pytest.mark.parametrize("page", [page for page in PAGES if REFERENCE not in page.parents], ids=relative)
def test_a_page_to_read_is_short(page: Path) -> None:
    assert len(page.read_text("utf-8").splitlines()) <= MOST_LINES


def names(path: Path) -> set[str]:
    """Functions and classes of a file, by their dotted names."""
    return {function.name for function in functions(path)} | {
        node.name for node in tree(path).body if hasattr(node, "name")
    }


def test_the_hops_are_numbered_and_few() -> None:
    numbers = [int(number) for number, _, _ in HOP.findall(ARCHITECTURE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert 0 < len(numbers) <= MOST_HOPS


@pytest.mark.parametrize(("file", "name"), NAMED.findall(ARCHITECTURE))
def test_what_the_map_names_exists(file: str, name: str) -> None:
    assert name in names(PACKAGE / file)
