"""What a retry gets: its first answer, the same error, a place beside the call that runs, or an execution of its own.

A retry is known by its `Idempotency-Key`, or, from SDKs, which send none, by its retry count and its fingerprint.
Source: DESIGN section 6, "Idempotency".
"""

from dataclasses import replace
from enum import StrEnum
from hashlib import sha256
from typing import Final

import msgspec

from moongate.core.call import Call
from moongate.core.faults import Failure, Fault, Reach
from moongate.core.ledger import State
from moongate.core.record import CallRecord, Outcome

KEY_SECONDS: Final = 86_400.0
"""How long a key stands for its first call."""

RETRY_SECONDS: Final = 120.0
"""How long a call without a key is remembered for its client's retry, and its drained answer kept."""

DOUBT_SECONDS: Final = 20.0
"""How long an answer that may have been lost on its way is kept: SDKs are back within 8 seconds."""

LONGEST_KEY: Final = 255
_DIGEST: Final = 16

_LEFT: Final = frozenset((Fault.CLIENT_CLOSED.value, Fault.SLOW_CLIENT.value))
_REACHES: Final = {reach.label: reach for reach in Reach}
_FAULTS: Final = {fault.value: fault for fault in Fault}


class Standing(StrEnum):
    """What is known of the call that a key or a fingerprint stands for."""

    FREE = "free"  # nothing ran, or nothing is known: there is nothing to repeat
    RUNNING = "running"
    ANSWERED = "answered"  # upstream's answer was read, whole or as far as it came
    FAILED = "failed"  # it may have run, and nobody has an answer
    LOST = "lost"  # it ran or may have, and its answer was thrown away
    CANCELLED = "cancelled"  # a stream that its client left


class Decision(StrEnum):
    """What a call gets."""

    EXECUTE = "execute"
    EXECUTE_AGAIN = "execute_again"  # `retry_of` in the record
    ATTACH = "attach"  # to the call that runs; `idempotency_in_progress` where it cannot be reached
    REPLAY = "replay"  # the kept answer; `idempotency_expired` where it is not kept any more
    FAIL_AGAIN = "fail_again"  # the same error
    MISMATCH = "mismatch"
    EXPIRED = "expired"


class First(msgspec.Struct, gc=False):
    """The first call under a key or fingerprint. `until`: wall-clock seconds at which it is forgotten.

    `failure` is what its client was told, where it FAILED. `ended` is the wall-clock second at which it did, where that
    is known from the ledger alone. `tries` is how many went before it by its SDK's word: its retry had more.
    `doubted`: it was answered whole, but its client may not have got that.
    """

    call_id: str
    fingerprint: bytes
    until: float
    standing: Standing = Standing.RUNNING
    failure: Failure | None = None
    ended: float = 0.0
    tries: int = -1
    doubted: bool = False


_DECISIONS: Final = {
    Standing.FREE: Decision.EXECUTE,
    Standing.RUNNING: Decision.ATTACH,
    Standing.ANSWERED: Decision.REPLAY,
    Standing.FAILED: Decision.FAIL_AGAIN,
    Standing.LOST: Decision.EXPIRED,
    Standing.CANCELLED: Decision.EXECUTE_AGAIN,
}


def decide(first: First | None, fingerprint: bytes, now: float) -> Decision:
    """What a call with this fingerprint gets, `first` being what its key stands for; `now` in wall-clock seconds."""
    if first is None or now >= first.until or first.standing is Standing.FREE:
        return Decision.EXECUTE
    if first.fingerprint != fingerprint:
        return Decision.MISMATCH
    return _DECISIONS[first.standing]


def is_key(text: bytes) -> bool:
    """Whether this may be an Idempotency-Key: 1 to 255 printable ASCII characters."""
    return 0 < len(text) <= LONGEST_KEY and all(0x20 <= byte < 0x7F for byte in text)


def fingerprint(call: Call) -> bytes:
    """16 bytes that tell whether two calls are the same: tenant, user, route and the body's very bytes."""
    return _digest(call.principal.tenant, call.user, call.route, body=call.body.data)


def place(tenant: str, route: str, key: str) -> bytes:
    """Where a key's first call is remembered: a tenant's key means another call on each of its routes."""
    return _digest(tenant, route, key)


def made_at(call_id: str) -> float:
    """When a call was made, in wall-clock seconds: ids begin with their milliseconds (`World.new_id`)."""
    return int(call_id[:12], 16) / 1000


def _digest(*names: str, body: bytes = b"") -> bytes:
    """Each name with its length before it, so that no two lists of names are the same bytes."""
    digest = sha256()
    for name in names:
        text = name.encode(errors="replace")
        digest.update(b"%d:%b" % (len(text), text))
    digest.update(body)
    return digest.digest()[:_DIGEST]


def standing_of(record: CallRecord) -> Standing:
    """What a record says of its call to those who ask again.

    All attempts RELEASED: nothing ran. A stream that its client left leaves nothing to repeat; a plain call that it
    left was paid or may have been, so it must not run again. What was read to its end although the client had left
    can be replayed.
    """
    if not record.outcome:
        return Standing.RUNNING
    counted = [attempt for attempt in record.attempts if attempt.state != State.RELEASED]
    if not counted:
        return Standing.FREE
    last = record.attempts[-1]
    if last is not counted[-1]:  # what may have run came before what did not
        return Standing.FAILED
    if not last.cause or (last.reach == Reach.EVENTS.label and last.cause not in _LEFT):
        return Standing.ANSWERED
    if last.cause in _LEFT:
        return Standing.CANCELLED if record.stream else Standing.LOST
    return Standing.FAILED


def failure_of(record: CallRecord) -> Failure:
    """The error that the call's client was told, or would have been, as far as its record tells."""
    fault = _FAULTS.get(record.cause, Fault.GATEWAY_ERROR)
    reaches = [_REACHES.get(attempt.reach, Reach.SENT) for attempt in record.attempts]
    return told_again(Failure(fault, max(reaches, default=Reach.SENT), phase=record.phase))


def told_again(failure: Failure) -> Failure:
    """The failure as a retry is told of it: no SDK is to try once more, and there is nothing to wait for."""
    reach = (
        Reach.EVENTS if failure.rule.should_retry else failure.reach
    )  # what sent events is never tried again
    return replace(failure, reach=reach, retry_after=None)


def is_caught(record: CallRecord) -> bool:
    """Whether an SDK's retry of this closed call must be known without a key: it was abandoned, or is ambiguous."""
    if standing_of(record) is Standing.FREE:
        return False
    return record.outcome == Outcome.ABANDONED or any(
        attempt.state == State.AMBIGUOUS for attempt in record.attempts
    )


class Firsts:
    """What places and fingerprints stand for, the oldest first.

    Forgets by time alone: what was paid is never forgotten for want of room. About 300 bytes each.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, First] = {}

    def __len__(self) -> int:
        return len(self._known)

    def find(self, place: bytes, now: float) -> First | None:
        """What stands there; `now` in wall-clock seconds."""
        first = self._known.get(place)
        return first if first is not None and now < first.until else None

    def put(self, place: bytes, first: First, now: float) -> None:
        """Let the place stand for this call from now on, and forget two of the oldest that are over."""
        self._known.pop(place, None)
        self._known[place] = first
        for _ in range(2):
            oldest = next(iter(self._known))
            if now < self._known[oldest].until:
                break
            del self._known[oldest]

    def drop(self, place: bytes, call_id: str) -> None:
        """Forget this call, if the place still stands for it."""
        first = self._known.get(place)
        if first is not None and first.call_id == call_id:
            del self._known[place]
