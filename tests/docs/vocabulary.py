"""What the documentation owes its reader: the names that the code itself knows, read from the code."""

import ast
import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from moongate.core.faults import FACTS
from moongate.ops.metrics import FAMILIES
from tests.source import PACKAGE, python_files, tree

HEADER = re.compile(
    r"(?:x-[a-z0-9-]*[a-z0-9]|cache-status|proxy-status|idempotent-replayed|retry-after)", re.IGNORECASE
)

NO_HEADERS = {"x-gzip"}  # a content coding


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
    """Every family that is ever shown."""
    return {family.name for family in FAMILIES}


def headers() -> set[str]:
    """Every header of ours, in lower case; they stand in literals alone or as `Name: value`."""
    names = (text.partition(":")[0].strip().lower() for text in constants())
    return {name for name in names if HEADER.fullmatch(name)} - NO_HEADERS


def settings() -> set[str]:
    """Paths of all settings as the catalogue writes them: `targets.*.url`, `routes.*.targets[].weight`."""
    if importlib.util.find_spec("moongate.core.catalogue") is None:
        return set()
    every = importlib.import_module("moongate.core.catalogue").every_setting()
    return {path for path, setting in every if not setting.within}


def verbs() -> set[str]:
    """Every command of the command line, `keys add` and the like included, but for what only moongate itself runs."""
    if importlib.util.find_spec("moongate.commands") is None:
        return set()
    import typer  # noqa: PLC0415 - only wanted where there is a command line

    servers = set(importlib.import_module("moongate.cli")._SERVERS) - {"worker"}
    app = importlib.import_module("moongate.commands").app
    return servers | set(commands(typer.main.get_command(app), ""))


def flags() -> set[str]:
    """Every flag of `serve`."""
    return {flag for flag, _, _ in importlib.import_module("moongate.cli").FLAGS}


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
    Part("cli.md", lambda: verbs() | flags()),
]
