"""What becomes of a call that was made before: it finds its first answer, joins the call that runs, or is refused.

One for a worker. Everything decided here is decided by `core/idempotency`; the ledger's records are the truth, and
this memory of them is made anew from them at every start.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from moongate.core.call import Call
from moongate.core.faults import Failure, Fault, Reach, refuse
from moongate.core.idempotency import (
    DOUBT_SECONDS,
    KEY_SECONDS,
    RETRY_SECONDS,
    Decision,
    First,
    Firsts,
    Standing,
    decide,
    failure_of,
    fingerprint,
    is_caught,
    made_at,
    place,
    standing_of,
    told_again,
)
from moongate.core.kept import Kept, rest_after
from moongate.core.record import CallRecord, Outcome, Source
from moongate.flow.flight import NO_SUCH_EVENT, Flight, Flights
from moongate.flow.reply import Repeating, Reply, Told
from moongate.store.answers import Answers
from moongate.store.claims import Claims
from moongate.world import World

HASHED_AT_ONCE: Final = 256 * 1024
"""Bytes of the largest body that is hashed on the loop."""

_UNWRITTEN_SECONDS: Final = 10.0
"""After so long a call that claimed its key and is in no journal never got so far: its worker died."""

_LISTED_SECONDS: Final = 0.1
"""No SDK tries again as soon after its first try."""

_WRITTEN_SECONDS: Final = 5.0
"""So long after a call's end its worker may still be writing down the answer."""

_ROUNDS: Final = 3
"""How often a key may be found to be held by a call that did not run, and be claimed anew."""

Look = Callable[[str], Awaitable[CallRecord | None]]
"""Finds the newest word of the ledger on a call; None if there is none, or it cannot be asked."""

_EXPIRED: Final = (
    "The first try of this call is done, or may be, and its answer is not kept; make a new call of it."
)


@dataclass(slots=True)
class _Claim:
    """A place that a call of this worker holds while it runs, and whose it was: a stream's that was cancelled."""

    where: bytes
    first: First
    before: First | None
    flight: Flight | None = None


