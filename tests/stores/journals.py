"""What the tests of journal and view share: reading journals back, and a process that writes one until it is killed."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_FSIZE, getrlimit, setrlimit
from typing import Any, Final

from moongate.core.ledger import State
from moongate.core.record import AttemptRecord, CallRecord, Outcome, TokensSource, encode
from moongate.store import frames, owners
from moongate.store.frames import Frame, Kind
from moongate.store.journal import Journal
from moongate.store.records import Folder

OWNER: Final = "0193e0f0a1b2c3d4e5f60718293a"
LATER: Final = "0193e0f0ffffffffffffffffffff"


def frames_of(directory: Path, owner: str = OWNER, *, torn: bool = False) -> list[Frame]:
    """Every record of an owner, segment headers left out; fails on anything that is no frame.

    `torn`: its end may be cut: who is killed in a write that reaches into another page leaves a part of it.
    """
    found: list[Frame] = []
    for segment in owners.segments(directory).get(owner, []):
        data = segment.path.read_bytes()
        after = found[-1].sequence if found else 0
        read, gaps, end = frames.scan(data, frames.seed(owner), after)
        assert not gaps
        assert torn or end == len(data), f"{segment.path.name}: {data[end:]!r}"
        assert not read or read[0].kind == Kind.OWNER
        found += read[1:]
    return found


def payloads(directory: Path, owner: str = OWNER) -> list[bytes]:
    """What was appended, in order; fails if a sequence is missing."""
    found = frames_of(directory, owner)
    assert [frame.sequence for frame in found] == list(range(1, len(found) + 1))
    return [frame.payload for frame in found]


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """A disk that is full when a file has this size: writes are cut there, then fail (EFBIG)."""
    before = getrlimit(RLIMIT_FSIZE)
    setrlimit(RLIMIT_FSIZE, (size, before[1] if before[1] != RLIM_INFINITY else RLIM_INFINITY))
    try:
        yield
    finally:
        setrlimit(RLIMIT_FSIZE, before)


def call(name: str, state: State = State.SENT, **fields: Any) -> CallRecord:
    """A call with one attempt."""
    attempt = AttemptRecord(f"{name}-1", target="alpha", model="kimi-k2.6", state=state, started=1.0)
    return CallRecord(name, "r-" + name, "acme", attempts=[attempt], created=1.0, **fields)


def close(record: CallRecord, state: State = State.SETTLED) -> CallRecord:
    """The same call, ended."""
    attempt = record.attempts[-1]
    attempt.state, attempt.input, attempt.output, attempt.cost_micro = state, 10, 5, 42
    attempt.tokens_source, attempt.price_row = TokensSource.PROVIDER, "kimi-k2.6/USD/2026-09-01"
    record.outcome, record.status, record.billed_micro = Outcome.COMPLETED, 200, 42
    return record


def sent(journal: Journal, name: str) -> CallRecord:
    """Write a call down as sent."""
    record = call(name)
    journal.append(Kind.SENT, encode(record), now=True)
    return record


def closed(journal: Journal, record: CallRecord, state: State = State.SETTLED) -> None:
    """Write a call down as closed."""
    journal.append(Kind.CLOSED, encode(close(record, state)), now=False)


def write_until_killed(directory: Path, owner: str) -> None:
    """Send and close calls for ever; say each that was acknowledged, after it was."""
    journal = Journal.open(directory, owner, segment_bytes=40_000)
    number = 0
    while True:
        number += 1
        record = sent(journal, f"{owner}c{number:06d}")
        sys.stdout.write(f"{number:>200}\n")  # wide, so that the pipe is soon full and the writer waits
        sys.stdout.flush()
        if number % 3:
            closed(journal, record)


def start_writer(directory: Path, owner: str) -> "subprocess.Popen[str]":
    """Run `write_until_killed` in a process of its own."""
    command = (
        "import sys; from pathlib import Path; from tests.stores.journals import write_until_killed as w;"
    )
    command += " w(Path(sys.argv[1]), sys.argv[2])"
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", command, str(directory), owner], stdout=subprocess.PIPE, text=True, cwd=root
    )


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    db = sqlite3.connect(path)
    try:
        return db.execute(query).fetchall()
    finally:
        db.close()


def only(folder: Folder, name: str) -> CallRecord:
    found = folder.find(name)
    assert len(found) == 1, f"{name}: {len(found)} rows"
    return found[0]


def last_segment(directory: Path, owner: str = OWNER) -> Path:
    return owners.segments(directory)[owner][-1].path
