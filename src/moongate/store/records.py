"""The ledger as people ask it: a view in SQLite, folded from the journals, rebuilt when it is lost.

Nothing that serves calls waits for this view. A locked or full database makes folding wait; a corrupt one is
moved aside and built anew from the journals, and from what can still be read of it; an absent one is built.
Several processes may fold the same journals into the same file: each piece is one transaction that starts by
reading how far the others came.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from moongate.core.ledger import Tally
from moongate.core.record import CallRecord
from moongate.store import owners, reader, retired, salvage, view
from moongate.store.database import Database, is_corrupt
from moongate.store.owners import Segment
from moongate.store.reader import FormatError, Hole

DAY: Final = 86_400.0
_T = TypeVar("_T")
_PAGE: Final = 2000
_STEP: Final = 2000
_BEHIND_ALL: Final = "\U0010ffff"


class Mark(NamedTuple):
    """How far an owner's journal is folded. `done`: to its end, and it is dead."""

    segment: str = ""
    offset: int = 0
    sequence: int = 0
    done: bool = False


@dataclass(slots=True)
class Folded:
    """What one fold did.

    `records` read, `holes` found, `recovered` calls of dead owners closed; `salvaged` calls taken over from a
    corrupt database, which lies at `aside` now; `lost_days` what could not be, by day (UTC), at most so many calls.
    `waits` says why some of the journals are not in the view
    yet; empty: they are.
    """

    records: int = 0
    recovered: int = 0
    salvaged: int = 0
    aside: Path | None = None
    holes: list[Hole] = field(default_factory=list)
    lost_days: dict[str, int] = field(default_factory=dict)
    waits: str = ""


