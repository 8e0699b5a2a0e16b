"""The short form of `make chaos`, and that a seed draws one run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.acting import Stage, told
from tests.chaos.drawing import draw

RUNS = 40


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(Path(tmp_path_factory.mktemp("chaos")))
    yield made
    made.close()


def test_a_seed_draws_one_run() -> None:
    assert draw(7) == draw(7)
    assert draw(7).story() != draw(8).story()


def test_runs_of_all_kinds_are_drawn() -> None:
    runs = [draw(seed) for seed in range(500)]
    assert {strike.whom for run in runs for strike in run.strikes} == {
        *("worker", "supervisor", "both", "replace", "restart")
    }
    assert len({ask.fault for run in runs for ask in run.asks}) > 60
    assert {ask.leaves for run in runs for ask in run.asks} == {
        "",
        "request",
        "sent",
        "head",
        "first",
        "middle",
    }


@pytest.mark.parametrize("seed", range(1, RUNS + 1))
def test_nothing_is_lost_or_paid_twice_whatever_happens(stage: Stage, seed: int) -> None:
    run = draw(seed)
    wrong = stage.play(run)
    assert not wrong, told(run, wrong)
