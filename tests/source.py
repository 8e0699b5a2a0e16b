"""The project's own files, as the tests about the project read them."""

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "moongate"


class Function(NamedTuple):
    """One function: its dotted name inside the file and its node."""

    name: str
    node: ast.FunctionDef | ast.AsyncFunctionDef

    @property
    def lines(self) -> int:
        """From `def` to the last line; decorators are not counted."""
        return (self.node.end_lineno or self.node.lineno) - self.node.lineno + 1


@cache
def tracked() -> tuple[Path, ...]:
    """Every file that is, or by the ignore list would be, part of the project."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    names = listed.stdout.decode().split("\0") if listed.returncode == 0 else []
    if not any(names):  # an unpacked archive: no git there
        made = {".git", ".venv", ".tools", ".moongate", "__pycache__"}
        return tuple(p for p in ROOT.rglob("*") if p.is_file() and made.isdisjoint(p.relative_to(ROOT).parts))
    return tuple(path for name in names if name and (path := ROOT / name).is_file())


def python_files(*folders: str) -> list[Path]:
    """Python files below these folders of the project, sorted."""
    inside = tuple(ROOT / folder for folder in folders)
    return sorted(p for p in tracked() if p.suffix == ".py" and any(p.is_relative_to(f) for f in inside))


@cache
def tree(path: Path) -> ast.Module:
    """The file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def relative(path: Path) -> str:
    """The path from the root of the project, with forward slashes."""
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    """`moongate.core.call` for src/moongate/core/call.py; a package for its `__init__.py`."""
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def functions(path: Path) -> Iterator[Function]:
    """Every function of the file, nested ones and methods too."""

    def visit(node: ast.AST, prefix: str) -> Iterator[Function]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield Function(prefix + child.name, child)
                yield from visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.ClassDef):
                yield from visit(child, f"{prefix}{child.name}.")
            else:
                yield from visit(child, prefix)

    yield from visit(tree(path), "")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything that the file imports, wherever in it.

    `from a import b` gives `a.b`: whether b is a module or a name in one is for the reader to tell.
    """
    package = module_name(path) if path.is_relative_to(ROOT / "src") else ""
    if path.name != "__init__.py":
        package = package.rpartition(".")[0]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def dotted(node: ast.AST) -> str:
    """`a.b.c` for such an expression, else an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""
