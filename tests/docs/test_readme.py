"""The first page says what is true: the transcript, the promises, the packages, the commands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, blocks, quoted
from tests.source import ROOT, functions, relative

README, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"
BOTH = [README, CHINESE]
ONE_SCREEN = 50
PROMISE = re.compile(r"tests/[\w/]+\.py::\w+")


def run(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "moongate", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"COLUMNS": "200", "MOONSHOT_API_KEY": "sk-1"},
    )


def masked(line: str) -> str:
    """A line without what differs from run to run: times, counts, widths."""
    return " ".join(re.sub(r"\d+", "#", line).split())


@pytest.mark.parametrize("page", BOTH, ids=relative)
def test_it_fits_on_one_screen(page: Path) -> None:
    assert len(page.read_text("utf-8").splitlines()) <= ONE_SCREEN


def test_the_transcript_is_what_the_demo_prints() -> None:
    done = run("demo")
    assert done.returncode == 0, done.stdout + done.stderr
    printed = masked(done.stdout)
    [transcript] = blocks(README, "")
    first, *shown = transcript.text.splitlines()
    assert first == "$ moongate demo"
    assert [line for line in shown if masked(line) not in printed] == []


def test_both_languages_show_and_promise_the_same() -> None:
    english, chinese = (page.read_text("utf-8") for page in BOTH)
    assert blocks(README, "")[0].text == blocks(CHINESE, "")[0].text
    assert PROMISE.findall(english) == PROMISE.findall(chinese)
    commands = [re.findall(r"^make \w+", blocks(page, "sh")[0].text, re.MULTILINE) for page in BOTH]
    assert commands == [["make run", "make test"]] * 2


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_tests_that_are_named_exist(page: Path) -> None:
    for named in filter(PROMISE.fullmatch, quoted(page)):
        path, _, test = named.partition("::")
        assert test in {function.name for function in functions(ROOT / path)}, named


def test_four_promises_have_their_tests() -> None:
    assert len(PROMISE.findall(README.read_text("utf-8"))) == 4


@pytest.mark.parametrize("page", BOTH, ids=relative)
def test_the_runtime_packages_are_those_of_the_lock(page: Path) -> None:
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    locked = re.findall(r"^([a-z0-9.-]+)==", lock, re.MULTILINE)
    count, listed = re.findall(
        r"(?:packages: |依赖共 )(\d+)[^:\uff1a]*[:\uff1a](.*)", page.read_text("utf-8"), re.DOTALL
    )[0]
    named = re.split(r"[,、.。]\s*", re.split(r"\.\s+Licence|。许可证", listed)[0].strip())
    assert int(count) == len(locked)
    assert sorted(named) == sorted(locked)


def test_the_commands_tell_what_they_do() -> None:
    done = run("--help")
    assert done.returncode == 0
    for verb in ("serve", "demo", "sim", "check", "keys"):
        assert verb in done.stdout
    assert "--embedded" in run("serve", "--help").stdout


def test_check_says_what_a_file_means(tmp_path: Path) -> None:
    [*_, last] = blocks(ROOT / "docs" / "operate" / "settings.md", "yaml")
    (tmp_path / "moongate.yaml").write_text(last.text)
    done = run("check", "moongate.yaml", folder=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "moongate.yaml: good, 1 target, 7 routes")
