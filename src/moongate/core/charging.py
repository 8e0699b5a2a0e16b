"""What of an attempt is charged, by whose count, and what a call is billed. Source: DESIGN section 7.

The provider's own usage settles an attempt. Where it gave none, or one that contradicts itself, we count, never more
than the provider can have charged. What may have run without proof is not charged before it is reconciled, unless the
client left: else leaving early would be free. A bill is the sum of its call's attempts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from moongate.core.call import Usage
from moongate.core.estimate import least_tokens
from moongate.core.faults import Failure, Fault, Settle
from moongate.core.ledger import Event, State, ending, step
from moongate.core.record import AttemptRecord, CallRecord, Source
from moongate.core.surface import Answer

MISSING: Final = "usage_missing"
ABSURD: Final = "usage_suspect"
SUSPECT: Final = frozenset((MISSING, ABSURD))
"""Flags, in an attempt's detail, of whole answers that were charged by our own count."""


SMOOTHED_BYTES: Final = 2
"""Pieces that are shorter on the whole are not tokens but letters: some hosts make a stream smooth that way."""


@dataclass(frozen=True, slots=True)
class Charge:
    """How an attempt ends in the ledger. `counted`: its tokens are ours to count; `flag` says why, for its detail."""

    state: State
    usage: Usage | None = None
    counted: bool = False
    flag: str = ""


def charge(failure: Failure | None, answer: Answer | None) -> Charge:
    """What an attempt that was sent comes to, by the fault that ended it and what came of its answer."""
    usage = None if answer is None or answer.usage_suspect else answer.usage
    if failure is None:
        if usage is not None:
            return Charge(step(State.SENT, Event.SETTLE), usage)
        flag = MISSING if answer is None or not answer.usage_suspect else ABSURD
        return Charge(step(State.SENT, Event.ESTIMATE), counted=True, flag=flag)
    settle = failure.rule.settle
    event = ending(settle, usage_known=usage is not None)
    if usage is not None and settle is not Settle.RELEASED:
        event = Event.SETTLE
    state = step(State.SENT, event)
    if state is State.SETTLED:
        return Charge(state, usage)
    left = failure.fault is Fault.CLIENT_CLOSED and state is State.AMBIGUOUS
    return Charge(state, counted=left or state is State.SETTLED_EST)


def counted(prompt: int, cached: int, answer: Answer | None) -> Usage:
    """Tokens as we count them: `prompt` as estimated, `cached` as far as the provider told, the answer as it came.

    Each piece of a stream holds one token or more, unless its host sends letters one by one. Never more than was made.
    """
    hits = min(max(cached, 0), prompt)
    if answer is None:
        return Usage(prompt, cached=hits)
    reasoning = least_tokens(answer.reasoning)
    calls = sum(least_tokens(call.name) + least_tokens(call.arguments) for call in answer.tool_calls)
    least = least_tokens(answer.text) + reasoning + calls
    pieces = answer.pieces if _size(answer) >= SMOOTHED_BYTES * answer.pieces else 0
    return Usage(prompt, max(pieces, least), hits, reasoning)


def _size(answer: Answer) -> int:
    """Bytes of all that came of an answer."""
    called = sum(len(call.name) + len(call.arguments.encode()) for call in answer.tool_calls)
    return len(answer.text.encode()) + len(answer.reasoning.encode()) + called


def is_charged(attempt: AttemptRecord) -> bool:
    """Whether the attempt stands in its call's bill: whatever used tokens does, priced or not, or has a cost."""
    return bool(attempt.input or attempt.output or attempt.cost_micro)


def sum_up(record: CallRecord) -> None:
    """Take over from the attempts, of which there is one at least, what holds for the call; one without tokens is free.

    A call that was charged in two currencies is billed in that of its last attempt; the others stand with theirs.
    """
    attempts = record.attempts
    last = attempts[-1]
    record.source = Source.UPSTREAM
    record.model = last.model
    record.input, record.output, record.cached = last.input, last.output, last.cached
    record.reasoning, record.cache_write = last.reasoning, last.cache_write
    record.currency = last.currency
    if len(attempts) == 1:
        record.billed_micro = last.cost_micro if last.input or last.output else last.cost_micro or 0
    else:
        record.billed_micro = bill(attempts, last.currency)


def bill(attempts: Sequence[AttemptRecord], currency: str) -> int | None:
    """The sum of what these attempts are charged in this currency; None: a price is missing."""
    costs = [one.cost_micro for one in attempts if is_charged(one) and one.currency == currency]
    return None if None in costs else sum(filter(None, costs))
