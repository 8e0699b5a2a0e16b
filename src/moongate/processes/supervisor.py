"""The supervisor: it holds sockets, state and workers together, and is off the data path.

`run` is its whole life. Signals: SIGTERM and SIGINT drain and end (again: hurry), SIGUSR2 re-executes this program with
its sockets and workers inherited, SIGHUP will reload settings one day.
"""

import asyncio
import contextlib
import functools
import importlib
import itertools
import logging
import os
import platform
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from moongate import __version__
from moongate.core.settings import Settings
from moongate.ops import log as ops_log
from moongate.ops.health import OK, all_off
from moongate.ops.house import ParkView, WorkerView
from moongate.ops.masked import masked
from moongate.ops.metrics import NONE, Row
from moongate.ops.totals import Totals
from moongate.ops.upstreams import Attempts, Gauges, Watch
from moongate.processes import channel, heirloom, listening, looks
from moongate.processes.channel import (
    Checks,
    Control,
    Drain,
    Load,
    Park,
    Reception,
    Scrape,
    Snapshot,
    Welcome,
)
from moongate.processes.chores import Chore, Chores
from moongate.processes.fleet import WORKERS_FILE, Fleet, Terms
from moongate.processes.heirloom import Heirloom
from moongate.processes.parks import Parks, Store
from moongate.processes.slots import Process
from moongate.processes.state_lock import StateLock, StateLockedError
from moongate.upstream.names import Names
from moongate.upstream.probes import balance_of, load_at, look_at
from moongate.world import World

if TYPE_CHECKING:
    from moongate.ops import admin

SCRAPE_SECONDS: Final = 0.3
"""How long `/metrics` waits for workers; who does not answer counts as it last said."""
_ADDRESSES_FILE: Final = "addresses.json"
_FOLLOW_SECONDS: Final = 0.25
_HURRY_SECONDS: Final = 3.0
_MARGIN_SECONDS: Final = 5.0
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGHUP)

CANNOT_START: Final = 1
"""Exit code when state or sockets cannot be had; the log says why."""

WORKER: Final = (sys.executable, "-m", "moongate", "worker")
"""How a worker is started: a fresh interpreter of the same Python."""

log: Final = logging.getLogger(__name__)


class ControlSource(Store, Protocol):
    """Where the control document comes from, and where parks go."""

    def changed(self) -> bool:
        """Whether it changed since it was last read; asked four times a second."""

    def to_json(self) -> bytes:
        """The document as it stands."""


def run(
    settings: Settings,
    control: ControlSource,
    world: World,
    *,
    chores: Sequence[Chore] = (),
    command: Sequence[str] = WORKER,
) -> int:
    """Supervise until told to end; return the exit code: 0 after a drain, 1 if it could not start.

    `command` starts a worker; one argument is added. SIGUSR2 does not return: this process goes on as a new image of
    the command line it was started with.
    """
    ops_log.set_up()
    inherited = heirloom.find()
    try:
        lock = StateLock(inherited.lock) if inherited else StateLock.take(Path(settings.state))
        while True:
            with asyncio.Runner() as runner:
                supervisor = Supervisor(settings, control, world, lock, command)
                left = runner.run(supervisor.run(chores, inherited))
            if left is None:
                lock.release()
                return 0
            inherited = _execute_again(left)
    except (StateLockedError, listening.InUseError) as error:
        log.error("%s", error)  # noqa: TRY400 - the sentence is all there is to say
    except OSError as error:
        log.error("Cannot start: %s", error)  # noqa: TRY400 - as above
    return CANNOT_START


def _execute_again(left: Heirloom) -> Heirloom | None:
    """Become the new image; if that cannot be, go on as the old one with what was left to the new."""
    heirloom.leave(left)
    sys.stdout.flush()  # exec drops what is still buffered
    sys.stderr.flush()
    try:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - our own command line, no shell
    except OSError:
        log.exception("cannot re-execute; going on as before")
    return heirloom.find()


