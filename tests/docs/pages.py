"""The project's Markdown pages: their headings, links and fenced blocks."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.source import ROOT, tracked

PAGES = sorted(path for path in tracked() if path.suffix == ".md")
REFERENCE = ROOT / "docs" / "reference"
_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


class Block(NamedTuple):
    """One fenced block: its page, the word behind the fence, its text without the fence's indent."""

    page: Path
    kind: str
    text: str


def blocks(page: Path, *kinds: str) -> list[Block]:
    """The fenced blocks of these kinds, in order."""
    found = _FENCED.findall(page.read_text("utf-8"))
    return [
        Block(page, kind, re.sub(rf"^{indent}", "", text, flags=re.MULTILINE))
        for indent, kind, text in found
        if kind in kinds
    ]


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCED.sub("", page.read_text("utf-8"))


def links(page: Path) -> Iterator[str]:
    """Every link's target; what stands in code is none."""
    yield from _LINK.findall(re.sub(r"`[^`\n]*`", "", prose(page)))


def anchors(page: Path) -> set[str]:
    """What may follow `#`: each heading in lower case, spaces as hyphens, punctuation left out."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def quoted(page: Path) -> list[str]:
    """What stands in backticks in the prose."""
    return re.findall(r"`([^`\n]+)`", prose(page))
