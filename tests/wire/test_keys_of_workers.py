"""Several workers of one gateway: a key is executed once, whichever of them is asked."""

import os
import signal
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.wire.answer import Answer
from tests.wire.house import House, until
from tests.wire.raw import Raw
from tests.wire.test_idempotency import SHORT, SLOW, code, keyed

SETTINGS = """workers: 2
routes:
  kimi-k2.5: {targets: [kimi]}
"""


@pytest.fixture
def warmed(house: House) -> House:
    """Every worker has its files open, those that were started anew as well: what stays open is no leak."""
    for number in range(8):
        persist(house, house.body(SHORT), {"Idempotency-Key": f"warm-{number % 3}-{house.cleared}"})
    house.baseline = house._descriptors()
    house.begin()
    return house


def persist(house: House, body: bytes, given: dict[str, str]) -> Answer:
    """Ask as a client does that waits where it is told to: the worker that answered may be writing it down just now."""

    def ask() -> Answer | None:
        answer = house.post(body, headers=given)
        return None if answer.status == 409 and code(answer) == "idempotency_in_progress" else answer

    found = until(20, ask, "another worker's answer can be had")
    assert found is not None
    return found


def asked(house: House, body: bytes, times: int, **headers: str) -> list[Answer]:
    """The same call at once, each on a connection of its own: the kernel spreads them over the workers."""
    answers: list[Answer] = []
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    threads = [
        threading.Thread(target=lambda: answers.append(persist(house, body, given))) for _ in range(times)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return answers


def noted(house: House) -> int:
    """How many calls the workers know of each other: an SDK's retry comes later than they need to write that down."""
    with closing(sqlite3.connect(f"file:{house.state}/claims.db?mode=ro", uri=True, timeout=5)) as db:
        count: int = db.execute("SELECT COUNT(*) FROM claims").fetchone()[0]
        return count


def test_at_once_it_runs_once(warmed: House) -> None:
    body = warmed.body(SLOW, stream=True)
    answers = asked(warmed, body, 16, Idempotency_Key="a")
    assert [answer.status for answer in answers] == [200] * 16
    assert len({answer.body for answer in answers}) == 1
    assert [answer.headers.get("idempotent-replayed") for answer in answers].count("true") == 15
    told = until(20, lambda: _told(warmed), "their records are closed")
    assert told.keys() <= {"completed", "replayed", "refused"}
    assert len(warmed.executions()) == 1
    for answer in asked(warmed, body, 12, Idempotency_Key="a"):
        assert (answer.status, answer.body, answer.headers["idempotent-replayed"]) == (
            200,
            answers[0].body,
            "true",
        )
    mismatched = asked(warmed, warmed.body(SHORT), 8, Idempotency_Key="a")
    assert {answer.status for answer in mismatched} == {422}
    assert len(warmed.executions()) == 1


def _told(house: House) -> dict[str, int]:
    rows = house.rows("SELECT outcome, COUNT(*) AS n FROM calls WHERE created >= ? GROUP BY 1", house.cleared)
    told = {row["outcome"]: row["n"] for row in rows}
    return {} if "" in told or sum(told.values()) < 16 else told


def test_what_did_not_run_may_run_anywhere(warmed: House) -> None:
    warmed.tell_sim("POST", "/_sim/script", {"rules": [{"fault": "rate_limit_rpm", "times": 3}]})
    body = warmed.body(SHORT)
    answers = [persist(warmed, body, keyed("b")) for _ in range(12)]
    assert [answer.status for answer in answers] == [429] * 3 + [200] * 9
    assert len(warmed.executions()) == 1


def test_an_ambiguous_call_without_a_key_is_known_to_all(warmed: House) -> None:
    body = warmed.body("reset_before_head")
    before = noted(warmed)
    first = warmed.post(body)
    until(20, lambda: noted(warmed) > before, "its end is known to all")
    for answer in asked(warmed, body, 8, X_Stainless_Retry_Count="1"):
        assert (answer.status, code(answer)) == (first.status, code(first))
        assert answer.headers["x-should-retry"] == "false"
    assert len(warmed.executions()) == 1


def test_a_drained_answer_is_there_for_all(warmed: House) -> None:
    body = warmed.body(SLOW)
    before = noted(warmed)
    with Raw(warmed.port) as raw:
        raw.post(body, warmed.key)
        until(10, lambda: warmed.sim("/_sim/book/totals")["open"], "it runs")
    until(20, lambda: noted(warmed) > before, "its end is known to all")
    for answer in asked(warmed, body, 8, X_Stainless_Retry_Count="1"):
        assert (answer.status, answer.headers["idempotent-replayed"]) == (200, "true")
    assert len(warmed.executions()) == 1


def test_a_key_of_a_worker_that_was_killed(tmp_path: Path) -> None:
    with closing(House(tmp_path, SETTINGS)) as house:
        killed(house)


def killed(house: House) -> None:
    body: Any = house.body(SLOW)
    failed: list[BaseException] = []

    def ask() -> None:
        try:
            house.post(body, headers=keyed("c"))
        except OSError as error:
            failed.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    until(10, lambda: house.sim("/_sim/book/totals")["open"], "it runs")
    for pid in house.worker_pids():
        os.kill(pid, signal.SIGKILL)
    asking.join(30)
    assert failed
    house.wait_ready()
    for answer in asked(house, body, 8, Idempotency_Key="c"):
        assert (answer.status, code(answer)) == (500, "gateway_error")
        assert answer.headers["x-should-retry"] == "false"
    assert len(house.executions()) == 1
