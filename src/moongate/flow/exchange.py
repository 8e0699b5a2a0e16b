"""The attempts of one call, over its plan, until one answer is whole or nothing more may follow."""

import asyncio
from collections.abc import Callable, Mapping

from moongate.core.call import Call
from moongate.core.faults import FailedError, Failure, Fault, Next, Reach
from moongate.core.held import Held
from moongate.core.parking import Parking
from moongate.core.replicas import Replicas
from moongate.core.resume import Means
from moongate.core.routing import Candidate, Route, following
from moongate.core.surface import Classify, StreamReader, Surface
from moongate.flow.admission import Admission
from moongate.flow.drains import Drains
from moongate.flow.flight import Flight
from moongate.flow.ledger import Entry
from moongate.flow.relay import PlainRelay, StreamRelay
from moongate.flow.resume import Resumption
from moongate.upstream.target import Target
from moongate.upstream.transport import Ended, Phase, Timeouts
from moongate.world import World


class Exchange:
    """Makes attempts. One for a worker; what belongs to a call is handed in."""

    def __init__(
        self,
        world: World,
        targets: Mapping[str, Target],
        admission: Admission,
        surface: Surface,
        held: Held,
        *,
        parking: Parking,
        replicas: Replicas,
        drains: Drains,
        routes: Mapping[str, Route],
    ) -> None:
        self._world = world
        self._routes = routes
        self._clock = world.clock
        self._targets = targets
        self._admission = admission
        self._drains = drains
        self._surface = surface
        self._held = held
        self._parking = parking
        self._replicas = replicas
        self._later = asyncio.get_running_loop().call_later

    async def run(
        self, call: Call, route: Route, timeouts: Timeouts, flight: Flight, *, entry: Entry
    ) -> Failure | None:
        """Answer the call through the flight, or return why it could not be.

        Raises FailedError `ledger_unavailable` before anything is sent.
        """
        plan = route.candidates
        if self._parking.names:
            plan = self._parking.open_of(plan)
            if not plan:
                return self._parking.refusal(route.candidates)
        if self._replicas.is_known:
            plan = self._replicas.order(plan)
        at, tries, again = 0, 0, False
        while True:
            tries += 1
            failure = await self._attempt(call, plan[at], timeouts, flight, entry)
            if failure is None or flight.cut_by is not None:
                return failure
            self._parking.refused(plan[at], failure)
            step = failure.rule.next
            then = following(plan, at, step, may_pay_twice=route.may_pay_twice, again=again)
            if then is None or tries >= route.tries or self._clock() >= call.deadline:
                return failure
            at, again = then, then == at

    async def _attempt(
        self, call: Call, candidate: Candidate, timeouts: Timeouts, flight: Flight, entry: Entry
    ) -> Failure | None:
        """One attempt; where its stream breaks after the first event, those that go on with it."""
        failure = await self._once(call, candidate, timeouts, flight, entry)
        if failure is None or failure.rule.next is not Next.RESUME or not call.may_resume:
            return failure
        route = self._routes[call.route]
        resumption = Resumption(route, candidate, failure, self._world.sleep)
        while (place := await resumption.next(call, flight, entry.record, self._means)) is not None:
            failure = await self._once(call, place, timeouts, flight, entry, goes_on=resumption)
            if failure is None or flight.cut_by is not None:
                return failure
            resumption.failed(failure)
        return resumption.first

    def _means(self, candidate: Candidate) -> Means | None:
        return self._targets[candidate.target].resume

    async def _once(
        self,
        call: Call,
        candidate: Candidate,
        timeouts: Timeouts,
        flight: Flight,
        entry: Entry,
        *,
        goes_on: Resumption | None = None,
    ) -> Failure | None:
        target = self._targets[candidate.target]
        try:
            prepared = target.prepare(call, candidate, timeouts, None if goes_on is None else goes_on.so_far)
        except FailedError as error:
            return error.failure
        relay = self._relay(call, prepared.strip_usage, target, flight, goes_on)
        flight.told.attempts += 1
        flight.told.model = candidate.model
        flight.candidate = candidate
        flight.told.edits = prepared.edits
        if self._drains.live and target.is_full:
            self._drains.give_way(candidate.account)
        async with self._admission.lease(candidate):
            attempt = await entry.sent(candidate, prepared)
            began = self._clock()
            try:
                ended = await target.transport.exchange(prepared.outbound, relay)
            except asyncio.CancelledError:
                if flight.cut_by is None:
                    raise
                ended = self._struck(relay.opened, flight.cut_by)
            try:
                failure = relay.verdict(ended, timeouts)
                entry.settle(attempt, ended, failure, relay, target=target, began=began)
                if failure is not None and isinstance(relay, StreamRelay) and relay.passed:
                    flight.broken = relay.whole
            finally:
                relay.close()
        return failure

    def _relay(
        self, call: Call, strip_usage: bool, target: Target, flight: Flight, goes_on: Resumption | None
    ) -> PlainRelay | StreamRelay:
        if not call.stream:
            return PlainRelay(flight, target.explain, self._surface, self._held, self._clock)
        reader: Callable[[Classify], StreamReader] = lambda classify: self._surface.stream_reader(  # noqa: E731 - one use
            strip_usage=strip_usage, classify=classify
        )
        if goes_on is not None:
            reader = goes_on.reader(reader)
        return StreamRelay(
            flight, target.explain, reader, self._clock, self._later, goes_on=goes_on is not None
        )

    def _struck(self, opened: bool, fault: Fault) -> Ended:
        """Cancelled on purpose: by how far it was the transport need not be asked."""
        reach, phase = (Reach.SENT, Phase.HEAD) if opened else (Reach.NOTHING_SENT, Phase.CONNECT)
        return Ended(reach, fault, phase, "cut by the gateway", ended_at=self._clock())
