"""Every setting as data: for the reference page, the JSON Schema, and for naming the nearest known one."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from moongate.core.addresses import Address
from moongate.core.kinds import Kind, Note
from moongate.core.mistakes import Path
from moongate.core.section import NAME, Section
from moongate.core.settings import RouteTarget, Settings

Shape = Literal["one", "list", "names"]
"""A setting is one thing, a list of them, or a mapping from names to them."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    `kind` says how the value, or an item of the list, is written; a section has settings `within` instead.
    `default` is as a file would write it: empty where it depends on others (the note says on which), None
    where it is null or where the section has its own. `bare`: a name alone may stand for the section. `about`
    says what a section is for; so does its `note`, unless there may be several of them.
    """

    name: str
    note: str
    shape: Shape
    kind: Kind | None
    within: tuple["Setting", ...]
    required: bool
    default: object
    bare: bool = False
    about: str = ""


@functools.cache
def all_settings() -> tuple[Setting, ...]:
    """The settings at the top of the tree, in the order of the reference, with all that is in them."""
    return _settings_of(Settings)


def _settings_of(section: type[Section]) -> tuple[Setting, ...]:
    hints = get_type_hints(section, include_extras=True)
    return tuple(_setting(each, hints[each.name]) for each in dataclasses.fields(section))


def _setting(each: "dataclasses.Field[Any]", hint: object) -> Setting:
    kind, note = _marks(hint)
    plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    shape = _shape(plain)
    if shape != "one":
        plain = get_args(plain)[0 if shape == "list" else 1]
        kind, _ = _marks(plain)
    within: tuple[Setting, ...] = ()
    about = ""
    if isinstance(plain, type) and issubclass(plain, Section):
        within = _settings_of(plain)
        about = (plain.__doc__ or "").partition("\n")[0]
    text = note.text if note else about
    required = each.default is MISSING and each.default_factory is MISSING
    return Setting(
        each.name, text, shape, kind, within, required, _default(each), bare=plain is RouteTarget, about=about
    )


def _shape(hint: object) -> Shape:
    origin = get_origin(hint)
    if origin is tuple:
        return "list"
    return "names" if origin is Mapping else "one"


def _marks(hint: object) -> tuple[Kind | None, Note | None]:
    """The kind and the note beside a type, each None where there is none."""
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    kind = next((mark for mark in marks if isinstance(mark, Kind)), None)
    return kind, next((mark for mark in marks if isinstance(mark, Note)), None)


def _default(each: "dataclasses.Field[Any]") -> object:
    value = None if each.default is MISSING else each.default
    if isinstance(value, Address):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def settings_at(path: Path) -> tuple[Setting, ...]:
    """The settings that may stand directly below a path; none if it is a single value, or not known."""
    level = all_settings()
    entry: tuple[Setting, ...] | None = None
    for step in path:
        if entry is not None:
            level, entry = entry, None
            continue
        found = next((each for each in level if each.name == step), None)
        level = found.within if found and found.shape == "one" else ()
        entry = found.within if found and found.shape != "one" else None
    return level


def every_setting() -> Iterator[tuple[str, Setting]]:
    """All settings by path (`targets.*.url`, `routes.*.targets[].weight`), a section before its own."""
    return _below("", all_settings())


def _below(path: str, level: tuple[Setting, ...]) -> Iterator[tuple[str, Setting]]:
    for setting in level:
        own = f"{path}{setting.name}"
        yield own, setting
        inside = {"one": f"{own}.", "list": f"{own}[].", "names": f"{own}.*."}[setting.shape]
        yield from _below(inside, setting.within)


def json_schema() -> dict[str, object]:
    """The JSON Schema (2020-12) of a settings file, for editors. What values must agree on it leaves out."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "moongate settings"}
    return head | _object(all_settings())


def _object(level: tuple[Setting, ...]) -> dict[str, object]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [each.name for each in level if each.required],
        "properties": {each.name: _property(each) for each in level},
    }


def _property(setting: Setting) -> dict[str, object]:
    one = setting.kind.schema() if setting.kind else _object(setting.within)
    if setting.bare:
        one = {"anyOf": [NAME.schema(), one]}
    if setting.shape == "list":
        one = {"type": "array", "items": one}
    elif setting.shape == "names":
        one = {"type": "object", "propertyNames": NAME.schema(), "additionalProperties": one}
    elif setting.kind and setting.default is None and not setting.required:
        one = {"anyOf": [one, {"type": "null"}]}
    default = {} if setting.default in (None, "") else {"default": setting.default}
    return {"description": setting.note, **one, **default}
