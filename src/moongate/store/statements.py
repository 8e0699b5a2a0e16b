"""Imported statements of providers, kept in the state directory as they were read: each once, by its content."""

import os
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from moongate.core.statement import Statement

FOLDER: Final = "statements"


def keep(state: Path, statement: Statement) -> bool:
    """Keep a statement; returns whether it is new. Raises OSError."""
    text = msgspec.json.encode(statement.rows)
    path = state / FOLDER / f"{sha256(text).hexdigest()[:16]}.json"
    if path.exists():
        return False
    path.parent.mkdir(mode=0o700, exist_ok=True)
    fresh = path.with_suffix(".new")
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "wb") as out:
        out.write(msgspec.json.encode(statement))
    fresh.replace(path)
    return True


def kept(state: Path) -> list[Statement]:
    """Every statement that was kept, the oldest first; one that cannot be read is left out."""
    found: list[tuple[float, Statement]] = []
    for path in sorted((state / FOLDER).glob("*.json")):
        try:
            found.append((path.stat().st_mtime, msgspec.json.decode(path.read_bytes(), type=Statement)))
        except (OSError, ValueError):
            continue
    return [statement for _, statement in sorted(found, key=lambda one: one[0])]
