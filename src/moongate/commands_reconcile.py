"""The verbs that bring in the provider's word: `moongate ledger reconcile` and `moongate ledger statement`."""

import getpass
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from moongate.commands_ledger import STATE, Json, State, fail, moment, opened, paper, told
from moongate.core.book import BookError
from moongate.core.reconcile import LATE, day_of
from moongate.core.statement import Statement, StatementError, differences, read_statement
from moongate.core.story import amount
from moongate.ops.audits import fetch_book
from moongate.processes.reconciler import Reconciler, Round
from moongate.store import statements
from moongate.store.amendments import BusyError
from moongate.store.journal import JournalError
from moongate.store.records import Folder
from moongate.world import RealWorld

Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column", help="What a column is called, such as cost=Amount; repeat.", metavar="OURS=THEIRS"
    ),
]
Money = Annotated[str, typer.Option(help="Of amounts whose currency the file does not say.", metavar="CODE")]
Offset = Annotated[float, typer.Option(help="Hours by which the file's times are ahead of UTC.")]
_world = RealWorld()


def reconcile(  # noqa: PLR0917 - typer: one argument for each option
    state: State = STATE,
    book: Annotated[
        str, typer.Option(help="A provider's book of all targets: a simulator's address, or a file.")
    ] = "",
    statement: Annotated[
        Path | None, typer.Option(help="A statement (CSV) to look at besides those imported.", metavar="FILE")
    ] = None,
    write_off_days: Annotated[
        float | None, typer.Option(help="Write off what has been in doubt for so many days.", min=0)
    ] = None,
    since: Annotated[
        str, typer.Option("--from", help="The book is whole from then on.", metavar="TIME")
    ] = "",
    late: Annotated[
        float,
        typer.Option(help="Seconds after its end in which an attempt may yet come into the book.", min=0),
    ] = LATE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be corrected.")] = False,
    as_json: Json = False,
) -> None:
    """Find proof for attempts in doubt and correct what it proves; each correction is kept with its reason."""
    extra = [] if statement is None else [_read(statement, None, "", 0.0)]
    with opened(state) as folder:
        who = f"{getpass.getuser()} (moongate ledger reconcile)"
        try:
            done = Reconciler(state, folder, _world, who).round(
                book=(lambda: fetch_book(book)) if book else None,
                extra=extra,
                write_off_days=write_off_days,
                since=moment(since),
                late=late,
                dry=dry_run,
            )
        except (BookError, BusyError, JournalError) as error:
            fail(str(error))
    if as_json:
        corrections = [msgspec.structs.asdict(one) for one in done.corrections]
        told({"in_doubt": done.doubtful, "dry_run": dry_run, "corrections": corrections})
    else:
        _show(paper(), done, dry=dry_run)


def _show(console: Console, done: Round, *, dry: bool) -> None:
    for one in done.corrections:
        console.print(
            f"{one.attempt_id}  {one.before} -> {one.after}  {one.why}", soft_wrap=True, markup=False
        )
        if one.billed_before != one.billed_after:
            console.print(f"  the bill: {_bill(one.billed_before)} -> {_bill(one.billed_after)} millionths")
    left = done.doubtful - sum(one.before == "ambiguous" != one.after for one in done.corrections)
    verb = "would be corrected" if dry else "corrected"
    console.print(
        f"{done.doubtful:,} in doubt, {len(done.corrections):,} {verb}, {left:,} still without proof"
    )


def _bill(micro: int | None) -> str:
    return "not known" if micro is None else f"{micro:,}"


@dataclass(frozen=True, slots=True)
class _Difference:
    """One day of a statement, beside the ledger's; amounts in millionths."""

    day: str
    model: str
    currency: str
    ours_micro: int
    theirs_micro: int
    estimated_micro: int
    in_doubt: int


def import_statement(  # noqa: PLR0917 - typer: one argument for each option
    file: Annotated[Path, typer.Argument(help="The provider's statement, CSV, one row a request or a day.")],
    column: Columns = None,
    currency: Money = "",
    utc_offset: Offset = 0.0,
    state: State = STATE,
    as_json: Json = False,
) -> None:
    """Import the provider's statement and show how the ledger differs from it, by day. Reconciling looks at it."""
    read = _read(file, column, currency, utc_offset)
    with opened(state) as folder:
        fresh = statements.keep(state, read)
        days = _compared(folder, read)
    if as_json:
        rows = [{name: getattr(one, name) for name in _Difference.__slots__} for one in days]
        told({"rows": len(read.rows), "new": fresh, "problems": list(read.problems), "days": rows})
        return
    console = paper()
    note = "" if fresh else "; it was imported before"
    console.print(f"{len(read.rows):,} rows read, {len(read.problems):,} left out{note}")
    for problem in read.problems[:20]:
        console.print(f"  {problem}", markup=False, soft_wrap=True)
    console.print(_table(days))


def _read(file: Path, column: Sequence[str] | None, currency: str, offset: float) -> Statement:
    columns: dict[str, str] = {}
    for pair in column or ():
        ours, equals, theirs = pair.partition("=")
        if not equals:
            fail(f"{pair} names no column; write it as cost=Amount")
        columns[ours] = theirs
    try:
        text = file.read_text("utf-8-sig")
        return read_statement(text, columns=columns, currency=currency, offset=offset)
    except (OSError, UnicodeError) as error:
        fail(f"{file} cannot be read: {error}")
    except StatementError as error:
        fail(f"{file}: {error}")


def _compared(folder: Folder, read: Statement) -> list[_Difference]:
    days = {row.day for row in read.rows}
    if not days:
        return []
    ours: dict[tuple[str, str, str], int] = {}
    estimated: dict[tuple[str, str, str], int] = {}
    doubt: dict[tuple[str, str], int] = {}
    named = all(row.model for row in read.rows)
    first, last = moment(min(days)) or 0.0, (moment(max(days)) or 0.0) + 86_400.0
    for record in folder.records(first - 86_400.0, last):
        for one in record.attempts:
            day = day_of(one.started)
            if day not in days:
                continue
            model = one.model if named else ""
            key = (day, model, one.currency)
            if one.state in ("settled", "settled_est"):
                ours[key] = ours.get(key, 0) + (one.cost_micro or 0)
            if one.state == "settled_est":
                estimated[key] = estimated.get(key, 0) + (one.cost_micro or 0)
            if one.state == "ambiguous":
                doubt[day, model] = doubt.get((day, model), 0) + 1
    return [
        _Difference(
            day,
            model,
            currency,
            mine,
            theirs,
            estimated.get((day, model, currency), 0),
            doubt.get((day, model), 0),
        )
        for day, model, currency, mine, theirs in differences(ours, read.rows)
    ]


def _table(days: Sequence[_Difference]) -> Table:
    table = Table("day", "model", "ledger", "of it counted", "statement", "difference", "in doubt", box=None)
    for one in days:
        table.add_row(
            one.day,
            one.model or "all",
            amount(one.ours_micro, one.currency),
            amount(one.estimated_micro, one.currency),
            amount(one.theirs_micro, one.currency),
            amount(one.theirs_micro - one.ours_micro, one.currency),
            f"{one.in_doubt:,}",
        )
    return table
