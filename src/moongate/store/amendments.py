"""Later words about closed calls, written into a journal of their own like everything else that the ledger knows.

One process corrects at a time: it holds a lock of the state directory. Each round is an owner of its own, whose name
is greater than that of every corrector before, for of two words on a call the later owner's holds.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from moongate.core.record import CallRecord, encode
from moongate.store.frames import Kind
from moongate.store.journal import Journal
from moongate.store.records import Folder

LOCK: Final = "reconcile.lock"


class BusyError(Exception):
    """Another process is correcting now."""


@contextlib.contextmanager
def correcting(state: Path) -> Iterator[None]:
    """Hold the right to correct; raises `BusyError`, or OSError where there can be no lock."""
    file = os.open(state / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise BusyError("another process is reconciling now") from None
    finally:
        os.close(file)


def write(state: Path, folder: Folder, records: Sequence[CallRecord], minted: str, now: float) -> None:
    """Write these records over those that hold, and fold them; `minted` is a new id. Only while `correcting`.

    Raises `JournalError` if they could not all be written; those that were hold.
    """
    if not records:
        return
    journal = Journal.open(state / "journal", owner_after(folder.last_corrector(), minted), started=now)
    try:
        for record in records:
            journal.append(Kind.AMENDED, encode(record), now=True)
    finally:
        journal.close()
    folder.fold()


def owner_after(last: str, minted: str) -> str:
    """An owner's name that is greater than the last one's, even if the clock went back since."""
    if minted > last:
        return minted
    return f"{int(last, 16) + 1:0{len(last)}x}"