class Idempotency:
    """Knows the calls of the last 24 hours that had a key, and those of the last 120 seconds that a retry may want.

    `claims`: what workers of one state directory share; None where there is one worker.
    """

    def __init__(
        self, world: World, answers: Answers, flights: Flights, look: Look, claims: Claims | None = None
    ) -> None:
        self._wall = world.wall
        self._shared = claims
        self._answers = answers
        self._flights = flights
        flights.on_keyed, flights.on_kept = self._flies, self._landed
        self._look = look
        self._keys = Firsts()
        self._retries = Firsts()
        self._claims: dict[str, _Claim] = {}
        self._by_size: dict[int, list[Flight]] | None = None

    def load(self, records: Iterable[CallRecord]) -> None:
        """Remember what the ledger knows, the oldest first."""
        now = self._wall()
        for record in records:
            first, key = _first(record), record.idempotency_key
            first.ended = 0.0  # whoever ran it has written down what there was
            if first.standing is Standing.FREE:
                continue
            if key:
                self._keys.put(place(record.tenant, record.route, key), first, now)
            else:
                self._retries.put(first.fingerprint, first, now)

    # -- before a call is executed

    async def answers(self, call: Call, reply: Repeating, record: CallRecord) -> bool:
        """Answer a call with a key or a retry count, where it was made before; False: it is to be executed.

        Raises FailedError where it may neither be answered nor executed.
        """
        mark = await self._fingerprint(call)
        record.fingerprint, record.idempotency_key = mark.hex(), call.idempotency_key
        firsts, where = self._keys, mark
        if call.idempotency_key:
            where = place(call.principal.tenant, call.route, call.idempotency_key)
        else:
            firsts = self._retries
            twin = self._twin(call)
            if twin is not None:
                await self._follow(twin, call, reply, record)
                return True
        first = await self._newest(firsts, where)
        if first is not None and not call.idempotency_key and call.retry_count <= first.tries:
            first = None  # an equal call that is no retry of that one
        for _ in range(_ROUNDS):
            decision = decide(first, mark, self._wall())
            if first is not None and decision not in (Decision.EXECUTE, Decision.EXECUTE_AGAIN):
                await self._repeat(decision, first, call, reply, record)
                return True
            if call.last_event_id:  # its client holds part of an answer, which no other must be joined to
                raise refuse(Fault.IDEMPOTENCY_EXPIRED, NO_SUCH_EVENT)
            before = "" if first is None else first.call_id
            self._execute(call, record, where, mark, first)
            first = None if self._shared is None else await self._elsewhere(self._shared, call, where, before)
            if first is None:
                record.retry_of = before if decision is Decision.EXECUTE_AGAIN else ""
                return False
        raise refuse(Fault.IDEMPOTENCY_IN_PROGRESS, retry_after=1.0)

    async def _elsewhere(self, shared: Claims, call: Call, where: bytes, before: str) -> First | None:
        """What another worker's call under the same key or fingerprint is; None: there is none, this one may run."""
        now = self._wall()
        if call.idempotency_key:
            holder = await shared.take(where, call.call_id, now + KEY_SECONDS, before)
        else:
            holder = await shared.holder(where)
        if holder in ("", call.call_id, before):
            return None
        self._claims.pop(call.call_id, None)
        self._keys.drop(where, call.call_id)
        record = await self._look(holder)
        if record is None and now - made_at(holder) < _UNWRITTEN_SECONDS:
            raise refuse(Fault.IDEMPOTENCY_IN_PROGRESS, retry_after=1.0)
        first = First(holder, b"", 0.0, Standing.FREE) if record is None else _first(record)
        if not call.idempotency_key:  # it is found by its fingerprint, which its record need not have
            first.fingerprint = where
        elif first.standing is not Standing.FREE:
            self._keys.put(where, first, now)
        return first

    async def _fingerprint(self, call: Call) -> bytes:
        if len(call.body.data) <= HASHED_AT_ONCE:
            return fingerprint(call)
        return await asyncio.get_running_loop().run_in_executor(None, fingerprint, call)

    def _twin(self, call: Call) -> Flight | None:
        """The same call, under way without a key: its client made it again before its leaving was seen, or drained."""
        data = call.body.data
        for flight in self._listed().get(len(data), ()):
            other = flight.call
            if (
                other.body.data == data
                and not other.idempotency_key
                and other.retry_count < call.retry_count
                and (other.route, other.user, other.principal.tenant)
                == (call.route, call.user, call.principal.tenant)
                and flight in self._flights.live
                and flight.can_be_followed()
            ):
                return flight
        return None

    def _listed(self) -> dict[int, list[Flight]]:
        """The flights by the size of their calls' bodies, as of a moment ago: in an outage every client retries."""
        if self._by_size is None:
            self._by_size = {}
            for flight in self._flights.live:
                self._by_size.setdefault(len(flight.call.body.data), []).append(flight)
            self._flights.loop.call_later(_LISTED_SECONDS, self._unlist)
        return self._by_size

    def _unlist(self) -> None:
        self._by_size = None

    async def _newest(self, firsts: Firsts, where: bytes) -> First | None:
        """What stands there, by the ledger's newest word if it does not run here and its end is not known."""
        first = firsts.find(where, self._wall())
        if first is None or first.standing not in (Standing.RUNNING, Standing.FAILED):
            return first
        if first.call_id in self._claims:
            return first
        record = await self._look(first.call_id)
        if record is not None:
            newest = _first(record)
            first.standing, first.ended = newest.standing, newest.ended
            first.failure = first.failure or newest.failure
        return firsts.find(where, self._wall())

    def _execute(
        self, call: Call, record: CallRecord, where: bytes, mark: bytes, before: First | None
    ) -> None:
        if call.idempotency_key:
            now = self._wall()
            first = First(call.call_id, mark, now + KEY_SECONDS)
            self._keys.put(where, first, now)
            self._claims[call.call_id] = _Claim(where, first, before)
        else:
            record.fingerprint = ""

    async def _repeat(
        self, decision: Decision, first: First, call: Call, reply: Repeating, record: CallRecord
    ) -> None:
        """Give the call what its first try left."""
        if decision is Decision.MISMATCH:
            raise refuse(Fault.IDEMPOTENCY_MISMATCH)
        if decision is Decision.ATTACH:
            claim = self._claims.get(first.call_id)
            if claim is None or claim.flight is None:
                raise refuse(Fault.IDEMPOTENCY_IN_PROGRESS, retry_after=1.0)
            await self._follow(claim.flight, call, reply, record)
            return
        if decision is Decision.FAIL_AGAIN:
            reply.repeats = True
            record.outcome, record.retry_of = Outcome.REPLAYED, first.call_id
            reply.fail(first.failure or told_again(Failure(Fault.GATEWAY_ERROR, Reach.SENT)))
            return
        kept = await self._answers.find(first.call_id) if decision is Decision.REPLAY else None
        if kept is None and self._wall() - first.ended < _WRITTEN_SECONDS:
            raise refuse(Fault.IDEMPOTENCY_IN_PROGRESS, retry_after=1.0)
        if kept is None:
            raise refuse(Fault.IDEMPOTENCY_EXPIRED, "" if call.idempotency_key else _EXPIRED)
        self._replay(kept, first.call_id, call, reply)
        record.outcome, record.retry_of = Outcome.REPLAYED, first.call_id

    async def _follow(self, flight: Flight, call: Call, reply: Repeating, record: CallRecord) -> None:
        reply.repeats = True
        record.source, record.collapsed_with = Source.COLLAPSED, flight.call.call_id
        await flight.follow(reply, call.last_event_id)

    def _replay(self, kept: Kept, call_id: str, call: Call, reply: Repeating) -> None:
        body = kept.body
        if call.last_event_id:
            rest = rest_after(body, call_id, call.last_event_id) if kept.stream else None
            if rest is None:
                raise refuse(Fault.IDEMPOTENCY_EXPIRED, NO_SUCH_EVENT)
            body = rest
        reply.repeats = True
        told = Told()
        told.attempts, told.model, told.edits = kept.attempts, kept.model, kept.edits
        if not kept.stream:
            reply.respond(told, body)
            return
        reply.start(told)
        if body:
            reply.write(body)
        if kept.broken_by:
            reply.fail(Failure(Fault(kept.broken_by), Reach.EVENTS, phase=kept.phase), told)
        else:
            reply.end()

    # -- while it runs, and when it has ended

    def _flies(self, flight: Flight) -> None:
        """A call with a key has its flight: whoever comes with the same key may listen to it."""
        claim = self._claims.get(flight.call.call_id)
        if claim is not None:
            claim.flight = flight

    def _landed(self, flight: Flight) -> None:
        kept = flight.kept()
        if kept is not None:
            call = flight.call
            seconds = KEY_SECONDS if call.idempotency_key else RETRY_SECONDS
            self._answers.keep(call.call_id, kept, self._wall() + seconds)

    def forsaken(self, reply: Reply) -> None:
        """Keep a plain answer that its client may not have got whole; with a key it is kept anyway."""
        call = reply.call
        if call.idempotency_key:
            return
        now, mark = self._wall(), fingerprint(call)
        repeats = isinstance(reply, Repeating) and reply.repeats
        if repeats and self._retries.find(mark, now) is not None:
            return  # what it repeats is kept already
        first = First(
            call.call_id, mark, now + DOUBT_SECONDS, Standing.ANSWERED, tries=call.retry_count, doubted=True
        )
        self._retries.put(mark, first, now)
        if self._shared is not None and not repeats:
            self._shared.note(mark, call.call_id, first.until)
        told = reply.told
        kept = Kept(
            reply.body, stream=False, model=told.model, edits=list(told.edits), attempts=told.attempts
        )
        self._answers.keep(call.call_id, kept, first.until)

    def _supersede(self, call: Call) -> None:
        """A call did not run: the next try is its own, and not of an equal one that was answered before it."""
        mark = fingerprint(call)
        first = self._retries.find(mark, self._wall())
        if first is not None and first.doubted:
            self._retries.drop(mark, first.call_id)

    def remember(self, call: Call, record: CallRecord, failure: Failure | None) -> None:
        """Take a record that is about to be closed: of a call with a key, or of one that failed or was left."""
        standing = standing_of(record)
        claim = self._claims.pop(call.call_id, None)
        if claim is not None:
            first = claim.first
            if standing is Standing.FREE:
                self._keys.drop(claim.where, call.call_id)
                if claim.before is not None:
                    self._keys.put(claim.where, claim.before, self._wall())
        elif not call.idempotency_key and is_caught(record):
            now, mark = self._wall(), fingerprint(call)
            record.fingerprint = mark.hex()
            first = First(call.call_id, mark, now + RETRY_SECONDS, tries=call.retry_count)
            self._retries.put(mark, first, now)
            if self._shared is not None:
                self._shared.note(mark, call.call_id, first.until)
        else:
            if call.retry_count >= 0 and len(self._retries):
                self._supersede(call)
            return
        first.standing = standing
        if standing is Standing.FAILED:
            first.failure = told_again(failure) if failure is not None else failure_of(record)


def _first(record: CallRecord) -> First:
    """A call as its record tells of it."""
    seconds = KEY_SECONDS if record.idempotency_key else RETRY_SECONDS + max(record.duration, 0.0)
    first = First(
        record.call_id,
        bytes.fromhex(record.fingerprint),
        record.created + seconds,
        standing_of(record),
        ended=record.created + max(record.duration, 0.0),
    )
    if first.standing is Standing.FAILED:
        first.failure = failure_of(record)
    return first
