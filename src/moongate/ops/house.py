"""What the admin listener shows of the supervisor. Apart, so that neither pays for the other's imports."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from moongate.ops.metrics import Row


class WorkerView(msgspec.Struct, frozen=True):
    """One slot as `/api/workers` shows it. `seconds` since the worker was started; `addresses` are its slot's."""

    slot: int
    pid: int | None
    generation: int
    state: str
    restarts: int
    seconds: float
    addresses: list[str]


class ParkView(msgspec.Struct, frozen=True):
    """One park as `/api/parks` shows it: an account or `account/model`, seconds since 1970, the fault or the words."""

    name: str
    since: float
    reason: str


class House(Protocol):
    """What the admin listener asks of the supervisor."""

    async def rows(self) -> list[Row]:
        """The metrics of all workers, at most 300 ms from now."""

    def workers(self) -> Sequence[WorkerView]:
        """Every slot and the worker in it."""

    def parks(self) -> Sequence[ParkView]:
        """What is parked, the oldest first."""

    def checks(self) -> dict[str, str]:
        """What `/healthz` shows."""

    def config(self) -> bytes:
        """The settings as JSON, secrets masked."""
