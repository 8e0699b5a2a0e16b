"""How the targets are: one word for `/healthz` out of free looks and of what calls meet; how busy replicas are."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from moongate.core.faults import FACTS, Health, Park
from moongate.ops.health import DEGRADED, OFF, OK, UNKNOWN
from moongate.ops.metrics import NONE, Row
from moongate.upstream.probes import Look
from moongate.world import World

LOOK_SECONDS: Final = 2.0
"""A look that takes longer has failed."""
WINDOW_SECONDS: Final = 10.0
"""Calls that ended longer ago say nothing of how a target is now."""
_ENOUGH: Final = 3

ILL_CODES: Final = frozenset(
    facts.code
    for facts in FACTS.values()
    if facts.health is Health.FAILURE or facts.park is not Park.NOTHING or facts.code == "kimi_model_gone"
)
"""Codes of faults that are the target's: not a caller's mistake, not our limits, not a client that left."""


class Upstreams:
    """What is known of every target. Pure: `now` is monotonic seconds."""

    def __init__(self, targets: Iterable[str]) -> None:
        self._looks = dict.fromkeys(targets, (0.0, UNKNOWN))
        self._traffic: dict[str, deque[tuple[float, str]]] = {
            target: deque(maxlen=50) for target in self._looks
        }

    def looked(self, target: str, word: str, now: float) -> None:
        """Take what a look showed: `ok` or a fault's code."""
        self._looks[target] = (now, word)

    def met(self, target: str, code: str, now: float) -> None:
        """Take how an attempt ended: `none`, or its fault's code."""
        if target in self._traffic and (code == NONE or code in ILL_CODES):
            self._traffic[target].append((now, OK if code == NONE else code))

    def word_of(self, target: str, now: float) -> str:
        """`ok`, or a fault's code.

        Calls outweigh a look: if the last three failed, a list of models proves nothing. But a call that went well
        proves nothing against a look that failed after it.
        """
        looked_at, word = self._looks[target]
        recent = [met for met in self._traffic[target] if met[0] >= now - WINDOW_SECONDS]
        if recent and recent[-1][1] == OK and (word in (OK, UNKNOWN) or recent[-1][0] > looked_at):
            return OK
        last = [code for _, code in recent[-_ENOUGH:]]
        return last[-1] if len(last) == _ENOUGH and OK not in last else word

    def needs_look(self, target: str, now: float, every: float) -> bool:
        """Whether calls have not just shown that all is well."""
        return not any(at >= now - every and word == OK for at, word in self._traffic[target])

    def words(self, now: float) -> dict[str, str]:
        """The word for each target."""
        return {target: self.word_of(target, now) for target in self._looks}

    def word(self, now: float) -> str:
        """`off` without targets, `ok` if every target is, a fault's code if none is; between, `degraded: ...`."""
        words = self.words(now).values()
        ill = [word for word in words if word != OK]
        if not words:
            return OFF
        if not ill:
            return OK
        if len(ill) == len(words) or UNKNOWN in ill:
            return ill[0]
        return f"{DEGRADED}: {ill[0]} at {len(ill)} of {len(words)} targets"


class Attempts:
    """Tells from snapshots of `moongate_attempts_total` what is new since a worker's last one."""

    def __init__(self) -> None:
        self._before: dict[str, dict[tuple[str, ...], float]] = {}

    def newly(self, worker: str, rows: Sequence[Row]) -> list[tuple[str, str]]:
        """Target and fault code (`none` for success) of what happened since, failures before successes."""
        before = self._before.get(worker, {})
        now = {row.labels: row.value for row in rows if row.family == "moongate_attempts_total"}
        self._before[worker] = now
        grown = [labels for labels, value in now.items() if value > before.get(labels, 0.0)]
        grown.sort(key=lambda labels: labels[1] == NONE)
        return [
            (labels[0], labels[1])
            for labels in grown
            for _ in range(min(_ENOUGH, int(now[labels] - before.get(labels, 0.0))))
        ]

    def forget(self, worker: str) -> None:
        """Drop what is known of a worker that is gone."""
        self._before.pop(worker, None)


class Watch:
    """Looks at every target again and again."""

    def __init__(
        self,
        looks: Sequence[Look],
        every: float,
        world: World,
        look_at: Callable[[Look, float], Awaitable[str]],
    ) -> None:
        self.upstreams = Upstreams(look.target for look in looks)
        self._looks = looks
        self._every = every
        self._world = world
        self._look_at = look_at

    async def run(self) -> None:
        """Look, for ever: at each target every so many seconds, unless calls showed just now that it is well."""
        await asyncio.gather(*(self._attend(look) for look in self._looks))

    async def _attend(self, look: Look) -> None:
        while True:
            if self.upstreams.needs_look(look.target, self._world.clock(), self._every):
                word = await self._look_at(look, LOOK_SECONDS)
                self.upstreams.looked(look.target, word, self._world.clock())
            await self._world.sleep(self._every)

    @property
    def checks(self) -> Mapping[str, str]:
        """What `/healthz` says of them."""
        return {"kimi_api": self.upstreams.word(self._world.clock())}


class Gauges:
    """Reads how busy self-hosted replicas are, again and again. `load`: a new mapping whenever anything changed.

    Who cannot be read is not in it. `looks` are at the metrics pages, with the dialect of whose they are.
    """

    def __init__(
        self,
        looks: Sequence[tuple[Look, str]],
        every: float,
        world: World,
        load_at: Callable[[Look, str, float], Awaitable[float | None]],
    ) -> None:
        self.load: Mapping[str, float] = {}
        self._looks = looks
        self._every = every
        self._world = world
        self._load_at = load_at

    async def run(self) -> None:
        """Read, for ever."""
        await asyncio.gather(*(self._attend(look, dialect) for look, dialect in self._looks))

    async def _attend(self, look: Look, dialect: str) -> None:
        while True:
            load = await self._load_at(look, dialect, LOOK_SECONDS)
            if load != self.load.get(look.target):
                rest = {target: known for target, known in self.load.items() if target != look.target}
                self.load = rest if load is None else rest | {look.target: load}
            await self._world.sleep(self._every)
