"""Kept answers: sealed, bounded, there after a restart and a SIGKILL; a broken file stops nothing."""

import asyncio
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from moongate.core.kept import Kept
from moongate.store.answers import (
    FILE,
    KEY_FILE,
    PENDING_BYTES,
    Answers,
    MemoryAnswers,
    SealedAnswers,
    key_of,
    open_answers,
)
from moongate.world import RealWorld

WORDS = b"the moon is full tonight, and nobody else may read this"
KEPT = Kept(WORDS, stream=True, model="kimi-k2.5", edits=["model"], attempts=2)
DAY = 86_400.0


class World(RealWorld):
    """The machine's dice and a clock that is set."""

    def __init__(self, now: float = 1000.0) -> None:
        super().__init__()
        self.now = now
        self.wall = lambda: self.now


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(story())


async def settled(answers: SealedAnswers) -> None:
    """Wait until all that was to be kept is written."""
    while answers.waiting:  # noqa: ASYNC110 - a thread ends it
        await asyncio.sleep(0.005)


@pytest.fixture(params=["sealed", "memory"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Answers]:
    """Both kinds keep the same promises while they live."""

    def made(world: World, **bounds: Any) -> Answers:
        if request.param == "memory":
            return MemoryAnswers(world.wall, **bounds)
        return SealedAnswers(tmp_path, world, **bounds)

    return made


async def write_out(answers: Answers) -> None:
    if isinstance(answers, SealedAnswers):
        await settled(answers)


def test_an_answer_comes_back_as_it_was_until_its_time_is_over(make: Callable[..., Answers]) -> None:
    async def story() -> None:
        world = World()
        answers = make(world)
        assert await answers.find("c1") is None
        assert answers.keep("c1", KEPT, 1000.0 + DAY)
        assert await answers.find("c1") == KEPT
        await write_out(answers)
        assert await answers.find("c1") == KEPT
        assert await answers.find("c2") is None
        world.now += DAY
        assert await answers.find("c1") is None
        answers.close()

    run(story)


def test_what_is_too_large_is_not_kept(make: Callable[..., Answers]) -> None:
    async def story() -> None:
        answers = make(World(), largest=100)
        assert not answers.keep("c1", Kept(b"x" * 101), 2000.0)
        assert answers.keep("c2", Kept(b"x" * 100), 2000.0)
        assert await answers.find("c1") is None
        answers.close()

    run(story)


def test_the_oldest_go_when_there_are_too_many(make: Callable[..., Answers]) -> None:
    async def story() -> None:
        answers = make(World(), most=64_000)
        for number in range(100):
            answers.keep(f"c{number}", Kept(os.urandom(2000)), 2000.0)
            await write_out(answers)
        there = [number for number in range(100) if await answers.find(f"c{number}") is not None]
        assert there == list(range(100 - len(there), 100))
        assert 25 <= len(there) <= 32
        answers.close()

    run(story)


def test_an_answer_that_is_kept_anew_counts_once(make: Callable[..., Answers]) -> None:
    async def story() -> None:
        answers = make(World(), most=10_000)
        answers.keep("c0", Kept(b"first"), 2000.0)
        for _ in range(50):
            answers.keep("c1", Kept(b"x" * 4000), 2000.0)
            await write_out(answers)
        assert await answers.find("c0") is not None
        answers.close()

    run(story)


def test_the_files_tell_nobody_anything(tmp_path: Path) -> None:
    async def story() -> None:
        answers = SealedAnswers(tmp_path, World())
        answers.keep("c1", KEPT, 2000.0)
        await settled(answers)
        answers.close()

    run(story)
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        assert b"moon" not in path.read_bytes().replace(b"moongate", b"")
    assert len((tmp_path / KEY_FILE).read_bytes()) == 32


def test_answers_survive_a_restart_and_an_operators_secret_holds_like_a_file(tmp_path: Path) -> None:
    for secret in (None, "correct horse"):

        async def write(secret: str | None = secret) -> None:
            answers = SealedAnswers(tmp_path, World(), secret=secret)
            answers.keep(f"c-{secret}", KEPT, 2000.0)
            answers.close()  # at once: what waits is written first

        async def look(secret: str | None = secret) -> None:
            answers = SealedAnswers(tmp_path, World(), secret=secret)
            assert await answers.find(f"c-{secret}") == KEPT
            answers.close()
            other = SealedAnswers(tmp_path, World(), secret="another")
            assert await other.find(f"c-{secret}") is None
            other.close()

        run(write)
        run(look)


def test_several_workers_share_one_file_and_one_key(tmp_path: Path) -> None:
    async def story() -> None:
        one, two = SealedAnswers(tmp_path, World()), SealedAnswers(tmp_path, World())
        one.keep("c1", KEPT, 2000.0)
        two.keep("c2", KEPT, 2000.0)
        await settled(one)
        await settled(two)
        assert await one.find("c2") == KEPT
        assert await two.find("c1") == KEPT
        one.close()
        two.close()

    run(story)


_WRITER = """
import asyncio, sys
from pathlib import Path
from moongate.core.kept import Kept
from moongate.store.answers import SealedAnswers
from moongate.world import RealWorld

async def main():
    answers = SealedAnswers(Path(sys.argv[1]), RealWorld())
    number = 0
    while True:
        answers.keep(f"c{number}", Kept(b"%d" % number * 100), 4e9)
        while answers.waiting:
            await asyncio.sleep(0)
        print(number, flush=True)
        number += 1

asyncio.run(main())
"""


def test_what_was_written_is_there_after_a_kill(tmp_path: Path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    for line in writer.stdout:
        if int(line) >= 20:
            break
    writer.send_signal(signal.SIGKILL)
    rest = writer.stdout.read().split()
    writer.wait()
    writer.stdout.close()

    async def look() -> None:
        answers = SealedAnswers(tmp_path, RealWorld())
        for number in range(int(rest[-1]) + 1 if rest else 21):
            assert await answers.find(f"c{number}") == Kept(b"%d" % number * 100)
        answers.close()

    run(look)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def _overwritten(path: Path) -> None:
    path.write_bytes(b"no database at all " * 1000)


def _other_tables(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE answers (something TEXT)")
    db.close()


@pytest.mark.parametrize("damage", [_cut, _overwritten, _other_tables, Path.unlink])
def test_a_damaged_file_is_answers_gone_and_a_new_file(
    tmp_path: Path, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    async def write() -> None:
        answers = SealedAnswers(tmp_path, World())
        for number in range(50):
            answers.keep(f"c{number}", Kept(os.urandom(1000)), 2000.0)
        answers.close()

    async def look() -> None:
        answers = SealedAnswers(tmp_path, World())
        assert await answers.find("c1") is None
        answers.keep("c99", KEPT, 2000.0)
        await settled(answers)
        answers.keep("c99", KEPT, 2000.0)
        await settled(answers)
        assert await answers.find("c99") == KEPT
        answers.close()

    run(write)
    for end in ("-wal", "-shm"):
        (tmp_path / f"{FILE}{end}").unlink(missing_ok=True)
    damage(tmp_path / FILE)
    run(look)
    assert sorted(path.name for path in tmp_path.iterdir() if "corrupt" in path.name) == []
    assert len(caplog.records) <= 2


def test_a_locked_file_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        answers = SealedAnswers(tmp_path, World(), patience=0.05)
        answers.keep("c1", KEPT, 2000.0)
        await settled(answers)
        holder = sqlite3.connect(tmp_path / FILE, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        for number in range(3):
            assert answers.keep(f"d{number}", KEPT, 2000.0)
        await settled(answers)
        assert await answers.find("d0") is None
        assert await answers.find("c1") == KEPT  # reading does not wait for a writer
        holder.execute("ROLLBACK")
        holder.close()
        answers.keep("e1", KEPT, 2000.0)
        await settled(answers)
        assert await answers.find("e1") == KEPT
        answers.close()

    run(story)
    assert len([one for one in caplog.records if "locked" in one.message]) == 1


def test_a_row_that_was_moved_or_bent_is_no_answer(tmp_path: Path) -> None:
    async def story() -> None:
        answers = SealedAnswers(tmp_path, World())
        answers.keep("c1", KEPT, 2000.0)
        answers.keep("c2", Kept(b"another"), 2000.0)
        await settled(answers)
        with sqlite3.connect(tmp_path / FILE) as db:
            [sealed] = db.execute("SELECT sealed FROM answers WHERE call_id = 'c1'").fetchone()
            db.execute("UPDATE answers SET sealed = ? WHERE call_id = 'c2'", (sealed,))
            db.execute("INSERT INTO answers VALUES ('c3', 2000.0, 5, x'0102')")
        db.close()
        assert await answers.find("c1") == KEPT
        assert await answers.find("c2") is None
        assert await answers.find("c3") is None
        answers.close()

    run(story)


def test_what_waits_for_the_disk_is_bounded(tmp_path: Path) -> None:
    async def story() -> None:
        answers = SealedAnswers(tmp_path, World())
        taken = [answers.keep(f"c{number}", Kept(b"x" * 1_000_000), 2000.0) for number in range(20)]
        assert taken == [True] * (PENDING_BYTES // 1_000_000) + [False] * (20 - PENDING_BYTES // 1_000_000)
        assert await answers.find("c0") is not None  # read from what waits
        await settled(answers)
        assert answers.keep("c20", KEPT, 2000.0)
        answers.close()

    run(story)


def test_a_key_file_that_was_cut_is_made_anew(tmp_path: Path) -> None:
    first = key_of(tmp_path, None)
    assert key_of(tmp_path, None) == first
    (tmp_path / KEY_FILE).write_bytes(b"short")
    second = key_of(tmp_path, None)
    assert len(second) == 32
    assert second != first
    assert [path.name for path in tmp_path.iterdir()] == [KEY_FILE]


def test_a_directory_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the directory should be")

    async def story() -> None:
        answers = SealedAnswers(tmp_path / "state", World())
        answers.keep("c1", KEPT, 2000.0)
        await settled(answers)
        assert await answers.find("c1") is None
        answers.close()

    run(story)


def test_with_the_cipher_installed_answers_are_sealed(tmp_path: Path) -> None:
    answers = open_answers(tmp_path, World(), secret="s", largest=10, most=100)
    assert isinstance(answers, SealedAnswers)
    answers.close()
    assert list(tmp_path.iterdir()) == []  # nothing is made before there is something to keep
