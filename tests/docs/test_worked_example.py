"""CONTRIBUTING's worked example, followed to the letter in a copy of the project, ends green."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import blocks
from tests.source import ROOT, relative, tracked

GUIDE = ROOT / "CONTRIBUTING.md"
PLACES = [
    ("src/moongate/core/faults.py", '    """Why a call or an attempt failed."""\n'),
    ("src/moongate/core/faults.py", "FACTS: Final[dict[Fault, Facts]] = {\n"),
    ("src/moongate/core/faults.py", "_STEPS: Final[dict[Fault, dict[Reach, tuple[Next, Settle]]]] = {\n"),
    ("src/moongate/upstream/dialects.py", "_MOONSHOT_ERRORS: Final = (\n"),
    ("tests/upstream/test_dialects.py", "KIMI = [\n"),
    ("src/moongate/sim/fault_answers.py", "_PLAIN: Final = {\n"),
    ("tests/sim/test_faults.py", "STATUSES: dict[str, tuple[int, str, str]] = {\n"),
]
"""Where each snippet goes, in the order of the page: behind that line."""

STEPS = [
    "tests/core/test_faults.py",
    "tests/upstream/test_dialects.py",
    "tests/docs/test_faults_page.py",
    "tests/wire/test_maintenance.py",
    "tests/sim/test_faults.py::test_a_status_instead_of_an_answer[maintenance]",
]


def insert(path: Path, behind: str, snippet: str) -> None:
    text = path.read_text("utf-8")
    assert text.count(behind) == 1, behind
    path.write_text(text.replace(behind, behind + snippet), "utf-8")


def run(copy: Path, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=copy,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"PYTHONPATH": f"{copy / 'src'}{os.pathsep}{copy}"},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_worked_example_is_green(tmp_path: Path) -> None:
    for path in tracked():
        if relative(path).split("/")[0] in {"src", "tests", "tools", "docs", "pyproject.toml"}:
            place = tmp_path / relative(path)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
    *snippets, wire = (block.text for block in blocks(GUIDE, "python"))
    assert len(snippets) == len(PLACES)
    for (file, behind), snippet in zip(PLACES, snippets, strict=True):
        indented = re.sub(r"^", "    ", snippet, flags=re.MULTILINE).rstrip(" ")
        insert(tmp_path / file, behind, indented)
    [code] = re.findall(r"`(\"\w+\": \(U, \d+\),)`", GUIDE.read_text("utf-8"))
    insert(tmp_path / "tests/core/test_faults.py", "CODES = {\n", f"    {code}\n")
    (tmp_path / "tests/wire/test_maintenance.py").write_text(wire, "utf-8")
    run(tmp_path, "-m", "tools.faults_page")
    run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", *STEPS)
