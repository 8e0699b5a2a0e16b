"""`moongate cache simulate`: a trace through caches that do not exist yet, from the file to table and picture."""

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from moongate.core.pricing import PRICES, PriceRow, PriceTable
from moongate.replay.caching import SHIPPED_K, Observer, Plan, Result, Study, recommended
from moongate.replay.trace import read, select

SHARES: Final = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5)
"""Budgets, as shares of all different answers, where none are named."""

_RARE: Final = 0.05
_STEP: Final = 2000


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be tried on which trace.

    `budgets` empty: `SHARES` of all different answers; of `ttls` None is for ever.
    """

    trace: Path
    ks: Sequence[int]
    budgets: Sequence[int]
    ttls: Sequence[float | None]
    model: str
    currency: str
    limit: int | None = None
    plot: Path | None = None


def simulate(question: Question, console: Console, now: float) -> int:
    """Try, and say what was found; 0, or 1 where a picture cannot be drawn.

    `now` is seconds since 1970, for the price. Raises `TraceError`, and OSError where the trace cannot be read.
    """
    if question.plot is not None and importlib.util.find_spec("matplotlib") is None:
        console.print("--plot needs matplotlib: pip install 'moongate[plots]'", markup=False)
        return 1
    row = PriceTable(PRICES).row(question.model, question.currency, now)
    budgets = question.budgets
    if not budgets:
        whole = _observe(question, Observer((), row), console, "reading").distinct_bytes
        budgets = [max(int(whole * share), 1) for share in SHARES]
    plans = [Plan(k, budget, ttl) for ttl in question.ttls for budget in budgets for k in question.ks]
    study = _observe(question, Observer(plans, row), console, "trying")
    show(console, question, study, row)
    if question.plot is not None:
        from moongate.replay.caching_picture import draw  # noqa: PLC0415 - an extra, and slow to import

        draw(study, question.plot, f"{question.trace.name}: answers given from a cache")
        console.print(f"picture: {question.plot}", markup=False)
    return 0


def _observe(question: Question, observer: Observer, console: Console, word: str) -> Study:
    with (
        question.trace.open("rb") as lines,
        Progress(console=console, transient=True, disable=not console.is_terminal) as bar,
    ):
        task = bar.add_task(word, total=max(question.trace.stat().st_size, 1))
        for number, arrival in enumerate(select(read(_counted(lines, bar, task)), question.limit, None)):
            observer.take(arrival)
            if number % _STEP == 0:
                bar.refresh()
    return observer.study


def _counted(lines: Iterator[bytes], bar: Progress, task: TaskID) -> Iterator[bytes]:
    for line in lines:
        bar.update(task, advance=len(line))
        yield line


def show(console: Console, question: Question, study: Study, row: PriceRow | None) -> None:
    """Print the tables and what follows from them."""
    console.print(_results(study, row))
    console.print(_sharing(study, row))
    for sentence in findings(study, question, row):
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def _results(study: Study, row: PriceRow | None) -> Table:
    """One line a budget and life, one column a policy: hits, their share, the money."""
    names = list(dict.fromkeys(result.plan.name for result in study.results))
    table = Table(title=f"hits of {study.calls:,} calls", title_justify="left")
    table.add_column("cache")
    table.add_column("ttl")
    for name in names:
        table.add_column(name, justify="right")
    lines: dict[tuple[int, float | None], list[str]] = {}
    for result in study.results:
        share = result.hits / study.calls if study.calls else 0.0
        told = f"{result.hits:,} ({share:.2%})"
        if row is not None:
            told += f"\n{_money(result.saved_micro, row)}"
        lines.setdefault((result.plan.budget, result.plan.ttl), []).append(told)
    for (budget, ttl), cells in lines.items():
        table.add_row(size(budget), "for ever" if ttl is None else f"{ttl:,.0f} s", *cells)
    return table


def _sharing(study: Study, row: PriceRow | None) -> Table:
    table = Table(title="what the trace shares, with memory without end", title_justify="left")
    for name in ("", "calls or tokens", "share", "worth"):
        table.add_column(name, justify="right" if name else "left")
    repeats = study.repeats / study.calls if study.calls else 0.0
    blocks = study.block_tokens / study.input if study.input else 0.0
    worth = [
        _money(found, row) if row else "-" for found in (study.repeats_saved_micro, study.block_saved_micro)
    ]
    table.add_row("calls equal to an earlier one", f"{study.repeats:,}", f"{repeats:.2%}", worth[0])
    table.add_row(
        "input tokens that a prompt cache knows", f"{study.block_tokens:,}", f"{blocks:.1%}", worth[1]
    )
    return table


def findings(study: Study, question: Question, row: PriceRow | None) -> list[str]:
    """What the figures mean, in sentences."""
    said = []
    best = recommended(study.results)
    if best is not None:
        equal = "the gateway's own" if best == SHIPPED_K else f"the gateway's own is {SHIPPED_K}"
        said.append(f"Recommended for this trace: K = {best} ({equal}).")
    elif study.results:
        said.append("No cache of these had a hit; no K is better than another.")
    if study.calls and study.repeats / study.calls < _RARE:
        said.append(
            f"Exact repeats are rare here ({study.repeats / study.calls:.2%} of the calls): a response cache saves "
            f"little. The money lies in the provider's prompt cache, which knows "
            f"{study.block_tokens / study.input:.1%} of the input tokens: keep conversations on one account and host."
        )
    if row is None:
        said.append(
            f"No price is known for {question.model} in {question.currency}; nothing is told in money."
        )
    if study.left_out:
        said.append(f"{study.left_out:,} calls of unknown length were left out.")
    if study.bounded:
        said.append(
            "The trace has more different calls or blocks than are remembered; repeats far apart are missing."
        )
    return said


def _money(micro: int, row: PriceRow) -> str:
    return f"{micro / 1e6:,.2f} {row.currency}"


def size(budget: int) -> str:
    """Bytes as people say them, in powers of 1024."""
    for unit in ("B", "KB", "MB"):
        if budget < 10 * 1024 or unit == "MB":
            break
        budget //= 1024
    return f"{budget:,} {unit}"


def best_by_budget(results: Sequence[Result]) -> dict[str, list[tuple[int, int]]]:
    """For each policy (and life, where there are several) its points: budget in bytes, hits."""
    lives = {result.plan.ttl for result in results}
    lines: dict[str, list[tuple[int, int]]] = {}
    for result in results:
        plan = result.plan
        name = plan.name if len(lives) == 1 else f"{plan.name}, {plan.ttl or 'no'} ttl"
        lines.setdefault(name, []).append((plan.budget, result.hits))
    return lines
