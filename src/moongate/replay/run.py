"""One replay from the file to the table: `moongate replay`."""

import asyncio
import importlib.util
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from moongate.core.addresses import Url
from moongate.core.pricing import PRICES, PriceTable
from moongate.replay.client import Client
from moongate.replay.player import Pace, Player
from moongate.replay.prompts import Script
from moongate.replay.report import show
from moongate.replay.tally import Tally
from moongate.replay.trace import Arrival, Survey, read, select, survey
from moongate.world import World

_REDRAW_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked for: which part of which trace, to whom, how fast. `seconds` are the trace's."""

    trace: Path
    base: Url
    key: str
    script: Script
    pace: Pace = field(default_factory=Pace)
    limit: int | None = None
    seconds: float | None = None
    currency: str = "USD"
    plot: Path | None = None


def replay(order: Order, console: Console, world: World) -> int:
    """Play and report; 0 if every call was completed, else 1.

    Raises `TraceError`, and OSError where the trace cannot be read. Interrupted, it reports what has ended so far.
    """
    if order.plot is not None and importlib.util.find_spec("matplotlib") is None:
        console.print("--plot needs matplotlib: pip install 'moongate[plots]'", markup=False)
        return 1
    with _arrivals(order) as arrivals:
        planned = survey(arrivals)
    _announce(console, order, planned)
    _allow_descriptors()
    tally = Tally(PriceTable(PRICES), order.currency, world.wall())
    began, whole = world.clock(), True
    try:
        uvloop.run(_play(order, planned, tally, console, world))
    except KeyboardInterrupt:
        whole = False
        console.print("interrupted; of the calls that had ended:")
    show(console, tally, world.clock() - began)
    if order.plot is not None:
        from moongate.replay.picture import draw  # noqa: PLC0415 - an extra, and slow to import

        draw(tally, order.plot, f"{order.trace.name}, {order.pace.speed:g} times as fast")
        console.print(f"picture: {order.plot}", markup=False)
    return 0 if whole and not tally.failed else 1


@contextmanager
def _arrivals(order: Order) -> Iterator[Iterator[Arrival]]:
    with order.trace.open("rb") as lines:
        yield select(read(lines), order.limit, order.seconds)


def _announce(console: Console, order: Order, planned: Survey) -> None:
    took = planned.seconds / order.pace.speed
    console.print(
        f"{order.trace.name}: {planned.calls:,} calls over {planned.seconds:,.0f} s, played in {took:,.0f} s "
        f"to {order.base}: {planned.input:,} tokens in, {planned.output:,} out",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _allow_descriptors() -> None:
    """Each call under way has a connection; the soft limit of many shells is about a thousand files."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _play(order: Order, planned: Survey, tally: Tally, console: Console, world: World) -> None:
    client = Client(order.base, order.key, world.clock)
    player = Player(client.ask, order.script, world, tally, order.pace)
    columns = (
        BarColumn(None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[running]} running, {task.fields[failed]} not completed"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, auto_refresh=False, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=planned.calls, running=0, failed=0)
        shown = asyncio.create_task(_follow(bar, task, player, tally, world))
        try:
            with _arrivals(order) as arrivals:
                await player.play(arrivals)
        finally:
            shown.cancel()
            client.close()
            _redraw(bar, task, player, tally)


async def _follow(bar: Progress, task: TaskID, player: Player, tally: Tally, world: World) -> None:
    while True:
        _redraw(bar, task, player, tally)
        await world.sleep(_REDRAW_SECONDS)


def _redraw(bar: Progress, task: TaskID, player: Player, tally: Tally) -> None:
    bar.update(task, completed=tally.calls, running=player.running, failed=tally.failed, refresh=True)
