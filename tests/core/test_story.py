"""A story tells all that the record says, in order, and every function it names exists."""

import importlib
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.faults import Fault, Reach
from moongate.core.ledger import State
from moongate.core.record import CRASHED, AttemptRecord, CallRecord, Correction, Outcome
from moongate.core.story import Line, amount, story, when

BORN = 1_796_088_492.639


def attempt(number: int = 1, **fields: Any) -> AttemptRecord:
    told: dict[str, Any] = {
        "target": "alpha", "account": "org", "model": "kimi-k2.5", "started": BORN + 0.1, "state": State.SETTLED,
        "input": 7, "output": 5, "cached": 3, "reasoning": 2, "tokens_source": "provider", "currency": "USD",
        "price_row": "kimi-k2.5/USD/2026-01-27", "cost_micro": 21, "status": 200, "reach": "events",
        "connected": 0.01, "sent": 0.02, "head": 0.3, "first_event": 0.31, "ended": 0.9, "request_bytes": 1234,
        "response_bytes": 5678, "provider_request_id": "msh-1", "provider_trace_id": "tr-1", "answer_id": "chat-1",
    }  # fmt: skip
    return AttemptRecord(f"c-{number}", **told | fields)


def call(*attempts: AttemptRecord, **fields: Any) -> CallRecord:
    told: dict[str, Any] = {
        "tenant": "acme", "key_id": "k_1", "route": "kimi-k2.5", "model_asked": "kimi-2.5", "created": BORN,
        "outcome": Outcome.COMPLETED, "status": 200, "duration": 1.0, "billed_micro": 21, "currency": "USD",
        "delivered_bytes": 5678,
    }  # fmt: skip
    return CallRecord("c", "r", attempts=list(attempts), **told | fields)


def lines(record: CallRecord, row: str = "hit 0.1") -> list[Line]:
    return story(record, lambda _name: row)


def text(record: CallRecord, row: str = "hit 0.1") -> str:
    return "\n".join(f"{line.part}|{line.what}|{line.decided}" for line in lines(record, row))


def test_a_good_call_is_told_from_its_arrival_to_its_bill() -> None:
    record = call(
        attempt(), stream=True, user="u1", peer="10.0.0.9", session="conv", edits=["model", "thinking"]
    )
    told = text(record)
    for words in (
        "tenant acme, user u1 from 10.0.0.9|edge/api.Api.screen -> k_1",
        "kimi-2.5 as a stream|edge/api.Api.handle -> route kimi-k2.5",
        "conversation conv",
        "admission|let in|flow/admission.Admission.enter -> let in",
        "cache|off",
        "plan|alpha (kimi-k2.5)|core/routing.following",
        "edits|model, thinking|upstream/target.Target.prepare",
        "alpha, account org, kimi-k2.5: 1,234 bytes over a new connection",
        "head, status 200",
        "provider's request id msh-1",
        "provider's trace id tr-1",
        "answer's id chat-1",
        "ends settled|core/charging.charge -> settled",
        "tokens in 7, cached 3, out 5, reasoning 2; source provider",
        "price kimi-k2.5/USD/2026-01-27 (hit 0.1)|core/pricing.cost -> 0.000021 USD",
        "end|completed: status 200, 5,678 bytes delivered|flow/ledger.Entry -> completed",
        "bill|0.000021 USD to tenant acme|core/charging.sum_up",
    ):
        assert words in told
    moments = [line.at for line in lines(record) if line.at is not None]
    assert moments == sorted(moments) == pytest.approx([0.0, 0.1, 0.11, 0.12, 0.4, 0.41, 1.0, 1.0])


def test_each_attempt_has_its_cause_and_the_rule_that_said_what_may_follow() -> None:
    first = attempt(
        state=State.RELEASED, cause="kimi_rate_limit_burst", code="kimi_rate_limit_burst", reach="head",
        detail="max RPM: 3", input=0, output=0, cost_micro=0, ended=0.2, first_event=-1.0,
    )  # fmt: skip
    second = attempt(2, target="beta", account="beta", started=BORN + 1.3, reused=True)
    told = text(call(first, second))
    assert "alpha (kimi-k2.5), then beta (kimi-k2.5)" in told
    assert (
        "attempt 1|kimi_rate_limit_burst, reach head: max RPM: 3"
        "|core/faults.rule(kimi_rate_limit_burst, head) -> paced"
    ) in told
    assert (
        "attempt 1|ends released|core/charging.charge -> released\nattempt 2|after a wait of 1.000 s|" in told
    )
    assert "beta, kimi-k2.5: 1,234 bytes over a kept connection" in told
    assert told.count("connected") == 1


def test_a_call_whose_attempt_failed_says_what_its_client_was_told() -> None:
    bad = attempt(
        state=State.AMBIGUOUS, cause="kimi_tls_refused", code="kimi_network_unreachable", reach="sent",
        phase="tls", detail="x", input=0, output=0, cost_micro=0,
    )  # fmt: skip
    record = call(
        bad, outcome=Outcome.FAILED, status=502, code="kimi_network_unreachable", cause="kimi_tls_refused",
        detail="x", retry_after=2.5, billed_micro=0,
    )  # fmt: skip
    told = text(record)
    assert "kimi_tls_refused (told as kimi_network_unreachable) in phase tls, reach sent: x" in told
    assert (
        "end|kimi_network_unreachable (kimi_tls_refused)|core/faults.rule(kimi_tls_refused, sent)"
        " -> x-should-retry false"
    ) in told
    assert "told to wait 2.5 s" in told
    assert "bill|0.00 USD to tenant acme|" in told


