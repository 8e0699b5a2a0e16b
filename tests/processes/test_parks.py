"""What is parked is written down, also when that cannot be done at once; and a balance releases."""

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from moongate.core.addresses import Url
from moongate.core.settings import HealthChecks, Settings, Target
from moongate.ops.metrics import Row
from moongate.processes.channel import Park
from moongate.processes.parks import Parks
from moongate.store.control import ControlStore
from moongate.upstream.probes import Look
from moongate.world import RealWorld

QUOTA = Park("a", "kimi_quota_monthly", "a1", "no money")
SETTINGS = Settings(
    health=HealthChecks(balance_seconds=60.0),
    targets={
        "a1": Target(Url("https", "api.moonshot.ai", 443, "/v1"), dialect="moonshot", account="a"),
        "a2": Target(Url("https", "api.moonshot.ai", 443, "/v1"), dialect="moonshot", account="a"),
        "own": Target(Url("http", "10.0.0.7", 8000, "/v1"), dialect="vllm", account="own"),
    },
    routes={},
)


class JumpingWorld(RealWorld):
    """Its clock is the sum of what was slept; nothing waits."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.clock = lambda: self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


class Desk:
    """Parks over a real store; the balance is what `money` says at this second."""

    def __init__(self, state: Path, money: Callable[[float], float | None]) -> None:
        self.world = JumpingWorld()
        self.store = ControlStore.open(state, patience=0.0)
        self.looks: list[tuple[float, Look]] = []
        self._money = money
        self.parks = Parks(SETTINGS, self.store, self.world, self.balance_of)

    async def balance_of(self, look: Look, _: float) -> float | None:
        self.looks.append((self.world.now, look))
        return self._money(self.world.now)

    async def until(self, seconds: float) -> None:
        """Let the desk work until then, following its own document as the supervisor has it do."""
        task = asyncio.create_task(self.parks.run())
        while self.world.now < seconds:
            assert not task.done()
            self.parks.follow(self.store.to_json())
            await asyncio.sleep(0)
        task.cancel()

    @property
    def audited(self) -> list[tuple[str, str, str, str]]:
        return [(each.who, each.what, each.subject, each.detail) for each in reversed(self.store.audit())]


def at_desk(
    state: Path, money: Callable[[float], float | None], act: Callable[[Desk], Awaitable[None]]
) -> None:
    async def main() -> None:
        desk = Desk(state, money)
        try:
            await act(desk)
        finally:
            desk.store.close()

    asyncio.run(main())


def test_many_workers_have_one_park_and_one_page(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def act(desk: Desk) -> None:
        for _ in range(5):
            desk.parks.asked(QUOTA)
        desk.parks.follow(desk.store.to_json())
        desk.parks.asked(QUOTA)
        desk.parks.asked(Park("own/kimi-k2.5", "kimi_permission_denied", "own"))
        desk.parks.follow(desk.store.to_json())
        assert [(view.name, view.reason) for view in desk.parks.views()] == [
            ("a", "kimi_quota_monthly"),
            ("own/kimi-k2.5", "kimi_permission_denied"),
        ]
        assert desk.parks.rows() == [Row("moongate_parked", ("a",), 1), Row("moongate_parked", ("own",), 1)]

    at_desk(tmp_path, lambda _: None, act)
    pages = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert pages == [
        "page: a is parked: kimi_quota_monthly at target a1: no money",
        "page: own/kimi-k2.5 is parked: kimi_permission_denied at target own: ",
    ]


def test_what_cannot_be_written_is_written_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def act(desk: Desk) -> None:
        with contextlib.closing(sqlite3.connect(desk.store.path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            desk.parks.asked(QUOTA)
            other.execute("ROLLBACK")
        assert desk.audited == []
        await desk.until(6.0)
        assert desk.audited == [("moongate", "park", "a", "kimi_quota_monthly")]

    at_desk(tmp_path, lambda _: None, act)
    assert "page: a cannot be parked" in caplog.text
    assert "page: a is parked" in caplog.text


def test_a_balance_above_zero_releases(tmp_path: Path) -> None:
    async def act(desk: Desk) -> None:
        desk.parks.asked(QUOTA)
        desk.parks.asked(Park("own", "kimi_quota_monthly", "own"))
        await desk.until(400.0)
        assert [round(at) for at, _ in desk.looks] == [60, 120, 180, 240]
        assert {look.path for _, look in desk.looks} == {"/v1/users/me/balance"}
        assert desk.audited[2:] == [("moongate", "unpark", "a", "its balance is 7.25")]
        assert [view.name for view in desk.parks.views()] == ["own"]

    at_desk(tmp_path, lambda now: None if now < 100 else 0.0 if now < 200 else 7.25, act)


def test_bad_keys_are_not_bought_off(tmp_path: Path) -> None:
    async def act(desk: Desk) -> None:
        desk.parks.asked(Park("a", "kimi_auth_failed", "a1"))
        await desk.until(400.0)
        assert desk.looks == []

    at_desk(tmp_path, lambda _: 100.0, act)


def test_money_that_does_not_help_is_looked_at_less_until_a_call_is_answered(tmp_path: Path) -> None:
    async def act(desk: Desk) -> None:
        released = []
        for _ in range(3):
            parked_at = desk.world.now
            desk.parks.asked(QUOTA)
            while not desk.looks:
                await desk.until(desk.world.now + 10.0)
            released.append(round(desk.looks.pop()[0] - parked_at, -1))
            await desk.until(desk.world.now + 5.0)
        assert released == [60, 120, 240]
        desk.parks.answered("a2")
        parked_at = desk.world.now
        desk.parks.asked(QUOTA)
        await desk.until(parked_at + 70.0)
        assert len(desk.looks) == 1

    at_desk(tmp_path, lambda _: 5.0, act)
