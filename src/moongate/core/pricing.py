"""What tokens cost: price tables with dates, and integer arithmetic in millionths of a currency unit.

A price changes; a bill does not: the row used is written into the attempt's record with the cost. A price
that is not known is no price: `None`, never zero. Source of the rows: KIMI.md section 7, with each row's own
origin.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from zlib import crc32

from moongate.core.call import Usage
from moongate.core.section import Price
from moongate.core.settings import Settings

MILLION: Final = 1_000_000
EVERY_MODEL: Final = "*"
"""Stands for the model in a row that holds for every model of its target."""


@dataclass(frozen=True, slots=True)
class PriceRow:
    """Prices of one model in one currency from a day on, in millionths of the currency for a million tokens.

    `since` is the first day (UTC, ISO) on which the price is known to hold; it holds until the model's next
    row. `hit` and `miss` are input tokens found and not found in the provider's prompt cache. `write`,
    `write_hour`: input tokens put into that cache for five minutes (None: not charged apart, so as `miss`) or
    an hour (None: not known). `reasoning` None: as `output`. `sure` False: from one weak source, to be held
    against the provider's statement. `own`: written by the operator; its name then bears a mark of its figures, so
    that a price that is changed in the settings does not change its meaning in records.
    """

    model: str
    currency: str
    since: str
    hit: int
    miss: int
    output: int
    write: int | None = None
    write_hour: int | None = None
    reasoning: int | None = None
    origin: str = ""
    sure: bool = True
    own: bool = False
    id: str = field(init=False, compare=False)
    """The row's name in records: model, currency and first day, and the mark of an own row."""

    def __post_init__(self) -> None:
        """Make its name once: it is written into every record."""
        figures = (self.hit, self.miss, self.output, self.write, self.write_hour, self.reasoning)
        mark = f"#{crc32(repr(figures).encode()):08x}" if self.own else ""
        object.__setattr__(self, "id", f"{self.model}/{self.currency}/{self.since}{mark}")

    @property
    def starts(self) -> float:
        """The first second on which it holds, in seconds since 1970."""
        return datetime.fromisoformat(self.since).replace(tzinfo=UTC).timestamp()


