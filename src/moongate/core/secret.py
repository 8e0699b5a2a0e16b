"""Secrets: how a setting refers to one, and the value that never shows itself."""

import re
from dataclasses import dataclass, field
from typing import Final, Literal

from moongate.core.kinds import Kind, WrongError

_REFERENCE: Final = re.compile(r"\$\{(env|file):([^{}]+)\}")
_MEND: Final = "write ${env:NAME} or ${file:PATH}, and keep the secret itself out of this file"


@dataclass(frozen=True, slots=True)
class Secret:
    """A resolved secret. Neither `repr` nor `str` nor a format string shows it; only `text` does."""

    text: str = field(repr=False)

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a secret is kept: the name of an environment variable, or the path of a file."""

    source: Literal["env", "file"]
    name: str


def reference(value: object) -> Reference:
    """What `${env:NAME}` or `${file:PATH}` refers to. Raises `WrongError` without what was written."""
    found = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise WrongError("a secret may not stand here in plain text", _MEND)
    return Reference("env" if found[1] == "env" else "file", found[2])


def is_reference(value: object) -> bool:
    """Whether a text is, or holds, such a reference: they mean something in secrets only."""
    return isinstance(value, str) and _REFERENCE.search(value) is not None


class Referred(Kind):
    """A secret, by reference. References are resolved before values are checked: `parse` meets `Secret`."""

    word = "secret: `${env:NAME}` or `${file:PATH}`"

    def parse(self, value: object) -> Secret:
        """As in `Kind`."""
        if not isinstance(value, Secret):
            raise WrongError("a secret may not stand here in plain text", _MEND)
        return value

    def schema(self) -> dict[str, object]:
        """As in `Kind`."""
        return {"type": "string", "pattern": r"^\$\{(env|file):[^{}]+\}$"}
