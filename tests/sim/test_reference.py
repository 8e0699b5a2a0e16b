"""docs/reference/simulator.md tells every fault, flag, endpoint and setting, in the words of the code."""

from dataclasses import fields
from pathlib import Path

import pytest

from moongate.sim import fault_answers, fault_bodies, fault_events, fault_http2, fault_streams
from moongate.sim.accounts import TIERS
from moongate.sim.ask import Steering
from moongate.sim.book import Bill
from moongate.sim.config import CERTIFICATES, KINDS, Config, HostConfig
from moongate.sim.dns import MODES
from moongate.sim.faults import CATALOGUE, Fault
from moongate.sim.host import Host, Sim
from moongate.sim.routes import Routes
from moongate.sim.serve import FLAGS

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "simulator.md").read_text("utf-8")
BILLED = {
    Bill.SENT: "prompt and what was sent",
    Bill.FULL: "in full",
    Bill.PROMPT: "prompt",
    Bill.NOTHING: "nothing",
}


def table(module: str) -> str:
    """The faults of one module as the page shows them."""
    lines = ["| name | what the client meets | billed |", "|---|---|---|"]
    seen: dict[int, list[Fault]] = {}
    for one in CATALOGUE.values():
        if one.change.__module__ == module:
            seen.setdefault(id(one.change), []).append(one)
    for group in seen.values():
        names = ", ".join(f"`{one.name}`" for one in group)
        usual = "as usual" if not group[0].breaks else BILLED[group[0].bill]
        lines.append(f"| {names} | {group[0].about} | {usual if group[0].runs else 'not run'} |")
    return "\n".join(lines)


@pytest.mark.parametrize("module", [fault_answers, fault_bodies, fault_streams, fault_events, fault_http2])
def test_the_fault_tables_are_the_catalogue(module: object) -> None:
    wanted = table(getattr(module, "__name__", ""))
    assert wanted in PAGE, f"the page wants this table:\n{wanted}"


def test_every_flag_endpoint_and_setting_is_there() -> None:
    host = Host(Sim(Config()), HostConfig())
    assert isinstance(host._routes, Routes)
    endpoints = {f"`{method} {path}`" for method, path in host._routes._control}
    names = {
        *FLAGS,
        *KINDS,
        *CERTIFICATES,
        *MODES,
        *TIERS,
        *(one.name for one in fields(HostConfig)),
        *(one.name for one in fields(Steering) if one.name != "params"),
        *("model", "key", "host", "text", "stream", "path", "skip", "times", "every", "probability"),
        *("from", "until", "period", "down", "overload", "suspended", "forget_prefixes", "seconds"),
        *(bill.value for bill in Bill),
    }
    missing = {f"`{name}`" for name in names} | endpoints
    assert not {name for name in missing if name not in PAGE}
