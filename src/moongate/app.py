"""Puts one worker's data plane together from settings: the only place that knows every part."""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import lru_cache
from ipaddress import ip_network
from pathlib import Path

from moongate.core.call import Principal
from moongate.core.chat import ChatCompletions
from moongate.core.control import Control
from moongate.core.faults import Fault
from moongate.core.held import Held
from moongate.core.idempotency import KEY_SECONDS
from moongate.core.models import model_on
from moongate.core.parking import Parking, Refused
from moongate.core.pricing import prices_of
from moongate.core.record import CallRecord
from moongate.core.replicas import Replicas
from moongate.core.routing import Candidate, Route
from moongate.core.settings import Route as RouteSettings
from moongate.core.settings import Settings
from moongate.edge.api import Api, Model
from moongate.edge.server import Server, ServerLimits
from moongate.flow.admission import Admission
from moongate.flow.drains import Bounds, Drains
from moongate.flow.exchange import Exchange
from moongate.flow.flight import Flights
from moongate.flow.gateway import Gateway, RouteTimes
from moongate.flow.idempotency import Idempotency
from moongate.flow.ledger import Ledger
from moongate.ops.access_log import AccessLog
from moongate.ops.health import LEDGER, Trusted, plain_address
from moongate.ops.metrics import CallMetrics, Row
from moongate.store.answers import Answers, open_answers
from moongate.store.claims import Claims
from moongate.store.journal import Journal
from moongate.store.recall import Recall
from moongate.upstream.dialects_requests import EDITS
from moongate.upstream.names import Names
from moongate.upstream.target import Target
from moongate.upstream.transport import Timeouts
from moongate.world import World

_log = logging.getLogger("moongate.app")


def build(settings: bytes, control: bytes, world: World, slot: int) -> "App":
    """Make a worker's app from the supervisor's JSON. Must be called on the running event loop."""
    return App(Settings.from_json(settings), control, world, slot)


