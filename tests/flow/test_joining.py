"""A call that runs under the same key is joined: from its start, after any event, or not at all."""

import asyncio
from pathlib import Path

import pytest

from moongate.core.faults import Fault, Reach
from moongate.core.sse import split
from moongate.flow.flight import HISTORY_BYTES
from moongate.upstream.transport import Ended, Phase
from tests.flow.asking import (
    SAID,
    STREAM,
    Gate,
    ask,
    code_of,
    data_of,
    header,
    plays,
    replayed,
    story,
)
from tests.flow.client import Client
from tests.flow.house import (
    SSE,
    WHOLE,
    House,
    Play,
    chunk,
    fails,
)

DAY = 86_400.0


def test_a_running_stream_is_joined_from_its_start(tmp_path: Path) -> None:
    async def told(house: House) -> None:
        first, second, third = Client(), Client(), Client()
        running = [asyncio.create_task(ask(house, first, key="k", stream=True))]
        await asyncio.sleep(0.01)
        running.append(asyncio.create_task(ask(house, second, key="k", stream=True)))
        await asyncio.sleep(0.001)
        await gate.step(2)
        running.append(asyncio.create_task(ask(house, third, key="k", stream=True)))
        await asyncio.sleep(0.001)
        await gate.step(2)
        await asyncio.gather(*running)
        assert data_of(first.body) == SAID
        assert first.body == second.body == third.body
        assert [replayed(one) for one in (first, second, third)] == [False, True, True]
        assert plays(house) == 1
        by_id = sorted(house.records, key=lambda record: record.call_id)
        assert [record.source for record in by_id] == ["upstream", "collapsed", "collapsed"]
        assert [record.collapsed_with for record in by_id] == ["", by_id[0].call_id, by_id[0].call_id]
        assert [record.outcome for record in by_id] == ["completed"] * 3
        assert [bool(record.attempts) for record in by_id] == [True, False, False]

    gate = Gate(*STREAM)
    story(tmp_path, [gate], told)


def test_a_running_plain_call_is_joined(tmp_path: Path) -> None:
    async def told(house: House) -> None:
        running = [asyncio.create_task(ask(house, key="k")) for _ in range(3)]
        await asyncio.sleep(0.01)
        await gate.step()
        assert [client.body for client in await asyncio.gather(*running)] == [WHOLE] * 3
        assert plays(house) == 1

    gate = Gate(WHOLE, plain=True)
    story(tmp_path, [gate], told)


def test_whoever_joins_after_the_end_was_passed_on_has_it_all(tmp_path: Path) -> None:
    """Upstream has a second for its clean end after `[DONE]`: the flight is up, but its answer is whole."""

    async def ends_late(play: Play) -> Ended:
        play.sink.open(play)
        play.sink.head(200, SSE)
        for piece in STREAM:
            play.sink.data(piece)
        await asyncio.sleep(0.5)
        return Ended(Reach.HEAD, None, Phase.IDLE)

    async def told(house: House) -> None:
        first = asyncio.create_task(ask(house, key="k", stream=True))
        await asyncio.sleep(0.1)
        second = await ask(house, key="k", stream=True)
        assert second.ended
        assert data_of(second.body) == SAID
        assert (await first).body == second.body

    story(tmp_path, [ends_late], told)


def test_followers_share_the_failure(tmp_path: Path) -> None:
    async def told(house: House) -> None:
        running = [asyncio.create_task(ask(house, key="k")) for _ in range(2)]
        clients = await asyncio.gather(*running)
        assert [code_of(client) for client in clients] == ["kimi_network_timeout"] * 2
        assert [record.outcome for record in house.records] == ["failed", "failed"]

    story(tmp_path, [fails(Fault.KIMI_NETWORK_TIMEOUT, Reach.SENT, Phase.HEAD)], told)


