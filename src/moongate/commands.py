"""The verbs for people: keys, settings, the demo. Servers start without any of this (`cli`)."""

import getpass
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from moongate import __version__
from moongate.commands_explain import explain
from moongate.commands_ledger import ledger
from moongate.commands_reconcile import import_statement, reconcile
from moongate.commands_report import report
from moongate.core.settings import Settings
from moongate.store.control import ControlError, ControlStore
from moongate.store.settings_file import check_file
from moongate.world import RealWorld

app = typer.Typer(
    name="moongate",
    help="A production gateway for Kimi.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
keys = typer.Typer(
    no_args_is_help=True, help="Who may call: add, list and revoke keys. Running gateways follow at once."
)
app.add_typer(keys, name="keys")
cache = typer.Typer(no_args_is_help=True, help="The response cache: what it would save.")
app.add_typer(cache, name="cache")
app.add_typer(ledger, name="ledger")
parks = typer.Typer(
    no_args_is_help=True,
    help="Accounts that get no calls because Kimi refused them: list and release. Running gateways follow at once.",
)
app.add_typer(parks, name="parks")
ledger.command("report")(report)
ledger.command("reconcile")(reconcile)
ledger.command("statement")(import_statement)
app.command("explain")(explain)

State = Annotated[Path, typer.Option("--state", help="The gateway's state directory.", metavar="DIR")]
_STATE = Path(Settings().state)
_world = RealWorld()


@app.command()
def serve() -> None:
    """Run the gateway until told to end; `moongate serve --help` lists its flags."""


@app.command()
def sim() -> None:
    """Run the simulated Kimi; `moongate sim --help` lists its flags."""


@app.command()
def demo() -> None:
    """Show the gateway at work: a simulated Kimi that misbehaves, twenty calls, and what became of each."""
    from moongate.demo import play  # noqa: PLC0415 - starts processes; no other verb needs it

    raise typer.Exit(play(Console()))


@app.command()
def replay(  # noqa: PLR0917 - typer: one argument for each option
    trace: Annotated[Path, typer.Argument(help="Mooncake JSON lines, Azure CSV, or an access log.")],
    speed: Annotated[float, typer.Option(help="10: ten seconds of the trace in one.", min=0.001)] = 1.0,
    limit: Annotated[int | None, typer.Option(help="Only so many calls.", min=1)] = None,
    seconds: Annotated[float | None, typer.Option(help="Only so many seconds of the trace.", min=0)] = None,
    base_url: Annotated[str, typer.Option(help="Whom to ask.", metavar="URL")] = "http://127.0.0.1:8080/v1",
    key: Annotated[str, typer.Option(help="The key to ask with.", envvar="MOONGATE_KEY")] = "",
    model: Annotated[str, typer.Option(help="The model to ask for.")] = "kimi-k2.5",
    sim: Annotated[bool, typer.Option("--sim", help="Tell a simulated Kimi the output lengths.")] = False,
    seed: Annotated[str, typer.Option(help="Another one: other words in the same blocks.")] = "",
    at_once: Annotated[int, typer.Option(help="Calls at one time; later ones come late.", min=1)] = 1000,
    timeout: Annotated[float, typer.Option(help="Seconds for each call.", min=0.1)] = 600.0,
    currency: Annotated[str, typer.Option(help="Of the prices that the cost is counted with.")] = "USD",
    plot: Annotated[
        Path | None, typer.Option(help="Write a picture (extra `plots`).", metavar="FILE")
    ] = None,
) -> None:
    """Play a trace of real traffic again. Exit code 1 if anything was not completed."""
    from moongate.core.addresses import Base  # noqa: PLC0415 - no other verb needs it
    from moongate.core.kinds import WrongError  # noqa: PLC0415 - the same
    from moongate.replay import player, prompts, run  # noqa: PLC0415 - the same
    from moongate.replay.trace import TraceError  # noqa: PLC0415 - the same

    try:
        code = run.replay(
            run.Order(
                trace,
                Base().parse(base_url),
                key,
                prompts.Script(model, sim, seed),
                player.Pace(speed, at_once, timeout),
                limit,
                seconds,
                currency,
                plot,
            ),
            Console(),
            _world,
        )
    except (TraceError, WrongError, OSError) as error:
        print(f"moongate: {error}", file=sys.stderr)
        raise typer.Exit(2) from error
    raise typer.Exit(code)


@cache.command("simulate")
def simulate_cache(  # noqa: PLR0917 - typer: one argument for each option
    trace: Annotated[Path, typer.Argument(help="Mooncake JSON lines, Azure CSV, or an access log.")],
    k: Annotated[
        list[int] | None, typer.Option("-k", help="K of LRU-K, 0 for LRU; repeat.", min=0, max=9)
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(help='Size of a cache, such as "64MB"; repeat for more.', metavar="SIZE"),
    ] = None,
    ttl: Annotated[
        list[float] | None, typer.Option(help="Seconds an answer may be used, 0: for ever; repeat.", min=0)
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Only so many calls.", min=1)] = None,
    model: Annotated[str, typer.Option(help="Whose prices count.")] = "kimi-k2.5",
    currency: Annotated[str, typer.Option(help="Of these prices.")] = "USD",
    plot: Annotated[
        Path | None, typer.Option(help="Write a picture (extra `plots`).", metavar="FILE")
    ] = None,
) -> None:
    """Try caches on a trace: what each policy and size would have saved. Asks nobody anything."""
    from moongate.core.kinds import Bytes, WrongError  # noqa: PLC0415 - no other verb needs it
    from moongate.replay import caching_run  # noqa: PLC0415 - the same
    from moongate.replay.trace import TraceError  # noqa: PLC0415 - the same

    try:
        code = caching_run.simulate(
            caching_run.Question(
                trace,
                [0, 1, 2, 3, 4] if k is None else k,
                [Bytes(1024).parse(size) for size in budget or ()],
                [seconds or None for seconds in ttl or (0.0,)],
                model,
                currency,
                limit,
                plot,
            ),
            Console(),
            _world.wall(),
        )
    except (TraceError, WrongError, OSError) as error:
        print(f"moongate: {error}", file=sys.stderr)
        raise typer.Exit(2) from error
    raise typer.Exit(code)


@app.command()
def check(file: Annotated[Path, typer.Argument(help="A settings file in YAML.")]) -> None:
    """Check a settings file: every mistake at once, each with its line and mend. Exit code 1 if there are any."""
    lines, code = check_file(file)
    for line in lines:
        print(line)
    raise typer.Exit(code)


@app.command()
def version() -> None:
    """Print the version."""
    print(f"moongate {__version__}")


@keys.command("add")
def add_key(
    tenant: Annotated[str, typer.Argument(help="Who pays for the calls made with this key.")],
    label: Annotated[str, typer.Option(help="What it is for; shown in lists.")] = "",
    route: Annotated[
        list[str] | None, typer.Option(help="A route it may use; repeat for more. Default: all.")
    ] = None,
    state: State = _STATE,
) -> None:
    """Make a key and print it: this once, for only its digest is kept."""
    with _control(state, create=True) as control:
        key, entry = control.add_key(
            tenant, label, route, _world.new_secret(), now=_world.wall(), who=_who("keys")
        )
    print(key)
    print(f"{entry.id} for tenant {entry.tenant}; it will not be shown again.", file=sys.stderr)


@keys.command("list")
def list_keys(state: State = _STATE) -> None:
    """List keys, revoked ones too. None of them is shown: they are not kept."""
    with _control(state) as control:
        entries = control.list_keys()
    table = Table("id", "tenant", "label", "routes", "created", "revoked")
    for entry in entries:
        routes = "all" if entry.routes is None else ", ".join(entry.routes)
        table.add_row(entry.id, entry.tenant, entry.label, routes, _day(entry.created), _day(entry.revoked))
    Console().print(table)


@keys.command("revoke")
def revoke_key(
    key_id: Annotated[str, typer.Argument(help="The id that `keys list` shows, k_...")], state: State = _STATE
) -> None:
    """Make a key worthless. Calls under way go on."""
    with _control(state) as control:
        entry = control.revoke(key_id, now=_world.wall(), who=_who("keys"))
    print(f"{entry.id} for tenant {entry.tenant} is revoked.")


@parks.command("list")
def list_parks(state: State = _STATE) -> None:
    """List what is parked, since when and why; the oldest first."""
    with _control(state) as control:
        parked = control.read().parked
    table = Table("name", "since", "reason")
    for name, entry in sorted(parked.items(), key=lambda each: each[1].since):
        table.add_row(name, _day(entry.since), entry.reason)
    Console().print(table)


@parks.command("release")
def release(
    name: Annotated[str, typer.Argument(help="An account, or account/model, as `parks list` shows it.")],
    state: State = _STATE,
) -> None:
    """Have it asked again, once the cause is mended; if it is not, the next call parks it anew."""
    with _control(state) as control:
        control.unpark(name, now=_world.wall(), who=_who("parks"))
    print(f"{name} is released.")


@contextmanager
def _control(state: Path, *, create: bool = False) -> Iterator[ControlStore]:
    try:
        control = ControlStore.open(state, create=create)
        try:
            yield control
        finally:
            control.close()
    except ControlError as error:
        print(f"moongate: {error}", file=sys.stderr)
        raise typer.Exit(1) from error


def _who(group: str) -> str:
    return f"{getpass.getuser()} (moongate {group})"


def _day(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")
