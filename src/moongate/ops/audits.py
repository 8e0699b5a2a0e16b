"""`moongate ledger verify`: takes the ledger, and a provider's book if there is one, and says whether they balance."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from moongate.core.audit import LISTED, Comparison, Count, Finding, compare
from moongate.core.book import BookError, Execution, read_book
from moongate.store.reader import Hole
from moongate.store.records import Folder

_PATIENCE: Final = 30.0
_BOOK: Final = "/_sim/book?limit=10000000"


def fetch_book(place: str) -> list[Execution]:
    """The executions of a book at a URL (the simulator's address is enough) or in a file; raises `BookError`."""
    if not place.startswith(("http://", "https://")):
        try:
            return read_book(Path(place).read_bytes())
        except OSError as error:
            raise BookError(f"{place} cannot be read: {error.strerror}") from error
    import urllib.request  # noqa: PLC0415 - an HTTP client takes a while to load, and few need one

    url = place if urlsplit(place).path.strip("/") else place.rstrip("/") + _BOOK
    try:
        with urllib.request.urlopen(url, timeout=_PATIENCE) as answer:  # noqa: S310 - http and https only, see above
            return read_book(answer.read())
    except OSError as error:
        raise BookError(f"{url} cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class Audit:
    """What was counted and found. `waits`: why some of the journals are not in the view; then nothing is certain.

    `lost_days`: calls that nobody can give back, by day, at most so many.
    """

    count: Count
    holes: list[Hole]
    waits: str
    comparison: Comparison | None
    findings: list[Finding]
    lost_days: dict[str, int]

    @property
    def good(self) -> bool:
        """Whether the books balance."""
        return not self.findings

    def document(self) -> dict[str, object]:
        """All of it as plain values for `--json`; findings and differences are told up to a thousand of each."""
        count, made = self.count, self.comparison
        return {
            "ok": self.good,
            "findings": [asdict(one) for one in self.findings[:LISTED]],
            "findings_total": len(self.findings),
            "calls": dict(count.calls),
            "reservations": sum(count.states.values()),
            "by_state": dict(count.states),
            "ambiguous_charged_for_now": count.provisional,
            "usage_suspect": count.suspect,
            "corrected_calls": count.corrected,
            "journal_holes": len(self.holes),
            "journal_records_missing": sum(hole.missing for hole in self.holes),
            "journal_damage": [asdict(hole) for hole in self.holes[:LISTED]],
            "lost_days": self.lost_days,
            "book": None if made is None else _compared(made),
        }


def _compared(made: Comparison) -> dict[str, object]:
    off = [one.output_theirs - one.output for one in made.differences]
    return {
        "executions": made.executions,
        "running": made.running,
        "settled": made.settled,
        "settled_est": made.estimated,
        "ambiguous": made.ambiguous,
        "ambiguous_charged": made.ambiguous_charged,
        "calls_paid_twice": made.paid_twice,
        "billed_micro": dict(made.billed),
        "charged_micro": dict(made.charged),
        "estimated_output_short_by": {"most": max(off, default=0), "all": sum(off)},
        "estimated": [asdict(one) for one in made.differences[:LISTED]],
    }


def verify(
    folder: Folder,
    wall: Callable[[], float],
    *,
    book: str | None = None,
    since: float | None = None,
    until: float | None = None,
) -> Audit:
    """Read the book, then the ledger, and judge every call of that time; raises `BookError` and sqlite3.Error."""
    asked = wall()
    executions = None if book is None else fetch_book(book)
    dead = folder.dead_owners()
    waits = folder.fold().waits
    count = Count(wall(), dead)
    records = []
    for record in folder.records(since, until):
        count.add(record)
        if executions is not None:
            records.append(record)
    made = None
    if executions is not None:
        made = compare(executions, records, asked=asked, begin=since)
    findings = count.findings() + ([] if made is None else made.findings)
    if waits:
        findings.insert(0, Finding("waits", "", f"not all journals could be read: {waits}"))
    return Audit(count, folder.holes(), waits, made, findings, folder.lost_days())
