"""The player: when calls are made, in which order, how many at a time. Time is the World's and jumps."""

import asyncio
import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.pricing import PRICES, PriceTable
from moongate.replay.ending import Answer
from moongate.replay.player import Pace, Player
from moongate.replay.prompts import Script
from moongate.replay.tally import Tally
from moongate.replay.trace import Arrival
from moongate.world import RealWorld


class Jumping(RealWorld):
    """A world whose time goes on only when somebody sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.clock: Callable[[], float] = lambda: self.now

    async def sleep(self, seconds: float) -> None:
        for _ in range(3):
            await asyncio.sleep(0)  # whoever was begun before acts before time goes on
        self.now += seconds


class Asked:
    """Remembers when each call was made and what for; answers at once, or when told."""

    def __init__(self, world: Jumping, *, holds: bool = False) -> None:
        self.moments: list[tuple[float, int]] = []
        self.most = self.running = 0
        self._world = world
        self._free = asyncio.Event()
        if not holds:
            self._free.set()

    async def ask(self, body: bytes, seconds: float) -> Answer:
        self.moments.append((self._world.now - 1000.0, json.loads(body)["max_tokens"]))
        self.running += 1
        self.most = max(self.most, self.running)
        await self._free.wait()
        self.running -= 1
        return Answer("completed" if seconds == 600 else "timeout", 0.1, 0.2)

    def free(self) -> None:
        self._free.set()


def arrivals(*moments: float) -> list[Arrival]:
    return [Arrival(at, 100, number + 1, [number]) for number, at in enumerate(moments)]


def played(calls: list[Arrival], pace: Pace) -> tuple[Asked, Tally]:
    async def main() -> tuple[Asked, Tally]:
        world, tally = Jumping(), Tally(PriceTable(PRICES), "USD", 0.0)
        asked = Asked(world)
        await Player(asked.ask, Script("kimi-k2.5"), world, tally, pace).play(calls)
        return asked, tally

    return asyncio.run(main())


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=20), st.sampled_from([0.5, 1.0, 10.0]))
def test_each_call_is_made_when_it_is_due(moments: list[float], speed: float) -> None:
    moments.sort()
    asked, tally = played(arrivals(*moments), Pace(speed))
    assert [number for _, number in asked.moments] == list(range(1, len(moments) + 1))
    assert [at for at, _ in asked.moments] == pytest.approx([at / speed for at in moments], abs=1e-6)
    assert tally.calls == tally.outcomes["completed"] == len(moments)
    assert max(tally.late) < 1e-6


def test_calls_are_made_whether_or_not_earlier_ones_were_answered() -> None:
    async def main() -> Asked:
        world, tally = Jumping(), Tally(PriceTable(PRICES), "USD", 0.0)
        asked = Asked(world, holds=True)
        player = Player(asked.ask, Script("m"), world, tally, Pace(1.0))
        playing = asyncio.create_task(player.play(arrivals(0, 1, 2, 3)))
        for _ in range(50):
            await asyncio.sleep(0)
        assert player.running == len(asked.moments) == 4
        asked.free()
        await playing
        assert player.running == 0
        return asked

    assert [at for at, _ in asyncio.run(main()).moments] == pytest.approx([0, 1, 2, 3])


def test_no_more_run_at_a_time_than_allowed_and_who_waits_is_late() -> None:
    async def main() -> tuple[Asked, Tally]:
        world, tally = Jumping(), Tally(PriceTable(PRICES), "USD", 0.0)
        asked = Asked(world, holds=True)
        player = Player(asked.ask, Script("m"), world, tally, Pace(1.0, at_once=2))
        playing = asyncio.create_task(player.play(arrivals(0, 0, 1, 1, 1)))
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(asked.moments) == 2
        world.now += 7.0
        asked.free()
        await playing
        return asked, tally

    asked, tally = asyncio.run(main())
    assert (asked.most, tally.calls) == (2, 5)
    assert sorted(tally.late) == pytest.approx([0, 0, 7, 7, 7])


def test_what_the_trace_does_not_know_is_left_out() -> None:
    calls = [Arrival(0.0, 0, 0, [1]), *arrivals(1.0)]
    asked, tally = played(calls, Pace())
    assert (len(asked.moments), tally.left_out, tally.calls) == (1, 1, 1)


def test_each_call_gets_the_timeout_that_was_asked_for() -> None:
    _, tally = played(arrivals(0.0), Pace(timeout=3.0))
    assert tally.outcomes == {"timeout": 1}
