"""Which of several self-hosted replicas a call goes to: the least busy, by their gauges and by what was sent since.

Gauges are seconds old. If they alone decided, every call of those seconds would go to the replica that was idle at
their beginning; so each call sent counts at once, as much as it may come to weigh.
"""

from collections.abc import Mapping
from itertools import groupby
from typing import Final

from moongate.core.routing import Candidate, Plan

SENT: Final = 0.02
"""What a call sent since the last gauges counts at a replica that has room: a fiftieth of its cache."""
QUEUED: Final = 1.0
"""The same at a replica where calls wait: one more waits."""


class Replicas:
    """What one worker knows of its replicas. `is_known` False: of none, so that a call need not ask."""

    def __init__(self) -> None:
        self.is_known = False
        self._load: dict[str, float] = {}

    def follow(self, load: Mapping[str, float]) -> None:
        """Take newer gauges: target -> how busy (`core/gauges`). Who is not named is no replica, or silent."""
        self._load = dict(load)
        self.is_known = bool(load)

    def order(self, plan: Plan) -> Plan:
        """The plan with neighbours that are replicas in the order of their load; everybody else keeps the place.

        The first of the plan counts as sent to.
        """
        ordered: list[Candidate] = []
        for known, group in groupby(plan, self._group):
            members = list(group)
            ordered += sorted(members, key=self._busy) if known else members
        if ordered:
            self._count(ordered[0].target)
        return tuple(ordered)

    def _group(self, candidate: Candidate) -> int:
        """Neighbours of one group may change places: replicas asked for the same model; 0 for those that may not."""
        return candidate.generation + 1 if candidate.target in self._load else 0

    def _busy(self, candidate: Candidate) -> float:
        return self._load[candidate.target]

    def _count(self, target: str) -> None:
        load = self._load.get(target)
        if load is not None:
            self._load[target] = load + (SENT if load < 1.0 else QUEUED)
