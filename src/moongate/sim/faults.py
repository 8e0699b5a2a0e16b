"""The fault catalogue: its registry, and how a request or a script names a fault.

A fault is a function from the reply that would be sent to the one that is. Some stand in for the model (a
503), some bend its answer (a reset after three events). Several may be given, applied from left to right,
separated by commas; each with its parameters: `one_byte_chunks, reset_mid_stream;after=3`. Anything with a
name here can be asked for by the request header `X-Sim-Fault`, by the body member `sim`, or by a rule of a
script.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from moongate.sim.book import Bill
from moongate.sim.reply import Reply


class UnknownFaultError(ValueError):
    """A name that is not in the catalogue."""


@dataclass(frozen=True, slots=True)
class Case:
    """What a fault may know: its parameters, whether events were asked for, and whose request it is."""

    params: dict[str, Any] = field(default_factory=dict)
    stream: bool = False
    who: str = "org-sim<ak-sim>"

    def number(self, name: str, default: float) -> float:
        """A parameter as a number."""
        try:
            return float(self.params.get(name, default))
        except (TypeError, ValueError):
            return default

    def whole(self, name: str, default: int) -> int:
        """A parameter as a whole number."""
        return int(self.number(name, default))

    def word(self, name: str, default: str) -> str:
        """A parameter as text."""
        return str(self.params.get(name, default))


Change = Callable[[Reply, Case], Reply]


@dataclass(frozen=True, slots=True)
class Fault:
    """A named fault. `row` is its row in the catalogue of faults, 0 where it has none of its own.

    `runs`: whether the model runs, so that the book has an execution. `breaks`: whether the book says the
    fault's name where it would say completed. `bill`: what a broken execution is charged for unless the
    parameter `bill` says otherwise.
    """

    name: str
    row: int
    change: Change
    runs: bool
    breaks: bool
    bill: Bill
    about: str


CATALOGUE: Final[dict[str, Fault]] = {}


def fault(
    *names: str, row: int = 0, runs: bool = True, breaks: bool = True, bill: Bill = Bill.SENT
) -> Callable[[Change], Change]:
    """Enter a function into the catalogue under its names; its docstring is what the docs say."""

    def enter(change: Change) -> Change:
        about = (change.__doc__ or "").partition("\n")[0]
        for name in names:
            CATALOGUE[name] = Fault(name, row, change, runs, breaks, bill, about)
        return change

    return enter


@dataclass(frozen=True, slots=True)
class Spec:
    """A fault that somebody asked for."""

    fault: Fault
    params: dict[str, Any]

    @property
    def bill(self) -> Bill:
        """What the execution is charged for."""
        wanted = self.params.get("bill")
        return Bill(wanted) if wanted in set(Bill) else self.fault.bill


def spec(name: str, params: dict[str, Any]) -> Spec:
    """The fault of that name with its parameters; `UnknownFaultError` if there is none."""
    found = CATALOGUE.get(name)
    if found is None:
        raise UnknownFaultError(f"no fault is called {name!r}; GET /_sim/faults lists them")
    return Spec(found, params)


def parse(text: str) -> list[Spec]:
    """Faults from the header form: `name;key=value;key=value, name`."""
    specs = []
    for one in text.split(","):
        name, *pairs = (part.strip() for part in one.split(";"))
        if not name:
            continue
        params = {}
        for pair in pairs:
            key, _, value = pair.partition("=")
            params[key.strip()] = value.strip()
        specs.append(spec(name, params))
    return specs


def from_member(wanted: Any, params: dict[str, Any]) -> list[Spec]:
    """Faults from a JSON member: the header form, an object with `name` and parameters, or a list of them."""
    if isinstance(wanted, str):
        specs = parse(wanted)
        return [Spec(one.fault, {**params, **one.params}) for one in specs]
    if isinstance(wanted, dict):
        return [spec(str(wanted.get("name")), wanted)]
    if isinstance(wanted, list):
        return [found for one in wanted for found in from_member(one, params)]
    return []
