"""What happens in one run, drawn from a seed and nothing else: the same seed draws the same run on any machine."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# what the simulated Kimi does to a call, by what may be left unclear when it is the last attempt
_HARMLESS = (
    *(
        "crlf",
        "cr",
        "comments",
        "one_byte_chunks",
        "no_done",
        "bom",
        "multi_line_data",
        "glued_chunk",
        "usage_twice",
    ),
    *(
        "103_hints",
        "gzip",
        "unknown_fields",
        "json_nan",
        "lone_surrogate",
        "duplicate_chunk",
        "close_after_reply",
    ),
    *("close_on_next_request", "after_done", "wrong_content_type", "usage_missing", "usage_inconsistent"),
)
_REFUSED = (
    *("400", "content_filter", "429_rpm", "rate_limit_concurrency", "engine_overloaded", "503", "model_404"),
    *("429_without", "error_in_200", "keep_alive_close"),
)
_UNCLEAR = (
    *(
        "500",
        "502",
        "504",
        "html_504",
        "empty_200",
        "json_truncated",
        "short_body",
        "html_200",
        "gzip_broken",
    ),
    *(
        "br_unasked",
        "reset_before_head",
        "close_before_head",
        "reset_after_head",
        "not_http",
        "down",
        "big_headers",
    ),
    *("many_headers", "header_nul", "two_lengths", "redirect_307", "lying_content_length"),
)
_BROKEN = (
    *(
        "reset_mid_stream",
        "reset_mid_event",
        "chunk_truncated",
        "chunk_cut",
        "chunk_size_bad",
        "close_mid_stream",
    ),
    *(
        "done_without_finish",
        "error_event_mid_stream",
        "error_event_named",
        "cross_talk",
        "no_stream",
        "endless_line",
    ),
)

LEAVINGS = ("request", "sent", "head", "first", "middle")
"""Where a client may leave: within its request, behind it, behind the head, the first event, in the middle."""


@dataclass(frozen=True)
class Ask:
    """One client's call. `at` is seconds after the run began; `leaves` where it leaves, `rudely` by a reset.

    `sim` steers the simulated Kimi; its `fault`, if it has one, is all that may go wrong without a strike.
    """

    name: str
    at: float
    stream: bool
    tenant: int
    sim: Mapping[str, Any]
    leaves: str = ""
    rudely: bool = False
    slow: bool = False

    @property
    def fault(self) -> str:
        """The scripted fault's name, empty for none."""
        return str(self.sim.get("fault", ""))


@dataclass(frozen=True)
class Strike:
    """Something done to the gateway `at` seconds after the run began: which process it hits, and how."""

    at: float
    whom: str  # worker, supervisor, both: SIGKILL; replace: SIGUSR2; restart: SIGTERM and a new one


@dataclass(frozen=True)
class Run:
    """All that happens in one run."""

    seed: int
    asks: tuple[Ask, ...]
    strikes: tuple[Strike, ...] = field(default=())

    def story(self) -> str:
        """The run in the order of events, one line each."""
        told = [
            (
                ask.at,
                f"{ask.name}: {'stream' if ask.stream else 'plain'}, tenant {ask.tenant}, {dict(ask.sim)}"
                + (f", leaves at {ask.leaves}{' rudely' if ask.rudely else ''}" if ask.leaves else "")
                + (", reads slowly" if ask.slow else ""),
            )
            for ask in self.asks
        ]
        told += [(strike.at, f"strike: {strike.whom}") for strike in self.strikes]
        return f"seed {self.seed}\n" + "\n".join(f"  {at:6.3f} s  {what}" for at, what in sorted(told))


def draw(seed: int, *, tenants: int = 2) -> Run:
    """Draw a run: one to six calls within a fifth of a second, and in one of four a strike among them."""
    dice = random.Random(seed)
    asks = tuple(_ask(dice, f"chaos-{seed}-{number}", tenants) for number in range(dice.randint(1, 6)))
    strikes = []
    if dice.random() < 0.25:
        whom = dice.choice(("worker", "worker", "worker", "supervisor", "both", "replace", "restart"))
        strikes.append(Strike(round(dice.uniform(0.0, 0.25), 3), whom))
    return Run(seed, asks, tuple(strikes))


def _ask(dice: random.Random, name: str, tenants: int) -> Ask:
    stream = dice.random() < 0.6
    sim: dict[str, Any] = {}
    kinds = (_HARMLESS, _REFUSED, _UNCLEAR) + ((_BROKEN,) if stream else ())
    if dice.random() < 0.6:
        sim["fault"] = dice.choice(dice.choice(kinds))
        if sim["fault"] in _BROKEN:
            sim["after"] = dice.randint(0, 8)
    leaves = dice.choice(LEAVINGS) if dice.random() < 0.3 else ""
    if leaves or dice.random() < 0.3:
        sim |= {"tokens_per_second": dice.choice((200, 1000)), "output_tokens": dice.randint(20, 60)}
    return Ask(
        name,
        round(dice.uniform(0.0, 0.2), 3),
        stream,
        dice.randrange(tenants),
        sim,
        leaves=leaves,
        rudely=dice.random() < 0.5,
        slow=stream and not leaves and dice.random() < 0.1,
    )
