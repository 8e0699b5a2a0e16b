"""Models, their dates and their prices, as data.

Source: KIMI.md sections 2, 3 and 7. A model answers from `since` up to the day before `until`; dates marked
"about" below are the first sightings, since no launch date is published. Prices are micro-units of the
currency for a million tokens, so that one dollar a million is 1,000,000 and every cost is an integer.
"""

from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Final


class Thinking(StrEnum):
    """Whether a model thinks before it answers."""

    NEVER = "never"
    SWITCH = "switch"  # on unless the request says `disabled`
    ALWAYS = "always"  # `disabled` is refused


class Family(StrEnum):
    """Models that share one contract."""

    V1 = "v1"
    K2 = "k2"
    K25 = "k2.5"
    K26 = "k2.6"
    K27 = "k2.7"
    K3 = "k3"


@dataclass(frozen=True, slots=True)
class Model:
    """One model id: its context window and default output cap in tokens, its family, and when it answers."""

    id: str
    family: Family
    context: int
    thinking: Thinking
    default_max: int
    since: date
    until: date | None = None

    @property
    def pinned(self) -> bool:
        """Whether temperature, top_p, n and penalties admit one value only (K2.5 and later)."""
        return self.family not in {Family.V1, Family.K2}

    def answers_on(self, day: date) -> bool:
        """Whether the platform serves it on that day."""
        return self.since <= day and (self.until is None or day < self.until)


_MIB: Final = 1_048_576
_K256: Final = 262_144
_OFF_2026_08: Final = date(2026, 8, 31)
_OFF_2026_05: Final = date(2026, 5, 25)


def _k2(name: str, thinking: Thinking = Thinking.NEVER, context: int = _K256) -> Model:
    cap = 64_000 if thinking is Thinking.ALWAYS else 32_768
    return Model(name, Family.K2, context, thinking, cap, date(2025, 7, 11), _OFF_2026_05)


def _v1(name: str, context: int) -> Model:
    return Model(name, Family.V1, context, Thinking.NEVER, 1024, date(2024, 1, 1), _OFF_2026_08)


MODELS: Final[tuple[Model, ...]] = (
    Model("kimi-k2.5", Family.K25, _K256, Thinking.SWITCH, 32_768, date(2026, 1, 27), _OFF_2026_08),
    Model("kimi-k2.6", Family.K26, _K256, Thinking.SWITCH, 32_768, date(2026, 4, 20)),  # about
    Model("kimi-k2.7-code", Family.K27, _K256, Thinking.ALWAYS, 32_768, date(2026, 6, 15)),  # about
    Model("kimi-k2.7-code-highspeed", Family.K27, _K256, Thinking.ALWAYS, 32_768, date(2026, 6, 15)),  # about
    Model("kimi-k3", Family.K3, _MIB, Thinking.SWITCH, 131_072, date(2026, 7, 1)),  # July, day unknown
    Model("kimi-k3.1-pro", Family.K3, _MIB, Thinking.ALWAYS, 131_072, date(2026, 10, 1)),  # about
    Model("kimi-k3.1-pro-highspeed", Family.K3, _MIB, Thinking.ALWAYS, 131_072, date(2026, 10, 1)),  # about
    _k2("kimi-k2-0711-preview", context=131_072),
    _k2("kimi-k2-0905-preview"),
    _k2("kimi-k2-turbo-preview"),
    _k2("kimi-k2-thinking", Thinking.ALWAYS),
    _k2("kimi-k2-thinking-turbo", Thinking.ALWAYS),
    Model("kimi-latest", Family.V1, 131_072, Thinking.NEVER, 1024, date(2025, 2, 1), date(2026, 1, 28)),
    _v1("moonshot-v1-8k", 8_192),
    _v1("moonshot-v1-32k", 32_768),
    _v1("moonshot-v1-128k", 131_072),
    _v1("moonshot-v1-auto", 131_072),
    _v1("moonshot-v1-8k-vision-preview", 8_192),
    _v1("moonshot-v1-32k-vision-preview", 32_768),
    _v1("moonshot-v1-128k-vision-preview", 131_072),
)

OPEN_WEIGHTS: Final = Model(
    "moonshotai/Kimi-K2.5", Family.K25, _K256, Thinking.SWITCH, _K256, date(2026, 1, 27)
)
"""K2.5 as vLLM and SGLang serve it: nobody switches it off, and only the context caps its output."""


def live(day: date) -> dict[str, Model]:
    """The models that the platform serves on a day, by id, newest first."""
    return {model.id: model for model in MODELS if model.answers_on(day)}


@dataclass(frozen=True, slots=True)
class Price:
    """What a million tokens cost, in micro-units: read from the cache, read anew, written."""

    hit: int
    miss: int
    output: int

    def cost(self, input_tokens: int, cached_tokens: int, output_tokens: int) -> int:
        """Micro-units for one execution, rounded half up once, on the sum."""
        fresh = input_tokens - cached_tokens
        total = fresh * self.miss + cached_tokens * self.hit + output_tokens * self.output
        return (total + 500_000) // 1_000_000


def _price(hit: float, miss: float, output: float) -> Price:
    return Price(round(hit * 1e6), round(miss * 1e6), round(output * 1e6))


FREE: Final = Price(0, 0, 0)
"""Self-hosted models, and those without a published price in the currency."""

PRICES: Final[dict[str, dict[str, Price]]] = {
    "USD": {
        "kimi-k2.5": _price(0.10, 0.60, 3.00),
        "kimi-k2.6": _price(0.16, 0.95, 4.00),
        "kimi-k2.7-code": _price(0.19, 0.95, 4.00),
        "kimi-k2.7-code-highspeed": _price(0.38, 1.90, 8.00),
        "kimi-k3": _price(0.30, 3.00, 15.00),
        "kimi-k3.1-pro": _price(0.20, 2.00, 10.00),
        "kimi-k3.1-pro-highspeed": _price(0.20, 4.00, 20.00),
        "kimi-k2-thinking": _price(0.15, 0.60, 2.50),
        "kimi-k2-thinking-turbo": _price(0.15, 1.15, 8.00),
        "moonshot-v1-8k": _price(0.20, 0.20, 2.00),
        "moonshot-v1-32k": _price(1.00, 1.00, 3.00),
        "moonshot-v1-128k": _price(2.00, 2.00, 5.00),
    },
    "CNY": {
        "kimi-k2.5": _price(0.70, 4.00, 21.00),
        "kimi-k2.6": _price(1.10, 6.50, 27.00),
        "kimi-k2.7-code": _price(1.30, 6.50, 27.00),
        "kimi-k2.7-code-highspeed": _price(2.60, 13.00, 54.00),
        "kimi-k3": _price(2.00, 20.00, 100.00),
        "kimi-k2-thinking": _price(1.00, 4.00, 16.00),
        "kimi-k2-thinking-turbo": _price(1.00, 8.00, 58.00),
    },
}


def price(model_id: str, currency: str) -> Price:
    """The price of a model in a currency; `FREE` where none is published."""
    return PRICES.get(currency, {}).get(model_id, FREE)
