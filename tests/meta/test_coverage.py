"""Each file of the core is covered, every line and every branch, by its own test file alone.

All of tests/core runs once, traced; contexts.py tells whose test file was at work. A file without a function that does
something (constants, records, protocols) needs no test file.
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import coverage
import pytest

from tests.meta.contexts import EVERYBODY
from tests.source import ROOT, functions, python_files, relative


def acts(path: Path) -> bool:
    """Whether any function of the file has more to it than a docstring."""
    bodies = [statement for function in functions(path) for statement in function.node.body]
    return any(not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)) for s in bodies)


CORE = [path for path in python_files("src/moongate/core") if acts(path)]
OURS = ROOT / "tests" / "core"


def traced_run(data: Path, tests: list[Path]) -> "subprocess.Popen[str]":
    """Start these test files under coverage."""
    measure = ["-m", "coverage", "run", "--branch", "--source=moongate.core", f"--data-file={data}"]
    pytest_part = ["-m", "pytest", "-q", "-p", "tests.meta.contexts", "-p", "no:cacheprovider"]
    return subprocess.Popen(
        [sys.executable, *measure, *pytest_part, *map(str, tests)],
        cwd=ROOT,
        env=os.environ | {"COVERAGE_CORE": "ctrace"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of one traced run of tests/core, which passes: two processes, each with every second file."""
    folder = tmp_path_factory.mktemp("coverage")
    tests = [path for path in python_files("tests/core") if path.stem.startswith("test_")]
    parts = [folder / "part-0", folder / "part-1"]
    runs = [traced_run(part, tests[first::2]) for first, part in enumerate(parts)]
    said = [run.communicate()[0] for run in runs]
    for run, text in zip(runs, said, strict=True):
        assert run.returncode == 0, text[-4000:]
    combined = coverage.Coverage(data_file=folder / "data", branch=True)
    combined.combine([str(part) for part in parts])
    combined.save()
    return folder / "data"


def gaps(path: Path, data: Path) -> str:
    """Lines and branches that no test of the file's own test file went through, as coverage reports them."""
    report = data.with_name(f"{path.stem}.json")
    measured = coverage.Coverage(data_file=data, branch=True)
    measured.load()
    contexts = [rf"^{EVERYBODY}$", rf"^test_{path.stem}\.py$"]
    measured.json_report(outfile=str(report), include=[str(path)], contexts=contexts)
    (found,) = json.loads(report.read_text("utf-8"))["files"].values()
    branches = [f"{start}->{end}" for start, end in found["missing_branches"]]
    return ", ".join([*map(str, found["missing_lines"]), *branches])


@pytest.mark.parametrize("path", CORE, ids=relative)
def test_each_core_file_is_covered_by_its_own_tests(path: Path, traced: Path) -> None:
    assert (OURS / f"test_{path.stem}.py").exists()
    assert gaps(path, traced) == ""


def test_there_are_no_orphans() -> None:
    """A test file of the core belongs to one file of the core."""
    names = {f"test_{path.stem}" for path in python_files("src/moongate/core")}
    assert {path.stem for path in python_files("tests/core") if path.stem.startswith("test_")} <= names
