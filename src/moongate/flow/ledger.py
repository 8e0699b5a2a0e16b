"""Exactly one record a call, whatever becomes of it; durable word of every attempt before its first byte is sent."""

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self

from moongate.core.call import Call
from moongate.core.charging import charge, counted, sum_up
from moongate.core.estimate import prompt_tokens
from moongate.core.faults import FailedError, Failure, Fault, Park
from moongate.core.ledger import OPEN, Event, State, step
from moongate.core.pricing import PriceTable, cost
from moongate.core.record import (
    LONGEST_ID,
    AttemptRecord,
    CallRecord,
    Outcome,
    TokensSource,
    attempt_id,
    encode,
)
from moongate.core.routing import Candidate
from moongate.core.surface import Answer
from moongate.flow.relay import PlainRelay, StreamRelay
from moongate.flow.reply import Reply
from moongate.store.frames import Kind
from moongate.store.journal import Journal, JournalError
from moongate.upstream.target import Prepared, Target
from moongate.upstream.transport import Ended, Headers
from moongate.world import World

_log = logging.getLogger("moongate.ledger")

Remember = Callable[[Call, CallRecord, Failure | None], None]
"""Takes the record of a call with a key, or of one that failed or was left, before it is written."""

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
        self.remember: Remember | None = None
        self._observe = observe

    def open(self, call: Call, reply: Reply) -> "Entry":
        """The scope of one call; leaving it writes the record, in whatever way it is left."""
        return Entry(self, call, reply)

    def close(self, record: CallRecord) -> None:
        """Write a closed record and show it to its views. A full disk keeps it in memory until there is room.

        What may have been paid has more of that memory: refusals that do not fit are counted as lost before it.
        """
        if record.attempts or self.journal.has_room:
            self.journal.append(Kind.CLOSED, encode(record), now=False)
        else:
            self.journal.skip()
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
        if (self.record.code or self._call.idempotency_key) and self._ledger.remember is not None:
            self._ledger.remember(self._call, self.record, self._reply.failure)
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
        except asyncio.CancelledError:  # the journal may hold it, but nothing was sent: its end will say so
            self.record.attempts = attempts
            raise
        except JournalError as error:
            self.record.attempts = attempts
            failure = Failure(Fault.LEDGER_UNAVAILABLE, retry_after=5.0, detail=str(error))
            raise FailedError(failure) from error
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
            if failure.rule.facts.page and failure.rule.facts.park is Park.NOTHING:
                _log.error(
                    "page: %s at target %s: %s", failure.rule.facts.code, attempt.target, failure.detail
                )
        else:
            attempt.reach = ended.reach.label
        self._count(attempt, failure, relay.answer, target, relay.headers)
        self._price(attempt, target.currency)

    def _count(
        self,
        attempt: AttemptRecord,
        failure: Failure | None,
        answer: Answer | None,
        target: Target,
        headers: Headers,
    ) -> None:
        if answer is not None:
            attempt.answer_id = answer.id[:LONGEST_ID]
            usage = answer.usage
            if failure is None and usage is not None and not answer.usage_suspect:
                attempt.state = State.SETTLED
                attempt.count(usage, TokensSource.PROVIDER)
                return
        charged = charge(failure, answer)
        attempt.state = charged.state
        if charged.usage is not None:
            attempt.count(charged.usage, TokensSource.PROVIDER)
        elif charged.counted:
            body = self._call.body
            prompt = prompt_tokens(body.get("messages") or b"", body.get("tools") or b"")
            usage = counted(prompt, target.cached_tokens(headers), answer)
            attempt.count(usage, TokensSource.COUNTED)
            attempt.detail = attempt.detail or charged.flag

    def _price(self, attempt: AttemptRecord, currency: str) -> None:
        row = self._ledger.prices.row(attempt.model, currency, attempt.started, attempt.target)
        attempt.currency = currency
        if row is not None:
            attempt.price_row = row.id
            attempt.cost_micro = cost(attempt.usage, row)

    def _end(self) -> None:
        record, reply = self.record, self._reply
        record.duration = self._ledger.world.clock() - self._call.arrived
        record.status = reply.status
        record.delivered_bytes = reply.delivered
        gone = reply.down.gone if not reply.reached else None
        failure = Failure(gone) if gone is not None else reply.failure
        if not record.outcome:
            record.outcome = _outcome(record, failure, delivered=reply.delivered > 0)
        if failure is not None:
            facts = failure.rule.facts
            record.cause, record.code, record.phase = failure.fault.value, facts.code, failure.phase
            record.detail = failure.detail or failure.message
            if failure.retry_after is not None:
                record.retry_after = failure.retry_after
            if gone is not None:
                record.status = facts.status
            told = (
                facts.park is not Park.NOTHING or failure.fault is Fault.LEDGER_UNAVAILABLE
            )  # by whoever saw it
            if facts.page and not told and not record.attempts:
                _log.error("page: %s: %s", facts.code, record.detail)
            if record.attempts and record.attempts[-1].state in OPEN:
                _leave_in_doubt(record.attempts[-1], failure)
        if record.attempts:
            sum_up(record)
        else:
            record.billed_micro = 0


def _leave_in_doubt(attempt: AttemptRecord, failure: Failure) -> None:
    """An error of our own, or a task that was killed, ended the attempt before anybody could judge it."""
    attempt.state = step(State(attempt.state), Event.DOUBT)
    attempt.cause, attempt.code = failure.fault.value, failure.rule.facts.code


def _outcome(record: CallRecord, failure: Failure | None, *, delivered: bool) -> Outcome:
    if failure is None:
        return Outcome.COMPLETED
    if failure.fault in (Fault.CLIENT_CLOSED, Fault.SLOW_CLIENT):
        return Outcome.ABANDONED
    if delivered:
        return Outcome.TRUNCATED
    return Outcome.FAILED if record.attempts or record.collapsed_with else Outcome.REFUSED
