"""Kinds of setting: how each is written in a file, what it becomes, and what its JSON Schema says.

A kind stands as metadata beside a field's type (`Annotated[int, Bytes(1)]`). Its `parse` takes what YAML
gave and returns the checked value, or raises `WrongError` with the mend. pydantic meets the kinds while a
file is read; the tree itself needs nothing of it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, Final


class WrongError(ValueError):
    """A value that its setting cannot take: what is wrong with it, and what to write instead."""

    def __init__(self, problem: str, mend: str) -> None:
        super().__init__(f"{problem}; {mend}")
        self.problem = problem
        self.mend = mend


@dataclass(frozen=True, slots=True)
class Note:
    """What a setting means, one or two sentences for the reference page and the JSON Schema."""

    text: str


class Kind:
    """One way to write a value. Subclasses say `word` (for people), `parse` and `schema`."""

    word: str = ""

    def parse(self, value: object) -> object:
        """The checked value; raises `WrongError`."""
        raise NotImplementedError

    def takes(self, value: object) -> bool:
        """Whether `parse` would return."""
        try:
            self.parse(value)
        except WrongError:
            return False
        return True

    def schema(self) -> dict[str, object]:
        """The JSON Schema of what may be written."""
        raise NotImplementedError

    def __get_pydantic_core_schema__(self, source: object, handler: Callable[..., object]) -> Any:
        from pydantic_core import core_schema  # noqa: PLC0415 - a worker reads no file and must not pay for pydantic

        return core_schema.no_info_plain_validator_function(self.parse)


def shown(value: object) -> str:
    """A value as it may stand in a mistake: short, and in the file's own notation."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = str(value)
    text = text if len(text) <= 40 else text[:37] + "..."
    return f'"{text}"' if isinstance(value, str) else text


@dataclass(frozen=True, slots=True)
class Whole(Kind):
    """A whole number between two bounds."""

    least: int
    most: int | None = None
    word = "whole number"

    def parse(self, value: object) -> int:
        """As in `Kind`."""
        if not isinstance(value, int) or isinstance(value, bool):
            raise WrongError(f"{shown(value)} is not a whole number", f"write {self._bounds()}")
        if value < self.least or (self.most is not None and value > self.most):
            raise WrongError(f"{value} is out of range", f"write {self._bounds()}")
        return value

    def _bounds(self) -> str:
        return f"{self.least} or more" if self.most is None else f"a number from {self.least} to {self.most}"

    def schema(self) -> dict[str, object]:
        """As in `Kind`."""
        most = {} if self.most is None else {"maximum": self.most}
        return {"type": "integer", "minimum": self.least, **most}


_UNITS: Final = {"B": 1, "KB": 1024, "MB": 1024**2, "GB": 1024**3, "TB": 1024**4}
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]?)i?B", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Bytes(Kind):
    """A size: bytes, or a number with KB, MB, GB or TB (powers of 1024)."""

    least: int
    word = "bytes"

    def parse(self, value: object) -> int:
        """As in `Kind`."""
        size = value
        if isinstance(value, str) and (found := _SIZE.fullmatch(value)):
            size = float(found[1]) * _UNITS[found[2].upper() + "B"]
            size = int(size) if size.is_integer() else value
        if not isinstance(size, int) or isinstance(size, bool):
            raise WrongError(
                f"{shown(value)} is not a size", 'write bytes, or a size such as "64KB", "32MB" or "12GB"'
            )
        if size < self.least:
            raise WrongError(f"{shown(value)} is too small", f"write {self.least} bytes or more")
        return size

    def schema(self) -> dict[str, object]:
        """As in `Kind`."""
        text = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?([KkMmGgTt][Ii]?)?[Bb]$"}
        return {"anyOf": [{"type": "integer", "minimum": self.least}, text]}


_SPANS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST: Final = 366 * 86400
_SPAN: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(ms|s|m|h|d)")


