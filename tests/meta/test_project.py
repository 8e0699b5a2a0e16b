"""The project can be used, passed on and installed anywhere: nothing in it knows a machine or an index."""

import re
import tomllib
from pathlib import Path

import pytest

import moongate
from tests.source import PACKAGE, ROOT, relative, tracked

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LOCKS = sorted(ROOT.glob("requirements*.lock"))
MOST_PACKAGES = 25
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
PINNED = re.compile(r"^([a-z0-9.-]+)==(\S+)", re.MULTILINE)
# package indexes and archives: an installer's own affair
INDEX = re.compile(
    r"\b[\w.-]*(?:pypi|pythonhosted|npmjs|debian|ubuntu|registry|ghcr|quay)\.[a-z]+\b(?!\()", re.IGNORECASE
)
PLACE = re.compile(r"(?<![\w.$}{/])/(?:home|root|work|Users|opt)/\w+")


def texts() -> list[Path]:
    """Every file of the project that is text."""
    return [path for path in tracked() if b"\0" not in path.read_bytes()[:8192]]


@pytest.mark.parametrize("path", LOCKS, ids=relative)
def test_locks_pin_by_hash_and_name_no_source(path: Path) -> None:
    text = path.read_text("utf-8")
    pins = re.split(r"^(?=\S)", text, flags=re.MULTILINE)[1:]
    assert pins
    assert all(PINNED.match(pin) and "--hash=sha256:" in pin for pin in pins)
    assert not re.search(r"://|^#|-(index-url|links|host)|[ @](\.|/|file:)", text, re.MULTILINE)


def test_runtime_packages_are_few() -> None:
    names = PINNED.findall((ROOT / "requirements.lock").read_text("utf-8"))
    assert len(names) <= MOST_PACKAGES, [name for name, _ in names]


@pytest.mark.parametrize("extra", EXTRAS)
def test_each_extra_has_a_lock(extra: str) -> None:
    assert (ROOT / f"requirements-{extra}.lock").exists()


def test_locks_agree_with_each_other() -> None:
    versions: dict[str, set[frozenset[str]]] = {}
    for lock in LOCKS:
        pins = PINNED.findall(lock.read_text("utf-8"))  # several of one name: for several Pythons
        for name in {name for name, _ in pins}:
            versions.setdefault(name, set()).add(frozenset(version for one, version in pins if one == name))
    assert not {name: found for name, found in versions.items() if len(found) > 1}


def normal(requirement: str) -> str:
    """A requirement's package in the locks' spelling."""
    return re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-")


def test_every_dependency_is_locked() -> None:
    wanted = [*PYPROJECT["project"]["dependencies"], *(r for extra in EXTRAS.values() for r in extra)]
    locked = dict(PINNED.findall((ROOT / "requirements-dev.lock").read_text("utf-8")))
    assert not {normal(r) for r in [*wanted, *PYPROJECT["dependency-groups"]["dev"]]} - locked.keys()
    runtime = dict(PINNED.findall((ROOT / "requirements.lock").read_text("utf-8")))
    assert not {normal(r) for r in PYPROJECT["project"]["dependencies"]} - runtime.keys()


@pytest.mark.parametrize("path", texts(), ids=relative)
def test_no_file_knows_the_machine_it_was_written_on(path: Path) -> None:
    found = [match.group() for match in PLACE.finditer(path.read_text("utf-8", errors="replace"))]
    assert not found


@pytest.mark.parametrize("path", texts(), ids=relative)
def test_no_file_names_a_package_index(path: Path) -> None:
    found = INDEX.findall(path.read_text("utf-8", errors="replace"))
    assert not found


def test_the_version_is_one_and_in_the_changelog() -> None:
    version = PYPROJECT["project"]["version"]
    assert moongate.__version__ == version
    assert re.search(
        rf"^## \[?{re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )


def test_it_is_typed_and_licensed() -> None:
    assert (PACKAGE / "py.typed").exists()
    assert PYPROJECT["project"]["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text("utf-8")[:200]
