"""How busy a self-hosted replica is, read from its own metrics page.

Sources: KIMI.md section 12; the names are those of the servers' documentation, and which of them tell load is as in
the model server protocol of the gateway API's inference extension: queue, running, use of the KV cache.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Names:
    """What a server calls its gauges; `use` may have several names over time, the first that is there counts."""

    waiting: bytes
    running: bytes
    use: tuple[bytes, ...]


NAMES: Final[Mapping[str, Names]] = {
    "vllm": Names(
        b"vllm:num_requests_waiting",
        b"vllm:num_requests_running",
        (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc"),
    ),
    "sglang": Names(b"sglang:num_queue_reqs", b"sglang:num_running_reqs", (b"sglang:token_usage",)),
}
"""By dialect."""

_RUNNING_WEIGHT: Final = 0.0001
_MOST_RUNNING: Final = 1000.0


def load_of(page: bytes, dialect: str) -> float | None:
    """How busy the replica is: 0 for idle, no upper bound; None where the page does not say.

    A request that waits counts 1 and a full cache counts 1: either means that another one will wait. What runs, with
    room for more, only tells replicas apart that are else equal. Several engines behind one page (data parallel) add
    up their queues; the fullest cache counts.
    """
    names = NAMES.get(dialect)
    if names is None:
        return None
    found = _samples(page, {names.waiting, names.running, *names.use})
    if names.waiting not in found and names.running not in found:
        return None
    use = next((max(found[name]) for name in names.use if name in found), 0.0)
    running = min(sum(found.get(names.running, ())), _MOST_RUNNING)
    load = sum(found.get(names.waiting, ())) + min(use, 1.0) + running * _RUNNING_WEIGHT
    return round(load, 4)


def _samples(page: bytes, names: set[bytes]) -> dict[bytes, list[float]]:
    """The values of these metrics in a page in Prometheus' text format, whatever their labels; odd ones left out."""
    found: dict[bytes, list[float]] = {}
    for line in page.split(b"\n"):
        name = line.partition(b"{")[0].partition(b" ")[0]
        if name not in names:
            continue
        rest = line.rpartition(b"}")[2] if b"}" in line else line[len(name) :]
        value = _number(rest.split())
        if value is not None:
            found.setdefault(name, []).append(value)
    return found


def _number(words: list[bytes]) -> float | None:
    """The value of a sample, which a time stamp may follow; None if it is none that a gauge of these may have."""
    try:
        value = float(words[0]) if words else math.nan
    except ValueError:
        return None
    return value if 0 <= value < math.inf else None