@dataclass(frozen=True, slots=True)
class Seconds(Kind):
    """A duration: seconds, or a number with ms, s, m, h or d. Always more than nothing unless `zero`."""

    zero: bool = False
    word = "seconds"

    def parse(self, value: object) -> float:
        """As in `Kind`."""
        span = value
        if isinstance(value, str) and (found := _SPAN.fullmatch(value)):
            span = float(found[1]) * _SPANS[found[2]]
        if isinstance(span, bool) or not isinstance(span, int | float):
            raise WrongError(
                f"{shown(value)} is not a duration", 'write seconds, or a duration such as "30s" or "5m"'
            )
        if span < 0 or (span == 0 and not self.zero):
            raise WrongError(
                f"{shown(value)} is too short", "write 0 or more" if self.zero else "write more than 0"
            )
        if span > _LONGEST:
            raise WrongError(f"{shown(value)} is too long", "write a year (366d) at most")
        return float(span)

    def schema(self) -> dict[str, object]:
        """As in `Kind`."""
        number: dict[str, object] = {"type": "number", "minimum" if self.zero else "exclusiveMinimum": 0}
        return {"anyOf": [number, {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?(ms|s|m|h|d)$"}]}


class Share(Kind):
    """A share between 0 and 1."""

    word = "share, 0 to 1"

    def parse(self, value: object) -> float:
        """As in `Kind`."""
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
            raise WrongError(f"{shown(value)} is not a share", "write a number from 0 to 1")
        return float(value)

    def schema(self) -> dict[str, object]:
        """As in `Kind`."""
        return {"type": "number", "minimum": 0, "maximum": 1}


_DEAREST: Final = 1_000_000


class Amount(Kind):
    """An amount of money in units of a currency, with six decimals at most; it becomes millionths."""

    word = "amount"

    def parse(self, value: object) -> int:
        """As in `Kind`."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _DEAREST:
            raise WrongError(
                f"{shown(value)} is not an amount", "write 0 or more currency units, such as 0.95"
            )
        micro = Decimal(repr(value)) * 1_000_000
        if micro != int(micro):
            raise WrongError(f"{shown(value)} is finer than a millionth", "write six decimals at most")
        return int(micro)

    def schema(self) -> dict[str, object]:
        """As in `Kind`."""
        return {"type": "number", "minimum": 0, "maximum": _DEAREST}


class Day(Kind):
    """A day of the calendar, UTC."""

    word = "YYYY-MM-DD"

    def parse(self, value: object) -> str:
        """As in `Kind`."""
        try:
            if isinstance(value, str) and len(value) == 10:
                return date.fromisoformat(value).isoformat()
        except ValueError:
            pass
        raise WrongError(f"{shown(value)} is not a day", "write it as 2026-09-01")

    def schema(self) -> dict[str, object]:
        """As in `Kind`."""
        return {"type": "string", "format": "date"}


class Switch(Kind):
    """Yes or no."""

    word = "true or false"

    def parse(self, value: object) -> bool:
        """As in `Kind`."""
        if not isinstance(value, bool):
            raise WrongError(f"{shown(value)} is neither true nor false", "write true or false")
        return value

    def schema(self) -> dict[str, object]:
        """As in `Kind`."""
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class OneOf(Kind):
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def word(self) -> str:  # type: ignore[override]
        """The choices."""
        return " or ".join(f"`{word}`" for word in self.words)

    def parse(self, value: object) -> str:
        """As in `Kind`."""
        if not isinstance(value, str) or value not in self.words:
            raise WrongError(f"{shown(value)} is not known here", f"write {' or '.join(self.words)}")
        return value

    def schema(self) -> dict[str, object]:
        """As in `Kind`."""
        return {"enum": list(self.words)}


@dataclass(frozen=True, slots=True)
class Text(Kind):
    """A text that fits a pattern, the whole of it. `example` is the mend."""

    pattern: str = r"[^\x00-\x1f\x7f]+"
    example: str = "write a text without control characters, not empty"
    word: str = "text"

    def parse(self, value: object) -> str:
        """As in `Kind`."""
        if not isinstance(value, str):
            raise WrongError(
                f"{shown(value)} is not a text", f'write it in quotes ("{shown(value)}") if it is meant'
            )
        if re.fullmatch(self.pattern, value) is None:
            raise WrongError(f"{shown(value)} cannot stand here", self.example)
        return value

    def schema(self) -> dict[str, object]:
        """As in `Kind`."""
        return {"type": "string", "pattern": f"^{self.pattern}$"}
