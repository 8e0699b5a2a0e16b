"""The gateway's metrics out of its workers': living ones as they last said, dead ones kept in the totals."""

from collections.abc import Iterable, Sequence

from moongate.ops.metrics import BY_NAME, Kind, Row

_Key = tuple[str, tuple[str, ...]]


class Totals:
    """Adds workers up. A worker is known by any text that no other worker ever has, such as slot and generation."""

    def __init__(self, retired: Iterable[Row] = ()) -> None:
        self._latest: dict[str, Sequence[Row]] = {}
        self._retired = {(row.family, row.labels): row for row in retired}

    def update(self, worker: str, rows: Sequence[Row]) -> None:
        """Take a worker's newest snapshot, which replaces its last."""
        self._latest[worker] = rows

    def retire(self, worker: str) -> None:
        """Keep what a dead worker counted; its gauges die with it."""
        for row in self._latest.pop(worker, ()):
            family = BY_NAME.get(row.family)
            if family is not None and family.kind is not Kind.GAUGE:
                _merge(self._retired, row, "sum")

    @property
    def retired(self) -> list[Row]:
        """What dead workers counted: for the next supervisor."""
        return list(self._retired.values())

    def merged(self, own: Iterable[Row] = ()) -> list[Row]:
        """One row for each series: dead workers, living ones, and the caller's own."""
        sums: dict[_Key, Row] = dict(self._retired)
        for rows in (*self._latest.values(), own):
            for row in rows:
                family = BY_NAME.get(row.family)
                if family is not None:
                    _merge(sums, row, family.merge)
        return list(sums.values())


def _merge(sums: dict[_Key, Row], row: Row, rule: str) -> None:
    key = (row.family, row.labels)
    before = sums.get(key)
    if before is None or len(before.counts) != len(row.counts):
        sums[key] = row
        return
    value = max(before.value, row.value) if rule == "max" else before.value + row.value
    counts = tuple(a + b for a, b in zip(before.counts, row.counts, strict=True))
    sums[key] = Row(row.family, row.labels, value, counts)
