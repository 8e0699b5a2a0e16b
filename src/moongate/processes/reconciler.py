"""Acts on what `core/reconcile` decides: a chore of the supervisor, and `moongate ledger reconcile`.

The chore looks at the statements that were imported, fills in prices that became known, and writes off what is too old.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from moongate.core.book import Execution
from moongate.core.reconcile import DAY, LATE, Desk, Proof, amended, from_book, from_statement, too_old
from moongate.core.record import CallRecord, Correction
from moongate.core.statement import Statement
from moongate.store import price_book, statements
from moongate.store.amendments import BusyError, correcting, write
from moongate.store.journal import JournalError
from moongate.store.records import Folder
from moongate.world import World

EVERY_SECONDS: Final = 3600.0
log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class Round:
    """What one round did: attempts that were in doubt before, and what was corrected."""

    doubtful: int = 0
    corrections: list[Correction] = field(default_factory=list)


class Reconciler:
    """Corrects the ledger of one state directory, in the name of `who`."""

    def __init__(self, state: Path, folder: Folder, world: World, who: str) -> None:
        self._state = state
        self._folder = folder
        self._world = world
        self._who = who
        self._next = 0.0

    def act(self, write_off_days: float) -> None:
        """The chore: once an hour a round with what is there. Another process that reconciles just now is enough."""
        now = self._world.wall()
        if now < self._next:
            return
        self._next = now + EVERY_SECONDS
        try:
            done = self.round(write_off_days=write_off_days)
        except BusyError:
            return
        except JournalError as error:
            log.warning("corrections could not be written: %s", error)
            return
        for one in done.corrections:
            log.info("%s: %s becomes %s: %s", one.attempt_id, one.before, one.after, one.why)

    def round(
        self,
        *,
        book: Callable[[], Sequence[Execution]] | None = None,
        extra: Iterable[Statement] = (),
        write_off_days: float | None = None,
        since: float | None = None,
        late: float = LATE,
        dry: bool = False,
    ) -> Round:
        """Look for proof once, and correct what it proves.

        `book` reads a provider's book, which is whole from `since` on; `late`: see `from_book`;
        `extra` are statements besides those imported.
        `write_off_days` None: nothing is written off. `dry`: nothing is written. Raises `BusyError`, `JournalError`,
        and what the book, SQLite and the disk raise.
        """
        with correcting(self._state):
            asked = self._world.wall()
            executions = None if book is None else book()
            unclear = self._folder.unclear()
            proofs: dict[str, Proof] = {}
            if unclear and write_off_days is not None:
                proofs |= too_old(unclear, asked, write_off_days)
            if unclear:
                for statement in (*statements.kept(self._state), *extra):
                    proofs |= from_statement(statement, self._of_days(statement))
            if unclear and executions is not None:
                begin = min((one.started for one in executions), default=asked)
                records = list(self._folder.records(min(begin, unclear[0].created) - 1))
                proofs |= from_book(executions, records, asked=asked, begin=since, late=late)
            return self._correct(unclear, proofs, dry=dry)

    def _of_days(self, statement: Statement) -> list[CallRecord]:
        days = sorted({row.day for row in statement.rows})
        if not days:
            return []
        first = datetime.fromisoformat(days[0]).replace(tzinfo=UTC)
        last = datetime.fromisoformat(days[-1]).replace(tzinfo=UTC) + timedelta(days=1)
        # an attempt may be made long after its call, so a day more before
        return list(self._folder.records(first.timestamp() - DAY, last.timestamp()))

    def _correct(self, unclear: Sequence[CallRecord], proofs: Mapping[str, Proof], *, dry: bool) -> Round:
        prices = price_book.load(self._state)
        now = self._world.wall()
        desk = Desk(self._who, now, prices.table(), prices.currency)
        done = Round(sum(one.state == "ambiguous" for record in unclear for one in record.attempts))
        changed: list[CallRecord] = []
        for record in unclear:
            made = amended(record, proofs, desk)
            if made is not None:
                changed.append(made)
                done.corrections += made.corrections[len(record.corrections) :]
        if not dry:
            write(self._state, self._folder, changed, self._world.new_id(), now)
        return done
