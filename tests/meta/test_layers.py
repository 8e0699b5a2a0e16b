"""Imports go one way; what is pure stays pure; time, dice and ids come from the World."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.source import PACKAGE, dotted, functions, imports, module_name, python_files, relative, tree

FILES = python_files("src/moongate")
SIM = PACKAGE / "sim"
JUDGED = [path for path in FILES if not path.is_relative_to(SIM)]

# Rooms from the inside out; a module may import from its own room and from rooms of a lower number.
# Rooms of one number do not know each other. Longest prefix wins.
ROOMS = {
    "moongate": ("package", 0),
    "moongate.core": ("core", 0),
    "moongate.world": ("world", 1),
    "moongate.store": ("store", 2),
    "moongate.upstream": ("upstream", 2),
    "moongate.replay": ("replay", 2),
    "moongate.ops": ("ops", 4),
    "moongate.ops.health": ("health", 2),
    "moongate.ops.metrics": ("metrics", 2),
    "moongate.flow": ("flow", 3),
    "moongate.edge": ("edge", 4),
    "moongate.app": ("app", 5),
    "moongate.processes": ("app", 5),
    "moongate.cli": ("cli", 6),
    "moongate.__main__": ("cli", 6),
}
OUTER = ("app", 5)  # a new module beside app.py
NO_EFFECTS = {"asyncio", "concurrent", "logging", "multiprocessing", "os", "select", "selectors", "signal"}
NO_EFFECTS |= {"socket", "sqlite3", "ssl", "subprocess", "threading", "uvloop"}
DICE_AND_CLOCKS = {"random", "secrets", "time", "uuid"}
READINGS = {"datetime.now", "datetime.utcnow", "datetime.today", "date.today", "os.urandom", "asyncio.sleep"}


def room(module: str) -> tuple[str, int]:
    """The room of a dotted name below moongate."""
    parts = module.split(".")
    for length in range(len(parts), 1, -1):
        found = ROOMS.get(".".join(parts[:length]))
        if found:
            return found
    return ROOMS["moongate"] if len(parts) == 1 or not is_module(module) else OUTER


def is_module(module: str) -> bool:
    """Whether this dotted name is a file or a folder of the package, and not a name inside one."""
    path = PACKAGE.parent.joinpath(*module.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def show(path: Path, line: int, what: str) -> str:
    return f"{relative(path)}:{line}: {what}"


def wrong_way(path: Path) -> Iterator[str]:
    name, level = room(module_name(path))
    for line, target in imports(path):
        if not target.startswith("moongate."):
            continue
        if target.startswith("moongate.sim"):
            if name not in {"cli", "app"}:
                yield show(path, line, "the simulator is for the command line only")
            continue
        other, other_level = room(target)
        if other != name and other_level >= level and other != "package":
            yield show(path, line, f"{name} must not import {target} ({other})")


@pytest.mark.parametrize("path", JUDGED, ids=relative)
def test_imports_go_one_way(path: Path) -> None:
    assert not list(wrong_way(path))


def test_the_simulator_shares_nothing_with_what_it_judges() -> None:
    shared = [
        show(path, line, target)
        for path in FILES
        if path.is_relative_to(SIM)
        for line, target in imports(path)
        if target.startswith("moongate") and not target.startswith("moongate.sim")
    ]
    assert not shared


def takes_no_time(call: ast.Call) -> bool:
    """Whether this is `asyncio.sleep(0)`, which only lets others run."""
    first = call.args[0] if call.args else None
    return dotted(call.func) == "asyncio.sleep" and isinstance(first, ast.Constant) and first.value == 0


def clocks_and_dice(path: Path) -> Iterator[str]:
    for line, target in imports(path):
        if target.split(".")[0] in DICE_AND_CLOCKS:
            yield show(path, line, f"imports {target}; ask the World")
    nodes = list(ast.walk(tree(path)))
    yielding = {node.func for node in nodes if isinstance(node, ast.Call) and takes_no_time(node)}
    for node in nodes:
        if not isinstance(node, ast.Attribute) or node in yielding:
            continue
        name = dotted(node)
        if ".".join(name.split(".")[-2:]) in READINGS or (name.endswith(".time") and "loop" in name):
            yield show(path, node.lineno, f"{name}; ask the World")


@pytest.mark.parametrize("path", [p for p in JUDGED if p != PACKAGE / "world.py"], ids=relative)
def test_clocks_dice_and_ids_come_from_the_world(path: Path) -> None:
    assert not list(clocks_and_dice(path))


def effects(path: Path) -> Iterator[str]:
    for line, target in imports(path):
        if target.split(".")[0] in NO_EFFECTS:
            yield show(path, line, f"imports {target}")
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.AsyncFunctionDef | ast.AsyncWith | ast.AsyncFor | ast.Await):
            yield show(path, node.lineno, "is asynchronous")
        if isinstance(node, ast.Call) and dotted(node.func) in {"open", "input", "print"}:
            yield show(path, node.lineno, f"calls {dotted(node.func)}")


@pytest.mark.parametrize("path", python_files("src/moongate/core"), ids=relative)
def test_the_core_only_decides(path: Path) -> None:
    assert not list(effects(path))


def own_yields(node: ast.AST) -> Iterator[ast.AST]:
    """The yields of this very function, not of functions inside it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Yield | ast.YieldFrom):
            yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from own_yields(child)


@pytest.mark.parametrize("path", python_files("src/moongate/flow", "src/moongate/edge"), ids=relative)
def test_no_stream_is_returned(path: Path) -> None:
    generators = [
        show(path, function.node.lineno, function.name)
        for function in functions(path)
        if isinstance(function.node, ast.AsyncFunctionDef)
        and any(own_yields(function.node))
        and not any(dotted(d).endswith("asynccontextmanager") for d in function.node.decorator_list)
    ]
    assert not generators


def test_the_way_through_the_house_fits_on_one_page() -> None:
    path = PACKAGE / "flow" / "gateway.py"
    if path.exists():
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 120
