"""The short form of `tests/chaos/kills.py`: ten kills under load lose nothing (FAULTS row 65)."""

from pathlib import Path

from tests.chaos.kills import play


def test_ten_kills_lose_no_answered_call(tmp_path: Path) -> None:
    verdict = play(tmp_path, 10, 65)
    assert verdict.wrong == []
    assert verdict.answered > 10
    assert verdict.recovered > 0, "something was under way when it was killed"
