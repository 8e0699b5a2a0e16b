"""What settings must agree on with one another, beyond what each may be by itself."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from moongate.core.mistakes import Path, known_instead
from moongate.core.section import Price
from moongate.core.settings import Route, Settings, Target

LONGEST_RUN: Final = 80
"""Bytes: a Unix socket's path holds 107 (unix(7), sun_path), and names of sockets follow the directory's."""

# fmt: off
_KEPT_HEADERS: Final = frozenset((
    "accept", "accept-encoding", "authorization", "connection", "content-encoding", "content-length",
    "content-type", "cookie", "expect", "host", "te", "trailer", "transfer-encoding", "upgrade", "user-agent",
))
# fmt: on


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Which setting should give way, why and how; `other` is what it disagrees with, if it can be named."""

    path: Path
    problem: str
    mend: str
    other: Path = ()


def disagreements(settings: Settings, targets: Collection[str] | None) -> Iterator[Disagreement]:
    """Everything that two or more settings disagree on.

    `targets` are the names that routes may refer to, even if their own settings are wrong; None: not known.
    """
    yield from _sizes(settings)
    yield from _processes(settings)
    if targets is not None and not targets:
        yield Disagreement(
            ("targets",), "there are none", "write one, or leave it out for Moonshot's platform"
        )
    for name, target in settings.targets.items():
        yield from _target(("targets", name), target)
    yield from _money(settings)
    if not settings.routes:
        yield Disagreement(
            ("routes",), "there are none", "write one, or leave `routes` out for Moonshot's models"
        )
    for name, route in settings.routes.items():
        yield from _route(("routes", name), route, targets)
    yield from _names(settings)
    for at, header in enumerate(settings.request_id.upstream_headers):
        if header.lower() in _KEPT_HEADERS:
            problem = f'"{header}" has a meaning of its own'
            yield Disagreement(
                ("request_id", "upstream_headers", at), problem, "name a header such as X-Request-Id"
            )


def _sizes(settings: Settings) -> Iterator[Disagreement]:
    edge = settings.edge
    if edge.body_bytes > edge.held_bytes:
        problem = f"is more than edge.held_bytes ({edge.held_bytes})"
        yield Disagreement(
            ("edge", "body_bytes"), problem, "lower it, or raise edge.held_bytes", ("edge", "held_bytes")
        )
    kept = settings.idempotency
    if kept.answer_bytes > kept.kept_bytes:
        problem = f"is more than idempotency.kept_bytes ({kept.kept_bytes})"
        path = ("idempotency", "answer_bytes")
        other = ("idempotency", "kept_bytes")
        yield Disagreement(path, problem, "lower it, or raise idempotency.kept_bytes", other)


def _processes(settings: Settings) -> Iterator[Disagreement]:
    if settings.listen == settings.admin.listen and settings.listen.port:
        yield Disagreement(
            ("admin", "listen"), "is the same as `listen`", "give one of them another port", ("listen",)
        )
    if settings.workers > 1 and settings.max_concurrent_requests is not None:
        problem = "one worker cannot count the calls of another"
        yield Disagreement(
            ("max_concurrent_requests",), problem, "leave it out, or write workers: 1", ("workers",)
        )
    if len(settings.run.encode()) > LONGEST_RUN:
        problem = f"is longer than {LONGEST_RUN} bytes, and Unix socket paths are short"
        yield Disagreement(("run",), problem, "name a directory with a shorter path")


def _target(path: Path, target: Target) -> Iterator[Disagreement]:
    for name in ("ca_file", "server_name"):
        if getattr(target, name) is not None and not target.url.secure:
            yield Disagreement(
                (*path, name),
                "has no meaning for http",
                "leave it out, or write an https URL",
                (*path, "url"),
            )


def _money(settings: Settings) -> Iterator[Disagreement]:
    """An account is charged in one currency, and rows of prices make sense."""
    first: dict[str, tuple[str, str]] = {}
    for name, target in settings.targets.items():
        other, currency = first.setdefault(target.account, (name, target.currency))
        if currency != target.currency:
            problem = (
                f'is {target.currency}, but target "{other}" charges account "{target.account}" in {currency}'
            )
            path = ("targets", name, "currency")
            yield Disagreement(path, problem, "give it another `account`", ("targets", other, "currency"))
        yield from price_disagreements(("targets", name, "prices"), target.prices, target.currency)
    yield from price_disagreements(("prices",), settings.prices, "")


def price_disagreements(path: Path, rows: Sequence[Price], currency: str) -> Iterator[Disagreement]:
    """What rows of prices disagree on; `currency` is that of the target they are for, empty for rows at the top."""
    seen: set[tuple[str, str, str]] = set()
    for at, row in enumerate(rows):
        here = (*path, at)
        if not currency:
            for name, value in (("model", row.model), ("currency", row.currency)):
                if not value:
                    yield Disagreement(
                        here, f"needs `{name}`", f"write `{name}`, or put the row at its target"
                    )
        elif row.currency not in ("", currency):
            problem = f"is {row.currency}, but the target is charged in {currency}"
            yield Disagreement((*here, "currency"), problem, "leave it out, or set the target's `currency`")
        if row.hit is not None and row.hit > row.miss:
            problem = "is more than `miss`: a hit of the prompt cache never costs more"
            yield Disagreement((*here, "hit"), problem, "exchange them, or leave `hit` out", (*here, "miss"))
        day = (row.model, row.currency, row.since)
        if day in seen:
            problem = f"there are two prices of {row.model or 'every model'} from {row.since} on"
            yield Disagreement(here, problem, "keep one, or give one a later `since`")
        seen.add(day)


def _route(path: Path, route: Route, targets: Collection[str] | None) -> Iterator[Disagreement]:
    if not route.targets:
        yield Disagreement((*path, "targets"), "names no target", "name one or more entries of `targets`")
    seen: set[tuple[str, str]] = set()
    for at, place in enumerate(route.targets):
        here = (*path, "targets", at)
        if targets and place.target not in targets:
            problem = f'there is no target "{place.target}"'
            yield Disagreement(here, problem, known_instead(place.target, list(targets)))
        if (place.target, place.model) in seen:
            yield Disagreement(here, f'"{place.target}" stands twice', "name it once and give it a `weight`")
        seen.add((place.target, place.model))
    for at, successor in enumerate(route.successors):
        if successor == route.model or successor in route.successors[:at]:
            problem = f'"{successor}" is the route\'s own model or stands twice'
            yield Disagreement((*path, "successors", at), problem, "leave it out")


def _names(settings: Settings) -> Iterator[Disagreement]:
    """Whatever a caller may write as `model` must mean one route."""
    owners = {name: name for name in settings.routes}
    for name, route in settings.routes.items():
        for at, alias in enumerate(route.aliases):
            if alias in owners:
                problem = f'"{alias}" already means route {owners[alias]}'
                yield Disagreement(
                    ("routes", name, "aliases", at), problem, "leave it out, or give it another name"
                )
            owners.setdefault(alias, name)
