"""The last client leaves at any stage: the exchange is cut or read to its end, by the policy (A1, FAULTS 76)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from moongate.core.faults import Fault, Reach
from moongate.flow.drains import Policy
from moongate.upstream.transport import Ended, Phase
from tests.flow.client import Client
from tests.flow.house import DONE, JSON, SSE, USAGE, WHOLE, Act, House, Play, chunk, played

STREAM = (chunk("hel"), chunk("lo"), chunk("", "stop", USAGE), DONE)
STEP = 1.0
"""Seconds between two steps of the scripted upstream."""


def slowly(*, stream: bool) -> Act:
    """Upstream, one step a second: connected, head, then each piece; it is cut between any two."""

    async def act(play: Play) -> Ended:
        cut = asyncio.create_task(play.until_cut())
        pieces = STREAM if stream else (WHOLE[:50], WHOLE[50:])
        steps: list[Any] = [
            lambda: play.sink.open(play),
            lambda: play.sink.head(200, SSE if stream else JSON),
            *(lambda piece=piece: play.sink.data(piece) for piece in pieces),
        ]
        try:
            for step in steps:
                await asyncio.wait((cut,), timeout=STEP)
                if cut.done():
                    return cut.result()
                step()
            await asyncio.wait((cut,), timeout=STEP)
            return cut.result() if cut.done() else Ended(Reach.HEAD, None, Phase.IDLE)
        finally:
            cut.cancel()

    return act


# stage -> the second at which the client leaves; the state of the attempt where the exchange is cut then
STREAMED = {
    "reserve": (-1.0, ""),
    "connect": (0.5, "released"),
    "sent": (1.5, "ambiguous"),
    "head": (2.5, "ambiguous"),
    "first token": (3.5, "settled_est"),
    "mid": (4.5, "settled_est"),
    "last": (5.5, "settled"),
    "settle": (6.2, "settled"),
}
PLAIN = {
    "reserve": (-1.0, ""),
    "connect": (0.5, "released"),
    "sent": (1.5, "ambiguous"),
    "head": (2.5, "ambiguous"),
    "body": (3.5, "ambiguous"),
}
WHOLE_BY = 4.0 + STEP, 6.0
"""When a plain answer and a stream are read whole."""


async def left_at(house: House, second: float, **asked: Any) -> float:
    """A call whose client leaves; how long the flight went on without it."""
    client = Client()
    if second < 0:
        client.gone = Fault.CLIENT_CLOSED
    running = asyncio.create_task(house.gateway.handle(house.call(**asked), client))
    await asyncio.sleep(max(second, 0.0))
    client.leave()
    left = house.world.clock()
    await running
    return house.world.clock() - left


@pytest.mark.parametrize("stage", STREAMED)
@pytest.mark.parametrize("key", ["", "k"])
@pytest.mark.parametrize("policy", ["cancel", "drain", "auto"])
def test_streams(tmp_path: Path, stage: str, key: str, policy: Policy) -> None:
    second, state = STREAMED[stage]

    async def told() -> None:
        house = House(tmp_path, {"alpha": [slowly(stream=True)]}, on_abandon=policy)
        went_on = await left_at(house, second, stream=True, key=key)
        judge(
            house, stage, went_on, second, state, drains=policy == "drain" or (policy == "auto" and key != "")
        )

    played(told)


@pytest.mark.parametrize("stage", PLAIN)
@pytest.mark.parametrize("key", ["", "k"])
@pytest.mark.parametrize("policy", ["cancel", "drain", "auto"])
def test_plain_calls(tmp_path: Path, stage: str, key: str, policy: Policy) -> None:
    second, state = PLAIN[stage]

    async def told() -> None:
        house = House(tmp_path, {"alpha": [slowly(stream=False)]}, on_abandon=policy)
        went_on = await left_at(house, second, key=key)
        judge(house, stage, went_on, second, state, drains=policy != "cancel")

    played(told)


def judge(house: House, stage: str, went_on: float, second: float, state: str, *, drains: bool) -> None:
    house.at_rest()
    [record] = house.records
    drained = drains and stage not in ("reserve", "connect", "settle")
    if stage == "settle":  # the client has it all: it did not leave anything
        assert record.outcome == "completed"
    else:
        assert (record.outcome, record.code) == ("abandoned", "client_closed")
    if not drained:
        assert went_on < 1.0
        assert [attempt.state for attempt in record.attempts] == ([state] if state else [])
        return
    assert went_on > 0.4
    [play] = house.upstreams["alpha"].plays
    assert all(fault is None for fault, _ in play.cut_by)
    [attempt] = record.attempts
    assert (attempt.state, attempt.cause, attempt.output) == ("settled", "", 3)
    assert record.billed_micro == 14
    assert second + went_on >= WHOLE_BY[record.stream] - 0.001


def test_drains_hold_a_tenth_of_an_accounts_concurrency(tmp_path: Path) -> None:
    async def told() -> None:
        house = House(tmp_path, {"alpha": [slowly(stream=False)] * 5}, on_abandon="auto", concurrency=20)
        clients = [Client() for _ in range(5)]
        calls = [
            asyncio.create_task(house.gateway.handle(house.call(words=f"w{n}"), client))
            for n, client in enumerate(clients)
        ]
        await asyncio.sleep(1.5)
        for client in clients:
            client.leave()
        await asyncio.sleep(0.1)
        assert len(house.drains.live) == 2
        await asyncio.gather(*calls)
        states = sorted(record.attempts[0].state for record in house.records)
        assert states == ["ambiguous"] * 3 + ["settled"] * 2
        house.at_rest()

    played(told)


def test_one_drain_is_always_allowed(tmp_path: Path) -> None:
    async def told() -> None:
        house = House(tmp_path, {"alpha": [slowly(stream=False)]}, on_abandon="auto", concurrency=3)
        await left_at(house, 1.5)
        assert house.records[0].attempts[0].state == "settled"

    played(told)


@pytest.mark.parametrize("bound", [{"most": 2}, {"connections": 2}])
def test_a_drain_gives_way_to_a_live_call(tmp_path: Path, bound: dict[str, Any]) -> None:
    async def told() -> None:
        house = House(tmp_path, {"alpha": [slowly(stream=False)] * 3}, on_abandon="auto", **bound)
        leaver, stayer, new = Client(), Client(), Client()
        calls = [asyncio.create_task(house.gateway.handle(house.call(words="a"), leaver))]
        await asyncio.sleep(1.5)
        calls.append(asyncio.create_task(house.gateway.handle(house.call(words="b"), stayer)))
        leaver.leave()
        await asyncio.sleep(0.1)
        assert len(house.drains.live) == 1
        calls.append(asyncio.create_task(house.gateway.handle(house.call(words="c"), new)))
        await asyncio.sleep(0.1)
        assert len(house.drains.live) == 0
        await asyncio.gather(*calls)
        assert (stayer.body, new.body) == (WHOLE, WHOLE)
        left = house.records[0]
        assert (left.outcome, left.attempts[0].state) == ("abandoned", "ambiguous")
        assert left.billed_micro
        house.at_rest()

    played(told)


def test_a_full_house_without_a_drain_refuses(tmp_path: Path) -> None:
    async def told() -> None:
        house = House(tmp_path, {"alpha": [slowly(stream=False)] * 2}, on_abandon="auto", most=1)
        first, second = Client(), Client()
        running = asyncio.create_task(house.gateway.handle(house.call(), first))
        await asyncio.sleep(1.5)
        await house.gateway.handle(house.call(words="b"), second)
        assert second.status == 503
        await running
        assert first.body == WHOLE
        house.at_rest()

    played(told)


def test_a_drain_reads_on_where_its_client_did_not(tmp_path: Path) -> None:
    """The client was full, so upstream was held back: without it nothing holds it back."""

    async def told() -> None:
        house = House(tmp_path, {"alpha": [slowly(stream=True)]}, on_abandon="drain")
        client = Client()
        running = asyncio.create_task(house.gateway.handle(house.call(stream=True), client))
        await asyncio.sleep(2.5)
        client.ready = False
        await asyncio.sleep(1.0)
        [play] = house.upstreams["alpha"].plays
        before = play.paused
        client.leave(Fault.SLOW_CLIENT)
        assert (before, play.paused) == (True, False)
        await running
        record = house.records[0]
        assert (record.outcome, record.code, record.attempts[0].state) == (
            "abandoned",
            "slow_client",
            "settled",
        )
        house.at_rest()

    played(told)


def test_a_drain_ends_with_the_gateway(tmp_path: Path) -> None:
    async def told() -> None:
        house = House(tmp_path, {"alpha": [slowly(stream=False)]}, on_abandon="auto")
        client = Client()
        running = asyncio.create_task(house.gateway.handle(house.call(), client))
        await asyncio.sleep(1.5)
        client.leave()
        await asyncio.sleep(0.1)
        house.gateway.begin_drain()
        assert await house.gateway.drained(0.1) == 1
        await running
        assert house.records[0].attempts[0].cause == "gateway_draining"
        house.at_rest()

    played(told)
