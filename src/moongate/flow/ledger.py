"""Exactly one record a call, whatever becomes of it; durable word of every attempt before its first byte is sent."""

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self

from moongate.core.call import Call, Usage
from moongate.core.estimate import estimate
from moongate.core.faults import Failure, Fault, Settle, refuse
from moongate.core.ledger import Event, State, ending, step
from moongate.core.pricing import PriceTable, cost
from moongate.core.record import AttemptRecord, CallRecord, Outcome, Source, TokensSource, attempt_id, encode
from moongate.core.routing import Candidate
from moongate.core.surface import Answer
from moongate.flow.relay import PlainRelay, StreamRelay
from moongate.flow.reply import Reply
from moongate.store.frames import Kind
from moongate.store.journal import Journal, JournalError
from moongate.upstream.target import Prepared, Target
from moongate.upstream.transport import Ended
from moongate.world import World

_log = logging.getLogger("moongate.ledger")

Observe = Callable[[CallRecord], None]
"""Takes every closed record: metrics and the access log are such views."""


class Ledger:
    """Opens and closes the records of one worker's calls."""

    def __init__(
        self, world: World, journal: Journal, prices: PriceTable, observe: Observe, *, slot: int, owner: str
    ) -> None:
        self.world = world
        self.journal = journal
        self.prices = prices
        self.slot = slot
        self.owner = owner
        self.open_calls = 0
        self._observe = observe

    def open(self, call: Call, reply: Reply) -> "Entry":
        """The scope of one call; leaving it writes the record, in whatever way it is left."""
        return Entry(self, call, reply)

    def close(self, record: CallRecord) -> None:
        """Write a closed record and show it to its views. A full disk keeps it in memory until there is room."""
        self.journal.append(Kind.CLOSED, encode(record), now=False)
        self._observe(record)


