"""Values checked against the settings tree: pydantic finds what is wrong, this says it in plain words."""

from typing import TYPE_CHECKING

from moongate.core.catalogue import Setting, settings_at
from moongate.core.kinds import WrongError, shown
from moongate.core.mistakes import Path, known_instead
from moongate.core.places import Written
from moongate.core.settings import Settings

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


def checked(page: Written) -> Settings:
    """The settings that a page's values make, once all that is wrong was told on the page and dropped."""
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - a worker reads no file and must not pay for it

    adapter = TypeAdapter(Settings)
    telling = True
    while True:
        try:
            return adapter.validate_python(page.values)
        except ValidationError as error:
            found = [(_path(each), each) for each in error.errors(include_url=False)]
        for path, each in found if telling else ():
            _tell(page, path, each)
        # what is missing takes its section with it; later list items go first, so that positions hold
        for path in sorted(
            {p[:-1] if each["type"] == "missing" else p for p, each in found}, key=_order, reverse=True
        ):
            page.drop(path)
        telling = False


def _path(error: "ErrorDetails") -> Path:
    """Where the error is; a wrong name of an entry is where the entry is."""
    return tuple(step for step in error["loc"] if step != "[key]")


def _order(path: Path) -> list[tuple[int, str]]:
    return [(step, "") if isinstance(step, int) else (0, step) for step in path]


def _around(path: Path) -> tuple[Setting, ...]:
    """The settings of the section that a path's last step was written in."""
    return settings_at(path[:-1])


def _tell(page: Written, path: Path, error: "ErrorDetails") -> None:
    kind = error["type"]
    wrong = error.get("ctx", {}).get("error")
    if isinstance(wrong, WrongError):
        page.add(path, wrong.problem, wrong.mend, at_key="[key]" in error["loc"])
    elif kind == "missing":
        setting = next(each for each in _around(path) if each.name == path[-1])
        page.add(path[:-1], f"needs `{path[-1]}`", f"write `{path[-1]}`: {setting.note}", at_key=True)
    elif kind == "unexpected_keyword_argument":
        names = [each.name for each in _around(path)]
        page.add(path, "unknown setting", known_instead(str(path[-1]), names), at_key=True)
    elif kind == "tuple_type":
        page.add(path, f"{shown(error['input'])} is not a list", "write a list: [one, another]")
    else:
        bare = any(each.bare for each in _around(path[:-1]) if each.name in path[-2:-1])
        mend = "write a name, or `{target: NAME}`" if bare else "write its settings below it as `name: value`"
        page.add(path, f"{shown(error['input'])} is not {'a name' if bare else 'a mapping'}", mend)
