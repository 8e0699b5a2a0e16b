"""Clients that leave and come back with their keys, upstreams that err, restarts: nothing runs twice that need not.

Each seed is one house with a few keys. Whatever happens, the executions of one key that may have been paid are one, and
one more for each time that a client cancelled its stream.
"""

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from moongate.core.faults import Fault, Reach
from moongate.core.idempotency import Standing, standing_of
from moongate.flow.drains import Policy
from moongate.flow.idempotency import Idempotency
from moongate.store.answers import MemoryAnswers
from moongate.upstream.transport import Ended, Phase
from tests.flow.asking import OVERLOADED, SAID, STREAM, data_of
from tests.flow.client import Client
from tests.flow.house import JSON, SSE, WHOLE, Act, House, Play, fails, played

POLICIES: list[Policy] = ["cancel", "drain", "auto"]


def slow(dice: random.Random) -> Act:
    """An answer in steps, plain or streamed as it was asked for; some break off."""
    steps = [dice.random() * 0.4 for _ in range(8)]
    breaks = dice.randrange(12)

    async def act(play: Play) -> Ended:
        stream = b'"stream":true' in play.outbound.body
        pieces = STREAM if stream else (WHOLE[:60], WHOLE[60:])
        cut = asyncio.create_task(play.until_cut())
        try:
            await asyncio.sleep(steps[0])
            play.sink.open(play)
            for number, piece in enumerate((b"", *pieces)):
                await asyncio.wait((cut,), timeout=steps[number + 1])
                if cut.done():
                    return cut.result()
                if number == breaks:
                    return Ended(Reach.HEAD, Fault.KIMI_STREAM_TRUNCATED, Phase.IDLE)
                if number:
                    play.sink.data(piece)
                else:
                    play.sink.head(200, SSE if stream else JSON)
            return Ended(Reach.HEAD, None, Phase.IDLE)
        finally:
            cut.cancel()

    return act


def any_act(dice: random.Random) -> Act:
    others = [OVERLOADED, fails(Fault.KIMI_NETWORK_UNREACHABLE, Reach.NOTHING_SENT)]
    others.append(fails(Fault.KIMI_NETWORK_TIMEOUT, Reach.SENT, Phase.HEAD))
    return dice.choice([*others, *(slow(dice) for _ in range(4))])


@dataclass
class Wish:
    """What one client wants under one key, and what it got in the end."""

    key: str
    stream: bool
    seen: list[bytes] = field(default_factory=list)


async def pursue(house: House, wish: Wish, dice: random.Random) -> None:
    """Ask, leave, ask again, sometimes twice at once."""
    for _ in range(dice.randrange(1, 6)):
        client = Client()
        call = house.call(key=wish.key, stream=wish.stream, words=wish.key)
        running = asyncio.create_task(house.gateway.handle(call, client))
        if dice.random() < 0.5:
            await asyncio.wait((running,), timeout=dice.random() * 2)
            if not running.done():
                client.leave()
        if dice.random() < 0.3:
            await asyncio.sleep(dice.random())
        else:
            await running
            if client.status == 200 and client.gone is None:
                wish.seen.append(client.body)


def restart(house: House, dice: random.Random) -> None:
    """A new worker's memory, made of what the ledger holds; its answers are there, or lost."""
    if dice.random() < 0.3:
        house.answers = MemoryAnswers(house.world.wall)
    fresh = Idempotency(house.world, house.answers, house.flights, house.look)
    fresh.load(house.records)
    house.idempotency = house.gateway.idempotency = fresh
    house.gateway.ledger.remember = fresh.remember


def judge(house: House, wish: Wish) -> None:
    records = [record for record in house.records if record.idempotency_key == wish.key]
    ran = [record for record in records if record.attempts and standing_of(record) is not Standing.FREE]
    cancelled = [record for record in ran if standing_of(record) is Standing.CANCELLED]
    assert len(ran) <= 1 + len(cancelled), [(record.call_id, record.outcome) for record in ran]
    assert not cancelled or wish.stream
    for record in ran[1:]:
        assert record.retry_of in {one.call_id for one in cancelled}
    assert sum(bool(record.billed_micro) for record in records) <= len(ran)
    for body in wish.seen:
        if wish.stream:
            whole = data_of(body)
            assert whole == SAID or b'"error"' in whole[-1]
        else:
            assert body == WHOLE


@pytest.mark.parametrize("seed", range(120))
def test_nothing_runs_twice(tmp_path: Path, seed: int) -> None:
    async def told() -> None:
        dice = random.Random(seed)
        acts = [any_act(dice) for _ in range(200)]
        house = House(tmp_path, {"alpha": acts}, on_abandon=dice.choice(POLICIES), concurrency=20)
        wishes = [Wish(f"k{number}", dice.random() < 0.6) for number in range(4)]
        for _ in range(3):
            clients = [pursue(house, dice.choice(wishes), dice) for _ in range(6)]
            await asyncio.gather(*clients)
            while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 - what was left drains, and time costs nothing
                await asyncio.sleep(1)
            restart(house, dice)
        for wish in wishes:
            judge(house, wish)
        house.at_rest()

    played(told)