class Entry:
    """One call's record in the making."""

    __slots__ = ("_call", "_ledger", "_reply", "record")

    def __init__(self, ledger: Ledger, call: Call, reply: Reply) -> None:
        self._ledger = ledger
        self._call = call
        self._reply = reply
        self.record = CallRecord(
            call.call_id,
            call.request_id,
            call.principal.tenant,
            call.principal.key_id,
            call.user,
            call.session,
            call.route,
            call.model,
            stream=call.stream,
            created=call.created,
            deadline=call.created + call.deadline - call.arrived,
            peer=call.peer,
            slot=ledger.slot,
            owner=ledger.owner,
        )

    def __enter__(self) -> Self:
        self._ledger.open_calls += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ledger.open_calls -= 1
        if error is not None and self._reply.failure is None:
            self._reply.fail(Failure(Fault.GATEWAY_ERROR, detail=repr(error)))
        self._end()
        self._ledger.close(self.record)

    async def sent(self, candidate: Candidate, prepared: Prepared) -> AttemptRecord:
        """Write down that an attempt is about to be sent; with `ledger.fsync`, wait until the disk has it.

        Raises FailedError `ledger_unavailable` if that cannot be written; nothing may be sent then.
        """
        attempts = self.record.attempts
        attempt = AttemptRecord(
            attempt_id(self._call.call_id, len(attempts) + 1),
            candidate.target,
            candidate.account,
            candidate.model,
            self._ledger.world.wall(),
            step(State.RESERVED, Event.SEND),
            request_bytes=len(prepared.outbound.body),
        )
        self.record.attempts = [*attempts, attempt]
        self.record.edits = prepared.edits
        try:
            await self._ledger.journal.append_with_others(Kind.SENT, encode(self.record))
            if self._ledger.journal.syncs:
                await self._ledger.journal.durable()
        except JournalError as error:
            self.record.attempts = attempts
            raise refuse(Fault.LEDGER_UNAVAILABLE, retry_after=5.0) from error
        return attempt

    def settle(
        self,
        attempt: AttemptRecord,
        ended: Ended,
        failure: Failure | None,
        relay: PlainRelay | StreamRelay,
        *,
        target: Target,
        began: float,
    ) -> None:
        """Write into the attempt how it ended; `began` is the monotonic second of its start."""
        first_at = relay.first_at
        if ended.connected_at:
            attempt.connected = ended.connected_at - began
        if ended.sent_at:
            attempt.sent = ended.sent_at - began
        if ended.head_at:
            attempt.head = ended.head_at - began
        if first_at:
            attempt.first_event = first_at - began
            if self.record.first_event < 0:
                self.record.first_event = first_at - self._call.arrived
        attempt.ended = (ended.ended_at or self._ledger.world.clock()) - began
        attempt.reused = ended.reused
        attempt.status = relay.status
        attempt.response_bytes = relay.received
        attempt.provider_request_id, attempt.provider_trace_id = target.provider_ids(relay.headers)
        if failure is not None:
            attempt.reach, attempt.phase = failure.reach.label, failure.phase
            attempt.cause, attempt.code = failure.fault.value, failure.rule.facts.code
            attempt.detail = failure.detail
            if failure.rule.facts.page:
                _log.error(
                    "page: %s at target %s: %s", failure.rule.facts.code, attempt.target, failure.detail
                )
        else:
            attempt.reach = ended.reach.label
        self._count(attempt, failure, relay.answer)
        self._price(attempt, target.currency)

    def _count(self, attempt: AttemptRecord, failure: Failure | None, answer: Answer | None) -> None:
        usage = answer.usage if answer is not None and not answer.usage_suspect else None
        event = Event.SETTLE if usage is not None else Event.ESTIMATE
        if failure is not None and usage is None:
            event = ending(failure.rule.settle, usage_known=False)
        elif failure is not None and failure.rule.settle is Settle.RELEASED:
            event = Event.RELEASE
        state = attempt.state = step(State.SENT, event)
        if state is State.SETTLED and usage is not None:
            attempt.count(usage, TokensSource.PROVIDER)
        elif state is State.SETTLED_EST or _left_unclear(attempt, failure):
            attempt.count(self._counted(answer), TokensSource.COUNTED)

    def _price(self, attempt: AttemptRecord, currency: str) -> None:
        row = self._ledger.prices.row(attempt.model, currency, attempt.started, attempt.target)
        attempt.currency = currency
        if row is not None:
            attempt.price_row = row.id
            attempt.cost_micro = cost(attempt.usage, row)

    def _counted(self, answer: Answer | None) -> Usage:
        body = self._call.body
        given = estimate(body.size("messages") + body.size("tools"))
        if answer is None:
            return Usage(input=given)
        reasoning = estimate(len(answer.reasoning.encode()))
        calls = sum(len(call.name) + len(call.arguments.encode()) for call in answer.tool_calls)
        output = estimate(len(answer.text.encode()) + calls) + reasoning
        return Usage(input=given, output=output, reasoning=reasoning)

    def _end(self) -> None:
        record, reply = self.record, self._reply
        record.duration = self._ledger.world.clock() - self._call.arrived
        record.status = reply.status
        record.delivered_bytes = reply.delivered
        gone = reply.down.gone if not reply.reached else None
        failure = Failure(gone) if gone is not None else reply.failure
        record.outcome = _outcome(record, failure, delivered=reply.delivered > 0)
        if failure is not None:
            facts = failure.rule.facts
            record.cause, record.code, record.phase = failure.fault.value, facts.code, failure.phase
            record.detail = failure.detail or failure.message
            if failure.retry_after is not None:
                record.retry_after = failure.retry_after
            if gone is not None:
                record.status = facts.status
            if facts.page and not record.attempts:
                _log.error("page: %s: %s", facts.code, record.detail)
        if record.attempts:
            self._sum_up(record, record.attempts)

    def _sum_up(self, record: CallRecord, attempts: list[AttemptRecord]) -> None:
        """Take over from the attempts what holds for the call; one without tokens costs nothing, priced or not."""
        last = attempts[-1]
        record.source = Source.UPSTREAM
        record.model = last.model
        record.input, record.output, record.cached = last.input, last.output, last.cached
        record.reasoning, record.cache_write = last.reasoning, last.cache_write
        record.currency = last.currency
        if len(attempts) == 1:
            record.billed_micro = last.cost_micro if last.input or last.output else 0
        else:
            costs = [attempt.cost_micro for attempt in attempts if attempt.input or attempt.output]
            record.billed_micro = None if None in costs else sum(filter(None, costs))


def _left_unclear(attempt: AttemptRecord, failure: Failure | None) -> bool:
    """Whether the client's own leaving made it unknowable: that is charged at once, else it would be free."""
    left = failure is not None and failure.fault is Fault.CLIENT_CLOSED
    return left and attempt.state == State.AMBIGUOUS


def _outcome(record: CallRecord, failure: Failure | None, *, delivered: bool) -> Outcome:
    if failure is None:
        return Outcome.COMPLETED
    if failure.fault in (Fault.CLIENT_CLOSED, Fault.SLOW_CLIENT):
        return Outcome.ABANDONED
    if delivered:
        return Outcome.TRUNCATED
    return Outcome.FAILED if record.attempts else Outcome.REFUSED
