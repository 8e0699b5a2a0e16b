"""What one call meets at a target or an account, the next ones know; and nobody else suffers for it."""

import pytest

from moongate.core.breaker import State
from moongate.core.faults import Failure, Fault, Reach
from moongate.core.health import ASIDE_SECONDS, Standing

MIDDLE = 0.5  # a draw that jitters nothing


def state(held: Standing, target: str) -> State:
    return held.breakers[target].state


def standing() -> Standing:
    return Standing(["alpha", "beta"])


def unwell(held: Standing) -> bool:
    return held.unwell


def failed(held: Standing, failure: Failure, now: float = 0.0, target: str = "alpha") -> str:
    return held.failed(target, failure, now, account="acme", model="kimi-k2.5", draw=MIDDLE)


UNREACHABLE = Failure(Fault.KIMI_NETWORK_UNREACHABLE, Reach.NOTHING_SENT)


def test_at_first_nothing_asks_for_a_thought() -> None:
    held = standing()
    assert not unwell(held)
    held.wake(0.0)
    assert not unwell(held)
    assert held.parked == frozenset()
    assert dict(held.load) == {}


def test_failures_open_the_breaker_of_their_target_alone_and_say_so() -> None:
    held = standing()
    for _ in range(5):
        assert failed(held, UNREACHABLE) == ""
    assert unwell(held)
    assert state(held, "beta") is State.HEALTHY
    [change] = held.changes
    assert change == ("alpha", State.HEALTHY, State.OPEN, "kimi_network_unreachable", 5.0)
    held.wake(5.0)
    held.wake(5.0)
    ticket = held.breakers["alpha"].enter()
    held.succeeded("alpha", 5.0, ticket)
    for _ in range(2):
        held.succeeded("alpha", 5.0, held.breakers["alpha"].enter())
    assert [(change.after, change.rest) for change in held.changes[1:]] == [
        (State.PROBING, 0.0),
        (State.HEALTHY, 0.0),
    ]
    assert held.moves == {
        ("alpha", State.OPEN): 1,
        ("alpha", State.PROBING): 1,
        ("alpha", State.HEALTHY): 1,
    }
    held.wake(34.9)
    assert unwell(held), "it starts slowly"
    held.wake(35.0)
    assert not unwell(held)


def test_a_look_that_finds_it_well_ends_a_long_rest() -> None:
    held = standing()
    for _ in range(5):
        failed(held, UNREACHABLE)
    held.breakers["alpha"].until = 60.0
    held.vouched = frozenset({"beta"})
    held.wake(6.0)
    assert state(held, "alpha") is State.OPEN
    held.vouched = frozenset({"alpha"})
    held.wake(6.0)
    assert state(held, "alpha") is State.PROBING


@pytest.mark.parametrize(
    "failure",
    [
        Failure(Fault.CLIENT_CLOSED, Reach.SENT),
        Failure(Fault.SLOW_CLIENT, Reach.EVENTS),
        Failure(Fault.GATEWAY_DRAINING, Reach.SENT),
        Failure(Fault.KIMI_REJECTED, Reach.HEAD),
        Failure(Fault.KIMI_STALE_CONNECTION),
    ],
)
def test_what_is_not_the_targets_fault_changes_nothing(failure: Failure) -> None:
    held = standing()
    for _ in range(30):
        assert failed(held, failure) == ""
    assert not unwell(held)
    assert held.breakers["alpha"].good == 0


@pytest.mark.parametrize("told", [None, 7.0])
@pytest.mark.parametrize("fault", [Fault.KIMI_RATE_LIMIT_BURST, Fault.KIMI_ENGINE_OVERLOADED])
def test_a_throttle_paces_the_account_as_told_and_opens_nothing(fault: Fault, told: float | None) -> None:
    held = standing()
    for _ in range(30):
        failed(held, Failure(fault, Reach.HEAD, retry_after=told), 100.0)
    assert state(held, "alpha") is State.HEALTHY
    assert held.aside("other", "kimi-k2.5") is None
    aside = held.aside("acme", "any")
    assert (aside is not None) is (told is not None)
    if aside is not None:
        assert aside == (107.0, fault)
    held.wake(106.9)
    assert unwell(held) is (told is not None)
    held.wake(107.0)
    assert held.aside("acme", "any") is None
    assert not unwell(held)