def cost(usage: Usage, row: PriceRow | None, *, hour_cache: bool = False) -> int | None:
    """The price in millionths of the row's currency, rounded once, half up; None: it is not known.

    `usage.input` includes `cached` and `cache_write`, `usage.output` includes `reasoning`; counts that
    contradict this (a part larger than its whole, or below zero) never make the price negative.
    """
    if row is None:
        return None
    cached, written, reasoning = usage.cached, usage.cache_write, usage.reasoning
    missed, answered = usage.input - cached - written, usage.output - reasoning
    if cached < 0 or written < 0 or reasoning < 0 or missed < 0 or answered < 0:
        return cost(_consistent(usage), row, hour_cache=hour_cache)
    write = row.miss if row.write is None else row.write
    if hour_cache and written:
        if row.write_hour is None:
            return None
        write = row.write_hour
    scaled = (
        cached * row.hit
        + written * write
        + missed * row.miss
        + answered * row.output
        + reasoning * (row.output if row.reasoning is None else row.reasoning)
    )
    return (scaled + MILLION // 2) // MILLION


def _consistent(usage: Usage) -> Usage:
    """The nearest counts of which no part is below zero or larger than its whole."""
    whole_input, whole_output = max(usage.input, 0), max(usage.output, 0)
    cached = min(max(usage.cached, 0), whole_input)
    written = min(max(usage.cache_write, 0), whole_input - cached)
    return Usage(whole_input, whole_output, cached, min(max(usage.reasoning, 0), whole_output), written)


_ByModel = dict[tuple[str, str], list[tuple[float, PriceRow]]]


class PriceTable:
    """Rows to look a price up in; of two for the same model, currency and day the later in order wins.

    `own` are the rows of targets that have some: such a target has no others.
    """

    def __init__(self, rows: Iterable[PriceRow], own: Mapping[str, Sequence[PriceRow]] | None = None) -> None:
        self._rows = _by_model(rows)
        self._own = {target: _by_model(its) for target, its in (own or {}).items() if its}

    def row(self, model: str, currency: str, at: float, target: str = "") -> PriceRow | None:
        """The row that holds at this moment (seconds since 1970); None: the price is not known."""
        table = self._own.get(target, self._rows)
        for starts, row in table.get((model, currency), ()):
            if starts <= at:
                return row
        return None if model == EVERY_MODEL else self.row(EVERY_MODEL, currency, at, target)


def _by_model(rows: Iterable[PriceRow]) -> _ByModel:
    found: dict[tuple[str, str], dict[float, PriceRow]] = {}
    for row in rows:
        found.setdefault((row.model, row.currency), {})[row.starts] = row
    return {key: sorted(by_day.items(), reverse=True) for key, by_day in found.items()}


def over(listed: Iterable[PriceRow], own: Sequence[PriceRow]) -> list[PriceRow]:
    """Own rows over listed ones: from its first own day on, a model has no listed price in that currency."""
    first: dict[tuple[str, str], str] = {}
    for row in own:
        key = (row.model, row.currency)
        first[key] = min(row.since, first.get(key, row.since))
    kept = [row for row in listed if row.since < first.get((row.model, row.currency), "9999")]
    return [*kept, *own]


def own_rows(prices: Iterable[Price], currency: str = "") -> list[PriceRow]:
    """Rows as an operator wrote them; `currency` is that of the target they stand at. The order is kept."""
    return [
        PriceRow(
            price.model or EVERY_MODEL,
            price.currency or currency,
            price.since,
            price.miss if price.hit is None else price.hit,
            price.miss,
            price.output,
            price.write,
            price.write_hour,
            price.reasoning,
            origin="own settings",
            own=True,
        )
        for price in prices
    ]


def prices_of(settings: Settings) -> PriceTable:
    """The prices that these settings make: the listed ones, the operator's over them, and those of targets."""
    own = {name: own_rows(target.prices, target.currency) for name, target in settings.targets.items()}
    return PriceTable(over(PRICES, own_rows(settings.prices)), own)


def _known(
    currency: str, since: str, origin: str, prices: dict[str, tuple[float, ...]], *, sure: bool = True
) -> list[PriceRow]:
    """Rows from (hit, miss, output[, write, write_hour]) in currency units for a million tokens."""
    rows: list[PriceRow] = []
    for model, units in prices.items():
        hit, miss, output, *writes = (round(price * MILLION) for price in units)
        write, write_hour = writes or (None, None)
        rows.append(
            PriceRow(model, currency, since, hit, miss, output, write, write_hour, origin=origin, sure=sure)
        )
    return rows


_CODE_FAST: Final = "kimi-k2.7-code-highspeed"
_THINK: Final = "kimi-k2-thinking"

PRICES: Final[tuple[PriceRow, ...]] = (
    *_known("USD", "2026-01-27", "published price maps", {"kimi-k2.5": (0.10, 0.60, 3.00)}),
    *_known("CNY", "2026-01-27", "resale price; hit from memory", {"kimi-k2.5": (0.70, 4, 21)}, sure=False),
    *_known(
        "USD",
        "2026-09-01",
        "price page as read on that day",
        {
            "kimi-k2.6": (0.16, 0.95, 4.00),
            "kimi-k2.7-code": (0.19, 0.95, 4.00),
            _CODE_FAST: (0.38, 1.90, 8.00),
            "kimi-k3": (0.30, 3.00, 15.00, 3.00, 6.00),
        },
    ),
    *_known(
        "CNY",
        "2026-09-01",
        "price page as read on that day",
        {
            "kimi-k2.6": (1.10, 6.50, 27),
            "kimi-k2.7-code": (1.30, 6.50, 27),
            _CODE_FAST: (2.60, 13, 54),
            "kimi-k3": (2, 20, 100),
        },
    ),
    *_known(
        "USD",
        "2026-10-01",
        "resellers' pages",
        {
            "kimi-k3.1-pro": (0.20, 2, 10, 2, 4),
            "kimi-k3.1-pro-highspeed": (0.20, 4, 20, 4, 8),
        },
        sure=False,
    ),
    *_known(
        "USD", "2025-11-01", "price maps", {_THINK: (0.15, 0.60, 2.50), f"{_THINK}-turbo": (0.15, 1.15, 8.00)}
    ),
    *_known(
        "CNY", "2025-11-01", "from memory", {_THINK: (1, 4, 16), f"{_THINK}-turbo": (1, 8, 58)}, sure=False
    ),
    # no cache tier: a hit costs what a miss costs
    *_known(
        "USD",
        "2025-11-01",
        "price maps",
        {
            "moonshot-v1-8k": (0.20, 0.20, 2.00),
            "moonshot-v1-32k": (1, 1, 3),
            "moonshot-v1-128k": (2, 2, 5),
        },
    ),
)
"""Moonshot's list prices. The rows of an operator's own settings go behind them and win."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A price that is charged but not published where it could be read: `verify` says so, and no figure is made up."""

    model: str
    currency: str
    since: str
    why: str


UNKNOWN: Final[tuple[Unknown, ...]] = (
    *(
        Unknown(model, "CNY", "2026-10-01", "no price in CNY was found; see the price page of your account")
        for model in ("kimi-k3.1-pro", "kimi-k3.1-pro-highspeed")
    ),
    *(
        Unknown(model, "CNY", "2025-11-01", "its price in CNY was not kept before it was switched off")
        for model in ("moonshot-v1-8k", "moonshot-v1-32k", "moonshot-v1-128k")
    ),
)
"""What the list lacks, with the reason. `prices` in the settings fills it."""


def unknown(model: str, currency: str) -> Unknown | None:
    """Why the list has no price for this model in this currency, where that is known."""
    return next((each for each in UNKNOWN if (each.model, each.currency) == (model, currency)), None)


def shown(row: PriceRow) -> str:
    """The row for people: its prices in currency units for a million tokens."""
    writes = [
        ("cache write", row.write),
        ("cache write, an hour", row.write_hour),
        ("reasoning", row.reasoning),
    ]
    told = [("hit", row.hit), ("miss", row.miss), ("output", row.output)]
    told += [(name, micro) for name, micro in writes if micro is not None]
    figures = ", ".join(f"{name} {micro / MILLION:g}" for name, micro in told)
    return f"{figures} {row.currency} a million tokens"
