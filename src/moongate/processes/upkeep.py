"""What the supervisor does for the ledger: folds journals, retires old ones, and says once what stands in the way."""

import logging
import sqlite3
from typing import Final

from moongate.ops.health import DEGRADED, LEDGER, OK
from moongate.ops.metrics import Row
from moongate.store.reader import Hole
from moongate.store.records import Folded, Folder
from moongate.world import World

RETIRE_SECONDS: Final = 3600.0
"""How often old segments and rows are looked for."""
RETRY_SECONDS: Final = 60.0
"""How soon again, if that could not be done."""

log: Final = logging.getLogger(__name__)


class Upkeep:
    """One chore for both, so that one thread does them in turn; `act` is called every second or so.

    A state that keeps folding waiting is logged when it begins, when its words change and when it ends; each hole in
    the journals once.
    """

    def __init__(self, folder: Folder, world: World, *, segment_days: float, row_days: float) -> None:
        self._folder = folder
        self._world = world
        self._segment_days = segment_days
        self._row_days = row_days
        self._waits = ""
        self._holes: set[Hole] = set()
        self._retire_at = 0.0
        self._missing = self._recovered = 0

    def rows(self) -> list[Row]:
        """What it has for metrics."""
        return [
            Row("moongate_ledger_waits", (), float(bool(self._waits))),
            Row("moongate_ledger_holes_total", (), len(self._holes)),
            Row("moongate_ledger_missing_total", (), self._missing),
            Row("moongate_ledger_recovered_total", (), self._recovered),
        ]

    def checks(self) -> dict[str, str]:
        """The ledger's word on `/healthz`; a view that waits stops nothing."""
        return {LEDGER: f"{DEGRADED}: its view waits" if self._waits else OK}

    def act(self) -> None:
        """Fold; once an hour retire what is old."""
        self.fold()
        now = self._world.wall()
        if now >= self._retire_at:
            self._retire_at = now + RETIRE_SECONDS
            try:
                self._folder.retire(now, segment_days=self._segment_days, row_days=self._row_days)
            except (sqlite3.Error, OSError) as error:
                log.warning("old segments and rows stay for now: %s", error)
                self._retire_at = now + RETRY_SECONDS

    def fold(self) -> None:
        """Fold, and log what is new about it."""
        folded = self._folder.fold()
        if folded.waits != self._waits:
            if folded.waits:
                log.warning("the ledger's view waits: %s", folded.waits)
            else:
                log.info("the ledger's view waits no more")
            self._waits = folded.waits
        for hole in folded.holes:
            if hole not in self._holes:
                self._holes.add(hole)
                self._missing += hole.missing
                log.warning(
                    "journal %s, offset %d: %s; %d bytes, %d records missing",
                    hole.segment,
                    hole.offset,
                    hole.what,
                    hole.size,
                    hole.missing,
                )
        self._recovered += folded.recovered
        _tell(folded)


def _tell(folded: Folded) -> None:
    if folded.aside is not None:
        log.warning("the ledger's view was corrupt; it is made anew, the old one lies at %s", folded.aside)
    if folded.lost_days:
        log.error(
            "page: calls are lost for the ledger, at most so many a day: %s",
            ", ".join(f"{day}: {calls}" for day, calls in folded.lost_days.items()),
        )
    if folded.salvaged:
        log.warning("%d calls were taken over from corrupt views", folded.salvaged)
    if folded.recovered:
        log.warning("%d calls of dead workers were closed", folded.recovered)
