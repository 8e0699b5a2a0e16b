"""Clients leave at any stage: upstream is let go within a second, the ledger knows the stage (A1, FAULTS 76, 77)."""

import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from tests.wire.house import House, until
from tests.wire.raw import Raw

HOSTS: list[dict[str, Any]] = [
    {"name": "kimi"},
    {"name": "far", "kind": "full_backlog"},
    {"name": "deaf", "kind": "tls_stall"},
]
SETTINGS = """
edge: {slow_client_seconds: 1.5}
routes:
  kimi-k2.5: {targets: [kimi], on_abandon: cancel}
  far: {model: kimi-k2.5, targets: [far], timeouts: {connect: 20}}
  deaf: {model: kimi-k2.5, targets: [deaf], timeouts: {tls: 20}}
"""
PACED: Any = {"tokens_per_second": 30, "output_tokens": 3000}


@dataclass(frozen=True)
class Stage:
    """What upstream does, what the client reads before it leaves, and what the ledger then holds."""

    sim: Any
    read: bytes
    state: str
    reach: str
    stream: bool = True
    model: str = "kimi-k2.5"
    reads: int = 1


STAGES = {
    "connect": Stage({}, b"", "released", "nothing_sent", model="far"),
    "tls": Stage({}, b"", "released", "nothing_sent", model="deaf"),
    "sent": Stage({"fault": "stall_before_head"}, b"", "ambiguous", "sent"),
    "sent, plain": Stage({"fault": "stall_before_head"}, b"", "ambiguous", "sent", stream=False),
    "head": Stage({"fault": "stall_first_token"}, b"", "ambiguous", "head"),
    "body, plain": Stage({"fault": "stall_mid_stream"}, b"", "ambiguous", "head", stream=False),
    "first event": Stage({"fault": "stall_mid_stream;after=1"}, b"\n\n", "settled_est", "events"),
    "in the midst": Stage(PACED, b'"content":"', "settled_est", "events", reads=4),
}


def _begin(house: House, raw: Raw, stage: Stage) -> None:
    """Send the call and wait until it is as far as the stage says."""
    body = house.body(stage.sim, stream=stage.stream, model=stage.model, thinking={"type": "disabled"})
    raw.post(body, house.key)
    if stage.read:
        for _ in range(stage.reads):
            raw.until(stage.read)
    elif stage.model == "kimi-k2.5":
        until(5, lambda: house.sim("/_sim/book/totals")["open"], "it runs")
        time.sleep(0.1)
    else:
        until(5, lambda: house.total("moongate_in_flight"), "it dials")
        time.sleep(0.1)


@pytest.mark.parametrize("how", ["close", "reset", "half close"])
def test_upstream_is_let_go_within_a_second_at_every_stage(house: House, how: str) -> None:
    for name, stage in STAGES.items():
        with Raw(house.port) as raw:
            _begin(house, raw, stage)
            _leave(raw, how)
            left = time.monotonic()
            until(
                2, lambda: house.sim("/_sim/connections")["hosts"]["kimi"]["running"] == 0, f"{name}: let go"
            )
            until(2, lambda: house.total("moongate_in_flight") == 0, f"{name}: ended")
            assert time.monotonic() - left < 1, name
    house.at_rest()
    calls = _rows(house)
    for call, (name, stage) in zip(calls, STAGES.items(), strict=True):
        assert (call["outcome"], call["code"], call["status"]) == ("abandoned", "client_closed", 499), name
        assert (call["state"], call["reach"], call["cause"]) == (stage.state, stage.reach, "client_closed"), (
            name
        )
    ran = [one["how"] for one in house.executions()]
    assert ran == ["aborted"] * (len(STAGES) - 2)


def _rows(house: House) -> list[dict[str, Any]]:
    return house.rows(
        "SELECT c.outcome, c.code, c.status, c.billed_micro, a.state, a.reach, a.cause, a.output"
        " FROM calls c JOIN attempts a USING (call_id) WHERE a.started >= ? AND c.outcome <> ''"
        " ORDER BY a.started",
        house.cleared,
    )


def _leave(raw: Raw, how: str) -> None:
    ways: dict[str, Callable[[], None]] = {
        "close": raw.close,
        "reset": raw.reset,
        "half close": raw.half_close,
    }
    ways[how]()


def test_leaving_early_is_not_free(house: House) -> None:
    for stage in (STAGES["sent"], STAGES["in the midst"]):
        with Raw(house.port) as raw:
            _begin(house, raw, stage)
    house.at_rest()
    calls = _rows(house)
    assert [call["billed_micro"] > 0 for call in calls] == [True, True]
    assert calls[1]["output"] > 0


def test_whoever_has_it_all_may_go_at_once(house: House) -> None:
    for sim in ({}, {"fault": "slow_close", "seconds": 5}):
        with Raw(house.port) as raw:
            began = time.monotonic()
            raw.post(house.body(sim, stream=True), house.key)
            _, headers = raw.head()
            raw.until(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            assert time.monotonic() - began < 1.5
        record = house.record(headers["x-moongate-call-id"])
        assert (record["outcome"], record["attempts"][0]["state"]) == ("completed", "settled")


def test_leaving_before_the_body_is_whole_is_no_call(house: House) -> None:
    with Raw(house.port) as raw:
        raw.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 500\r\n"
            b"Authorization: Bearer " + house.key.encode() + b'\r\n\r\n{"model":'
        )
        until(5, lambda: house.total("moongate_connections") == 1, "it is connected")
    until(2, lambda: house.total("moongate_connections") == 0, "it is gone")
    assert house.received() == []


def test_a_client_that_reads_nothing_is_let_go(house: House) -> None:
    flood = ", ".join(["big_event;bytes=60000"] * 150)
    with Raw(house.port, buffer=4096) as raw:
        raw.post(house.body({"fault": flood}, stream=True), house.key)
        _, headers = raw.head()
        until(10, lambda: house.total("moongate_in_flight") == 0, "it is given up")
        with pytest.raises(ConnectionResetError):
            raw.rest()
    record = house.record(headers["x-moongate-call-id"])
    assert (record["outcome"], record["code"]) == ("abandoned", "slow_client")
    assert 1.4 < record["duration"] < 6
    assert [one["how"] for one in house.executions()] == ["aborted"]


def test_a_crowd_that_leaves_harms_nobody(house: House) -> None:
    dice = random.Random(7)
    sims: list[Any] = [
        PACED,
        {"fault": "stall_before_head"},
        {"fault": "stall_first_token"},
        {},
        {"first_token": 0.1},
    ]
    for _ in range(6):
        with ExitStack() as stack:
            crowd = [stack.enter_context(Raw(house.port)) for _ in range(25)]
            for raw in crowd:
                raw.post(house.body(dice.choice(sims), stream=dice.random() < 0.7), house.key)
            assert house.ask().status == 200
            time.sleep(dice.random() * 0.2)
            for raw in crowd:
                if dice.random() < 0.5:
                    raw.reset()
    house.at_rest()
    assert house.total("moongate_upstream_up", target="kimi") == 1
    assert house.sim("/_sim/connections")["hosts"]["kimi"]["running"] == 0
    outcomes = house.rows(
        "SELECT outcome, COUNT(*) AS n FROM calls WHERE created >= ? GROUP BY 1", house.cleared
    )
    assert {row["outcome"] for row in outcomes} == {"abandoned", "completed"}
    assert sum(row["n"] for row in outcomes) == 156
