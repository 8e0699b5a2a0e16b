"""An attempt ends at most once, whatever happens to it, and the books always balance."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.faults import Settle
from moongate.core.ledger import (
    FINAL,
    OPEN,
    TRANSITIONS,
    Event,
    IllegalStepError,
    State,
    Tally,
    broken_invariants,
    diagram,
    ending,
    step,
)

DOCS = Path(__file__).parents[2] / "docs" / "concepts" / "ledger.md"
EVENTS = st.sampled_from(list(Event))


def after(state: State, event: Event) -> State:
    """What the book shows after the event: what cannot happen changes nothing."""
    try:
        return step(state, event)
    except IllegalStepError:
        return state


def test_the_table_is_total() -> None:
    assert set(TRANSITIONS) == {(state, event) for state in State for event in Event}


@pytest.mark.parametrize(
    ("events", "end"),
    [
        ((Event.SEND, Event.FIRST_EVENT, Event.SETTLE), State.SETTLED),
        ((Event.SEND, Event.SETTLE), State.SETTLED),
        ((Event.SEND, Event.FIRST_EVENT, Event.ESTIMATE), State.SETTLED_EST),
        ((Event.SEND, Event.ESTIMATE), State.SETTLED_EST),
        ((Event.SEND, Event.RELEASE), State.RELEASED),
        ((Event.RELEASE,), State.RELEASED),
        ((Event.SEND, Event.DOUBT), State.AMBIGUOUS),
        ((Event.SEND, Event.DOUBT, Event.SETTLE), State.SETTLED),
        ((Event.SEND, Event.DOUBT, Event.RELEASE), State.RELEASED),
        ((Event.SEND, Event.DOUBT, Event.WRITE_OFF), State.WRITTEN_OFF),
        ((Event.OWNER_DIED,), State.RELEASED),
        ((Event.SEND, Event.OWNER_DIED), State.AMBIGUOUS),
        ((Event.SEND, Event.FIRST_EVENT, Event.OWNER_DIED), State.AMBIGUOUS),
    ],
)
def test_the_ways_of_the_design(events: tuple[Event, ...], end: State) -> None:
    state = State.RESERVED
    for event in events:
        state = step(state, event)
    assert state is end


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (State.RESERVED, Event.SETTLE),  # nothing was sent: there is nothing to pay
        (State.RESERVED, Event.DOUBT),
        (State.FIRST_EVENT, Event.RELEASE),  # it ran: no proof can say that it did not
        (State.SETTLED, Event.RELEASE),
        (State.SETTLED_EST, Event.SETTLE),
        (State.RELEASED, Event.SEND),
        (State.SENT, Event.SEND),
        (State.SENT, Event.WRITE_OFF),
        (State.WRITTEN_OFF, Event.SETTLE),
    ],
)
def test_what_cannot_happen_is_refused(state: State, event: Event) -> None:
    with pytest.raises(IllegalStepError, match=state.value):
        step(state, event)


@given(st.lists(EVENTS, max_size=30))
def test_an_attempt_ends_at_most_once(events: list[Event]) -> None:
    states = [State.RESERVED]
    for event in events:
        states.append(after(states[-1], event))
    ends = [state for state in states if state in FINAL]
    assert len(set(ends)) <= 1
    assert not ends or states[-1] is ends[0], "nothing leaves a final state"
    if State.AMBIGUOUS in states:
        assert states[-1] not in OPEN, "doubt never turns back into a running call"


@given(st.lists(EVENTS, max_size=12))
def test_once_sent_it_is_released_only_by_proof(events: list[Event]) -> None:
    state = step(State.RESERVED, Event.SEND)
    for event in events:
        before, state = state, after(state, event)
        if state is State.RELEASED and before is not State.RELEASED:
            assert event is Event.RELEASE, "a death is no proof"


@given(st.lists(st.tuples(st.integers(0, 9), EVENTS), max_size=120))
def test_reservations_are_what_ended_and_what_is_open_after_any_interleaving(
    happenings: list[tuple[int, Event]],
) -> None:
    book: dict[int, State] = {}
    reservations = 0
    for attempt, event in happenings:
        if attempt not in book:
            book[attempt] = State.RESERVED
            reservations += 1
        book[attempt] = after(book[attempt], event)
    by_state = Counter(book.values())
    ended = sum(by_state[state] for state in State if state not in OPEN)
    assert reservations == ended + sum(by_state[state] for state in OPEN)
    assert broken_invariants(Tally(reservations, by_state)) == []


@given(st.sampled_from(list(State)))
def test_a_death_leaves_nothing_open_and_is_told_twice_without_harm(state: State) -> None:
    once = step(state, Event.OWNER_DIED)
    assert once not in OPEN
    assert step(once, Event.OWNER_DIED) is once


@pytest.mark.parametrize(
    ("settle", "usage_known", "event"),
    [
        (Settle.RELEASED, True, Event.RELEASE),
        (Settle.AMBIGUOUS, True, Event.DOUBT),
        (Settle.ESTIMATED, True, Event.ESTIMATE),
        (Settle.REPORTED, True, Event.SETTLE),
        (Settle.REPORTED, False, Event.RELEASE),
    ],
)
def test_the_fault_tables_word_ends_an_attempt(settle: Settle, usage_known: bool, event: Event) -> None:
    assert ending(settle, usage_known=usage_known) is event


def test_every_broken_invariant_is_named_with_its_number() -> None:
    tally = Tally(5, {State.SETTLED: 4}, overdue=11, unnamed=12, unpriced=13, unclosed=14)
    found = broken_invariants(tally)
    assert len(found) == 5
    for number, sentence in zip((5, 11, 12, 13, 14), found, strict=True):
        assert str(number) in sentence


def test_the_documented_diagram_is_the_table() -> None:
    text = DOCS.read_text(encoding="utf-8")
    drawn = text.partition("```mermaid\n")[2].partition("```")[0]
    assert drawn == diagram()


def test_the_diagram_draws_every_change_once() -> None:
    lines = diagram().splitlines()
    changes = [(s, e, a) for (s, e), a in TRANSITIONS.items() if a is not None and a is not s]
    for state, event, end in changes:
        assert lines.count(f"    {state.name} --> {end.name}: {event.value}") == 1
    assert len(lines) == 2 + len(changes) + len(FINAL)
