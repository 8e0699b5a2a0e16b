"""A retry gets its first answer or a plain word why not; nothing that may have been paid runs twice."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from moongate.core.body import RawBody
from moongate.core.call import Call, Principal
from moongate.core.faults import Failure, Fault, Reach
from moongate.core.faults import rule as meaning
from moongate.core.idempotency import (
    Decision,
    First,
    Firsts,
    Standing,
    decide,
    failure_of,
    fingerprint,
    is_caught,
    is_key,
    made_at,
    place,
    standing_of,
    told_again,
)
from moongate.core.ledger import State
from moongate.core.record import CRASHED, AttemptRecord, CallRecord, Outcome

MINE, OTHER = b"m" * 16, b"o" * 16
BODY = b'{"model":"kimi-k2.5","messages":[]}'


def call(body: bytes = BODY, tenant: str = "acme", user: str = "", route: str = "kimi-k2.5") -> Call:
    return Call(
        "c1", "r1", Principal("k1", tenant), user, "s", route, "kimi-k2.5", RawBody(body), stream=False,
        include_usage=False, arrived=0.0, created=0.0, deadline=1.0,
    )  # fmt: skip


def record(*attempts: tuple[State, str, str], **fields: Any) -> CallRecord:
    """A closed call; each attempt is its state, its cause and how far it got."""
    made = [
        AttemptRecord(f"c1-{number}", state=state, cause=cause, reach=reach)
        for number, (state, cause, reach) in enumerate(attempts, 1)
    ]
    last = attempts[-1][1] if attempts else ""
    return CallRecord(
        "c1",
        attempts=made,
        **{"outcome": Outcome.FAILED if last else Outcome.COMPLETED, "cause": last} | fields,
    )


@pytest.mark.parametrize(
    ("standing", "decision"),
    [
        (Standing.FREE, Decision.EXECUTE),
        (Standing.RUNNING, Decision.ATTACH),
        (Standing.ANSWERED, Decision.REPLAY),
        (Standing.FAILED, Decision.FAIL_AGAIN),
        (Standing.LOST, Decision.EXPIRED),
        (Standing.CANCELLED, Decision.EXECUTE_AGAIN),
    ],
)
def test_what_the_same_call_gets(standing: Standing, decision: Decision) -> None:
    assert decide(First("c1", MINE, 100.0, standing), MINE, 99.9) is decision


@pytest.mark.parametrize("standing", Standing)
def test_another_body_is_another_call_and_a_day_is_a_day(standing: Standing) -> None:
    first = First("c1", MINE, 100.0, standing)
    free = standing is Standing.FREE
    assert decide(first, OTHER, 99.9) is (Decision.EXECUTE if free else Decision.MISMATCH)
    assert decide(first, MINE, 100.0) is Decision.EXECUTE
    assert decide(None, MINE, 0.0) is Decision.EXECUTE


S, R, A, E = State.SETTLED, State.RELEASED, State.AMBIGUOUS, State.SETTLED_EST
CUT, LEFT = "kimi_stream_truncated", "client_closed"


@pytest.mark.parametrize(
    ("attempts", "fields", "standing"),
    [
        ([], {}, Standing.FREE),
        ([(R, "kimi_unavailable", "head")], {}, Standing.FREE),
        ([(R, "kimi_rejected", "head")], {}, Standing.FREE),
        ([(R, LEFT, "nothing_sent")], {"outcome": "abandoned"}, Standing.FREE),
        ([(State.SENT, "", "")], {"outcome": ""}, Standing.RUNNING),
        ([(S, "", "head")], {}, Standing.ANSWERED),
        ([(E, "", "head")], {}, Standing.ANSWERED),
        ([(R, "kimi_unavailable", "head"), (S, "", "head")], {}, Standing.ANSWERED),
        ([(A, "kimi_server_error", "head"), (S, "", "head")], {}, Standing.ANSWERED),
        ([(S, "", "head")], {"outcome": "abandoned", "cause": LEFT}, Standing.ANSWERED),
        ([(E, CUT, "events")], {"outcome": "truncated", "stream": True}, Standing.ANSWERED),
        ([(E, CUT, "events")], {"outcome": "abandoned", "stream": True}, Standing.ANSWERED),
        ([(A, "kimi_server_error", "head")], {}, Standing.FAILED),
        ([(A, CRASHED, "")], {}, Standing.FAILED),
        ([(S, "kimi_content_filtered", "head")], {}, Standing.FAILED),
        ([(A, "kimi_server_error", "head"), (R, "kimi_unavailable", "head")], {}, Standing.FAILED),
        ([(A, LEFT, "sent")], {"outcome": "abandoned"}, Standing.LOST),
        ([(A, LEFT, "sent")], {"outcome": "abandoned", "stream": True}, Standing.CANCELLED),
        ([(E, LEFT, "events")], {"outcome": "abandoned", "stream": True}, Standing.CANCELLED),
        ([(E, "slow_client", "events")], {"outcome": "abandoned", "stream": True}, Standing.CANCELLED),
    ],
)
def test_what_a_record_says_to_those_who_ask_again(
    attempts: list[tuple[State, str, str]], fields: dict[str, Any], standing: Standing
) -> None:
    assert standing_of(record(*attempts, **fields)) is standing


ATTEMPTS = st.lists(
    st.tuples(
        st.sampled_from([S, R, A, E, State.WRITTEN_OFF]),
        st.sampled_from(["", *Fault]),
        st.sampled_from([reach.label for reach in Reach]),
    ),
    max_size=3,
)


@given(ATTEMPTS, st.sampled_from(Outcome), st.booleans())
def test_only_what_surely_did_not_run_or_a_stream_that_was_left_runs_anew(
    attempts: list[tuple[State, str, str]], outcome: Outcome, stream: bool
) -> None:
    told = record(*attempts, outcome=outcome, stream=stream)
    decision = decide(First("c1", MINE, 1.0, standing_of(told)), MINE, 0.0)
    may_have_run = any(state is not R for state, _, _ in attempts)
    assert (decision is Decision.EXECUTE) is not may_have_run
    if decision is Decision.EXECUTE_AGAIN:
        assert stream
        assert attempts[-1][1] in ("client_closed", "slow_client")
    if is_caught(told):
        assert decision is not Decision.EXECUTE


def test_whose_retry_is_caught_without_a_key() -> None:
    assert is_caught(record((A, "kimi_server_error", "head")))
    assert is_caught(record((A, "kimi_server_error", "head"), (S, "", "head")))
    assert is_caught(record((S, "", "head"), outcome="abandoned"))
    assert not is_caught(record((S, "", "head")))
    assert not is_caught(record((R, LEFT, "nothing_sent"), outcome="abandoned"))
    assert not is_caught(record((E, CUT, "events"), outcome="truncated", stream=True))


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("reach", Reach)
def test_no_retry_is_ever_told_to_try_again(fault: Fault, reach: Reach) -> None:
    again = told_again(Failure(fault, reach, retry_after=5.0, timeout_ms=1000, phase="head"))
    assert not again.should_retry
    assert (again.fault, again.retry_after, again.timeout_ms, again.phase) == (fault, None, 1000, "head")
    if not meaning(fault, reach).should_retry:
        assert again.reach is reach
    assert not failure_of(record((A, fault.value, reach.label))).should_retry


def test_the_error_is_made_of_the_record() -> None:
    failure = failure_of(record((A, "kimi_network_timeout", "sent"), phase="head"))
    assert (failure.fault, failure.reach, failure.phase) == (Fault.KIMI_NETWORK_TIMEOUT, Reach.SENT, "head")
    assert failure_of(record((A, CRASHED, ""))).fault is Fault.GATEWAY_ERROR
    assert failure_of(record((A, CRASHED, ""))).reach is Reach.SENT


@pytest.mark.parametrize(
    ("key", "good"),
    [
        (b"a", True), (b"x" * 255, True), (b"order 66 ~!", True),
        (b"", False), (b"x" * 256, False), (b"a\x00", False), (b"a\x1f", False), (b"a\x7f", False),
        ("ä".encode(), False),
    ],
)  # fmt: skip
def test_what_may_be_a_key(key: bytes, good: bool) -> None:
    assert is_key(key) is good


def test_a_fingerprint_is_of_tenant_user_route_and_every_byte_of_the_body() -> None:
    same = fingerprint(call())
    assert len(same) == 16
    assert fingerprint(call(bytes(BODY))) == same
    others = [
        call(BODY.replace(b"[]", b"[ ]")), call(tenant="else"), call(user="u"), call(route="kimi-k3"),
        call(user="kimi-k2.5", route=""), call(tenant="acm", user="e"),
    ]  # fmt: skip
    found = {fingerprint(one) for one in others}
    assert len(found) == len(others)
    assert same not in found


def test_an_id_tells_when_its_call_was_made() -> None:
    assert made_at(f"{1_780_000_000_500:012x}{7:016x}") == 1_780_000_000.5


NAMES = st.tuples(st.text(max_size=4), st.text(max_size=4), st.text(max_size=4))


@given(NAMES, NAMES)
def test_a_key_has_one_place_a_tenant_and_route(one: tuple[str, str, str], two: tuple[str, str, str]) -> None:
    assert (place(*one) == place(*two)) is (one == two)


def test_text_that_is_no_unicode_has_a_place_too() -> None:
    assert len(place("acme", "\ud800", "k")) == 16


class Remembering(RuleBasedStateMachine):
    """Firsts against a plain list of everything that was ever put there."""

    PLACES = st.sampled_from([b"p", b"q", b"r", b"s"])

    def __init__(self) -> None:
        super().__init__()
        self.firsts = Firsts()
        self.model: dict[bytes, First] = {}
        self.now = 0.0
        self.count = 0

    @rule(where=PLACES, seconds=st.sampled_from([1.0, 5.0]))
    def put(self, where: bytes, seconds: float) -> None:
        self.count += 1
        first = First(f"c{self.count}", MINE, self.now + seconds)
        self.firsts.put(where, first, self.now)
        self.model[where] = first

    @rule(where=PLACES, back=st.integers(0, 2))
    def drop(self, where: bytes, back: int) -> None:
        name = f"c{self.count - back}"
        self.firsts.drop(where, name)
        if where in self.model and self.model[where].call_id == name:
            del self.model[where]

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def it_finds_what_is_not_over(self) -> None:
        for where in (b"p", b"q", b"r", b"s"):
            first = self.model.get(where)
            alive = first if first is not None and self.now < first.until else None
            assert self.firsts.find(where, self.now) is alive
        assert len(self.firsts) <= len(self.model)


TestRemembering = Remembering.TestCase


def test_what_is_over_is_forgotten_while_others_come() -> None:
    firsts = Firsts()
    for number in range(1000):
        firsts.put(b"%d" % number, First(f"c{number}", MINE, number + 10.0), float(number))
        assert len(firsts) <= 11