@pytest.mark.parametrize("who", ["opener", "follower"])
def test_one_of_two_may_leave(tmp_path: Path, who: str) -> None:
    async def told(house: House) -> None:
        first, second = Client(), Client()
        running = [asyncio.create_task(ask(house, first, key="k", stream=True))]
        await asyncio.sleep(0.01)
        await gate.step()
        running.append(asyncio.create_task(ask(house, second, key="k", stream=True)))
        await asyncio.sleep(0.001)
        leaver, stayer = (first, second) if who == "opener" else (second, first)
        leaver.leave()
        await gate.step(3)
        await asyncio.gather(*running)
        assert data_of(stayer.body) == SAID
        by_id = sorted(house.records, key=lambda record: record.call_id)
        outcomes = [record.outcome for record in by_id]
        assert outcomes == (["abandoned", "completed"] if who == "opener" else ["completed", "abandoned"])
        assert by_id[0].billed_micro
        assert by_id[0].attempts[0].state == "settled"
        assert not by_id[1].billed_micro

    gate = Gate(*STREAM)
    story(tmp_path, [gate], told)


def test_a_history_that_is_too_long_cannot_be_joined(tmp_path: Path) -> None:
    big = chunk("x" * 900_000)
    many = HISTORY_BYTES // len(big) + 1

    async def told(house: House) -> None:
        first = asyncio.create_task(ask(house, key="k", stream=True))
        await asyncio.sleep(0.01)
        await gate.step(many)
        late = await ask(house, key="k", stream=True)
        assert (late.status, code_of(late)) == (409, "idempotency_in_progress")
        assert header(late, b"x-should-retry: true")
        assert header(late, b"Retry-After: 1")
        await gate.step(2)
        await first
        gone = await ask(house, key="k", stream=True)
        assert (gone.status, code_of(gone)) == (409, "idempotency_expired")
        assert header(gone, b"x-should-retry: false")
        assert plays(house) == 1

    gate = Gate(*[big] * many, *STREAM[-2:])
    story(tmp_path, [gate], told)


def test_a_dropped_stream_goes_on_after_any_event(tmp_path: Path) -> None:
    """While it runs and after its end, from every event on."""

    async def told(house: House) -> None:
        whole, running = Client(), Client()
        first = asyncio.create_task(ask(house, whole, key="k", stream=True))
        await asyncio.sleep(0.01)
        await gate.step(2)
        running_from_one = asyncio.create_task(ask(house, running, key="k", stream=True, after=name(1)))
        await asyncio.sleep(0.001)
        await gate.step(2)
        await asyncio.gather(first, running_from_one)
        events = [event.raw for event in split(whole.body)]
        assert running.body == b"".join(events[1:])
        for number in range(1, len(events) + 1):
            again = await ask(house, key="k", stream=True, after=name(number))
            assert (again.status, again.ended) == (200, True)
            assert again.body == b"".join(events[number:])
        assert plays(house) == 1

    def name(number: int) -> str:
        return f"{1:028x}.{number}"

    gate = Gate(*STREAM)
    story(tmp_path, [gate], told)


@pytest.mark.parametrize("after", ["nonsense", f"{1:028x}.9", f"{9:028x}.1"])
def test_an_event_that_is_not_there_cannot_be_continued(tmp_path: Path, after: str) -> None:
    async def told(house: House) -> None:
        first = asyncio.create_task(ask(house, key="k", stream=True))
        await asyncio.sleep(0.01)
        assert code_of(await ask(house, key="k", stream=True, after=after)) == "idempotency_expired"
        await gate.step(2)
        assert code_of(await ask(house, key="k", stream=True, after=after)) == "idempotency_expired"
        await gate.step(2)
        assert (await first).ended
        assert code_of(await ask(house, key="k", stream=True, after=after)) == "idempotency_expired"
        assert code_of(await ask(house, key="new", stream=True, after=after)) == "idempotency_expired"
        assert plays(house) == 1

    gate = Gate(*STREAM)
    story(tmp_path, [gate], told)
