"""The life of one attempt in the ledger: a table of states and events, and what must hold over all of them.

An attempt is reserved before anything of it may cost money and ends exactly once. `AMBIGUOUS` is an end for
the call but not for the books: a reconciler may still find proof. Source: DESIGN section 7.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from moongate.core.faults import Settle


class State(StrEnum):
    """Where an attempt stands."""

    RESERVED = "reserved"  # nothing of it left us
    SENT = "sent"  # written down before its first byte upstream
    FIRST_EVENT = "first_event"  # it runs, so it costs
    SETTLED = "settled"  # the provider's own usage
    SETTLED_EST = "settled_est"  # cut short: counted by us, and flagged
    RELEASED = "released"  # proof that nothing ran
    AMBIGUOUS = "ambiguous"  # no proof either way
    WRITTEN_OFF = "written_off"  # the reconciler found no proof in time


class Event(StrEnum):
    """What may happen to an attempt."""

    SEND = "send"
    FIRST_EVENT = "first_event"
    SETTLE = "settle"
    ESTIMATE = "estimate"
    RELEASE = "release"
    DOUBT = "doubt"
    OWNER_DIED = "owner_died"
    WRITE_OFF = "write_off"


OPEN: Final = frozenset({State.RESERVED, State.SENT, State.FIRST_EVENT})
"""States of an attempt whose call still runs."""

FINAL: Final = frozenset({State.SETTLED, State.SETTLED_EST, State.RELEASED, State.WRITTEN_OFF})
"""States that nothing leaves."""

_MOVES: Final[dict[State, dict[Event, State]]] = {
    State.RESERVED: {
        Event.SEND: State.SENT,
        Event.RELEASE: State.RELEASED,
        Event.OWNER_DIED: State.RELEASED,
    },
    State.SENT: {
        Event.FIRST_EVENT: State.FIRST_EVENT,
        Event.SETTLE: State.SETTLED,
        Event.ESTIMATE: State.SETTLED_EST,
        Event.RELEASE: State.RELEASED,
        Event.DOUBT: State.AMBIGUOUS,
        Event.OWNER_DIED: State.AMBIGUOUS,
    },
    State.FIRST_EVENT: {
        Event.FIRST_EVENT: State.FIRST_EVENT,
        Event.SETTLE: State.SETTLED,
        Event.ESTIMATE: State.SETTLED_EST,
        Event.DOUBT: State.AMBIGUOUS,
        Event.OWNER_DIED: State.AMBIGUOUS,
    },
    State.AMBIGUOUS: {
        Event.DOUBT: State.AMBIGUOUS,
        Event.OWNER_DIED: State.AMBIGUOUS,
        Event.SETTLE: State.SETTLED,
        Event.RELEASE: State.RELEASED,
        Event.WRITE_OFF: State.WRITTEN_OFF,
    },
    # the event that ended an attempt may be told again (settlement is idempotent); another one may not
    State.SETTLED: {Event.SETTLE: State.SETTLED, Event.OWNER_DIED: State.SETTLED},
    State.SETTLED_EST: {Event.ESTIMATE: State.SETTLED_EST, Event.OWNER_DIED: State.SETTLED_EST},
    State.RELEASED: {Event.RELEASE: State.RELEASED, Event.OWNER_DIED: State.RELEASED},
    State.WRITTEN_OFF: {Event.WRITE_OFF: State.WRITTEN_OFF, Event.OWNER_DIED: State.WRITTEN_OFF},
}

TRANSITIONS: Final[dict[tuple[State, Event], State | None]] = {
    (state, event): _MOVES[state].get(event) for state in State for event in Event
}
"""Every pair of state and event; None: it cannot happen, and `step` says so."""


class IllegalStepError(Exception):
    """An event came to a state that cannot have it: the gateway erred, and the attempt stays as it is."""


def step(state: State, event: Event) -> State:
    """The state after the event; raises `IllegalStepError` where the table has none."""
    after = TRANSITIONS[state, event]
    if after is None:
        raise IllegalStepError(f"an attempt that is {state.value} cannot have {event.value}")
    return after


def ending(settle: Settle, *, usage_known: bool) -> Event:
    """The event that ends a failed attempt, from the word of `core/faults.rule`."""
    if settle is Settle.RELEASED:
        return Event.RELEASE
    if settle is Settle.AMBIGUOUS:
        return Event.DOUBT
    if settle is Settle.ESTIMATED:
        return Event.ESTIMATE
    return Event.SETTLE if usage_known else Event.RELEASE


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts over a ledger, as `moongate ledger verify` takes them.

    `reservations` counts every attempt ever written down; `by_state` where they stand now; `overdue` open
    attempts past their call's deadline; `unnamed` ambiguous ones without a cause; `unpriced` settled ones
    with tokens but no cost; `unclosed` calls without an outcome whose owner is dead.
    """

    reservations: int
    by_state: Mapping[State, int]
    overdue: int = 0
    unnamed: int = 0
    unpriced: int = 0
    unclosed: int = 0


def broken_invariants(tally: Tally) -> list[str]:
    """What does not hold, one sentence each; empty when the books balance (DESIGN section 7)."""
    placed = sum(tally.by_state.values())
    found: list[str] = []
    if placed != tally.reservations:
        found.append(f"{tally.reservations} reservations, but {placed} attempts ended or open")
    if tally.overdue:
        found.append(f"{tally.overdue} attempts are open past their deadline")
    if tally.unnamed:
        found.append(f"{tally.unnamed} ambiguous attempts name no cause")
    if tally.unpriced:
        found.append(f"{tally.unpriced} settled attempts have tokens but no price")
    if tally.unclosed:
        found.append(f"{tally.unclosed} calls of dead owners have no outcome")
    return found


def diagram() -> str:
    """The table as a Mermaid state diagram; steps that change nothing are left out."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.RESERVED.name}"]
    for (state, event), after in TRANSITIONS.items():
        if after is not None and after is not state:
            lines.append(f"    {state.name} --> {after.name}: {event.value}")
    lines += [f"    {state.name} --> [*]" for state in State if state in FINAL]
    return "\n".join(lines) + "\n"