class App:
    """One worker's data plane, as the worker's shell drives it."""

    def __init__(self, settings: Settings, control: bytes, world: World, slot: int) -> None:
        loop = asyncio.get_running_loop()
        owner = world.new_id()
        self.failed = False
        self._checks: Mapping[str, str] = {}
        self._shown: dict[str, str] = {}
        self._ill: OSError | None = None
        self._lost = 0
        self._settings = settings
        self._wall = world.wall
        self._measured = CallMetrics(settings.routes, settings.targets, EDITS)
        self._journal = self._open_journal(owner, world, slot)
        self._log = _access_log(settings.log.access, settings.log.sample)
        views = [self._measured.observe] if self._log is None else [self._measured.observe, self._log.write]
        held = Held(settings.edge.held_bytes)
        surface = ChatCompletions()
        self._names = Names(world.clock, settings.dns.ttl_seconds, settings.dns.stale_seconds)
        self._targets = {name: Target.build(name, settings, world, self._names) for name in settings.targets}
        self._parking = Parking()
        self._replicas = Replicas()
        drains = Drains(_bounds(settings))
        flights = Flights(loop, drains)
        self._admission = Admission(settings.max_concurrent_requests, drains.give_way)
        self._answers = _answers(settings, world)
        self._recall = Recall(Path(settings.state), loop)
        self._claims = Claims(Path(settings.state), world.wall) if settings.workers > 1 else None
        self._idempotency = Idempotency(world, self._answers, flights, self._recall.look, self._claims)
        day = datetime.fromtimestamp(world.wall(), UTC).date()
        routes = {name: _route(name, route, settings, day) for name, route in settings.routes.items()}
        self._gateway = Gateway(
            surface=surface,
            admission=self._admission,
            flights=flights,
            idempotency=self._idempotency,
            exchange=self._exchange(world, surface, held, drains, routes),
            ledger=Ledger(world, self._journal, prices_of(settings), _all(views), slot=slot, owner=owner),
            routes=routes,
            times={name: _times(route) for name, route in settings.routes.items()},
        )
        self._api = self._open_api(world, surface)
        self._server = Server(self._api, _limits(settings), held, world.clock, world.wall)
        self.set_control(control)

    @property
    def ready(self) -> bool:
        """Whether new calls are welcome."""
        return self._api.ready

    @property
    def in_flight(self) -> int:
        """Calls that run now."""
        return self._gateway.ledger.open_calls

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Remember whose retries must be known, then accept on these listening sockets."""
        self._idempotency.load(await self._recall.since(self._wall() - KEY_SECONDS))
        await self._server.start(list(sockets))
        self._api.ready = True

    def set_control(self, document: bytes) -> None:
        """Follow this control document from now on: its keys open the door, what it parks gets no calls."""
        control = Control.from_json(document)
        self._parking.follow(control.parked)
        keys = {
            digest: Principal(
                entry.id,
                entry.tenant,
                None if entry.routes is None else frozenset(entry.routes),
                loopback_only=entry.demo,
            )
            for digest, entry in control.keys.items()
            if entry.revoked is None
        }
        self._api.let_in(keys)

    def take_refused(self) -> list[Refused]:
        """What Kimi refused for good since this was last asked."""
        return self._parking.take()

    def set_health(self, checks: Mapping[str, str]) -> None:
        """Show these checks on `/healthz` from now on."""
        self._checks = dict(checks)
        self._show_health()

    def set_load(self, load: Mapping[str, float]) -> None:
        """Send calls to the least busy of these self-hosted replicas from now on."""
        self._replicas.follow(load)

    def begin_drain(self) -> None:
        """Readiness off, no new connections; what runs goes on."""
        self._api.ready = False
        self._server.drain()
        self._gateway.begin_drain()

    async def drained(self, grace_seconds: float) -> None:
        """Return when all calls have ended; those still live after the grace get an honest end first."""
        cut = await self._gateway.drained(grace_seconds)
        self._measured.cut.add(cut)
        await self._server.closed(1.0)

    def metrics(self) -> list[Row]:
        """All series as they stand."""
        self._measured.in_flight.set(self.in_flight)
        self._measured.drains.set(len(self._gateway.flights.drains.live))
        self._measured.connections.set(self._server.connections)
        for name, target in self._targets.items():
            self._measured.fell_back(name, target.alpn_fallbacks)
            if (place := target.place) is not None:
                self._measured.dialed(
                    name, stale=place.stale, changes=place.changes, races=place.races, refused=place.refused
                )
        journal = self._journal
        self._look_after(journal)
        self._measured.journal_bytes.set(journal.written_bytes)
        self._measured.journal_unwritable.set(float(not journal.available))
        self._measured.journal_waiting.set(journal.pending_bytes)
        self._measured.journal_lost.set(journal.lost)
        if journal.lost > self._lost:
            _log.error("page: %d records could not be kept for the journal", journal.lost - self._lost)
            self._lost = journal.lost
        return self._measured.snapshot()

    async def stop(self) -> None:
        """Release everything."""
        self._server.abort_all()
        for target in self._targets.values():
            await target.transport.close()
        await self._names.close()
        self._answers.close()
        if self._claims is not None:
            self._claims.close()
        self._journal.close()
        if self._journal.lost > self._lost:
            _log.error("page: %d records never came into the journal", self._journal.lost - self._lost)
        self._recall.close()
        if self._log is not None:
            self._log.close()

    def _exchange(
        self,
        world: World,
        surface: ChatCompletions,
        held: Held,
        drains: Drains,
        routes: Mapping[str, Route],
    ) -> Exchange:
        return Exchange(
            world,
            self._targets,
            self._admission,
            surface,
            held,
            drains=drains,
            parking=self._parking,
            replicas=self._replicas,
            routes=routes,
        )

    def _open_api(self, world: World, surface: ChatCompletions) -> Api:
        settings = self._settings
        api = Api(
            world=world,
            gateway=self._gateway,
            surface=surface,
            models=_models(settings.routes, int(world.wall())),
            deadlines={name: route.timeouts.total for name, route in settings.routes.items()},
            trusts=_trusts(settings.edge.trusted),
            on_loopback=_is_loopback(settings.listen.host),
            may_see=Trusted(settings.edge.trusted).may_see,
            refused=self._refused,
        )
        api.checks = self._shown
        return api

    def _open_journal(self, owner: str, world: World, slot: int) -> Journal:
        ledger = self._settings.ledger
        return Journal.open(
            Path(self._settings.state) / "journal",
            owner,
            segment_bytes=ledger.segment_bytes,
            fsync=ledger.fsync,
            loop=asyncio.get_running_loop(),
            slot=slot,
            started=world.wall(),
            on_dead=self._leave,
            on_change=self._journal_changed,
            clock=world.clock,
        )

    def _look_after(self, journal: Journal) -> None:
        try:
            if not journal.look():
                _log.error("page: somebody removed the journal that is written; it is brought back")
        except OSError as error:
            _log.error(
                "page: somebody removed the journal that is written, it cannot be brought back: %s", error
            )

    def _show_health(self) -> None:
        self._shown.update(self._checks)
        if self._ill is not None:
            self._shown[LEDGER] = Fault.LEDGER_UNAVAILABLE.value

    def _journal_changed(self, error: OSError | None) -> None:
        self._ill = error
        if error is None:
            _log.warning("the journal can be written again: paid calls go on")
        else:
            _log.error(
                "page: ledger_unavailable: paid calls are refused, the journal cannot be written: %s", error
            )
        self._show_health()

    def _leave(self, error: OSError) -> None:
        """The disk lied about a record: no more paid work here; the supervisor starts a worker with a new journal."""
        self.failed = True
        self._ill = error
        _log.critical("page: fsync of the journal failed, this worker ends: %s", error)
        self._show_health()
        os.kill(os.getpid(), signal.SIGTERM)

    def _refused(self, fault: Fault) -> None:
        self._measured.unauthenticated(fault.value)


def _answers(settings: Settings, world: World) -> Answers:
    kept = settings.idempotency
    return open_answers(
        Path(settings.state),
        world,
        secret=None if kept.secret is None else kept.secret.text,
        largest=kept.answer_bytes,
        most=kept.kept_bytes,
    )


def _all(views: Iterable[Callable[[CallRecord], None]]) -> Callable[[CallRecord], None]:
    several = tuple(views)

    def show(record: CallRecord) -> None:
        for view in several:
            view(record)

    return several[0] if len(several) == 1 else show


def _trusts(networks: Sequence[str]) -> Callable[[str], bool]:
    """Whether a peer is one of `edge.trusted`; asked for every call, so answers are remembered."""
    if not networks:
        return lambda _peer: False
    ranges = [ip_network(text) for text in networks if text != "unix"]

    @lru_cache(maxsize=4096)
    def trusts(peer: str) -> bool:
        address = plain_address(peer)
        return any(address in known for known in ranges) if address is not None else "unix" in networks

    return trusts


def _is_loopback(host: str) -> bool:
    address = plain_address(host)
    return address is not None and address.is_loopback


def _access_log(where: str, share: float) -> AccessLog | None:
    if where == "off":
        return None
    if where == "-":
        return AccessLog(sys.stdout.fileno(), share)
    return AccessLog(os.open(where, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640), share)


def _bounds(settings: Settings) -> Bounds:
    """What drains are bound by: until accounts have limits, their targets' connections and the cap on all calls."""
    most = settings.max_concurrent_requests
    accounts: dict[str, int] = {}
    for target in settings.targets.values():
        accounts[target.account] = accounts.get(target.account, 0) + target.connections
    concurrency = {name: many if most is None else min(many, most) for name, many in accounts.items()}
    return Bounds(concurrency, {name: route.on_abandon for name, route in settings.routes.items()})


