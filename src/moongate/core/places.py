"""A settings file as plain values that remember where they were written.

YAML 1.1 has surprises that a settings file can do without: here only `true` and `false` are booleans
(`off`, `no` and `on` are words), `12:30` and `2026-01-01` are texts, and a key that stands twice is a
mistake.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from moongate.core.mistakes import Mistake, Path, Place, dotted

ReadFile = Callable[[str], str]
"""The text of a file; raises `OSError`, or `UnicodeError` where it is no UTF-8."""

MOST_VALUES: Final = 100_000
"""More values than any settings file holds; an alias of aliases (a "billion laughs") ends here."""

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG: Final = "tag:yaml.org,2002:"
_TAGS: Final = frozenset({"null", "bool", "int", "float", "str", "timestamp", "value", "merge"})
_WHOLE: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17}(?:_[0-9]{1,18}){0,9})|0x[0-9a-fA-F]{1,16}")
_DECIMAL: Final = re.compile(r"[-+]?[0-9]{1,18}\.[0-9]{1,18}(?:[eE][-+]?[0-9]{1,2})?")


@dataclass(slots=True)
class Written:
    """What a file says: values, where each value and key stands, and what was found wrong so far.

    `dropped` are the paths taken out again, `kept` the positions in the file of what is left of a list.
    """

    origin: str
    values: dict[str, object] = field(default_factory=dict)
    places: dict[Path, Place] = field(default_factory=dict)
    keys: dict[Path, Place] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)
    dropped: list[Path] = field(default_factory=list)
    kept: dict[Path, list[int]] = field(default_factory=dict)

    def place(self, path: Path) -> Place:
        """Where the value of a path stands, or else the nearest thing around it."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, Place(self.origin))

    def drop(self, path: Path) -> None:
        """Take a value out, so that what comes next does not stumble over it again."""
        self.dropped.append(self.as_written(path))
        holder: Any = self.values
        for step in path[:-1]:
            holder = holder[step]
        if isinstance(holder, list):
            del self.kept.setdefault(path[:-1], list(range(len(holder))))[int(path[-1])]
        del holder[path[-1]]

    def as_written(self, path: Path) -> Path:
        """A path into the values as they are now, with list positions as they were in the file."""
        steps = list(path)
        for at, step in enumerate(path):
            if isinstance(step, int) and path[:at] in self.kept:
                steps[at] = self.kept[path[:at]][step]
        return tuple(steps)

    def is_dropped(self, path: Path) -> bool:
        """Whether something at, around or within a path was taken out: what is there was not written so."""
        return any(path[: len(gone)] == gone[: len(path)] for gone in self.dropped)

    def add(self, path: Path, problem: str, mend: str, *, at_key: bool = False) -> None:
        """Note a mistake at a path into the values as they are now: at its value, or at its key."""
        path = self.as_written(path)
        place = self.keys.get(path) if at_key else None
        self.mistakes.append(Mistake(place or self.place(path), dotted(path), problem, mend))


def written(text: str, origin: str) -> Written:
    """Read YAML text. Never raises: a text that is no YAML, or no mapping, is a mistake and holds nothing."""
    page = Written(origin)
    try:
        node = yaml.compose(text, Loader=_LOADER)
        if isinstance(node, yaml.MappingNode):
            page.values = _Reader(page).mapping(node, ())
        elif node is not None and not (isinstance(node, yaml.ScalarNode) and node.tag == _TAG + "null"):
            page.places[()] = _place(origin, node)
            page.add((), "the file is not a mapping", "write settings as `name: value`, one a line")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(origin, mark.line + 1, mark.column + 1) if mark else Place(origin)
        page.mistakes.append(Mistake(place, "", f"not YAML: {error.problem}", "mend the notation"))
    except yaml.reader.ReaderError as error:
        page.mistakes.append(Mistake(Place(origin), "", f"not YAML: {error.reason}", "write UTF-8 text"))
    except RecursionError:
        page.mistakes.append(Mistake(Place(origin), "", "nested without end", "write aliased values out"))
    return page


def why_unread(error: OSError | UnicodeError) -> str:
    """Why a `ReadFile` could not read, in a few words."""
    return (error.strerror or "no reason given") if isinstance(error, OSError) else "it is not UTF-8"


def scalar(text: str) -> object:
    """What a bare word in a file, or a flag's value, means: null, true, false, a number, else itself."""
    word = text.lower()
    if word in ("", "~", "null"):
        return None
    if word in ("true", "false"):
        return word == "true"
    if _WHOLE.fullmatch(text):
        return int(text, 0)
    return float(text) if _DECIMAL.fullmatch(text) else text


def matches(values: object, pattern: tuple[str, ...], path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Every value whose path fits; `*` stands for any one name or list position."""
    if not pattern:
        yield path, values
    elif isinstance(values, Mapping):
        for name in list(values) if pattern[0] == "*" else [pattern[0]]:
            if name in values:
                yield from matches(values[name], pattern[1:], (*path, name))
    elif isinstance(values, list) and pattern[0] == "*":
        for at, value in enumerate(values):
            yield from matches(value, pattern[1:], (*path, at))


def _place(origin: str, node: yaml.Node) -> Place:
    return Place(origin, node.start_mark.line + 1, node.start_mark.column + 1)


class _Reader:
    """Walks the nodes of one file and fills its page."""

    def __init__(self, page: Written) -> None:
        self._page = page
        self._left = MOST_VALUES

    def mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, object]:
        """The mapping, merged ones (`<<`) first, so that what is written here wins."""
        values: dict[str, object] = {}
        own: list[tuple[str, yaml.Node, yaml.Node]] = []
        for key, value in node.value:
            if key.tag == _TAG + "merge":
                for base in value.value if isinstance(value, yaml.SequenceNode) else (value,):
                    values = self._merged(base, path) | values
            elif isinstance(key, yaml.ScalarNode):
                own.append((key.value, key, value))
            else:
                place = _place(self._page.origin, key)
                mistake = Mistake(
                    place, dotted(path), "a key is not a word", "write settings as `name: value`"
                )
                self._page.mistakes.append(mistake)
        self._page.places[path] = _place(self._page.origin, node)
        seen: dict[str, int] = {}
        for name, key, value in own:
            place = _place(self._page.origin, key)
            if name in seen:
                problem = f"stands twice, first in line {seen[name]}"
                self._page.mistakes.append(Mistake(place, dotted((*path, name)), problem, "keep one of them"))
                continue
            seen[name] = place.line
            self._page.keys[*path, name] = place
            values[name] = self._value(value, (*path, name))
        return values

    def _merged(self, base: yaml.Node, path: Path) -> dict[str, object]:
        value = self._value(base, path)
        if isinstance(value, dict):
            return value
        self._page.add(path, "`<<` takes mappings only", "write `<<: *name` with the anchor of a mapping")
        return {}

    def _value(self, node: yaml.Node, path: Path) -> object:
        self._left -= 1
        if self._left < 0:
            raise RecursionError
        self._page.places[path] = _place(self._page.origin, node)
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*path, at)) for at, item in enumerate(node.value)]
        text = str(node.value)
        if node.tag.removeprefix(_TAG) not in _TAGS:
            self._page.add(path, f"the tag {node.tag} means nothing here", "write the plain value")
            return None
        return scalar(text) if not getattr(node, "style", None) and node.tag != _TAG + "str" else text
