"""Run a story against a simulator in this process, and ask it about itself."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

from moongate.sim.clients import Client, Response, chat_bytes, request_bytes
from moongate.sim.config import Config
from moongate.sim.serve import Running, start


class World:
    """A running simulator and short ways to talk to it."""

    def __init__(self, running: Running) -> None:
        self.running = running

    async def chat(
        self, *, port: int = 0, key: str = "sk-sim", headers: Any = None, **members: Any
    ) -> Response:
        """One chat completion on a connection of its own."""
        async with Client(port or self.running.port) as client:
            return await client.request(chat_bytes(members, key, **(headers or {})))

    async def call(
        self, method: str, target: str, body: Any = None, *, port: int = 0, **headers: str
    ) -> Response:
        """Any request on a connection of its own."""
        raw = b"" if body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with Client(port or self.running.port) as client:
            return await client.request(request_bytes(method, target, raw, named))

    async def book(self) -> list[dict[str, Any]]:
        """Every execution."""
        rows: list[dict[str, Any]] = (await self.call("GET", "/_sim/book")).json()["executions"]
        return rows

    async def settled(self, within: float = 2.0) -> list[dict[str, Any]]:
        """Every execution once none runs."""
        for _ in range(int(within / 0.02)):
            rows = await self.book()
            if all(row["ended"] is not None for row in rows):
                return rows
            await asyncio.sleep(0.02)
        raise AssertionError(f"still running: {rows}")

    async def totals(self) -> dict[str, Any]:
        """The book's sums."""
        sums: dict[str, Any] = (await self.call("GET", "/_sim/book/totals")).json()
        return sums


LOOP: list[Callable[[], asyncio.AbstractEventLoop]] = [uvloop.new_event_loop]
"""The last one makes the loops: what the command uses, unless a test says otherwise."""
Story = Callable[[World], Awaitable[None]]


async def _told(story: Story, config: Config) -> None:
    running = await start(config)
    try:
        await asyncio.wait_for(story(World(running)), 60)
    finally:
        await running.stop()
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for _ in range(50):
        if all(task.done() for task in left):
            break
        await asyncio.sleep(0.01)
    assert all(task.done() for task in left), left
    assert all(not host.connections for host in running.sim.hosts)
    assert running.sim.book.totals()["open"] == 0
    assert all(account.running == 0 for account in running.sim.accounts.everyone())


def run(story: Story, config: Config | None = None) -> None:
    """Run a story; afterwards nothing may be left over: no task, connection, slot or open execution."""
    with asyncio.Runner(loop_factory=LOOP[-1]) as runner:
        runner.run(_told(story, config or Config()))
