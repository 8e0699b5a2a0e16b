"""`moongate explain ID`: the story of a call, from the state directory, whether a gateway runs on it or not."""

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from moongate.commands_ledger import STATE, Json, State, opened, told
from moongate.core.pricing import shown
from moongate.core.record import CallRecord
from moongate.core.story import Line, story, when
from moongate.store import price_book
from moongate.store.price_book import PriceBook

MOST: Final = 20
"""Matches that are listed; more need a better name."""

_CALL_ID: Final = re.compile(r"[0-9a-f]{28}(-[0-9]+)?")
_STYLES: Final = {
    "completed": "green", "truncated": "yellow", "failed": "red", "refused": "yellow", "abandoned": "yellow",
}  # fmt: skip


def explain(
    name: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="Of the call, the request, the conversation, the answer, or the provider's."
        ),
    ],
    state: State = STATE,
    as_json: Json = False,
) -> None:
    """Tell what became of a call and which function decided it. Exit code 1 if no call bears that id."""
    with opened(state) as folder:
        waits = folder.fold().waits
        found = folder.find(name)
        oldest = next(iter(folder.records()), None) if not found else None
    hints = [] if found else elsewhere(name, state, oldest, waits)
    book = price_book.load(state)
    console = Console(highlight=False)
    if as_json:
        told(_document(name, found, book, hints))
    elif not found:
        for line in hints:
            console.print(Text(line), soft_wrap=True)
    elif len(found) == 1:
        _show(console, found[0], _lines(found[0], book))
    else:
        _list(console, name, found)
    raise typer.Exit(0 if found else 1)


def _lines(record: CallRecord, book: PriceBook) -> list[Line]:
    def price_of(name: str) -> str:
        row = book.row(name)
        return shown(row) if row else ""

    return story(record, price_of)


def _document(name: str, found: Sequence[CallRecord], book: PriceBook, hints: list[str]) -> dict[str, object]:
    calls = [
        {"record": _plain(record), "story": [asdict(line) for line in _lines(record, book)]}
        for record in found
    ]
    document: dict[str, object] = {"id": name, "calls": calls}
    return document if calls else document | {"elsewhere": hints}


def _plain(record: CallRecord) -> dict[str, Any]:
    """The record with the names of its fields."""
    fields = msgspec.structs.asdict(record)
    fields["attempts"] = [msgspec.structs.asdict(attempt) for attempt in record.attempts]
    fields["corrections"] = [msgspec.structs.asdict(one) for one in record.corrections]
    return fields


def _show(console: Console, record: CallRecord, lines: Sequence[Line]) -> None:
    outcome = record.outcome or "running"
    head = Text.assemble(
        ("call ", "bold"),
        (clean(record.call_id), "bold"),
        "  ",
        (outcome, _STYLES.get(outcome, "cyan")),
        f" {record.status}" if record.status else "",
        f" in {record.duration:.3f} s" if record.duration >= 0 else "",
        style="",
    )
    console.print(head, soft_wrap=True)
    if record.request_id:
        console.print(Text(f"request {clean(record.request_id)}", style="dim"), soft_wrap=True)
    console.print()
    shown_part = ""
    for line in lines:
        part = line.part if line.part != shown_part else ""
        shown_part = line.part or shown_part
        if part.startswith(("attempt", "end")):
            console.print()
        console.print(_drawn(line, part), soft_wrap=True)


def _drawn(line: Line, part: str) -> Text:
    at = f"{line.at:9.3f}" if line.at is not None else " " * 9
    drawn = Text.assemble((at, "cyan"), "  ", (f"{part:<10}", "bold"), " ", clean(line.what))
    if line.decided:
        drawn.append(f"   [{clean(line.decided)}]", style="dim")
    return drawn


def _list(console: Console, name: str, found: Sequence[CallRecord]) -> None:
    console.print(Text(f"{len(found):,} calls bear the id {clean(name)}; name one of them:"), soft_wrap=True)
    for record in found[:MOST]:
        outcome = record.outcome or "running"
        way = " -> ".join(attempt.target for attempt in record.attempts) or "no attempt"
        console.print(
            Text.assemble(
                (f"  {when(record.created)}  ", "cyan"),
                f"moongate explain {clean(record.call_id)}  ",
                (f"{outcome:<10}", _STYLES.get(outcome, "cyan")),
                clean(f" {record.code or record.status:<24} {record.tenant}  {record.route}  {way}"),
            ),
            soft_wrap=True,
        )
    if len(found) > MOST:
        console.print(f"  and {len(found) - MOST:,} more")


def elsewhere(name: str, state: Path, oldest: CallRecord | None, waits: str) -> list[str]:
    """Where else to look for an id that no call in this ledger bears, the likeliest place first."""
    said = [f"no call in {state} bears the id {clean(name)}"]
    if waits:
        said.append(f"- not all journals could be read: {waits}")
    if _CALL_ID.fullmatch(name):
        made = int(name[:12], 16) / 1000
        said.append(f"- its form is that of a call made at {when(made)}")
        if oldest is not None and made < oldest.created:
            said.append(
                "- that is before the oldest call here: rows are deleted after `ledger.row_days`, 400 unless set"
            )
    if oldest is None:
        said.append(
            "- this ledger has no calls at all: name the state directory of the gateway that took it, with --state"
        )
    else:
        said.append(
            f"- the oldest call here is of {when(oldest.created)}; --state names another gateway's directory"
        )
    said += [
        "- requests without a valid key are never rows of a ledger: they are counted in moongate_unauthenticated_total",
        f"- the access log (`log.access`) may be kept for longer: grep -F {_quoted(name)} FILE",
        "- with nginx in front, a request that it refused itself is in its log only",
    ]
    return said


def _quoted(name: str) -> str:
    text = clean(name).replace("'", "'\\''")
    return f"'{text}'"


def clean(text: str) -> str:
    """The text without characters that would move a terminal's cursor or change its colours."""
    return "".join(char if char.isprintable() else "?" for char in text)