def test_a_throttled_probe_proves_that_the_target_answers() -> None:
    held = standing()
    for _ in range(5):
        failed(held, UNREACHABLE)
    held.wake(5.0)
    for _ in range(3):
        ticket = held.breakers["alpha"].enter()
        held.failed(
            "alpha",
            Failure(Fault.KIMI_RATE_LIMIT_BURST, Reach.HEAD),
            5.0,
            account="acme",
            model="m",
            draw=MIDDLE,
            ticket=ticket,
        )
    assert state(held, "alpha") is State.HEALTHY


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (Fault.KIMI_QUOTA_MONTHLY, "acme"),
        (Fault.KIMI_AUTH_FAILED, "acme"),
        (Fault.KIMI_PERMISSION_DENIED, "acme/kimi-k2.5"),
    ],
)
def test_a_refusal_for_good_names_what_to_park(fault: Fault, name: str) -> None:
    held = standing()
    assert failed(held, Failure(fault, Reach.HEAD)) == name
    assert held.aside("acme", "kimi-k2.5") == (ASIDE_SECONDS, fault)
    assert (held.aside("acme", "other") is None) is ("/" in name)
    assert state(held, "alpha") is State.HEALTHY


def test_a_model_that_is_gone_is_not_asked_for_again_for_a_while() -> None:
    held = standing()
    assert failed(held, Failure(Fault.KIMI_MODEL_GONE, Reach.HEAD)) == "", "nothing for the control document"
    assert held.aside("acme", "kimi-k2.5") == (ASIDE_SECONDS, Fault.KIMI_MODEL_GONE)
    assert held.aside("acme", "kimi-k2.6") is None


@pytest.mark.parametrize(("told", "until"), [(None, ASIDE_SECONDS), (7200.0, 7200.0)])
def test_a_daily_quota_sets_the_account_aside_until_its_reset(told: float | None, until: float) -> None:
    held = standing()
    failed(held, Failure(Fault.KIMI_QUOTA_DAILY, Reach.HEAD, retry_after=told))
    assert held.aside("acme", "x") == (until, Fault.KIMI_QUOTA_DAILY)


def test_of_two_waits_the_longer_one_holds() -> None:
    held = standing()
    held.set_aside("acme", 10.0, Fault.KIMI_QUOTA_DAILY)
    held.set_aside("acme", 5.0, Fault.KIMI_RATE_LIMIT_BURST)
    assert held.aside("acme", "m") == (10.0, Fault.KIMI_QUOTA_DAILY)
    held.set_aside("acme/m", 20.0, Fault.KIMI_MODEL_GONE)
    assert held.aside("acme", "m") == (20.0, Fault.KIMI_MODEL_GONE)
    held.set_aside("acme", 30.0, Fault.KIMI_AUTH_FAILED)
    assert held.aside("acme", "m") == (30.0, Fault.KIMI_AUTH_FAILED)


def test_what_is_written_from_outside_asks_for_a_thought() -> None:
    held = standing()
    held.parked = frozenset({"acme", "other/kimi-k2.6"})
    assert unwell(held)
    assert held.is_parked("acme", "any")
    assert held.is_parked("other", "kimi-k2.6")
    assert not held.is_parked("other", "kimi-k2.5")
    held.wake(0.0)
    assert unwell(held)
    held.parked = frozenset()
    held.wake(0.0)
    assert not unwell(held)
    held.load = {"alpha": 3.0}
    assert unwell(held)
    held.wake(0.0)
    assert unwell(held)
    assert held.load["alpha"] == 3.0


def test_retry_afters_that_make_no_sense_are_counted_by_target() -> None:
    held = standing()
    for target in ("alpha", "beta", "alpha"):
        held.waited_badly(target)
    assert held.bad_waits == {"alpha": 2, "beta": 1}
