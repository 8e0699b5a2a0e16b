"""The table at the end of a replay."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from moongate.replay.ending import COMPLETED
from moongate.replay.tally import SHARES, Tally, percentile


def show(console: Console, tally: Tally, seconds: float) -> None:
    """Print what became of the calls; `seconds` is how long the replay took."""
    for table in (_outcomes(tally, seconds), _times(tally), _tokens(tally)):
        console.print(table)


def _outcomes(tally: Tally, seconds: float) -> Table:
    table = _table(f"{tally.calls:,} calls in {seconds:,.1f} s", "outcome", "calls")
    table.add_row(COMPLETED, f"{tally.outcomes[COMPLETED]:,}")
    for outcome, count in tally.outcomes.most_common():
        if outcome != COMPLETED:
            table.add_row(outcome, f"{count:,}", style="red")
    if tally.left_out:
        table.add_row("left out: no tokens in the trace", f"{tally.left_out:,}")
    if tally.without_usage:
        table.add_row("completed without usage", f"{tally.without_usage:,}")
    return table


def _times(tally: Tally) -> Table:
    table = _table("", "seconds", *(f"p{share * 100:g}" for share in SHARES), "most")
    _percentiles(table, "to the first event", tally.firsts)
    _percentiles(table, "in all", tally.totals)
    _percentiles(table, "sent late", tally.late)
    return table


def _percentiles(table: Table, name: str, values: Sequence[float]) -> None:
    ordered = sorted(values)
    if ordered:
        figures = [percentile(ordered, share) for share in SHARES]
        table.add_row(name, *(f"{figure:.3f}" for figure in (*figures, ordered[-1])))
    else:
        table.add_row(name, *("-" for _ in range(len(SHARES) + 1)))


def _tokens(tally: Tally) -> Table:
    usage = tally.usage
    table = _table("", "tokens", "")
    table.add_row("input", f"{usage.input:,}")
    share = f" ({usage.cached / usage.input:.1%})" if usage.input else ""
    table.add_row("of these cached by the provider", f"{usage.cached:,}{share}")
    table.add_row("output", f"{usage.output:,}")
    table.add_row("of these reasoning", f"{usage.reasoning:,}")
    unpriced = f" and {tally.unpriced:,} calls without a known price" if tally.unpriced else ""
    table.add_row("cost", f"{tally.cost_micro / 1e6:,.4f} {tally.currency}{unpriced}")
    return table


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(title=title or None, title_justify="left", min_width=48)
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table
