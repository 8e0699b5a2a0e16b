"""The verbs about money: `moongate ledger ...`. They read the state directory, whether a gateway runs on it or not."""

import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from moongate.core.book import BookError
from moongate.core.settings import Settings
from moongate.ops.audits import Audit, verify
from moongate.store.records import Folder
from moongate.world import RealWorld

ledger = typer.Typer(
    no_args_is_help=True, help="Where the money went: verify the books, report, reconcile what is in doubt."
)
State = Annotated[Path, typer.Option("--state", help="The gateway's state directory.", metavar="DIR")]
From = Annotated[
    str,
    typer.Option("--from", help="Calls made from then on: 2026-11-30, or with T and a time.", metavar="TIME"),
]
Until = Annotated[str, typer.Option("--to", help="Calls made before then.", metavar="TIME")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document instead of text.")]
STATE = Path(Settings().state)
_world = RealWorld()


@contextmanager
def opened(state: Path) -> Iterator[Folder]:
    """The ledger in a state directory; ends with exit code 2 where there is none or it cannot be asked."""
    if not (state / "journal").is_dir() and not (state / "ledger.db").exists():
        fail(f"there is no ledger in {state}; name the gateway's state directory with --state")
    _become_owner(state)
    folder = Folder(state / "journal", state / "ledger.db", patience=10.0)
    try:
        yield folder
    except (sqlite3.Error, OSError) as error:
        fail(f"the ledger in {state} cannot be asked: {error}")
    finally:
        folder.close()


def _become_owner(state: Path) -> None:
    """Act as the state directory's owner where root asks: a file of root's in it would lock the gateway out."""
    owner = state.stat()
    if os.geteuid() == 0 and owner.st_uid != 0:
        os.setegid(owner.st_gid)
        os.seteuid(owner.st_uid)


def fail(what: str) -> NoReturn:
    """Say why it cannot be done and end with exit code 2."""
    print(f"moongate: {what}", file=sys.stderr)
    raise typer.Exit(2)


def paper() -> Console:
    """Where text for people goes; what is piped is wide, so that no line of a table is broken."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def moment(text: str) -> float | None:
    """The second that a text means (UTC unless it says otherwise), None for an empty one."""
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        fail(f"{text} is no time; write 2026-11-30 or 2026-11-30T14:00")
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def told(document: object) -> None:
    """Print a document as JSON."""
    print(json.dumps(document, ensure_ascii=False, indent=2))


@ledger.command("verify")
def verify_books(
    state: State = STATE,
    book: Annotated[
        str, typer.Option(help="A provider's book to hold it against: a simulator's address, or a file.")
    ] = "",
    since: From = "",
    until: Until = "",
    as_json: Json = False,
) -> None:
    """Say whether the books balance. Exit code 0 if they do, 1 if not, 2 if they cannot be read."""
    with opened(state) as folder:
        try:
            audit = verify(folder, _world.wall, book=book or None, since=moment(since), until=moment(until))
        except BookError as error:
            fail(str(error))
    if as_json:
        told(audit.document())
    else:
        _show(paper(), audit)
    raise typer.Exit(0 if audit.good else 1)


def _show(console: Console, audit: Audit) -> None:
    count = audit.count
    calls = ", ".join(f"{number:,} {name}" for name, number in sorted(count.calls.items()))
    states = " + ".join(f"{number:,} {name}" for name, number in sorted(count.states.items()))
    console.print(f"calls         {sum(count.calls.values()):,}: {calls or 'none'}", soft_wrap=True)
    console.print(f"reservations  {sum(count.states.values()):,} = {states or '0'}", soft_wrap=True)
    if count.provisional:
        console.print(
            f"              {count.provisional:,} ambiguous ones are charged for now: their client left"
        )
    if count.suspect:
        console.print(f"              {count.suspect:,} counted by us: usage was missing or absurd")
    if audit.holes:
        missing = sum(hole.missing for hole in audit.holes)
        console.print(
            f"journals      {len(audit.holes):,} damaged places, {missing:,} records known to be missing"
        )
        for hole in audit.holes[:20]:
            console.print(
                f"              {hole.segment}, offset {hole.offset:,}: {hole.what}; {hole.size:,} bytes, "
                f"{hole.missing:,} records missing",
                soft_wrap=True,
            )
    for day, lost in audit.lost_days.items():
        console.print(
            f"lost          {day}: at most {lost:,} calls that a damaged ledger knew", style="yellow"
        )
    made = audit.comparison
    if made is not None:
        console.print(
            f"book          {made.executions:,} executions: {made.settled:,} settled, {made.estimated:,} counted, "
            f"{made.ambiguous:,} ambiguous ({made.ambiguous_charged:,} charged there), {made.running:,} running",
            soft_wrap=True,
        )
        for currency in sorted({*made.billed, *made.charged}):
            ours, theirs = made.billed[currency] / 1e6, made.charged[currency] / 1e6
            console.print(f"              billed {ours:,.6f} {currency}, charged there {theirs:,.6f}")
        if made.paid_twice:
            console.print(
                f"              {made.paid_twice:,} calls have two charged executions", style="yellow"
            )
    for finding in audit.findings[:20]:
        console.print(f"[red]✗[/red] {finding.what}", soft_wrap=True)
    if len(audit.findings) > 20:
        console.print(f"  and {len(audit.findings) - 20:,} more; --json tells a thousand")
    verdict = "the books balance" if audit.good else f"{len(audit.findings):,} things do not hold"
    console.print(verdict, style="bold green" if audit.good else "bold red")
