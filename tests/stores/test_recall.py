"""A worker remembers what the ledger holds, also where its view cannot be asked."""

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from moongate.core.ledger import State
from moongate.core.record import AttemptRecord, CallRecord, Outcome, encode
from moongate.store.frames import Kind
from moongate.store.journal import Journal
from moongate.store.owners import segments
from moongate.store.recall import FILE, Recall
from tests.stores.journals import LATER, OWNER

SINCE = 1_780_000_000.0


def record(second: float, *, key: str = "k", outcome: str = Outcome.COMPLETED) -> CallRecord:
    name = f"{int((SINCE + second) * 1000):012x}{0:016x}"
    state = State.SETTLED if outcome else State.SENT
    return CallRecord(
        name, "r", "acme", attempts=[AttemptRecord(f"{name}-1", state=state)], created=SINCE + second,
        outcome=outcome, idempotency_key=key, fingerprint="ab" * 16 if key else "",
    )  # fmt: skip


def run(story: Callable[[Recall], Coroutine[Any, Any, None]], state: Path) -> None:
    async def whole() -> None:
        recall = Recall(state, asyncio.get_running_loop())
        await story(recall)
        recall.close()

    asyncio.run(whole())


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Two owners' journals: a dead one with calls of before, a closed, an open and an unkeyed one, and a living one."""
    dead = Journal.open(tmp_path / "journal", OWNER)
    for one in (record(-5), record(1), record(2, key="")):
        dead.append(Kind.SENT, encode(record(one.created - SINCE, outcome="")), now=False)
        dead.append(Kind.CLOSED, encode(one), now=True)
    dead.append(Kind.SENT, encode(record(3, outcome="")), now=True)
    dead.close()
    return tmp_path


def brief(records: list[CallRecord]) -> list[tuple[float, str]]:
    return [(one.created - SINCE, one.outcome) for one in records]


def test_calls_with_keys_are_known_and_what_a_dead_owner_ran_is_over(state: Path) -> None:
    living = Journal.open(state / "journal", LATER)
    living.append(Kind.SENT, encode(record(4, outcome="")), now=True)

    async def story(recall: Recall) -> None:
        assert brief(await recall.since(SINCE)) == [(1, "completed"), (3, "failed"), (4, "")]
        living.append(Kind.CLOSED, encode(record(4)), now=True)
        newest = await recall.look(record(4).call_id)
        assert newest is not None
        assert newest.outcome == "completed"
        assert await recall.look("nobody") is None

    run(story, state)
    living.close()


def test_an_empty_state_knows_nothing(tmp_path: Path) -> None:
    async def story(recall: Recall) -> None:
        assert await recall.since(SINCE) == []
        assert await recall.look("c1") is None

    run(story, tmp_path)


def test_a_view_that_is_locked_is_done_without(state: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(_nothing, state)
    holder = sqlite3.connect(state / FILE, isolation_level=None)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")

    async def story(recall: Recall) -> None:
        assert brief(await recall.since(SINCE)) == [(1, "completed"), (3, "")]
        assert "reading the journals themselves" in caplog.text

    run(story, state)
    holder.execute("ROLLBACK")
    holder.close()


def test_a_view_that_lags_behind_is_helped_by_the_journals(state: Path) -> None:
    """Folding waits, for the disk or for another: what is folded is known, and what is not yet as well."""
    run(_known, state)
    more = Journal.open(state / "journal", LATER)
    more.append(Kind.CLOSED, encode(record(5)), now=True)
    holder = sqlite3.connect(state / FILE, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")

    async def story(recall: Recall) -> None:
        known = brief(await recall.since(SINCE))
        assert (known[0], known[2]) == ((1, "completed"), (5, "completed"))
        assert known[1] in ((3, "failed"), (3, ""))  # closed only in the view, which may not be readable

    run(story, state)
    holder.execute("ROLLBACK")
    holder.close()
    more.close()


def test_a_journal_that_cannot_be_read_is_said(state: Path, caplog: pytest.LogCaptureFixture) -> None:
    (state / FILE).mkdir()
    for listed in segments(state / "journal").values():
        for segment in listed:
            segment.path.unlink()
            segment.path.mkdir()

    async def story(recall: Recall) -> None:
        assert await recall.since(SINCE) == []
        assert "page:" in caplog.text
        assert await recall.look("c1") is None

    run(story, state)


async def _known(recall: Recall) -> None:
    assert len(await recall.since(SINCE)) == 2


async def _nothing(recall: Recall) -> None:
    del recall
