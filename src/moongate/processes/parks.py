"""What is parked: written down when a worker says that Kimi refused an account, released when its balance is back.

The control document is the truth, so a park survives every restart and reaches every worker, and an operator's
release is the last word.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from moongate.core.control import Control, Parked
from moongate.core.faults import Fault
from moongate.core.parking import BalanceLooks, reason_of
from moongate.core.settings import Settings
from moongate.ops.house import ParkView
from moongate.ops.metrics import Row
from moongate.processes import looks
from moongate.processes.channel import Park
from moongate.upstream.probes import Look
from moongate.world import World

WHO: Final = "moongate"
"""Who did it, in the audit log, when no person did."""

_LOOK_SECONDS: Final = 5.0
_PAUSE: Final = 0.25
_AGAIN_SECONDS: Final = 5.0

log: Final = logging.getLogger(__name__)


class Store(Protocol):
    """The part of the control document's store that parks and releases."""

    def park(self, name: str, reason: str, *, now: float, who: str) -> bool:
        """Park; False if it already was."""

    def unpark(self, name: str, *, now: float, who: str, detail: str = "") -> None:
        """Release."""


class Parks:
    """The supervisor's side. Workers hear of a change as of every other one of the control document."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        world: World,
        balance_of: Callable[[Look, float], Awaitable[float | None]],
    ) -> None:
        self._account_of = {name: target.account for name, target in settings.targets.items()}
        self._balances = looks.balances(settings)
        self._store = store
        self._world = world
        self._balance_of = balance_of
        self._looks = BalanceLooks(settings.health.balance_seconds)
        self._parked: Mapping[str, Parked] = {}
        self._unwritten: dict[str, Park] = {}
        self._write_again = 0.0

    def follow(self, document: bytes) -> None:
        """Take the control document as it stands."""
        self._parked = Control.from_json(document).parked
        broke = [
            name for name, parked in self._parked.items() if reason_of(parked) is Fault.KIMI_QUOTA_MONTHLY
        ]
        self._looks.follow([name for name in broke if name in self._balances], self._world.clock())

    def asked(self, park: Park) -> None:
        """Park what a worker says was refused, and page once; if that cannot be written now, try again later."""
        if park.name in self._parked:
            return
        try:
            is_new = self._store.park(park.name, park.fault, now=self._world.wall(), who=WHO)
        except Exception:
            self._unwritten[park.name] = park
            self._write_again = self._world.clock() + _AGAIN_SECONDS
            log.exception("page: %s cannot be parked; each worker leaves it out by itself", park.name)
            return
        self._unwritten.pop(park.name, None)
        if is_new:
            log.error(
                "page: %s is parked: %s at target %s: %s", park.name, park.fault, park.target, park.detail
            )

    def answered(self, target: str) -> None:
        """Take it that a target's account answered a call."""
        self._looks.proven(self._account_of.get(target, ""))

    async def run(self) -> None:
        """Write what could not be written, and look at balances, for ever."""
        while True:
            await self._world.sleep(_PAUSE)
            now = self._world.clock()
            if self._unwritten and now >= self._write_again:
                for park in list(self._unwritten.values()):
                    self.asked(park)
            for account in self._looks.due(now):
                await self._look_at(account)

    async def _look_at(self, account: str) -> None:
        balance = await self._balance_of(self._balances[account], _LOOK_SECONDS)
        if balance is None or balance <= 0 or account not in self._parked:
            return
        detail = f"its balance is {balance:g}"
        try:
            self._store.unpark(account, now=self._world.wall(), who=WHO, detail=detail)
        except Exception:
            log.exception("%s cannot be released", account)
            return
        self._looks.released(account)
        log.warning("%s is released: %s", account, detail)

    def rows(self) -> list[Row]:
        """How much of each account is parked."""
        return [
            Row("moongate_parked", (account,), sum(_is_of(name, account) for name in self._parked))
            for account in sorted(set(self._account_of.values()))
        ]

    def views(self) -> list[ParkView]:
        """What is parked, the oldest first."""
        entries = sorted(self._parked.items(), key=lambda entry: entry[1].since)
        return [ParkView(name, parked.since, parked.reason) for name, parked in entries]


def _is_of(name: str, account: str) -> bool:
    return name == account or name.startswith(f"{account}/")
