"""The settings file on disk, and the environment and files that its secrets refer to."""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from moongate.core import reading
from moongate.core.mistakes import Mistake, Place, SettingsError
from moongate.core.reading import EVERY_EXTRA
from moongate.core.settings import Settings

MOST_BYTES: Final = 4 * 1024**2
"""Larger than any settings file, secret or certificate bundle."""


def read_text(path: str) -> str:
    """The text of a file. Relative paths start at the working directory. Raises `OSError` or `UnicodeError`."""
    with Path(path).open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise OSError(None, f"it holds more than {MOST_BYTES} bytes")
    return content.decode()


def load_file(path: Path | None, overrides: Mapping[str, str] | None = None) -> Settings:
    """The settings of a file, or the defaults for None, with flags over them; raises `SettingsError`."""
    origin = reading.NO_FILE if path is None else str(path)
    text = "" if path is None else _text(path)
    return reading.load(
        text,
        origin=origin,
        read_env=os.environ.get,
        read_file=read_text,
        overrides=overrides,
        extras=installed_extras(),
    )


def installed_extras() -> frozenset[str]:
    """The extras that a setting may need and that are installed here."""
    return EVERY_EXTRA if find_spec("pycurl") is not None else frozenset()


def check_file(path: Path) -> tuple[list[str], int]:
    """What `moongate check FILE` prints, line by line, and its exit code: 0 good, 1 mistakes."""
    try:
        text = _text(path)
    except SettingsError as error:
        return [str(error)], 1
    return reading.check(
        text, origin=str(path), read_env=os.environ.get, read_file=read_text, extras=installed_extras()
    )


def _text(path: Path) -> str:
    try:
        return read_text(str(path))
    except UnicodeError:
        problem, mend = "not UTF-8", "write it in UTF-8"
    except OSError as error:
        problem, mend = f"cannot be read ({error.strerror})", "name a settings file that this user may read"
    raise SettingsError([Mistake(Place(str(path)), "", problem, mend)])
