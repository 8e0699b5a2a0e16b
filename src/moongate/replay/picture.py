"""A picture of a replay: arrivals, time to the first event, and the provider's cache, over the trace's time.

Needs matplotlib, which is in the extra `plots`; nothing else of the replay imports it.
"""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from moongate.replay.tally import SHARES, Tally, Window

WINDOWS = 60


def draw(tally: Tally, path: Path, title: str) -> None:
    """Write the picture; the file's ending names its format. Raises OSError; ValueError: unknown format."""
    windows = tally.windows(WINDOWS)
    figure = Figure(figsize=(10, 9), layout="constrained")
    above, middle, below = figure.subplots(3, 1, sharex=True)
    figure.suptitle(title)
    width = windows[1].at - windows[0].at if len(windows) > 1 else 1.0
    _arrivals(above, windows, width)
    _first_events(middle, windows, width)
    _cached(below, windows, width)
    below.set_xlabel("minutes of the trace")
    figure.savefig(path, dpi=120)


def _arrivals(axes: Axes, windows: list[Window], width: float) -> None:
    at = _minutes(windows, width)
    completed = [(window.calls - window.failed) / width for window in windows]
    failed = [window.failed / width for window in windows]
    axes.bar(at, completed, width / 60 * 0.9, color="tab:blue", label="completed")
    if any(failed):
        axes.bar(at, failed, width / 60 * 0.9, bottom=completed, color="tab:red", label="not completed")
    axes.set_ylabel("calls a second\nof the trace")
    _explain(axes)


def _first_events(axes: Axes, windows: list[Window], width: float) -> None:
    seen = [window for window in windows if window.first]
    for number, share in enumerate(SHARES):
        values = [window.first[number] for window in seen if window.first]
        axes.plot(_minutes(seen, width), values, marker=".", label=f"p{share * 100:g}")
    axes.set_ylabel("seconds to\nthe first event")
    axes.set_ylim(bottom=0)
    _explain(axes)


def _cached(axes: Axes, windows: list[Window], width: float) -> None:
    seen = [window for window in windows if window.cached is not None]
    axes.plot(
        _minutes(seen, width),
        [100 * (window.cached or 0.0) for window in seen],
        color="tab:green",
        marker=".",
    )
    axes.set_ylabel("% of input tokens in\nthe provider's cache")
    axes.set_ylim(0, 100)


def _minutes(windows: list[Window], width: float) -> list[float]:
    return [(window.at + width / 2) / 60 for window in windows]


def _explain(axes: Axes) -> None:
    """A legend above the picture, where it hides nothing."""
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, frameon=False)
