"""The race between addresses: who joins when, and when it is lost."""

from hypothesis import given
from hypothesis import strategies as st

from moongate.core.race import HEAD_START, Race


def test_the_second_waits_out_the_head_start_of_the_first() -> None:
    race = Race(2)
    assert race.due(10.0) == 0
    assert race.due(10.0 + HEAD_START - 0.01) is None
    assert race.wait(10.1) == 10.0 + HEAD_START - 10.1
    assert race.due(10.0 + HEAD_START) == 1
    assert race.due(99.0) is None
    assert race.wait(99.0) is None


def test_who_fails_lets_the_next_join_at_once() -> None:
    race = Race(3)
    assert race.due(10.0) == 0
    race.failed()
    assert not race.is_lost
    assert race.wait(10.0) == 0.0
    assert race.due(10.0) == 1
    assert race.wait(10.0) == HEAD_START
    assert race.due(10.0 + HEAD_START) == 2
    race.failed()
    assert race.wait(10.5) is None
    assert not race.is_lost
    race.failed()
    assert race.is_lost


events = st.lists(st.one_of(st.floats(0, 0.5), st.just("failed")), max_size=60)


@given(st.integers(1, 6), events)
def test_each_joins_once_in_order_and_never_early(count: int, story: list[float | str]) -> None:
    race, now, running = Race(count), 0.0, 0
    joined: list[tuple[int, float]] = []
    free = True  # nobody has to be waited for
    for event in story:
        while (number := race.due(now)) is not None:
            assert free or now >= joined[-1][1] + HEAD_START
            joined.append((number, now))
            running, free = running + 1, False
        if not isinstance(event, str):
            now += event
        elif running:
            race.failed()
            running, free = running - 1, True
    assert [number for number, _ in joined] == list(range(len(joined)))
    assert len(joined) <= count
    assert race.is_lost is (len(joined) == count and running == 0)
    while (wait := race.wait(now)) is not None:  # whoever waits as told has them all
        now += wait + 1e-9
        assert race.due(now) is not None
