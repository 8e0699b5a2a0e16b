"""Metrics as Prometheus reads them, and the reference page that lists every family."""

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from moongate.ops.metrics import FAMILIES, Family, Kind, Row


class _Fixed(Collector):
    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def collect(self) -> Iterator[Metric]:
        for family in FAMILIES:
            yield _metric(family, (row for row in self._rows if row.family == family.name))


def exposition(rows: Sequence[Row], accept: str) -> tuple[bytes, str]:
    """The text and its content type, in the format that the Accept header asks for."""
    encode, content_type = choose_encoder(accept)
    return encode(_Fixed(rows)), content_type


def _metric(family: Family, rows: Iterable[Row]) -> Metric:
    if family.kind is Kind.HISTOGRAM:
        histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        for row in rows:
            histogram.add_metric(row.labels, _buckets(family, row), row.value)
        return histogram
    metric: CounterMetricFamily | GaugeMetricFamily
    if family.kind is Kind.COUNTER:
        metric = CounterMetricFamily(family.name, family.help, labels=family.labels)
    else:
        metric = GaugeMetricFamily(family.name, family.help, labels=family.labels)
    for row in rows:
        metric.add_metric(row.labels, row.value)
    return metric


def _buckets(family: Family, row: Row) -> list[tuple[str, float]]:
    buckets, below = [], 0
    for bound, count in zip((*map(str, family.bounds), "+Inf"), row.counts, strict=True):
        below += count
        buckets.append((bound, float(below)))
    return buckets


def reference() -> str:
    """`docs/reference/metrics.md`, whole. A test compares it with the file."""
    lines = [
        "# Metrics",
        "",
        "The admin listener answers `/metrics` in the format of Prometheus. It asks every worker for its numbers",
        "at that moment and adds them up; a worker that does not answer within 300 ms counts as it last said, at",
        "most a second before. What dead workers counted stays in the totals until the supervisor ends. Label",
        "values come from closed sets (settings, faults, outcomes): `none` stands for no fault, and anything",
        "unknown is counted as `other`.",
        "",
        "| name | kind | labels | meaning |",
        "|---|---|---|---|",
    ]
    for family in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in family.labels) or "-"
        lines.append(f"| `{family.name}` | {family.kind} | {labels} | {family.help} |")
    lines += ["", "Upper bounds of the histograms, in seconds:", ""]
    for family in FAMILIES:
        if family.bounds:
            lines.append(f"- `{family.name}`: {', '.join(f'{bound:g}' for bound in family.bounds)}")
    return "\n".join(lines) + "\n"
