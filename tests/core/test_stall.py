"""Stalls are told from slow motion."""

from moongate.core.stall import Motion


def test_an_amount_that_stands_still_is_seen() -> None:
    motion = Motion(100.0)
    assert motion.stands_for(0, 107.0, 1) == 7.0
    assert motion.stands_for(1, 110.0, 1) == 0.0
    assert motion.stands_for(1, 125.0, 1) == 15.0
    assert motion.stands_for(2, 130.0, 1) == 0.0


def test_progress_must_be_worth_the_name() -> None:
    motion = Motion(0.0)
    assert motion.stands_for(10, 10.0, 20) == 10.0
    assert motion.stands_for(19, 20.0, 20) == 20.0
    assert motion.stands_for(20, 30.0, 20) == 0.0
    assert motion.stands_for(39, 40.0, 20) == 10.0
