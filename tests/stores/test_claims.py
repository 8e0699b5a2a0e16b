"""Of several workers one holds a key, whatever becomes of the file."""

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from moongate.store.claims import FILE, Claims

NOW = 1000.0
clock = [NOW]
PLACE, OTHER = b"p" * 16, b"q" * 16


@contextmanager
def workers(state: Path, count: int, **more: float) -> Iterator[list[Claims]]:
    clock[0] = NOW
    made = [Claims(state, lambda: clock[0], **more) for _ in range(count)]
    yield made
    for one in made:
        one.close()


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(story())


def test_one_of_many_holds_a_key(tmp_path: Path) -> None:
    async def story() -> None:
        with workers(tmp_path, 4) as claims:
            asked = [one.take(PLACE, f"c{n}-{i}", NOW + 9) for i in range(5) for n, one in enumerate(claims)]
            holders = set(await asyncio.gather(*asked))
            assert len(holders) == 1
            assert await claims[0].take(PLACE, "late", NOW + 9) in holders
            assert await claims[1].take(OTHER, "late", NOW + 9) == "late"
            assert {await one.holder(PLACE) for one in claims} == holders

    run(story)


def test_a_claim_ends_with_its_time_or_with_the_call_it_was_for(tmp_path: Path) -> None:
    async def story() -> None:
        with workers(tmp_path, 2) as (one, two):
            assert await one.take(PLACE, "c1", NOW + 5) == "c1"
            assert await two.take(PLACE, "c2", NOW + 9) == "c1"
            clock[0] = NOW + 5
            assert await two.holder(PLACE) == ""
            assert await two.take(PLACE, "c2", NOW + 9) == "c2"
            assert await one.take(PLACE, "c3", NOW + 9, instead_of="c1") == "c2"
            assert await one.take(PLACE, "c3", NOW + 9, instead_of="c2") == "c3"
            assert await two.take(PLACE, "c4", NOW + 9, instead_of="c2") == "c3"

    run(story)


def test_a_note_holds_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        with workers(tmp_path, 1) as (one,):
            one.note(PLACE, "c1", NOW + 9)
            one.note(PLACE, "c2", NOW + 9)
            assert await one.holder(PLACE) == "c2"
        with workers(tmp_path, 1) as (again,):
            assert await again.holder(PLACE) == "c2"

    run(story)


def _ruin(path: Path) -> None:
    path.write_bytes(b"no database " * 1000)


def _other(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE claims (something TEXT)")
    db.close()


@pytest.mark.parametrize("damage", [_ruin, _other])
def test_a_file_that_is_damaged_is_said_and_made_anew(
    tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        with workers(tmp_path, 1) as (one,):
            await one.take(PLACE, "c1", NOW + 9)
        damage(tmp_path / FILE)
        with workers(tmp_path, 2) as (one, two):
            assert await one.take(PLACE, "c2", NOW + 9) == "c2"  # nothing stops, and somebody is told
            assert "page:" in caplog.text
            assert await one.take(PLACE, "c3", NOW + 9) == "c3"
            assert await two.take(PLACE, "c4", NOW + 9) == "c3"
            assert await two.holder(OTHER) == ""

    run(story)


def test_a_file_that_stays_locked_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        with workers(tmp_path, 1, patience=0.02) as (one,):
            await one.take(PLACE, "c1", NOW + 9)
            holder = sqlite3.connect(tmp_path / FILE, isolation_level=None)
            holder.execute("BEGIN IMMEDIATE")
            assert await one.take(PLACE, "c2", NOW + 9) == "c2"
            one.note(PLACE, "c2", NOW + 9)
            assert await one.holder(PLACE) == "c1"
            holder.execute("ROLLBACK")
            holder.close()
            assert await one.take(PLACE, "c2", NOW + 9) == "c1"

    run(story)
    assert caplog.text.count("page:") == 2


def test_a_directory_that_is_none_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")

    async def story() -> None:
        with workers(tmp_path / "state", 1) as (one,):
            assert await one.take(PLACE, "c1", NOW + 9) == "c1"
            assert await one.holder(PLACE) == ""

    run(story)
