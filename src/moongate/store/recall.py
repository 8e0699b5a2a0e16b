"""The ledger as a worker asks it about calls of before: at its start, and of a call that it did not run itself."""

import asyncio
import logging
import sqlite3
from pathlib import Path
from typing import Final

from moongate.core.record import CallRecord
from moongate.store import owners, reader
from moongate.store.reader import FormatError
from moongate.store.records import Folder

_log = logging.getLogger("moongate.recall")

FILE: Final = "ledger.db"


class Recall:
    """The journals and their view in one state directory. Everything runs in a thread; nothing here raises.

    What the view cannot tell, being locked, damaged or absent, the journals themselves do.
    """

    def __init__(self, state: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._journals = state / "journal"
        self._folder = Folder(self._journals, state / FILE)
        self._loop = loop

    async def since(self, moment: float) -> list[CallRecord]:
        """The calls made since this moment (wall-clock seconds) whose retries must be known, the oldest first."""
        return await self._loop.run_in_executor(None, self._since, moment)

    async def look(self, call_id: str) -> CallRecord | None:
        """The newest word on a call; None if there is none, or none can be had."""
        return await self._loop.run_in_executor(None, self._find, call_id)

    def close(self) -> None:
        """Close the database."""
        self._folder.close()

    def _since(self, moment: float) -> list[CallRecord]:
        known: dict[str, CallRecord] = {}
        waits = self._folder.fold().waits
        try:
            known = {record.call_id: record for record in self._folder.remembered(moment)}
        except sqlite3.Error as error:
            waits = waits or str(error)
        if waits:
            _log.warning("the ledger's view cannot be asked (%s): reading the journals themselves", waits)
            for record in self._written(moment):
                if record.call_id not in known or not known[record.call_id].outcome:
                    known[record.call_id] = record
        return [known[call_id] for call_id in sorted(known)]

    def _written(self, moment: float) -> list[CallRecord]:
        """What the segments that were written since then say."""
        found: dict[str, reader.Entry] = {}
        try:
            for listed in owners.segments(self._journals).values():
                for segment in listed:
                    if segment.path.stat().st_mtime >= moment:
                        _read(segment, found)
        except (OSError, FormatError) as error:
            _log.error("page: retries may not be known, a journal cannot be read: %s", error)
        records = (entry.record for entry in found.values())
        return [record for record in records if record.fingerprint and record.created >= moment]

    def _find(self, call_id: str) -> CallRecord | None:
        try:
            found = [record for record in self._folder.find(call_id) if record.call_id == call_id]
        except sqlite3.Error:
            return None
        return found[0] if found else None


def _read(segment: owners.Segment, found: dict[str, reader.Entry]) -> None:
    """Take over the newest words of one segment, damaged stretches left out. Raises OSError, FormatError."""
    offset, sequence, ended = 0, segment.first - 1, False
    while not ended:
        piece = reader.read(segment, offset, sequence, final=True)
        for call_id, entry in piece.latest.items():
            known = found.get(call_id)
            if known is None or known[:3] <= entry[:3]:
                found[call_id] = entry
        offset, sequence, ended = piece.offset, piece.sequence, piece.ended
