"""Metrics of one worker: every family by name, cells that cost next to nothing, and snapshots of them.

A cell is a plain number: prometheus-client writes the exposition in the supervisor (`ops/exposition`), yet its own
counters take a lock for each increment, which costs more than everything else here. Label values come from closed
sets only; what is not in its set is counted as `other`, so that no caller can make the series grow.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

import msgspec

from moongate.core.charging import SUSPECT
from moongate.core.faults import FACTS, Reach
from moongate.core.record import CRASHED, CallRecord, Outcome, Source

OTHER: Final = "other"
NONE: Final = "none"


class Kind(StrEnum):
    """What a family's values are."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. `merge` says how the workers' gauges become one; counters and histograms are added up.

    `bounds` are a histogram's upper bounds, each included, without infinity.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    merge: Literal["sum", "max"] = "sum"
    bounds: tuple[float, ...] = ()


_FIRST = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.3, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0)
_WHOLE = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0)
_STALL = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

FAMILIES: Final[tuple[Family, ...]] = (
    Family(
        "moongate_calls_total",
        _C,
        "Authenticated calls that ended, by how they ended and why.",
        ("route", "outcome", "fault"),
    ),
    Family(
        "moongate_attempts_total",
        _C,
        "Tries on the wire, by target, fault and how far they got.",
        ("target", "fault", "reach"),
    ),
    Family(
        "moongate_tokens_total",
        _C,
        "Tokens that callers saw. Input includes cached, output includes reasoning.",
        ("route", "kind", "source"),
    ),
    Family(
        "moongate_usage_suspect_total",
        _C,
        "Whole answers whose usage was missing or absurd, so that they were charged by our own count.",
        ("target", "why"),
    ),
    Family(
        "moongate_time_to_first_token_seconds",
        _H,
        "From a call's arrival to its first data event.",
        ("route",),
        bounds=_FIRST,
    ),
    Family(
        "moongate_duration_seconds",
        _H,
        "From a call's arrival to its end.",
        ("route", "outcome"),
        bounds=_WHOLE,
    ),
    Family("moongate_edits_total", _C, "Changes made to requests and answers, as in the records.", ("edit",)),
    Family(
        "moongate_unauthenticated_total",
        _C,
        "Requests that were nobody's call: no valid key, no valid HTTP, an unknown path. Never a row of the ledger.",
        ("fault",),
    ),
    Family("moongate_in_flight", _G, "Calls that run now."),
    Family(
        "moongate_drains", _G, "Of these, calls that are read to their end although their caller has left."
    ),
    Family("moongate_connections", _G, "Connections of callers that are open now."),
    Family(
        "moongate_drain_cut_total", _C, "Calls that a draining worker ended because its grace time was over."
    ),
    Family(
        "moongate_loop_stall_seconds",
        _H,
        "How late a worker's event loop came to a timer, sampled every 50 ms.",
        bounds=_STALL,
    ),
    Family("moongate_journal_bytes_total", _C, "Bytes appended to journals."),
    Family(
        "moongate_dns_stale_total",
        _C,
        "Connections made to a target's last good addresses because no name server gave newer ones in time.",
        ("target",),
    ),
    Family("moongate_dns_changes_total", _C, "Times that a target's host was found elsewhere.", ("target",)),
    Family(
        "moongate_tls_refused_total",
        _C,
        "Handshakes with a target that failed for want of trust: expired, wrong_name, unknown_ca, version, other.",
        ("target", "reason"),
    ),
    Family(
        "moongate_connect_races_total",
        _C,
        "Connections to a target that a later address won, the first being slow or dead.",
        ("target",),
    ),
    Family(
        "moongate_journal_unwritable", _G, "Workers whose journal cannot be written: they refuse paid calls."
    ),
    Family("moongate_journal_waiting_bytes", _G, "Bytes of records that wait for a journal to be writable."),
    Family(
        "moongate_journal_lost_total",
        _C,
        "Records that never came into a journal: no room, and no memory left.",
    ),
    Family("moongate_ledger_waits", _G, "1 while something keeps journals from the ledger's view, else 0."),
    Family("moongate_ledger_holes_total", _C, "Places found in journals that are damaged or lack records."),
    Family("moongate_ledger_missing_total", _C, "Records known to be missing at these places."),
    Family("moongate_ledger_recovered_total", _C, "Open calls of dead workers that were closed."),
    Family(
        "moongate_alpn_fallback_total",
        _C,
        "Exchanges that were to go over HTTP/2 and went over HTTP/1.1, which is what the target's host chose.",
        ("target",),
    ),
    Family("moongate_workers", _G, "Worker processes, by what they do.", ("state",)),
    Family(
        "moongate_worker_restarts_total",
        _C,
        "Workers started in place of one that ended while the gateway did not.",
        ("slot",),
    ),
    Family(
        "moongate_upstream_up", _G, "1 if a target is well by its last check or calls, else 0.", ("target",)
    ),
    Family(
        "moongate_upstream_load",
        _G,
        "How busy a self-hosted replica says it is: requests that wait, and the share of its cache in use.",
        ("target",),
    ),
    Family(
        "moongate_parked",
        _G,
        "How much of an account gets no calls until somebody looks: the whole account, or models of it.",
        ("account",),
    ),
    Family("moongate_build_info", _G, "Always 1; the labels say what runs.", ("version", "python"), "max"),
)
BY_NAME: Final[Mapping[str, Family]] = {family.name: family for family in FAMILIES}

