"""A picture of `moongate cache simulate`: share of calls answered from the cache, by its size.

Needs matplotlib, which is in the extra `plots`.
"""

from pathlib import Path

from matplotlib.figure import Figure

from moongate.replay.caching import Study
from moongate.replay.caching_run import best_by_budget


def draw(study: Study, path: Path, title: str) -> None:
    """Write the picture; the file's ending names its format. Raises OSError; ValueError: unknown format."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title)
    calls = max(study.calls, 1)
    for name, points in best_by_budget(study.results).items():
        ordered = sorted(points)
        axes.plot(
            [budget / (1 << 20) for budget, _ in ordered],
            [100 * hits / calls for _, hits in ordered],
            marker=".",
            label=name,
        )
    axes.axhline(100 * study.repeats / calls, color="grey", linestyle=":", label="all repeats")
    axes.set_xscale("log")
    axes.set_xlabel("MB of cache")
    axes.set_ylabel("% of calls answered from it")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)
