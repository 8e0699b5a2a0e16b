"""Which of several self-hosted replicas a call goes to."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from moongate.core.replicas import Replicas
from moongate.core.routing import Candidate

HOSTED = Candidate("kimi", "kimi", "kimi-k2.5")
A, B, C = (Candidate(name, name, "moonshotai/Kimi-K2.5") for name in "abc")
A_NEXT = Candidate("a", "a", "next", 1)
B_NEXT = Candidate("b", "b", "next", 1)


def knowing(**load: float) -> Replicas:
    replicas = Replicas()
    replicas.follow(load)
    return replicas


def test_without_gauges_nothing_changes() -> None:
    replicas = Replicas()
    assert not replicas.is_known
    assert replicas.order((B, A)) == (B, A)
    replicas.follow({})
    assert not replicas.is_known
    assert replicas.order(()) == ()
    assert knowing(a=0.0).is_known


def test_the_least_busy_is_first() -> None:
    assert knowing(a=3.2, b=0.4, c=1.0).order((A, B, C)) == (B, C, A)
    assert knowing(a=0.0, b=0.0).order((B, A)) == (B, A)


def test_everybody_else_keeps_the_place() -> None:
    assert knowing(a=3.0, b=0.0).order((HOSTED, A, B)) == (HOSTED, B, A)
    assert knowing(a=3.0, b=0.0).order((A, HOSTED, B)) == (A, HOSTED, B)
    assert knowing(a=3.0, b=0.0).order((A, C, B)) == (A, C, B)  # c does not tell


def test_a_successor_does_not_come_before_the_model_that_was_asked_for() -> None:
    assert knowing(a=3.0, b=0.0).order((A, B, A_NEXT, B_NEXT)) == (B, A, B_NEXT, A_NEXT)
    assert knowing(a=3.0, b=0.0).order((A, A_NEXT, B_NEXT)) == (A, B_NEXT, A_NEXT)


def test_between_two_gauges_calls_spread() -> None:
    replicas = knowing(a=0.0, b=0.0, c=0.0)
    first = Counter(replicas.order((A, B, C))[0].target for _ in range(30))
    assert first == {"a": 10, "b": 10, "c": 10}


def test_a_queue_is_left_alone_until_others_are_as_busy() -> None:
    replicas = knowing(a=5.0, b=0.5)
    first = [replicas.order((A, B))[0].target for _ in range(40)]
    assert first[:25] == ["b"] * 25  # half of its cache is free
    assert first[:30].count("b") in (29, 30)  # then it has a queue of its own
    assert first[30:].count("a") in (4, 5, 6)


loads = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.floats(0, 100))
plans = st.lists(st.sampled_from([HOSTED, A, B, C, A_NEXT, B_NEXT]), unique=True).map(
    lambda plan: tuple(sorted(plan, key=lambda one: one.generation))
)


@given(loads, plans)
def test_nobody_is_lost_and_nobody_overtakes_who_is_no_replica(
    load: dict[str, float], plan: tuple[Candidate, ...]
) -> None:
    ordered = knowing(**load).order(plan)
    assert sorted(ordered, key=repr) == sorted(plan, key=repr)
    for before, after in zip(plan, ordered, strict=True):
        assert before.generation == after.generation
        assert before == after or {before.target, after.target} <= load.keys()
