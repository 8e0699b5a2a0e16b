import pytest

from moongate.core.faults import Next
from moongate.core.routing import Candidate, following

PLAN = (
    Candidate("alpha", "first", "kimi-k2.5"),
    Candidate("beta", "first", "kimi-k2.5"),
    Candidate("gamma", "second", "moonshotai/Kimi-K2.5"),
    Candidate("alpha", "first", "kimi-k2.6", 1),
)


def after(at: int, step: Next, *, may_pay_twice: bool = False, again: bool = False) -> int | None:
    return following(PLAN, at, step, may_pay_twice=may_pay_twice, again=again)


@pytest.mark.parametrize("step", [Next.RETRY, Next.PACED])
def test_what_was_not_executed_goes_to_the_next_in_the_plan(step: Next) -> None:
    assert [after(at, step) for at in range(4)] == [1, 2, None, None]


@pytest.mark.parametrize("step", [Next.NEVER, Next.RESUME])
@pytest.mark.parametrize("may_pay_twice", [False, True])
def test_what_is_final_is_final(step: Next, may_pay_twice: bool) -> None:
    assert after(0, step, may_pay_twice=may_pay_twice) is None


def test_a_refused_account_is_not_asked_again_under_another_target_or_model() -> None:
    assert after(0, Next.OTHER) == 2
    assert after(1, Next.OTHER) == 2
    assert after(2, Next.OTHER) is None


def test_another_model_answers_only_where_the_one_asked_for_is_gone() -> None:
    assert after(2, Next.RETRY) is None
    assert after(2, Next.SUCCESSOR) == 3


def test_a_model_that_is_gone_is_not_asked_for_again_elsewhere() -> None:
    assert after(0, Next.SUCCESSOR) == 3
    assert after(3, Next.SUCCESSOR) is None


def test_a_second_payment_is_risked_only_where_the_route_says_so() -> None:
    assert after(0, Next.PAY_TWICE) is None
    assert after(0, Next.PAY_TWICE, may_pay_twice=True) == 1


def test_a_connection_that_closed_untouched_is_tried_again_at_the_same_target_once() -> None:
    assert after(0, Next.ONCE) == 0
    assert after(0, Next.ONCE, again=True) is None


def test_a_refused_stream_is_tried_again_at_once_then_elsewhere() -> None:
    assert after(1, Next.AT_ONCE) == 1
    assert after(1, Next.AT_ONCE, again=True) == 2
