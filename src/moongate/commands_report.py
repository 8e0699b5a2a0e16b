"""`moongate ledger report`: what was used and billed, as a table, CSV or JSON."""

import csv
import sys
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text

from moongate.commands_explain import clean
from moongate.commands_ledger import STATE, From, State, Until, moment, opened, paper, told
from moongate.core.report import TOKENS, Group, Money, Report

_KINDS: Final = ("settled", "counted", "for_now")


class By(StrEnum):
    """What a report may be by."""

    TENANT = "tenant"
    USER = "user"
    MODEL = "model"
    TARGET = "target"
    DAY = "day"


class Form(StrEnum):
    """How a report is written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def report(
    by: Annotated[
        list[By] | None, typer.Option(help="Add up by this; repeat for pairs. Default: day.")
    ] = None,
    since: From = "",
    until: Until = "",
    form: Annotated[Form, typer.Option("--format", help="table, csv or json.")] = Form.TABLE,
    state: State = STATE,
) -> None:
    """Say what was used and billed: calls, tokens and money, what is estimated or in doubt apart."""
    made = Report([one.value for one in by or [By.DAY]])
    with opened(state) as folder:
        for record in folder.records(moment(since), moment(until)):
            made.add(record)
    if form is Form.JSON:
        told(_document(made))
    elif form is Form.CSV:
        _write_csv(made)
    else:
        console = paper()
        console.print(_table(made))
        for note in _notes(made.total):
            console.print(Text(note, style="dim"), soft_wrap=True)


def _document(made: Report) -> dict[str, object]:
    rows = [dict(zip(made.by, names, strict=True)) | _plain(group) for names, group in made.rows()]
    return {"by": list(made.by), "rows": rows, "total": _plain(made.total)}


def _plain(group: Group) -> dict[str, Any]:
    return {
        "calls": group.calls,
        "outcomes": dict(sorted(group.outcomes.items())),
        "attempts": group.attempts,
        "attempts_in_doubt": group.in_doubt,
        "attempts_counted": group.counted,
        "attempts_unpriced": group.unpriced,
        "tokens": {kind: group.tokens[kind] for kind in TOKENS},
        "money_micro": {
            currency: asdict(money) | {"billed": money.billed}
            for currency, money in sorted(group.money.items())
        },
    }


def _write_csv(made: Report) -> None:
    """One line a group. Each currency has columns of its own, so that no spreadsheet adds two."""
    outcomes = sorted(made.total.outcomes)
    out = csv.writer(sys.stdout, lineterminator="\n")
    money = [f"{kind}_{currency}" for currency in made.currencies for kind in ("billed", *_KINDS)]
    counts = ["attempts", "attempts_in_doubt", "attempts_counted", "attempts_unpriced"]
    out.writerow([*made.by, "calls", *outcomes, *counts, *(f"{kind}_tokens" for kind in TOKENS), *money])
    for names, group in made.rows():
        amounts = [
            f"{getattr(group.money.get(currency, Money()), kind) / 1e6:.6f}"
            for currency in made.currencies
            for kind in ("billed", *_KINDS)
        ]
        out.writerow(
            [
                *map(_harmless, names),
                group.calls,
                *(group.outcomes[name] for name in outcomes),
                *(group.attempts, group.in_doubt, group.counted, group.unpriced),
                *(group.tokens[kind] for kind in TOKENS),
                *amounts,
            ]
        )


def _harmless(name: str) -> str:
    """A name that no spreadsheet takes for a formula: users may be named by whoever calls."""
    return (
        f"'{name}"
        if name.startswith(("=", "+", "@", "\t", "\r")) or (name[0] == "-" and name != "-")
        else name
    )


def _table(made: Report) -> Table:
    outcomes = [name for name in ("completed", "truncated", "failed", "refused", "abandoned", "replayed", "open")
                if made.total.outcomes[name]]  # fmt: skip
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in made.by:
        table.add_column(name)
    heads = ["calls", *outcomes, "in", "cached", "out", "reasoning"]
    for currency in made.currencies:
        heads += [currency, "of it counted", "for now"]
    heads += ["in doubt", "unpriced"]
    for head in heads:
        table.add_column(head, justify="right")
    for names, group in made.rows():
        table.add_row(*(Text(clean(name)) for name in names), *_cells(made, group, outcomes))
    if len(made.groups) > 1:
        table.add_section()
        table.add_row("all", *[""] * (len(made.by) - 1), *_cells(made, made.total, outcomes), style="bold")
    return table


def _cells(made: Report, group: Group, outcomes: list[str]) -> list[str]:
    cells = [_number(group.calls), *(_number(group.outcomes[name]) for name in outcomes)]
    cells += [_number(group.tokens[kind]) for kind in ("input", "cached", "output", "reasoning")]
    for currency in made.currencies:
        money = group.money.get(currency, Money())
        cells += [_amount(money.billed), _amount(money.counted), _amount(money.for_now)]
    return [*cells, _number(group.in_doubt), _number(group.unpriced)]


def _number(number: int) -> str:
    return f"{number:,}" if number else "-"


def _amount(micro: int) -> str:
    return f"{micro / 1e6:,.6f}" if micro else "-"


def _notes(total: Group) -> list[str]:
    notes: list[str] = []
    if total.counted:
        notes.append(
            f"{total.counted:,} attempts were counted by the gateway: a cut stream, or usage that was none"
        )
    if total.in_doubt:
        notes.append(
            f"{total.in_doubt:,} attempts are in doubt: not charged, but for clients that left (`for now`)"
        )
    if total.unpriced:
        notes.append(
            f"{total.unpriced:,} attempts have no known price; `moongate ledger verify` names the models"
        )
    return notes
