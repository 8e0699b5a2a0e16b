"""Mistakes in settings: what they say, and how they are carried all at once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Path = tuple[str | int, ...]
"""Keys and list positions from the top of the settings to one of them."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was written: a file's line and column, from 1; or a flag (its name, line 0)."""

    origin: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.origin}:{self.line}:{self.column}" if self.line else self.origin


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong, where, and what to write instead. Never holds a secret."""

    place: Place
    path: str
    problem: str
    mend: str

    def __str__(self) -> str:
        path = f"{self.path}: " if self.path else ""
        return f"{self.place}: {path}{self.problem}; {self.mend}"


class SettingsError(Exception):
    """The settings cannot be used; `mistakes` are all that were found, in the file's order, at least one."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(
            sorted(mistakes, key=lambda mistake: (mistake.place.line, mistake.place.column))
        )
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


def dotted(path: Path) -> str:
    """A path for people: `routes.kimi-k2.5.targets[0]`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def known_instead(word: str, known: Sequence[str]) -> str:
    """The mend for a name that does not exist: the nearest one that does, else all of them."""
    from difflib import get_close_matches  # noqa: PLC0415 - needed only when something is wrong

    folded = {name.lower().replace("-", "_"): name for name in known}
    near = get_close_matches(word.lower().replace("-", "_"), list(folded), n=1)
    if near:
        return f'did you mean "{folded[near[0]]}"?'
    return f"known here: {', '.join(known)}" if known else "leave it out"
