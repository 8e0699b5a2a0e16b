"""The way of a call, on one page. Whoever acquires releases: each scope spans what happens inside it.

server -> api -> Gateway.handle -> admission -> (cache) -> flight -> exchange -> relay -> downstream
                      `------------- ledger: always, exactly once -------------'
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from moongate.core.call import Call
from moongate.core.faults import FailedError, Failure, Fault, refuse
from moongate.core.routing import Route
from moongate.core.surface import Surface
from moongate.flow.admission import Admission
from moongate.flow.downstream import Downstream
from moongate.flow.exchange import Exchange
from moongate.flow.flight import Flights
from moongate.flow.idempotency import Idempotency
from moongate.flow.ledger import Ledger
from moongate.flow.reply import Repeating, Reply
from moongate.upstream.transport import Timeouts

_LAST_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class RouteTimes:
    """A route's time-outs, for streams and for plain calls (there the head comes with the whole answer)."""

    stream: Timeouts
    plain: Timeouts


class Gateway:
    """Takes calls and sees each to its one outcome and its one record."""

    def __init__(
        self,
        *,
        surface: Surface,
        admission: Admission,
        flights: Flights,
        idempotency: Idempotency,
        exchange: Exchange,
        ledger: Ledger,
        routes: Mapping[str, Route],
        times: Mapping[str, RouteTimes],
    ) -> None:
        self.surface = surface
        self.admission = admission
        self.flights = flights
        self.idempotency = idempotency
        self.ledger = ledger
        ledger.remember = idempotency.remember
        self._exchange = exchange
        self._routes = routes
        self._times = times
        self._draining = False

    async def handle(self, call: Call, down: Downstream) -> None:
        """Answer one call. Returns when the answer has ended, the upstream is let go and the record is closed."""
        again = None
        if call.idempotency_key or call.retry_count > 0:
            again = Repeating(call, self.surface, down)
        reply = again or Reply(call, self.surface, down)
        with self.ledger.open(call, reply) as entry:
            try:
                if self._draining:
                    raise refuse(Fault.GATEWAY_DRAINING, retry_after=1.0)
                if again is not None and await self.idempotency.answers(call, again, entry.record):
                    return
                times = self._times[call.route]
                timeouts = times.stream if call.stream else times.plain
                async with self.admission.enter(call):
                    flight = self.flights.open(reply)
                    try:
                        exchange = self._exchange.run(
                            call, self._routes[call.route], timeouts, flight, entry=entry
                        )
                        await flight.fly(exchange)
                    finally:
                        self.flights.close(flight)
            except FailedError as error:
                reply.fail(error.failure)

    def refuse(self, call: Call, down: Downstream, failure: Failure) -> None:
        """Answer and record a call that was understood well enough to know whose it is, but no further."""
        reply = Reply(call, self.surface, down)
        with self.ledger.open(call, reply):
            reply.fail(failure)

    def begin_drain(self) -> None:
        """Take no more calls; those under way go on."""
        self._draining = True

    async def drained(self, grace: float) -> int:
        """Wait at most `grace` seconds for the calls under way, then end the rest honestly; return their number."""
        late = await self.flights.rest(grace)
        if late:
            self.flights.cut_all(Fault.GATEWAY_DRAINING)
            await self.flights.rest(_LAST_SECONDS)
        return late
