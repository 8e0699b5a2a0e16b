"""What the documentation owes its reader: the names that the code itself knows, read from the code."""

import ast
import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from moongate.core.faults import FACTS
from tests.source import PACKAGE, python_files, tree

METRIC = re.compile(r"moongate_[a-z0-9]+(?:_[a-z0-9]+)+")
HEADER = re.compile(
    r"(?:x-[a-z0-9-]*[a-z0-9]|cache-status|proxy-status|idempotent-replayed|retry-after)", re.IGNORECASE
)


class Part(NamedTuple):
    """One page under docs/reference and the names it must hold in backticks; none while the code is not there."""

    page: str
    names: Callable[[], set[str]]


def constants() -> Iterator[str]:
    """Every string and bytes literal of the product, the simulator left out: it has names of its own."""
    for path in python_files("src/moongate"):
        if path.is_relative_to(PACKAGE / "sim"):
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.Constant) and isinstance(node.value, bytes):
                yield node.value.decode("latin-1")


def faults() -> set[str]:
    """Every code that a client may read."""
    return {facts.code for facts in FACTS.values()}


def metrics() -> set[str]:
    """Every `moongate_...` that stands alone in a literal: that is how metrics are named, and nothing else."""
    return {text for text in constants() if METRIC.fullmatch(text)}


def headers() -> set[str]:
    """Every header of ours, in lower case; they stand in literals alone or as `Name: value`."""
    return {name.lower() for text in constants() if HEADER.fullmatch(name := text.partition(":")[0].strip())}


def settings() -> set[str]:
    """Dotted paths of all settings; `*` stands for the name that an operator gives."""
    if importlib.util.find_spec("moongate.core.settings") is None:
        return set()
    from pydantic import TypeAdapter  # noqa: PLC0415 - only wanted where there are settings

    module = importlib.import_module("moongate.core.settings")
    schema = TypeAdapter(module.Settings).json_schema()
    return set(paths(schema, schema.get("$defs", {}), ""))


def paths(schema: Mapping[str, Any], definitions: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """The leaves of a JSON Schema as dotted paths."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    inner = [
        *((f"{prefix}.{name}".lstrip("."), below) for name, below in schema.get("properties", {}).items()),
        *(
            (f"{prefix}.*", schema[key])
            for key in ("additionalProperties",)
            if isinstance(schema.get(key), dict)
        ),
        *((prefix, below) for key in ("anyOf", "oneOf", "allOf") for below in schema.get(key, [])),
        *((prefix, schema[key]) for key in ("items",) if isinstance(schema.get(key), dict)),
    ]
    found = {path for place, below in inner for path in paths(below, definitions, place)}
    yield from found or {prefix}


def verbs() -> set[str]:
    """Every command of the command line, `keys add` and the like included."""
    if importlib.util.find_spec("moongate.cli") is None:
        return set()
    import typer  # noqa: PLC0415 - only wanted where there is a command line

    module = importlib.import_module("moongate.cli")
    apps = [value for value in vars(module).values() if isinstance(value, typer.Typer)]
    return {verb for app in apps for verb in commands(typer.main.get_command(app), "")}


def commands(command: Any, prefix: str) -> Iterator[str]:
    """The leaves below a click command."""
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{prefix} {name}".strip())
    if prefix and not getattr(command, "commands", {}):
        yield prefix


PARTS = [
    Part("faults.md", faults),
    Part("metrics.md", metrics),
    Part("headers.md", headers),
    Part("settings.md", settings),
    Part("cli.md", verbs),
]
