"""The access log: one JSON line a record, failures all, successes sampled by call id.

A view of the ledger's record, and the least of its views: lines that a slow reader or a full disk does not take are
dropped and counted, a call never waits for them. Never a prompt, never a key.
"""

import os
import threading
from collections import deque
from typing import Final
from zlib import crc32

import msgspec

from moongate.core.record import CallRecord, Outcome

MOST_LINES: Final = 10_000
"""Lines that may wait for the writer; more are dropped."""

EVERY: Final = 0.05
"""Seconds between two writes."""


def is_sampled(call_id: str, share: float) -> bool:
    """Whether this call is among the share that is logged: the same answer wherever it is asked."""
    return crc32(call_id.encode()) < share * 0x1_0000_0000


def line(record: CallRecord) -> dict[str, object]:
    """What a line says of a call. Times in seconds, money in millionths of the currency."""
    return {
        "time": round(record.created, 3),
        "call_id": record.call_id,
        "request_id": record.request_id,
        "conversation_id": record.session or record.call_id,
        "tenant": record.tenant,
        "user": record.user,
        "route": record.route,
        "model": record.model,
        "stream": record.stream,
        "outcome": record.outcome,
        "source": record.source,
        "fault": record.code,
        "cause": record.cause,
        "status": record.status,
        "duration": round(record.duration, 6),
        "first_event": round(record.first_event, 6) if record.first_event >= 0 else None,
        "input_tokens": record.input,
        "output_tokens": record.output,
        "cached_tokens": record.cached,
        "reasoning_tokens": record.reasoning,
        "billed_micro": record.billed_micro,
        "currency": record.currency,
        "edits": record.edits,
        "attempts": [
            {
                "id": attempt.attempt_id,
                "target": attempt.target,
                "state": attempt.state,
                "reach": attempt.reach,
                "fault": attempt.code,
                "cause": attempt.cause,
                "phase": attempt.phase,
                "status": attempt.status,
                "provider_request_id": attempt.provider_request_id,
            }
            for attempt in record.attempts
        ],
    }


class AccessLog:
    """Writes lines to a descriptor from a thread of its own. `share` is that of successes, 0 to 1.

    `dropped` counts lines that found no room.
    """

    def __init__(self, descriptor: int, share: float) -> None:
        self.dropped = 0
        self._descriptor = descriptor
        self._share = share
        self._waiting: deque[CallRecord] = deque()
        self._encode = msgspec.json.Encoder().encode
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)
        self._thread.start()

    def write(self, record: CallRecord) -> None:
        """Take a record; returns at once."""
        good = record.outcome in (Outcome.COMPLETED, Outcome.REPLAYED)
        if good and not is_sampled(record.call_id, self._share):
            return
        if len(self._waiting) >= MOST_LINES:
            self.dropped += 1
        else:
            self._waiting.append(record)

    def close(self, patience: float = 1.0) -> None:
        """Write what waits, for at most `patience` seconds: a reader that hangs must not hold up the end."""
        self._stop.set()
        self._thread.join(patience)

    def _run(self) -> None:
        last = False
        while not last:
            last = self._stop.wait(EVERY)
            while self._waiting:
                count = min(len(self._waiting), 256)
                lines = [self._encode(line(self._waiting.popleft())) + b"\n" for _ in range(count)]
                self._push(b"".join(lines), count)

    def _push(self, data: bytes, count: int) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            self.dropped += count
