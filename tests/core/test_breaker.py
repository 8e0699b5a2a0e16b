"""A target that fails gets no calls for a while, and comes back by real calls, slowly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.breaker import TRANSITIONS, Breaker, BreakerRules, Event, State

RULES = BreakerRules()
MIDDLE = 0.5  # a draw that jitters nothing


def state(breaker: Breaker) -> State:
    return breaker.state


def fail(breaker: Breaker, now: float, times: int = 1, *, unconnected: bool = False) -> None:
    for _ in range(times):
        breaker.failed(now, MIDDLE, unconnected=unconnected)


def opened(now: float = 0.0, rules: BreakerRules = RULES) -> Breaker:
    breaker = Breaker(rules)
    fail(breaker, now, rules.connects, unconnected=True)
    assert state(breaker) is State.OPEN
    return breaker


def probed(breaker: Breaker, now: float, *, well: bool) -> None:
    """One probe, from its start to its end."""
    ticket = breaker.enter()
    assert ticket
    if well:
        breaker.succeeded(now, ticket)
    else:
        breaker.failed(now, MIDDLE, unconnected=False, ticket=ticket)
    breaker.leave(ticket)


def test_every_state_can_be_left_and_reached() -> None:
    assert set(TRANSITIONS) == set(State)
    assert {to for row in TRANSITIONS.values() for to in row.values()} == set(State)
    assert {event for row in TRANSITIONS.values() for event in row} == set(Event)


@given(good=st.integers(0, 60), bad=st.integers(1, 60))
def test_it_opens_at_half_of_at_least_twenty_calls_and_never_before(good: int, bad: int) -> None:
    breaker = Breaker(BreakerRules(failures=1000))
    fail(breaker, 100.0)
    for _ in range(good):
        breaker.succeeded(101.0)
    for _ in range(bad - 1):
        if state(breaker) is State.OPEN:
            break
        fail(breaker, 102.0)
    failed_when_judged = bad
    should = good + failed_when_judged >= 20 and failed_when_judged >= (good + failed_when_judged) / 2
    assert (state(breaker) is State.OPEN) is should


def test_failures_of_more_than_ten_seconds_ago_do_not_count() -> None:
    breaker = Breaker(BreakerRules(failures=1000))
    fail(breaker, 0.0, 19)
    fail(breaker, 10.0)
    assert state(breaker) is State.HEALTHY
    fail(breaker, 19.9, 18)
    assert state(breaker) is State.HEALTHY
    fail(breaker, 19.9)
    assert state(breaker) is State.OPEN


def test_calls_that_went_well_before_the_window_do_not_hide_an_outage() -> None:
    breaker = Breaker(BreakerRules(failures=1000))
    for _ in range(10_000):
        breaker.succeeded(0.0)
    fail(breaker, 1.0, 20)
    assert state(breaker) is State.OPEN


def test_five_failures_to_connect_in_a_row_open_it() -> None:
    breaker = Breaker(RULES)
    fail(breaker, 0.0, 4, unconnected=True)
    breaker.succeeded(0.0)
    fail(breaker, 0.0, 4, unconnected=True)
    assert state(breaker) is State.HEALTHY, "one went well in between"
    fail(breaker, 0.0, 1, unconnected=True)
    assert state(breaker) is State.OPEN


def test_a_failure_after_it_connected_breaks_the_row_of_failures_to_connect() -> None:
    breaker = Breaker(BreakerRules(failures=1000))
    fail(breaker, 0.0, 4, unconnected=True)
    fail(breaker, 0.0)
    fail(breaker, 0.0, 4, unconnected=True)
    assert state(breaker) is State.HEALTHY


def test_five_other_failures_in_a_row_only_eject_it() -> None:
    breaker = Breaker(RULES)
    fail(breaker, 0.0, 4)
    breaker.succeeded(0.0)
    fail(breaker, 0.0, 4)
    assert state(breaker) is State.HEALTHY
    fail(breaker, 0.0)
    assert state(breaker) is State.EJECTED
    assert breaker.until == 5.0


def test_what_was_ejected_still_opens_by_the_calls_it_gets_as_the_last_one() -> None:
    breaker = Breaker(RULES)
    fail(breaker, 0.0, 5)
    fail(breaker, 0.0, 19)
    assert state(breaker) is State.EJECTED
    fail(breaker, 0.0)
    assert state(breaker) is State.OPEN


def test_an_ejected_target_comes_back_by_a_good_call_or_by_time_and_slowly() -> None:
    for by_time in (False, True):
        breaker = Breaker(RULES)
        fail(breaker, 0.0, 5)
        assert not breaker.wake(4.9, vouched=True)
        assert breaker.wake(5.0, vouched=False) if by_time else breaker.succeeded(5.0)
        assert state(breaker) is State.HEALTHY
        assert breaker.share(5.0) == RULES.first_share


def test_it_rests_five_seconds_and_twice_as_long_each_time_up_to_sixty() -> None:
    breaker, now, rests = opened(), 0.0, []
    for _ in range(7):
        rests.append(breaker.until - now)
        assert not breaker.wake(breaker.until - 0.001, vouched=False)
        now = breaker.until
        assert breaker.wake(now, vouched=False)
        assert state(breaker) is State.PROBING
        probed(breaker, now, well=False)
        assert state(breaker) is State.OPEN
    assert rests == pytest.approx([5, 10, 20, 40, 60, 60, 60])


@given(draw=st.floats(0, 1, exclude_max=True))
def test_a_rest_is_jittered_by_a_fifth_both_ways(draw: float) -> None:
    breaker = Breaker(RULES)
    for _ in range(5):
        breaker.failed(100.0, draw, unconnected=True)
    assert 104.0 <= breaker.until <= 106.0
    assert breaker.until == pytest.approx(100 + 5 * (0.8 + 0.4 * draw))
    assert breaker.early == breaker.until


def test_a_target_that_looks_well_rests_no_longer_than_the_first_time() -> None:
    breaker = opened()
    breaker.wake(5.0, vouched=False)
    probed(breaker, 5.0, well=False)
    assert not breaker.wake(9.9, vouched=True)
    assert not breaker.wake(10.0, vouched=False)
    assert breaker.wake(10.0, vouched=True)


def test_after_a_slow_start_that_went_well_the_next_rest_is_short_again() -> None:
    breaker = opened()
    breaker.wake(5.0, vouched=False)
    probed(breaker, 5.0, well=False)
    breaker.wake(15.0, vouched=False)
    for _ in range(3):
        probed(breaker, 15.0, well=True)
    fail(breaker, 44.9, 5, unconnected=True)
    assert breaker.until == pytest.approx(44.9 + 20)
    breaker.wake(70.0, vouched=False)
    for _ in range(3):
        probed(breaker, 70.0, well=True)
    assert not breaker.is_well(99.9)
    assert breaker.is_well(100.0)
    fail(breaker, 100.0, 5, unconnected=True)
    assert breaker.until == pytest.approx(105.0)


def test_three_real_calls_probe_it_and_no_more_at_a_time() -> None:
    breaker = opened()
    breaker.wake(5.0, vouched=False)
    tickets = []
    while breaker.has_room:
        tickets.append(breaker.enter())
    assert len(tickets) == 3
    breaker.leave(tickets[0])  # it ended without a word: its client left
    tickets[0] = breaker.enter() if breaker.has_room else 0
    for ticket in tickets:
        assert state(breaker) is State.PROBING
        breaker.succeeded(5.0, ticket)
        breaker.leave(ticket)
    assert state(breaker) is State.HEALTHY


def test_calls_that_began_before_it_opened_decide_nothing_while_it_is_probed() -> None:
    breaker = opened()
    fail(breaker, 1.0)
    breaker.succeeded(1.0)
    assert (breaker.state, breaker.until) == (State.OPEN, 5.0)
    breaker.wake(5.0, vouched=False)
    first = breaker.enter()
    fail(breaker, 5.0)
    for _ in range(3):
        breaker.succeeded(5.0)
    assert state(breaker) is State.PROBING
    breaker.failed(5.0, MIDDLE, unconnected=False, ticket=first)
    breaker.wake(15.0, vouched=False)
    second = breaker.enter()
    breaker.leave(first)
    breaker.succeeded(15.0, first)
    assert breaker.probing == 1, "a probe of the round before"
    breaker.leave(second)
    assert breaker.probing == 0


def test_a_target_that_comes_back_gets_a_tenth_and_all_after_thirty_seconds() -> None:
    breaker = opened()
    assert breaker.share(0.0) == 1.0
    breaker.wake(5.0, vouched=False)
    for _ in range(3):
        probed(breaker, 5.0, well=True)
    assert [round(breaker.share(5.0 + age), 6) for age in (-1, 0, 15, 29.9999999, 30)] == [
        0.1,
        0.1,
        0.55,
        1.0,
        1.0,
    ]
    assert breaker.enter() == 0, "no probe any more"


@given(st.lists(st.tuples(st.sampled_from("gbcpwl"), st.floats(0, 20)), max_size=80))
def test_whatever_happens_probes_are_counted_out_and_an_open_breaker_ends_its_rest(
    story: list[tuple[str, float]],
) -> None:
    breaker, now, tickets = Breaker(RULES), 0.0, []
    for what, after in story:
        now += after
        breaker.wake(now, vouched=False)
        if what == "p" and (state(breaker) is not State.PROBING or breaker.has_room):
            tickets.append(breaker.enter())
        elif what == "g":
            breaker.succeeded(now, tickets[0] if tickets else 0)
        elif what in "bc":
            breaker.failed(now, MIDDLE, unconnected=what == "c", ticket=tickets[0] if tickets else 0)
        elif tickets:
            breaker.leave(tickets.pop())
        assert state(breaker) is not State.OPEN or now < breaker.until <= now + 60
        assert 0 <= breaker.probing <= 3
        assert 0.1 <= breaker.share(now) <= 1.0
    for ticket in tickets:
        breaker.leave(ticket)
    assert breaker.probing == 0 or state(breaker) is not State.PROBING
