"""Price files: the same rows as `prices` in the settings, in a file of their own that is read with them."""

from dataclasses import replace

from moongate.core.agreement import price_disagreements
from moongate.core.completion import without_nulls
from moongate.core.mistakes import Path, Place
from moongate.core.places import ReadFile, Written, why_unread, written
from moongate.core.section import Price
from moongate.core.settings import Settings, Target
from moongate.core.verdict import checked


def with_price_files(page: Written, settings: Settings, read_file: ReadFile) -> Settings:
    """The settings with the rows of every price file before those written in place; mistakes go onto the page."""
    targets = {name: _filled(page, name, target, read_file) for name, target in settings.targets.items()}
    prices = settings.prices
    if settings.prices_file is not None:
        prices = (*_rows(page, ("prices_file",), settings.prices_file, "", read_file), *prices)
    return replace(settings, targets=targets, prices=prices)


def _filled(page: Written, name: str, target: Target, read_file: ReadFile) -> Target:
    if target.prices_file is None:
        return target
    path = ("targets", name, "prices_file")
    rows = _rows(page, path, target.prices_file, target.currency, read_file)
    return replace(target, prices=(*rows, *target.prices))


def _rows(page: Written, path: Path, name: str, currency: str, read_file: ReadFile) -> tuple[Price, ...]:
    """The rows of one file. `currency`: that of the target they are for; empty: each row must name its own."""
    try:
        text = read_file(name)
    except (OSError, UnicodeError) as error:
        page.add(path, f'"{name}" cannot be read ({why_unread(error)})', "mend the path or the file's rights")
        return ()
    inside = written(text, name)
    for key in [key for key in inside.values if key != "prices"]:
        inside.add((key,), "has no meaning in a price file", "write `prices` alone in it", at_key=True)
        inside.drop((key,))
    inside.values = without_nulls(inside.values)
    rows = checked(inside).prices
    if not rows and not inside.mistakes:
        inside.places[()] = Place(name, 1, 1)
        inside.add((), "there are no prices in it", "write `prices:` with one row or more")
    for each in price_disagreements(("prices",), rows, currency):
        inside.add(each.path, each.problem, each.mend)
    page.mistakes += inside.mistakes
    return rows
