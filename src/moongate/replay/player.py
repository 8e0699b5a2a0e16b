"""Play arrivals: each call is made when it is due, whether or not earlier ones have been answered."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from moongate.replay.ending import Answer
from moongate.replay.prompts import Script
from moongate.replay.tally import Tally
from moongate.replay.trace import Arrival
from moongate.world import World

Ask = Callable[[bytes, float], Awaitable[Answer]]
"""Sends a body and comes back with its answer in at most so many seconds; raises nothing."""


@dataclass(frozen=True, slots=True)
class Pace:
    """`speed` 10 plays ten seconds of the trace in one; at most `at_once` calls run at a time, later ones come late.

    `timeout` is in seconds and for each call.
    """

    speed: float = 1.0
    at_once: int = 1000
    timeout: float = 600.0


class Player:
    """One replay. `tally` can be looked at while it runs; `running` is how many calls are under way."""

    def __init__(self, ask: Ask, script: Script, world: World, tally: Tally, pace: Pace) -> None:
        self.running = 0
        self._ask = ask
        self._script = script
        self._world = world
        self._tally = tally
        self._pace = pace
        self._seats = asyncio.Semaphore(pace.at_once)

    async def play(self, arrivals: Iterable[Arrival]) -> None:
        """Make every call that can be made; returns when the last has ended."""
        world, start = self._world, self._world.clock()
        async with asyncio.TaskGroup() as group:
            for arrival in arrivals:
                if arrival.input <= 0:
                    self._tally.left_out += 1
                    continue
                due = start + arrival.at / self._pace.speed
                await world.sleep(max(due - world.clock(), 0.0))
                await self._seats.acquire()
                self.running += 1
                group.create_task(self._call(arrival, max(world.clock() - due, 0.0)))

    async def _call(self, arrival: Arrival, late: float) -> None:
        try:
            answer = await self._ask(self._script.body(arrival), self._pace.timeout)
            self._tally.add(arrival.at, late, answer)
        finally:
            self.running -= 1
            self._seats.release()
