"""The command `moongate`. The verbs that run servers start without the libraries that the others need."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from moongate.core.settings import Settings
    from moongate.store.control import ControlStore
    from moongate.world import World

FLAGS: Final = (
    ("--listen-addr", "ADDRESS", "where the data plane answers (default 127.0.0.1:8080)"),
    ("--kimi-api-url", "URL", "base of the Kimi API, version included"),
    ("--max-concurrent-requests", "N", "calls at one time; more are refused with 503"),
    ("--state", "DIR", "journals, databases, secrets (default ./.moongate)"),
    ("--run", "DIR", "Unix sockets (default: `run` in the state directory)"),
    ("--workers", "N", "worker processes (default 1)"),
    ("--cache-capacity", "BYTES", "not yet"),
    ("--redis-url", "URL", "not yet"),
    ("--kimi-max-gpu-concurrency", "N", "not yet"),
)
"""Flags of `serve`, each over the setting it names."""

_DEMO_KEY: Final = "MOONGATE_DEMO_KEY"


def main(argv: Sequence[str] | None = None) -> None:
    """Run one verb and exit with its code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    verb = _SERVERS.get(arguments[0]) if arguments else None
    if verb is not None:
        sys.exit(verb(arguments[1:]))
    from moongate.commands import app  # noqa: PLC0415 - typer and rich: for people, not for servers

    app(arguments)


def serve(argv: Sequence[str]) -> int:
    """Run the gateway until it is told to end."""
    parser = argparse.ArgumentParser(
        prog="moongate serve", description="Run the gateway until told to end (SIGTERM)."
    )
    parser.add_argument("-c", "--config", metavar="FILE", help="settings in YAML; none is needed")
    parser.add_argument(
        "--embedded",
        action="store_true",
        help="for a first look: a marked demo key, and a simulated Kimi unless MOONSHOT_API_KEY is set",
    )
    for flag, shape, text in FLAGS:
        parser.add_argument(flag, metavar=shape, help=text)
    given = parser.parse_args(argv)
    flags = {
        flag: value
        for flag, _, _ in FLAGS
        if (value := getattr(given, flag[2:].replace("-", "_"))) is not None
    }
    try:
        with ExitStack() as stack:
            if given.embedded:
                from moongate.embedded import is_wanted, simulated_kimi  # noqa: PLC0415 - for a first look

                if is_wanted() and given.config is None and "--kimi-api-url" not in flags:
                    flags["--kimi-api-url"] = stack.enter_context(simulated_kimi())
            return _supervise(given.config, flags, demo=given.embedded)
    except OSError as error:
        print(f"moongate: {error}", file=sys.stderr)
        return 1


def _supervise(config: str | None, flags: Mapping[str, str], *, demo: bool) -> int:
    from moongate.core.mistakes import SettingsError  # noqa: PLC0415 - the same
    from moongate.ops.log import set_up  # noqa: PLC0415 - the same
    from moongate.processes import supervisor  # noqa: PLC0415 - what only the server needs
    from moongate.processes.chores import Chore  # noqa: PLC0415 - the same
    from moongate.processes.reconciler import Reconciler  # noqa: PLC0415 - the same
    from moongate.processes.upkeep import Upkeep  # noqa: PLC0415 - the same
    from moongate.store import price_book  # noqa: PLC0415 - the same
    from moongate.store.control import ControlError, ControlStore  # noqa: PLC0415 - the same
    from moongate.store.records import Folder  # noqa: PLC0415 - the same
    from moongate.store.settings_file import load_file  # noqa: PLC0415 - the same
    from moongate.world import RealWorld  # noqa: PLC0415 - the same

    world = RealWorld()
    try:
        settings = load_file(None if config is None else Path(config), flags)
    except SettingsError as error:
        for mistake in error.mistakes:
            print(mistake, file=sys.stderr)
        return 2
    state = Path(settings.state)
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        control = ControlStore.open(state)
    except ControlError as error:
        print(f"moongate: Cannot start: {error}", file=sys.stderr)
        return 1
    with suppress(OSError):  # a full disk stops paid work by itself, and nothing else
        price_book.save(state, settings)
    if demo:
        _greet(settings, _demo_key(control, world))
    folder = Folder(state / "journal", state / "ledger.db")
    days = settings.ledger
    upkeep = Upkeep(folder, world, segment_days=days.segment_days, row_days=days.row_days)
    set_up()
    upkeep.fold()  # what dead owners left open is closed before any worker is ready
    reconciler = Reconciler(state, folder, world, "the supervisor")
    chores = [
        Chore("ledger", 1.0, upkeep.act, upkeep.rows, upkeep.checks),
        Chore("reconcile", 60.0, lambda: reconciler.act(days.write_off_days)),
    ]
    return supervisor.run(settings, control, world, chores=chores)


def _demo_key(control: "ControlStore", world: "World") -> str:
    """The demo key of this process; the same one after it re-executed itself, for callers keep it."""
    key = os.environ.get(_DEMO_KEY, "")
    if control.read().find(key, loopback=True) is None:
        key, _ = control.add_demo_key(world.new_secret(), now=world.wall(), who="moongate serve --embedded")
        os.environ[_DEMO_KEY] = key
    return key


def _greet(settings: "Settings", key: str) -> None:
    from moongate.embedded import announce, welcome  # noqa: PLC0415 - for a first look only

    base = f"http://{settings.listen}"
    target = next(iter(settings.targets.values()))
    announce(base, welcome(base, key, str(target.url), f"http://{settings.admin.listen}"))


def _worker(argv: Sequence[str]) -> int:
    from moongate.processes import worker  # noqa: PLC0415 - the data plane: for worker processes

    return worker.main(argv)


def _sim(argv: Sequence[str]) -> int:
    from moongate.sim import serve as simulated  # noqa: PLC0415 - the gateway itself never imports it

    return simulated.main(argv) or 0


_SERVERS: Final[Mapping[str, Callable[[Sequence[str]], int]]] = {
    "serve": serve,
    "worker": _worker,
    "sim": _sim,
}
