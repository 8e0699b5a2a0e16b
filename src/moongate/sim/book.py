"""The billing book: every execution that the simulated provider would charge for, and how it ended.

An execution opens when the model starts on a prompt and closes when its answer is sent, cut or abandoned. It
is charged for its prompt and for the tokens it had made when it ended, whether or not anybody read them:
KIMI.md section 8 says to assume that of aborted streams. Refused requests never open one.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from moongate.sim.models import Price


class Bill(StrEnum):
    """What a faulty execution is charged for."""

    NOTHING = "none"
    PROMPT = "prompt"
    SENT = "sent"  # prompt and the tokens sent before the fault
    FULL = "full"  # prompt and the whole answer, sent or not


@dataclass(slots=True)
class Execution:
    """One run of the model. Times are seconds since 1970, money micro-units of `currency`."""

    id: str
    host: str
    account: str
    key: str
    model: str
    currency: str
    price: Price
    started: float
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    stream: bool
    request_id: str
    digest: str
    bill: Bill = Bill.SENT
    fault: str = ""
    ended: float | None = None
    how: str = "running"
    emitted: int = 0
    cost_micro: int = 0
    partial: bool = False

    def row(self) -> dict[str, Any]:
        """The execution as the book's JSON shows it."""
        return {
            "id": self.id,
            "host": self.host,
            "account": self.account,
            "key": self.key,
            "model": self.model,
            "stream": self.stream,
            "partial": self.partial,
            "started": self.started,
            "ended": self.ended,
            "how": self.how,
            "fault": self.fault or None,
            "bill": self.bill.value,
            "input_tokens": self.input_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
            "reasoning_tokens": self.reasoning_tokens,
            "tokens_emitted": self.emitted,
            "cost_micro": self.cost_micro,
            "currency": self.currency,
            "request_id": self.request_id,
            "body_digest": self.digest,
        }


_SUMS = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


@dataclass(slots=True)
class Book:
    """Executions, newest `keep` of them in full, all of them in the totals."""

    keep: int = 100_000
    _rows: OrderedDict[str, Execution] = field(default_factory=OrderedDict)
    _totals: dict[str, int] = field(default_factory=dict)
    _ended: dict[str, int] = field(default_factory=dict)
    _cost: dict[str, int] = field(default_factory=dict)
    _refused: dict[str, int] = field(default_factory=dict)
    _opened: int = 0
    _closed: int = 0

    def open(self, execution: Execution) -> None:
        """Enter an execution that starts now."""
        self._opened += 1
        self._rows[execution.id] = execution
        if len(self._rows) > self.keep:
            self._rows.popitem(last=False)

    def close(self, execution: Execution, how: str, now: float) -> None:
        """Settle an execution once: `how` is completed, aborted, or the fault's name."""
        if execution.ended is not None:
            return
        execution.ended = now
        execution.how = how
        planned = execution.output_tokens
        if how != "completed" and execution.bill is not Bill.FULL:
            execution.output_tokens = execution.emitted
        if execution.bill is Bill.PROMPT:
            execution.output_tokens = 0
        if execution.bill is Bill.NOTHING:
            execution.input_tokens = execution.cached_tokens = execution.output_tokens = 0
        execution.reasoning_tokens = min(execution.reasoning_tokens, execution.output_tokens, planned)
        execution.cost_micro = execution.price.cost(
            execution.input_tokens, execution.cached_tokens, execution.output_tokens
        )
        self._closed += 1
        self._ended[how] = self._ended.get(how, 0) + 1
        self._cost[execution.currency] = self._cost.get(execution.currency, 0) + execution.cost_micro
        for name in _SUMS:
            self._totals[name] = self._totals.get(name, 0) + getattr(execution, name)

    def refuse(self, kind: str) -> None:
        """Count a request that never ran, by its error type."""
        self._refused[kind] = self._refused.get(kind, 0) + 1

    def rows(self, wanted: dict[str, str], limit: int) -> list[dict[str, Any]]:
        """The newest `limit` executions whose members equal every wanted one, oldest first."""
        out: list[dict[str, Any]] = []
        for execution in reversed(self._rows.values()):
            row = execution.row()
            if all(str(row.get(name)) == value for name, value in wanted.items()):
                out.append(row)
                if len(out) == limit:
                    break
        out.reverse()
        return out

    def totals(self) -> dict[str, Any]:
        """Sums over everything since the start or the last `clear`, rows no longer kept included."""
        return {
            "executions": self._opened,
            "open": self._opened - self._closed,
            "ended": dict(self._ended),
            **{name: self._totals.get(name, 0) for name in _SUMS},
            "cost_micro": dict(self._cost),
            "refused": dict(self._refused),
        }

    def clear(self) -> None:
        """Forget what has ended; what is running stays and will be counted when it ends."""
        running = [execution for execution in self._rows.values() if execution.ended is None]
        self._rows.clear()
        self._rows.update((execution.id, execution) for execution in running)
        for counts in (self._totals, self._ended, self._cost, self._refused):
            counts.clear()
        self._opened, self._closed = len(running), 0