OUTCOMES: Final = frozenset(outcome.value for outcome in Outcome)
SOURCES: Final = frozenset(source.value for source in Source)
CODES: Final = frozenset(facts.code for facts in FACTS.values()) | {NONE, CRASHED}
_CODE_OF: Final = {fault.value: facts.code for fault, facts in FACTS.items()}
REACHES: Final = frozenset(reach.label for reach in Reach)
EDITS: Final = frozenset(
    (
        *("model", "stream_options.include_usage", "thinking", "prompt_cache_key", "max_tokens"),
        *("max_completion_tokens", "temperature", "top_p", "n", "presence_penalty", "frequency_penalty"),
    )
)
"""The closed list of edits of DESIGN section 1, sampling members by name."""
TOKEN_KINDS: Final = ("input", "output", "cached", "reasoning", "cache_write")


class Row(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One series. `value` is a histogram's sum; `counts` are its buckets, not cumulative, the last one above all."""

    family: str
    labels: tuple[str, ...]
    value: float
    counts: tuple[int, ...] = ()


class Cell:
    """One counter or gauge. Only the event loop's thread writes it."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float = 1.0) -> None:
        """Count."""
        self.value += amount

    def set(self, value: float) -> None:
        """Say what it is now; for a counter that something else keeps, its total."""
        self.value = value


class Spread:
    """One histogram."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


class Cells:
    """The series of one process, made when first asked for and then kept for ever."""

    def __init__(self) -> None:
        self._cells: dict[tuple[str, tuple[str, ...]], Cell] = {}
        self._spreads: dict[tuple[str, tuple[str, ...]], Spread] = {}

    def cell(self, family: str, *labels: str) -> Cell:
        """The counter or gauge with these label values."""
        key = (family, labels)
        if key not in self._cells:
            self._cells[key] = Cell()
        return self._cells[key]

    def spread(self, family: str, *labels: str) -> Spread:
        """The histogram with these label values."""
        key = (family, labels)
        if key not in self._spreads:
            self._spreads[key] = Spread(BY_NAME[family].bounds)
        return self._spreads[key]

    def snapshot(self) -> list[Row]:
        """All series as they stand."""
        rows = [Row(family, labels, cell.value) for (family, labels), cell in self._cells.items()]
        for (family, labels), spread in self._spreads.items():
            rows.append(Row(family, labels, spread.total, tuple(spread.counts)))
        return rows


class _Calls:
    """The cells of one way for a call to end."""

    __slots__ = ("duration", "number")

    def __init__(self, number: Cell, duration: Spread) -> None:
        self.number = number
        self.duration = duration


class CallMetrics:
    """Everything one worker counts. `observe` is the only writer of what calls do: a view of their closed records.

    `routes`, `targets` and `edits` are the closed sets of this gateway's settings.
    """

    def __init__(self, routes: Iterable[str], targets: Iterable[str], edits: Iterable[str] = EDITS) -> None:
        self._routes = frozenset(routes)
        self._targets = frozenset(targets)
        self.cells = Cells()
        self.in_flight = self.cells.cell("moongate_in_flight")
        self.drains = self.cells.cell("moongate_drains")
        self.connections = self.cells.cell("moongate_connections")
        self.journal_bytes = self.cells.cell("moongate_journal_bytes_total")
        self.journal_unwritable = self.cells.cell("moongate_journal_unwritable")
        self.journal_waiting = self.cells.cell("moongate_journal_waiting_bytes")
        self.journal_lost = self.cells.cell("moongate_journal_lost_total")
        self.cut = self.cells.cell("moongate_drain_cut_total")
        self._edited = {edit: self.cells.cell("moongate_edits_total", edit) for edit in (*edits, OTHER)}
        self._calls: dict[tuple[str, str, str], _Calls] = {}
        self._attempts: dict[tuple[str, str, str], Cell] = {}
        self._tokens: dict[tuple[str, str], tuple[Cell, ...]] = {}
        self._first: dict[str, Spread] = {}

    def observe(self, record: CallRecord) -> None:
        """Count one closed call."""
        route, source = record.route, record.source
        calls = self._calls.get((route, record.outcome, record.code))
        if calls is None:
            calls = self._calls_of(route, record.outcome, record.code)
        calls.number.value += 1
        calls.duration.observe(record.duration)
        if record.first_event >= 0:
            (self._first.get(route) or self._first_of(route)).observe(record.first_event)
        if record.input or record.output:
            entry, output, cached, reasoning, written = self._tokens.get((route, source)) or self._tokens_of(
                route, source
            )
            entry.value += record.input
            output.value += record.output
            if record.cached:
                cached.value += record.cached
            if record.reasoning:
                reasoning.value += record.reasoning
            if record.cache_write:
                written.value += record.cache_write
        for attempt in record.attempts:
            key = (attempt.target, attempt.code, attempt.reach)
            (self._attempts.get(key) or self._attempts_of(*key)).value += 1
            if attempt.detail in SUSPECT:
                where = _known(attempt.target, self._targets)
                self.cells.cell("moongate_usage_suspect_total", where, attempt.detail).value += 1
        for edit in record.edits:
            (self._edited.get(edit) or self._edited[OTHER]).value += 1

    def unauthenticated(self, code: str) -> None:
        """Count a request that was refused before anybody's key was found; `code` is its fault, or that one's code."""
        known = _known(_CODE_OF.get(code, code), CODES)
        self.cells.cell("moongate_unauthenticated_total", known).value += 1

    def fell_back(self, target: str, exchanges: int) -> None:
        """Take the total of a target's exchanges that HTTP/1.1 carried in place of HTTP/2."""
        self.cells.cell("moongate_alpn_fallback_total", target).set(exchanges)

    def dialed(
        self, target: str, *, stale: int, changes: int, races: int, refused: Mapping[str, int]
    ) -> None:
        """Take the totals that a target's place keeps of its dials; `refused` handshakes by reason."""
        self.cells.cell("moongate_dns_stale_total", target).set(stale)
        self.cells.cell("moongate_dns_changes_total", target).set(changes)
        self.cells.cell("moongate_connect_races_total", target).set(races)
        for reason, times in refused.items():
            self.cells.cell("moongate_tls_refused_total", target, reason).set(times)

    def snapshot(self) -> list[Row]:
        """All series as they stand."""
        return self.cells.snapshot()

    def _calls_of(self, route: str, outcome: str, code: str) -> _Calls:
        where, how = _known(route, self._routes), _known(outcome, OUTCOMES)
        why = _known(code or NONE, CODES)
        found = _Calls(
            self.cells.cell("moongate_calls_total", where, how, why),
            self.cells.spread("moongate_duration_seconds", where, how),
        )
        if (where, how, why) == (route, outcome, code or NONE):
            self._calls[route, outcome, code] = found
        return found

    def _first_of(self, route: str) -> Spread:
        where = _known(route, self._routes)
        found = self.cells.spread("moongate_time_to_first_token_seconds", where)
        if where == route:
            self._first[route] = found
        return found

    def _tokens_of(self, route: str, source: str) -> tuple[Cell, ...]:
        where, whence = _known(route, self._routes), _known(source, SOURCES)
        found = tuple(self.cells.cell("moongate_tokens_total", where, kind, whence) for kind in TOKEN_KINDS)
        if (where, whence) == (route, source):
            self._tokens[route, source] = found
        return found

    def _attempts_of(self, target: str, code: str, reach: str) -> Cell:
        where, why, how = _known(target, self._targets), _known(code or NONE, CODES), _known(reach, REACHES)
        found = self.cells.cell("moongate_attempts_total", where, why, how)
        if (where, why, how) == (target, code or NONE, reach):
            self._attempts[target, code, reach] = found
        return found


def _known(value: str, closed_set: frozenset[str]) -> str:
    return value if value in closed_set else OTHER
