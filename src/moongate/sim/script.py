"""Scripts: rules that say which requests meet which faults, from a file, a command or the control endpoint.

A rule is an object: `fault` (the header form or an object), conditions under `match` (`path`, the chat
endpoint unless told; `model`, `key`, `host` equal; `text` found in the body; `stream` true or false),
`skip` and `times` (let that many matching requests pass first, then fault that many), `every` (each n-th
only), `probability` by seeded dice, `from` and `until` in seconds since the script was set or since each
`period` began. The first rule that applies decides.
"""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moongate.sim.faults import Spec, UnknownFaultError, from_member

_MEMBERS = frozenset(
    {"fault", "match", "skip", "times", "every", "probability", "from", "until", "period", "params"}
)
CHAT = "/v1/chat/completions"
_CONDITIONS = frozenset({"path", "model", "key", "host", "text", "stream"})


class ScriptError(ValueError):
    """A script that cannot be followed; the message names the rule and the member."""


@dataclass(slots=True)
class Facts:
    """What a rule may ask about a request."""

    path: str
    host: str
    key: str
    body: bytes
    model: str
    stream: bool


@dataclass(slots=True)
class Rule:
    """One rule and how often it matched and applied."""

    specs: list[Spec]
    match: dict[str, Any]
    skip: int = 0
    times: int | None = None
    every: int = 1
    probability: float = 1.0
    start: float = 0.0
    until: float | None = None
    period: float | None = None
    seen: int = 0
    used: int = 0

    def fits(self, facts: Facts, age: float) -> bool:
        """Whether the rule speaks about this request at this age of the script."""
        if self.period is not None:
            age %= self.period
        if age < self.start or (self.until is not None and age >= self.until):
            return False
        if facts.path != self.match.get("path", CHAT):
            return False
        for name, wanted in self.match.items():
            if name == "text":
                if str(wanted).encode() not in facts.body:
                    return False
            elif getattr(facts, name) != wanted:
                return False
        return True

    def applies(self, draw: float) -> bool:
        """Count one matching request; whether it meets the fault."""
        self.seen += 1
        place = self.seen - self.skip
        if place < 1 or (place - 1) % self.every or (self.times is not None and self.used >= self.times):
            return False
        if self.probability < 1.0 and draw >= self.probability:
            return False
        self.used += 1
        return True


@dataclass(slots=True)
class Script:
    """The rules in force."""

    rules: list[Rule] = field(default_factory=list)
    began: float = 0.0
    dice: random.Random = field(default_factory=lambda: random.Random(0))  # noqa: S311 - for repeatable tests

    def pick(self, facts: Facts, now: float) -> list[Spec]:
        """The faults that this request meets."""
        for rule in self.rules:
            if rule.fits(facts, now - self.began) and rule.applies(self.dice.random()):
                return rule.specs
        return []

    def show(self) -> list[dict[str, Any]]:
        """The rules with their counts."""
        return [
            {
                "faults": [one.fault.name for one in rule.specs],
                "match": rule.match,
                "matched": rule.seen,
                "applied": rule.used,
            }
            for rule in self.rules
        ]


def rules_from(document: Any) -> list[Rule]:
    """The rules of a document, `{"rules": [...]}` or the list alone; `ScriptError` names what is wrong."""
    listed = document.get("rules", []) if isinstance(document, dict) else document
    if not isinstance(listed, list):
        raise ScriptError("a script is a list of rules, or an object with a member rules")
    return [_rule(index, one) for index, one in enumerate(listed)]


def _rule(index: int, one: Any) -> Rule:
    where = f"rule {index}"
    if not isinstance(one, dict) or "fault" not in one:
        raise ScriptError(f"{where}: an object with a member fault is wanted")
    unknown = set(one) - _MEMBERS
    match = one.get("match") or {}
    strange = set(match) - _CONDITIONS if isinstance(match, dict) else {"match"}
    if unknown or strange:
        raise ScriptError(f"{where}: unknown member {', '.join(sorted(unknown | strange))}")
    try:
        specs = from_member(one["fault"], one.get("params") or {})
        return Rule(
            specs,
            match,
            skip=int(one.get("skip", 0)),
            times=None if one.get("times") is None else int(one["times"]),
            every=max(int(one.get("every", 1)), 1),
            probability=float(one.get("probability", 1.0)),
            start=float(one.get("from", 0.0)),
            until=None if one.get("until") is None else float(one["until"]),
            period=None if one.get("period") is None else float(one["period"]),
        )
    except (UnknownFaultError, TypeError, ValueError) as error:
        raise ScriptError(f"{where}: {error}") from None


def load(path: Path) -> Any:
    """The document in a JSON file, or in a YAML one where PyYAML is installed."""
    text = path.read_text(encoding="utf-8")
    if path.suffix.lower() in {".yaml", ".yml"}:
        import yaml  # noqa: PLC0415 - JSON scripts need no YAML parser

        return yaml.safe_load(text)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ScriptError(f"{path}: {error}") from None
