"""One word per idea (docs/glossary.md): names that say nothing, or something else here, are not used."""

import ast
import re
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.source import PACKAGE, dotted, python_files, relative, tree

FILES = python_files("src/moongate")
BANNED = re.compile(
    r"""^_*(?:
        process_.* | do_.* | handle_data | .*_v2                         # verbs and suffixes that say nothing
      | (?:.*_)?(?:utils?|helpers?|managers?) | \w+(?:Utils?|Helpers?|Managers?)
      | request_data | kwargs | user_api_key_dict                        # call
      | deployment | model_group | strategy                             # target, route, plan
      | failover | re_?route                                            # fallback, resume, hedge
      | cooldown                                                        # ejected
      | (?:.*_)?(?:ttft_ms|itl)                                         # time_to_first_token, in seconds
      | pre_consume | pre_call_hook                                     # reserve, settle
    )$""",
    re.VERBOSE,
)
# statuses that are hardly ever anything else; round ones often are, so those count only beside the word
ROUND = {400, 500}
TELLING = {int(status) for status in HTTPStatus if status > 300} - ROUND | {499, 529}
# who may write statuses as numbers: the tables, the HTTP server, the simulated provider, the providers' rules
WITH_STATUSES = ("core/faults.py", "core/wire.py", "edge/", "sim/", "upstream/dialects")


def named(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of everything that the file gives a name to."""
    yield 1, path.stem
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_names_say_what_they_mean(path: Path) -> None:
    assert not [f"{relative(path)}:{line}: {name}" for line, name in named(path) if BANNED.match(name)]


@pytest.mark.parametrize(
    "name", ["process_call", "utils", "PoolManager", "_do_it", "kwargs", "read_v2", "key_helper"]
)
def test_empty_names_are_seen(name: str) -> None:
    assert BANNED.match(name)


@pytest.mark.parametrize(
    "name", ["processes", "done", "contextmanager", "plan", "settle", "target", "handle"]
)
def test_good_names_pass(name: str) -> None:
    assert not BANNED.match(name)


def is_int(node: ast.AST, among: set[int]) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value in among


def beside_the_word(node: ast.AST) -> list[ast.expr]:
    """What is compared with, or handed in as, something called a status."""
    if isinstance(node, ast.keyword):
        return [node.value] if "status" in (node.arg or "") else []
    sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
    return sides if any("status" in dotted(side) for side in sides) else []


def statuses(path: Path) -> Iterator[str]:
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(tree(path)):
        round_ones = any(is_int(side, ROUND) for side in beside_the_word(node))
        if round_ones or (is_int(node, TELLING) and (ast.get_source_segment(source, node) or "").isdecimal()):
            yield f"{relative(path)}:{getattr(node, 'lineno', 0)}: a status as a number"


WITHOUT_STATUSES = [p for p in FILES if not p.relative_to(PACKAGE).as_posix().startswith(WITH_STATUSES)]


@pytest.mark.parametrize("path", WITHOUT_STATUSES, ids=relative)
def test_statuses_stand_in_one_table(path: Path) -> None:
    assert not list(statuses(path))