class Supervisor:
    """One image's life. It is the owner of the fleet and the house that the admin listener shows."""

    def __init__(
        self,
        settings: Settings,
        control: ControlSource,
        world: World,
        lock: StateLock,
        command: Sequence[str],
    ) -> None:
        self._settings = settings
        self._settings_json = settings.to_json()
        self._control = control
        self._document = control.to_json()
        self._world = world
        self._lock = lock
        self._run_folder = Path(settings.run).absolute()
        terms = Terms(
            host=settings.listen.host,
            port=settings.listen.port,
            count=settings.workers,
            run=self._run_folder,
            lock=Path(settings.state).absolute() / "lock",
            identity=lock.identity,
            channel=self._run_folder / "supervisor.sock",
            command=command,
        )
        self._fleet = Fleet(terms, self, world)
        self._names = Names(world.clock, settings.dns.ttl_seconds, settings.dns.stale_seconds)
        look = functools.partial(look_at, names=self._names)
        self._watch = Watch(looks.models(settings), settings.health.kimi_seconds, world, look)
        balance = functools.partial(balance_of, names=self._names)
        self._parks = Parks(settings, control, world, balance)
        self._parks.follow(self._document)
        load = functools.partial(load_at, names=self._names)
        self._gauges = Gauges(looks.gauges(settings), settings.health.kimi_seconds, world, load)
        self._load = self._gauges.load
        self._chores: Sequence[Chore] = ()
        self._shown = self.checks()
        self._attempts = Attempts()
        self._totals = Totals()
        self._numbers = itertools.count(1)
        self._scrapes: dict[int, asyncio.Future[None]] = {}
        self._told: asyncio.Queue[signal.Signals] = asyncio.Queue()

    async def run(self, chores: Sequence[Chore], inherited: Heirloom | None) -> Heirloom | None:
        """Start or go on, supervise, end. What is returned is for the next image; None: all is over."""
        listening.make_run_folder(self._run_folder)
        sock = channel.adopt(inherited.channel) if inherited else channel.listen(self._fleet.terms.channel)
        reception = Reception(sock, self._fleet.receiver)
        self._heed_signals()
        admin_sock = await self._take_places(inherited)
        self._fleet.start_missing()
        self._announce(admin_sock)
        self._chores = chores
        duties = Chores(chores)
        duties.start()
        duties_of_ours = (self._watch.run(), self._gauges.run(), self._parks.run(), self._follow())
        tasks = [asyncio.create_task(duty) for duty in duties_of_ours]
        opened = asyncio.create_task(self._open_admin(admin_sock))
        ends = await self._until_told()
        if ends:
            await self._end()
        await duties.finish()
        for task in tasks:
            task.cancel()
        await self._names.close()
        admin = await opened
        if admin is not None:
            await admin.stop()
        reception.close()
        if not ends:
            return self._heirloom(sock, admin_sock)
        sock.close()
        admin_sock.close()
        for name in (self._fleet.terms.channel.name, WORKERS_FILE, _ADDRESSES_FILE):
            self._sweep_up(name)
        return None

    def _sweep_up(self, name: str) -> None:
        """Leave no file behind; where that cannot be, the next start does it: the end was clean all the same."""
        with contextlib.suppress(OSError):
            (self._run_folder / name).unlink(missing_ok=True)

    async def _take_places(self, inherited: Heirloom | None) -> socket.socket:
        """Have every slot's sockets and the admin's: inherited, taken over from living workers, or bound."""
        if inherited is not None:
            self._totals = Totals(inherited.retired)
            self._fleet.inherit(inherited.pairs, inherited.workers)
            return listening.adopted(inherited.admin)
        admin = self._settings.admin.listen
        admin_sock = listening.bind_tcp(admin.host, admin.port)
        await self._fleet.take_over()
        self._fleet.bind()
        return admin_sock

    def _announce(self, admin_sock: socket.socket) -> None:
        """Say where everything answers, in the log and in `run/addresses.json`."""
        addresses = {"listen": self._fleet.addresses, "admin": listening.shown(admin_sock)}
        try:
            (self._run_folder / _ADDRESSES_FILE).write_bytes(msgspec.json.encode(addresses))
        except OSError as error:  # the data plane needs no such file
            log.warning("the addresses cannot be written down: %s", error)
        log.info("listening on %s; admin on %s", ", ".join(self._fleet.addresses), addresses["admin"])

    def _heed_signals(self) -> None:
        """Take signals from now on; those that came while the image was replaced have waited for this."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._told.put_nowait, number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    async def _until_told(self) -> bool:
        """Wait for the signal that ends this image; whether it ends the gateway too."""
        while True:
            match await self._told.get():
                case signal.SIGHUP:
                    log.warning("SIGHUP: reloading settings is not yet possible; restart instead")
                case signal.SIGUSR2:
                    log.info("re-executing; workers go on")
                    return False
                case number:
                    log.info("%s: draining for at most %g s", number.name, self._settings.drain.grace_seconds)
                    return True

    async def _end(self) -> None:
        """Drain the workers and see them out; another SIGTERM hurries them."""
        grace = self._settings.drain.grace_seconds
        hurry = asyncio.create_task(self._hurry())
        await self._fleet.drain(grace)
        gone = asyncio.create_task(self._fleet.gone(grace + _MARGIN_SECONDS))
        await asyncio.wait((gone, hurry), return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not gone.done():
            gone.cancel()
        if not await self._fleet.gone(_HURRY_SECONDS if hurry.done() else 0.0):
            self._fleet.kill()
            await self._fleet.gone(_HURRY_SECONDS)

    async def _hurry(self) -> None:
        while await self._told.get() not in (signal.SIGTERM, signal.SIGINT):
            pass
        log.info("told again: live calls are ended now")
        self._fleet.tell_all(Drain(0.0))

    def _heirloom(self, sock: socket.socket, admin_sock: socket.socket) -> Heirloom:
        """Let go of everything that the next image goes on with; signals wait for it."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        workers, pairs = self._fleet.let_go()
        return Heirloom(
            self._lock.fd, sock.detach(), admin_sock.detach(), pairs, workers, self._totals.retired
        )

    async def _follow(self) -> None:
        """Pass changes of the control document and of the checks on to the workers."""
        while True:
            await self._world.sleep(_FOLLOW_SECONDS)
            try:
                if self._control.changed():
                    self._document = self._control.to_json()
                    self._parks.follow(self._document)
                    self._fleet.tell_all(Control(self._document))
            except Exception:
                log.exception("the control document cannot be read; workers keep what they have")
            checks = self.checks()
            if checks != self._shown:
                self._shown = checks
                self._fleet.tell_all(Checks(checks))
            if self._load is not self._gauges.load:
                self._load = self._gauges.load
                self._fleet.tell_all(Load(dict(self._load)))

    async def _open_admin(self, sock: socket.socket) -> "admin.Admin | None":
        """Open the admin listener once the workers are started: its imports take longer than theirs may wait."""
        try:
            module = await asyncio.to_thread(importlib.import_module, "moongate.ops.admin")
            opened: admin.Admin = module.Admin(
                self, sock, self._settings.edge.trusted, self._settings.admin.listen.host
            )
            await opened.start()
        except Exception:
            log.exception("the admin listener cannot start; the data plane goes on without it")
            return None
        return opened

    # --- the fleet's owner

    def welcome(self) -> Welcome:
        """What every worker gets."""
        grace = self._settings.drain.grace_seconds
        load = dict(self._load)
        return Welcome(self._lock.identity, self._settings_json, self._document, self.checks(), grace, load)

    def heard(self, process: Process, message: Snapshot | Park) -> None:
        """Take a worker's metrics, or park what it says was refused."""
        if isinstance(message, Snapshot):
            self._file(process, message)
        else:
            self._parks.asked(message)

    def _file(self, process: Process, snapshot: Snapshot) -> None:
        """File a worker's metrics, and learn from them how its targets are."""
        self._totals.update(process.name, snapshot.rows)
        for target, code in self._attempts.newly(process.name, snapshot.rows):
            self._watch.upstreams.met(target, code, self._world.clock())
            if code == NONE:
                self._parks.answered(target)
        waiting = self._scrapes.pop(snapshot.answers, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def ended(self, process: Process) -> None:
        """Keep what a worker counted."""
        self._totals.retire(process.name)
        self._attempts.forget(process.name)

    # --- the house of the admin listener

    async def rows(self) -> list[Row]:
        """All metrics: those of workers at this moment, if they answer in time."""
        loop = asyncio.get_running_loop()
        asked: dict[int, asyncio.Future[None]] = {}
        for process in self._fleet.processes.values():
            if process.channel is not None:
                number = next(self._numbers)
                asked[number] = loop.create_future()
                self._scrapes[number] = asked[number]
                process.tell(Scrape(number))
        if asked:
            await asyncio.wait(asked.values(), timeout=SCRAPE_SECONDS)
        for number in asked:
            self._scrapes.pop(number, None)
        return self._totals.merged(self._own_rows())

    def _own_rows(self) -> list[Row]:
        states: dict[str, int] = {}
        for process in self._fleet.processes.values():
            states[process.word] = states.get(process.word, 0) + 1
        words = self._watch.upstreams.words(self._world.clock())
        version = (__version__, platform.python_version())
        return [
            *(Row("moongate_workers", (state,), count) for state, count in states.items()),
            *(
                Row("moongate_worker_restarts_total", (str(slot.number),), slot.restarts)
                for slot in self._fleet.slots
            ),
            *self._parks.rows(),
            *(Row("moongate_upstream_load", (target,), load) for target, load in self._load.items()),
            *(Row("moongate_upstream_up", (target,), float(word == OK)) for target, word in words.items()),
            Row("moongate_build_info", version, 1.0),
            *(row for chore in self._chores for row in chore.rows()),
        ]

    def workers(self) -> list[WorkerView]:
        """Every slot."""
        return [slot.view(self._world.clock()) for slot in self._fleet.slots]

    def parks(self) -> list[ParkView]:
        """What is parked."""
        return self._parks.views()

    def checks(self) -> dict[str, str]:
        """What `/healthz` shows; parts that are not built yet are off."""
        checks = all_off() | dict(self._watch.checks)
        for chore in self._chores:
            checks |= chore.checks()
        return checks

    def config(self) -> bytes:
        """The settings in force."""
        return masked(self._settings)