def test_a_refused_call_has_no_attempt_and_costs_nothing() -> None:
    told = text(
        call(outcome=Outcome.REFUSED, status=404, code="model_not_found", cause="model_not_found",
             detail="no such", billed_micro=0, currency="", key_id="", route="", model_asked="")
    )  # fmt: skip
    assert "admission|model_not_found|" in told
    assert "plan" not in told
    assert "edge/api.Api.screen -> no key" in told
    assert "no model as a whole answer|edge/api.Api.handle -> route none" in told
    assert "model_not_found: no such|core/faults.rule(model_not_found, nothing_sent)" in told
    assert "bill|0.00 to tenant acme" in told


def test_what_runs_is_told_as_running() -> None:
    open_one = attempt(
        state=State.SENT, ended=-1.0, head=-1.0, first_event=-1.0, input=0, output=0, reach="", cause=""
    )
    told = text(call(open_one, outcome="", deadline=BORN + 600))
    assert "under way" in told
    assert f"now|it runs, until {when(BORN + 600)} at most" in told
    assert "now|it runs|" in text(call(outcome=""))
    assert "bill" not in told


def test_a_crash_is_told_as_one() -> None:
    dead = attempt(state=State.AMBIGUOUS, cause=CRASHED, code="gateway_error", ended=-1.0, input=0, output=0)
    told = text(call(dead, outcome=Outcome.FAILED, code="gateway_error", cause=CRASHED, duration=-1.0))
    assert (
        "gateway_crash (told as gateway_error), reach events|store/view.close_orphans -> its process died"
        in told
    )
    assert "ends ambiguous|\n" in told
    assert "end|gateway_error (gateway_crash)|" in told


def test_what_we_counted_and_what_has_no_price_is_said() -> None:
    counted = attempt(
        state=State.SETTLED_EST, tokens_source="counted", detail="usage_missing", cost_micro=None
    )
    told = text(call(counted, billed_micro=None))
    assert "whole, 5,678 bytes (usage_missing)" in told
    assert "source counted|core/charging.counted" in told
    assert "no price of kimi-k2.5 in USD is known" in told
    assert "not known: a price is missing" in told
    assert "in its currency is known" in text(call(attempt(cost_micro=None, currency="")))
    assert "price kimi-k2.5/USD/2026-01-27|" in text(call(attempt()), row="")


def test_a_charge_for_now_is_said_to_be_one() -> None:
    left = attempt(state=State.AMBIGUOUS, cause="client_closed", code="client_closed", reach="sent")
    assert "bill|0.000021 USD to tenant acme, for now|" in text(call(left))


def test_corrections_tell_who_why_and_what_became_of_the_bill() -> None:
    first = Correction("c-1", BORN + 99, "ops", "the statement has it", "ambiguous", "settled", 0, 21)
    told = text(
        call(attempt(), corrections=(first, Correction("c-2", BORN, billed_before=None, billed_after=5)))
    )
    assert f"corrected|{when(BORN + 99)}, c-1: ambiguous becomes settled by ops: the statement has it" in told
    assert "the bill was 0.00 USD, now 0.000021 USD" in told
    assert "the bill was not known, now 0.000005 USD" in told
    assert "ends ambiguous, corrected later to settled|core/charging.charge -> ambiguous" in told
    same = Correction("c-1", BORN, "ops", "too old", "ambiguous", "written_off", 0, 0)
    assert "the bill was" not in text(call(attempt(), corrections=(same,)))


def test_ties_to_other_calls_are_told() -> None:
    told = text(call(retry_of="b", collapsed_with="d"))
    assert "again, for b" in told
    assert "answered with the exchange of d" in told


@pytest.mark.parametrize(
    ("micro", "said"), [(0, "0.00 USD"), (21, "0.000021 USD"), (12_340_000, "12.34 USD")]
)
def test_amounts_are_in_units(micro: int, said: str) -> None:
    assert amount(micro, "USD") == said


def exists(decided: str) -> bool:
    """Whether the function before the arrow is one of ours."""
    module, _, names = (
        decided.partition(" ")[0].partition("(")[0].replace("/", ".").rstrip(",").partition(".")
    )
    room, _, rest = names.partition(".")
    found: object = importlib.import_module(f"moongate.{module}.{room}")
    for name in rest.split("."):
        found = getattr(found, name)
    return callable(found)


@pytest.mark.parametrize(("fault", "reach"), list(product(Fault, Reach)))
def test_every_function_that_is_named_exists(fault: Fault, reach: Reach) -> None:
    bad = attempt(state=State.AMBIGUOUS, cause=fault.value, code=fault.value, reach=reach.label)
    record = call(
        bad,
        code=fault.value,
        cause=fault.value,
        outcome=Outcome.FAILED,
        edits=["n"],
        corrections=(Correction("c-1"),),
    )
    named = [line.decided for line in lines(record) if line.decided]
    assert len(named) >= 8
    assert all(exists(decided) for decided in named)


@given(
    st.sampled_from(list(State)),
    st.floats(-1, 9),
    st.text(max_size=9),
    st.sampled_from(["", "odd", *Outcome]),
)
def test_any_record_has_a_story(state: State, moment: float, words: str, outcome: str) -> None:
    odd = attempt(state=state, cause=words, reach=words, ended=moment, head=moment)
    assert lines(call(odd, outcome=outcome, code=words, cause=words, duration=moment))


def test_an_attempt_at_once_after_another_waited_for_nothing_and_ids_that_were_not_given_are_not_told() -> (
    None
):
    ids: dict[str, Any] = {"provider_request_id": "", "provider_trace_id": "", "answer_id": ""}
    first = attempt(started=BORN, ended=0.5, **ids)
    told = text(call(first, attempt(2, started=BORN + 0.5, **ids)))
    assert "after a wait" not in told
    assert " id " not in told