def _route(name: str, route: RouteSettings, settings: Settings, day: date) -> Route:
    """The plan: each target in order under today's model id, then the declared successors in the same order."""
    plan: list[Candidate] = []
    for generation, model in enumerate((None, *route.successors)):
        for place in route.targets:
            target = settings.targets[place.target]
            asked = model or model_on(place.model, day, target.url.host)
            if not any((known.target, known.model) == (place.target, asked) for known in plan):
                plan.append(Candidate(place.target, target.account, asked, generation))
    return Route(name, tuple(plan), route.tries, route.may_pay_twice, route.resumes)


def _times(route: RouteSettings) -> RouteTimes:
    t = route.timeouts
    return RouteTimes(
        stream=Timeouts(t.connect, t.tls, t.write, t.head, t.first_event, t.idle, t.total),
        plain=Timeouts(t.connect, t.tls, t.write, t.total, t.total, t.total, t.total),
    )


def _models(routes: Mapping[str, RouteSettings], created: int) -> dict[str, Model]:
    return {
        name: Model(name, route, created) for route, made in routes.items() for name in (route, *made.aliases)
    }


def _limits(settings: Settings) -> ServerLimits:
    edge = settings.edge
    return ServerLimits(
        header_field_bytes=edge.header_field_bytes,
        header_bytes=edge.header_bytes,
        body_bytes=edge.body_bytes,
        header_seconds=edge.header_seconds,
        body_seconds=edge.body_seconds,
        keep_alive_seconds=edge.keep_alive_seconds,
        slow_client_seconds=edge.slow_client_seconds,
        high_water_bytes=edge.high_water_bytes,
        connections=edge.connections,
    )
