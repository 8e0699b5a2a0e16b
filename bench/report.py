"""The bench's results: medians, ratios to nginx, the table, the JSON file and the history."""

import json
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scenarios import Figures

YARDSTICK = "nginx"
BARS = {
    "plain 2 KB, 64 in flight": ("us_a_call", 4.5),
    "plain 64 KB, 64 in flight": ("us_a_call", 2.8),
    "streams of 100 chunks, 20 ms apart": ("us_a_chunk", 2.5),
}
"""Figures with a promised ratio to nginx."""
LIMITS = {
    "2,000 live streams": [("kb_a_stream", 20.0), ("lost", 0.0)],
    "500 live streams": [("lost", 0.0)],
    "start": [("cpu_s", 1.0)],
    "time to first byte, 200 calls/s": [("lost", 0.0)],
}
"""Figures with a promised value of their own."""
RELATIVE = ("us_a_call", "us_a_chunk")
AGAINST_HTTP1 = ("plain 2 KB over TLS, 64 in flight", "us_a_call", 1.5)
"""What HTTP/2 upstream may cost, as a ratio to HTTP/1.1 in the same run."""
LATENCY = ("time to first byte, 200 calls/s", "added_p99_ms", 10.0)
"""Judged as the difference to nginx within a repetition, and only on a quiet machine."""

Runs = Mapping[str, Mapping[str, Sequence[Figures]]]
"""scenario -> subject -> figures of each repetition."""


def median(runs: Sequence[Figures], name: str) -> float:
    """The middle of one figure over the repetitions."""
    return statistics.median(run[name] for run in runs)


def ratio(runs: Sequence[Figures], yardstick: Sequence[Figures], name: str) -> float:
    """The middle of the ratios to nginx, each taken within its own repetition."""
    return statistics.median(
        ours[name] / max(theirs[name], 1e-9) for ours, theirs in zip(runs, yardstick, strict=True)
    )


def difference(runs: Sequence[Figures], yardstick: Sequence[Figures], name: str) -> float:
    """The middle of the differences to nginx, each taken within its own repetition."""
    return statistics.median(ours[name] - theirs[name] for ours, theirs in zip(runs, yardstick, strict=True))


def summary(runs: Runs) -> dict[str, dict[str, Figures]]:
    """Medians of all figures, and `..._ratio` beside those that are compared with nginx."""
    found: dict[str, dict[str, Figures]] = {}
    for scenario, subjects in runs.items():
        found[scenario] = {}
        for subject, repetitions in subjects.items():
            figures = {name: median(repetitions, name) for name in repetitions[0]}
            for name in RELATIVE:
                if name in figures and subject != YARDSTICK and YARDSTICK in subjects:
                    figures[f"{name}_ratio"] = ratio(repetitions, subjects[YARDSTICK], name)
            if LATENCY[1] in figures and subject != YARDSTICK and YARDSTICK in subjects:
                figures["over_nginx_p99_ms"] = difference(repetitions, subjects[YARDSTICK], LATENCY[1])
            found[scenario][subject] = figures
    return found


def missed(
    medians: Mapping[str, Mapping[str, Figures]], *, quiet: bool, subject: str = "moongate"
) -> list[str]:
    """One sentence for each promise that the subject did not keep."""
    bad = []
    for scenario, (name, bar) in BARS.items():
        reached = medians.get(scenario, {}).get(subject, {}).get(f"{name}_ratio")
        if reached is not None and reached > bar:
            bad.append(f"{scenario}: {name} is {reached:.2f} times nginx's, the bar is {bar}")
    for scenario, limits in LIMITS.items():
        for name, limit in limits:
            reached = medians.get(scenario, {}).get(subject, {}).get(name)
            if reached is not None and reached > limit:
                bad.append(f"{scenario}: {name} is {reached:.2f}, the bar is {limit}")
    scenario, name, limit = AGAINST_HTTP1
    seen = medians.get(scenario, {})
    if f"{subject} http2" in seen and seen[f"{subject} http2"][name] > limit * seen[subject][name]:
        reached = seen[f"{subject} http2"][name] / seen[subject][name]
        bad.append(f"{scenario}: HTTP/2 takes {reached:.2f} times the CPU of HTTP/1.1, the bar is {limit}")
    scenario, name, limit = LATENCY
    added = medians.get(scenario, {}).get(subject, {}).get("over_nginx_p99_ms")
    if added is not None and added > limit and quiet:
        bad.append(f"{scenario}: p99 is {added:.1f} ms above nginx's, the bar is {limit} ms")
    return bad


def cell(name: str, value: float) -> str:
    """A figure with its unit, as people write it."""
    quantity, _, unit = name.partition("_")
    if name.endswith("_ratio"):
        return f"{value:.2f} x"
    units = {
        "us": "us",
        "kb": "KB",
        "calls": "calls/s",
        "lost": "lost",
        "cpu": "s CPU",
        "wall": "s",
        "resident": "MB",
    }
    label = units.get(quantity, f"ms {name.removesuffix('_ms').replace('_', ' ')}")
    if quantity in {"us", "kb"}:
        label = f"{label} {unit.replace('_', ' ')}"
    return f"{value:.{0 if value >= 100 or quantity == 'lost' else 1 if value >= 10 else 2}f} {label}"


def table(medians: Mapping[str, Mapping[str, Figures]], last: Mapping[str, float]) -> str:
    """The table that `make bench` prints; `last`: ratios of the run before on such a machine, for comparison."""
    lines = ["| what | who | figures |", "|---|---|---|"]
    for scenario, subjects in medians.items():
        for subject, figures in subjects.items():
            shown = [cell(name, value) for name, value in figures.items()]
            before = last.get(scenario) if subject == "moongate" else None
            if before is not None:
                shown.append(f"(last: {before:.2f} x)")
            lines.append(f"| {scenario} | {subject} | {' · '.join(shown)} |")
    return "\n".join(lines)


def commit() -> str:
    """The commit under measurement, with `+` if the checkout differs from it; empty without git."""
    here = Path(__file__).parent
    found = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=here, capture_output=True, text=True, check=False
    )
    dirty = subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=here, capture_output=True, check=False)
    return found.stdout.strip() + ("+" if found.returncode == 0 and dirty.returncode else "")


def ratios(medians: Mapping[str, Mapping[str, Figures]]) -> dict[str, float]:
    """The ratio of each scenario that has one, for the history."""
    return {
        scenario: round(value, 3)
        for scenario, subjects in medians.items()
        for name, value in subjects.get("moongate", {}).items()
        if name.endswith("_ratio")
    }


def last_ratios(history: Path, processor: str) -> dict[str, float]:
    """The newest ratios in the history that were taken on this kind of processor."""
    if not history.exists():
        return {}
    rows: list[dict[str, Any]] = [
        json.loads(line) for line in history.read_text("utf-8").splitlines() if line
    ]
    fitting = [row for row in rows if row["processor"] == processor]
    newest: dict[str, float] = fitting[-1]["ratios"] if fitting else {}
    return newest