class Folder:
    """The view of the journals in `directory`, kept in the SQLite file `path`. Safe to share between threads.

    `patience`: seconds that a fold waits for a locked database before it gives up for this time. Questions
    fold first, and answer from what is there when folding must wait; they raise `sqlite3.Error` if there is
    nothing.
    """

    def __init__(self, directory: Path, path: Path, *, patience: float = 1.0) -> None:
        self._directory = directory
        self._database = Database(path, view.create, patience=patience)
        self._mutex = threading.RLock()

    def fold(self) -> Folded:
        """Take over what the journals have and the view has not, and close what dead owners left open.

        Never raises for what happens to files and database: `waits` says it, and the next fold goes on from
        there.
        """
        folded = Folded()
        with self._mutex:
            try:
                self._fold_all(folded)
            except sqlite3.Error as error:
                if not is_corrupt(error):
                    folded.waits = f"{self._database.path.name}: {error}"
                else:
                    self._rebuild(folded)
            except OSError as error:
                folded.waits = str(error)
        return folded

    def find(self, name: str) -> list[CallRecord]:
        """The calls with this call, request, attempt or answer's id, session, or provider's request or trace id."""
        return self._ask(lambda db: view.find(db, name))

    def records(self, since: float | None = None, until: float | None = None) -> Iterator[CallRecord]:
        """Every call made from `since` on and before `until` (wall-clock seconds), in the order of their ids.

        The journals are folded when the first is asked for; no transaction is held in between.
        """
        after = "" if since is None else view.id_at(since)
        before = _BEHIND_ALL if until is None else view.id_at(until)
        self.fold()
        while True:
            found = self._answer(partial(view.page, after=after, before=before, most=_PAGE))
            yield from found
            if len(found) < _PAGE:
                return
            after = found[-1].call_id

    def lost_days(self) -> dict[str, int]:
        """Days (UTC) of which a lost view knew calls that nobody can give back, at most so many."""
        return self._ask(salvage.lost_days)

    def unclear(self) -> list[CallRecord]:
        """Ended calls that have an attempt in doubt or no known bill."""
        return self._ask(view.unclear)

    def last_corrector(self) -> str:
        """The greatest owner that corrected a closed call; the next one's name must be greater. Empty if none has."""
        return self._answer(view.last_corrector)

    def dead_owners(self) -> frozenset[str]:
        """Owners of journals that are proved dead."""
        return frozenset(self._dead(owners.segments(self._directory)))

    def remembered(self, since: float) -> list[CallRecord]:
        """The calls made since then (wall-clock seconds) whose retries must be known, the oldest first."""
        return self._ask(lambda db: list(view.remembered(db, since)))

    def outcomes(self) -> dict[str, int]:
        """How many calls ended how; `open` for those that run."""
        return self._ask(view.outcomes)

    def holes(self) -> list[Hole]:
        """Every place where a journal was found damaged."""
        return self._ask(view.holes)

    def tally(self, now: float) -> Tally:
        """The counts that `core.ledger.broken_invariants` judges; `now` in wall-clock seconds."""
        dead = self._dead(owners.segments(self._directory))  # who dies later may rightly have open calls
        return self._ask(lambda db: view.tally(db, now, dead))

    def retire(self, now: float, *, segment_days: float = 7.0, row_days: float = 400.0) -> int:
        """Delete folded segments not written since `segment_days`, and ended calls older than `row_days`.

        Segments go first: on a full disk that is what makes room for the rest.
        Rows go in steps, so that nothing waits long for the lock, and their room is given back. Returns how many
        segments went. `now` in wall-clock seconds. Raises what SQLite and the disk raise.
        """
        with self._mutex:
            marks = _marks(self._database.connect())
            gone = 0
            for owner, listed in owners.segments(self._directory).items():
                mark = marks.get(owner, Mark())
                for segment in listed:
                    folded = mark.done or segment.path.name < mark.segment
                    if folded and owners.is_old(segment.path, now - segment_days * DAY):
                        retired.remove(self._directory, segment)
                        gone += 1
            left = owners.segments(self._directory)
            owners.remove_locks(self._directory, left, now - segment_days * DAY)
            with self._database.transaction() as db:
                for owner, mark in marks.items():
                    if mark.done and owner not in left:
                        db.execute("DELETE FROM checkpoints WHERE owner = ?", (owner,))
        while self.forget(now - row_days * DAY, most=_STEP):
            pass
        retired.forget(self._directory, retired.day(max(now - row_days * DAY, 0.0)))
        return gone

    def forget(self, before: float, *, most: int) -> int:
        """Delete the oldest ended calls made before this moment (wall-clock seconds); returns how many went."""
        with self._mutex:
            with self._database.transaction() as db:
                gone = view.forget(db, before, most)
            if gone:
                self._database.give_back(most)
            return gone

    def close(self) -> None:
        """Close the database."""
        with self._mutex:
            self._database.close()

    def _ask(self, question: Callable[[sqlite3.Connection], _T]) -> _T:
        with self._mutex:
            self.fold()
            return self._answer(question)

    def _answer(self, question: Callable[[sqlite3.Connection], _T]) -> _T:
        with self._mutex:
            try:
                return question(self._database.connect())
            except sqlite3.Error as error:
                if not is_corrupt(error):
                    raise
            self._rebuild(Folded())
            return question(self._database.connect())

    def _rebuild(self, folded: Folded) -> None:
        try:
            folded.aside = self._database.move_aside()
            self._fold_all(folded)
        except (sqlite3.Error, OSError) as error:
            folded.waits = f"{self._database.path.name}: {error}"

    def _dead(self, known: dict[str, list[Segment]]) -> set[str]:
        return {owner for owner in known if owners.is_dead(self._directory, owner)}

    def _salvage(self, folded: Folded) -> None:
        """Whoever moved a file aside may have died before it was read, so this is asked every time."""
        asides = self._database.asides()
        if asides and not salvage.has_salvaged(self._database.connect(), asides):
            with self._database.transaction() as db:
                folded.salvaged = sum(salvage.salvage(db, aside) for aside in asides)
        if not salvage.knows_what_is_lost(self._database.connect()):
            with self._database.transaction() as db:
                gone = retired.by_day(self._directory)
                folded.lost_days = salvage.note_lost(db, gone, owners.segments(self._directory))

    def _fold_all(self, folded: Folded) -> None:
        marks = _marks(self._database.connect())
        known = {
            owner: listed
            for owner, listed in owners.segments(self._directory).items()
            if not marks.get(owner, Mark()).done
        }
        dead = self._dead(known)
        if dead:  # what they wrote until they died is there only now
            known = {owner: owners.segments(self._directory)[owner] for owner in known}
        for owner, listed in known.items():
            if owner in dead or _grown(listed, marks.get(owner)):
                try:
                    while self._fold_piece(owner, listed, folded, dead=owner in dead):
                        pass
                except (FormatError, OSError) as error:  # this journal waits; the others do not wait for it
                    folded.waits = str(error)
        self._salvage(folded)

    def _fold_piece(self, owner: str, listed: list[Segment], folded: Folded, *, dead: bool) -> bool:
        """One transaction; returns whether there is more."""
        with self._database.transaction() as db:
            mark = _mark(db, owner) or Mark(listed[0].path.name, 0, listed[0].first - 1)
            left = [segment for segment in listed if segment.path.name >= mark.segment]
            if mark.done or not left:
                return False
            segment, *later = left
            offset = mark.offset if segment.path.name == mark.segment else 0
            piece = reader.read(segment, offset, mark.sequence, final=dead or bool(later))
            view.put(db, piece.latest.values())
            view.put_holes(db, piece.holes)
            after = Mark(segment.path.name, piece.offset, piece.sequence)
            if piece.ended and later:
                after = Mark(later[0].path.name, 0, piece.sequence)
            elif piece.ended and dead:
                folded.recovered += view.close_orphans(db, owner)
                after = after._replace(done=True)
            if after != mark:
                db.execute("INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?)", (owner, *after))
        folded.records += piece.records
        folded.holes += piece.holes
        return bool(later) or not piece.ended


def _marks(db: sqlite3.Connection) -> dict[str, Mark]:
    query = "SELECT owner, segment, offset, sequence, done FROM checkpoints"
    return {
        owner: Mark(segment, offset, sequence, bool(done))
        for owner, segment, offset, sequence, done in db.execute(query)
    }


def _mark(db: sqlite3.Connection, owner: str) -> Mark | None:
    return _marks(db).get(owner)


def _grown(listed: list[Segment], mark: Mark | None) -> bool:
    """Whether a living owner wrote anything since; spares a transaction when nothing happened."""
    last = listed[-1].path
    return mark is None or mark.segment != last.name or mark.offset < last.stat().st_size
