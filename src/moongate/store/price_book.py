"""The operator's own prices as they were, kept in the state directory: records name rows, and settings change."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from moongate.core.pricing import PRICES, PriceRow, PriceTable, over, own_rows
from moongate.core.settings import Settings

NAME: Final = "prices.json"


class OwnRow(msgspec.Struct, frozen=True, gc=False):
    """A `PriceRow` that an operator wrote."""

    model: str
    currency: str
    since: str
    hit: int
    miss: int
    output: int
    write: int | None = None
    write_hour: int | None = None
    reasoning: int | None = None

    def row(self) -> PriceRow:
        """The row itself."""
        return PriceRow(
            self.model,
            self.currency,
            self.since,
            self.hit,
            self.miss,
            self.output,
            self.write,
            self.write_hour,
            self.reasoning,
            origin="own settings",
            own=True,
        )


class Charges(msgspec.Struct, frozen=True, gc=False):
    """In what a target's account is charged, and by which rows of its own."""

    currency: str
    rows: tuple[str, ...] = ()


class PriceBook(msgspec.Struct):
    """Every own row there ever was, by name; those that hold now at the top; and each target's."""

    rows: dict[str, OwnRow] = {}
    top: tuple[str, ...] = ()
    targets: dict[str, Charges] = {}

    def table(self) -> PriceTable:
        """The prices that hold now."""
        own = {name: self._of(target.rows) for name, target in self.targets.items()}
        return PriceTable(over(PRICES, self._of(self.top)), own)

    def currency(self, target: str) -> str:
        """In what the target is charged, empty for one that is not known."""
        found = self.targets.get(target)
        return found.currency if found else ""

    def row(self, name: str) -> PriceRow | None:
        """The row of that name, the program's or an own one, present or past."""
        if name in self.rows:
            return self.rows[name].row()
        return next((row for row in PRICES if row.id == name), None)

    def _of(self, names: Sequence[str]) -> list[PriceRow]:
        return [self.rows[name].row() for name in names if name in self.rows]


def load(state: Path) -> PriceBook:
    """The book of a state directory; an empty one where there is none that can be read."""
    try:
        return msgspec.json.decode((state / NAME).read_bytes(), type=PriceBook)
    except (OSError, ValueError):
        return PriceBook()


def save(state: Path, settings: Settings) -> PriceBook:
    """Write the prices of these settings into the book, beside those that were there; raises OSError."""
    book = load(state)
    top = _entered(book, own_rows(settings.prices))
    targets = {
        name: Charges(target.currency, _entered(book, own_rows(target.prices, target.currency)))
        for name, target in settings.targets.items()
    }
    made = PriceBook(book.rows, top, targets)
    fresh = state / f"{NAME}.new"
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "wb") as out:
        out.write(msgspec.json.format(msgspec.json.encode(made), indent=2))
    fresh.replace(state / NAME)
    return made


def _entered(book: PriceBook, rows: Sequence[PriceRow]) -> tuple[str, ...]:
    for row in rows:
        figures = (row.hit, row.miss, row.output, row.write, row.write_hour, row.reasoning)
        book.rows[row.id] = OwnRow(row.model, row.currency, row.since, *figures)
    return tuple(row.id for row in rows)
