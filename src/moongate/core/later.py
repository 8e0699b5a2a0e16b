"""Settings whose part is not built yet: refused with the reason, never ignored.

When a part arrives, its rows leave this table and its settings enter `core/settings`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from moongate.core.mistakes import Path
from moongate.core.places import matches


@dataclass(frozen=True, slots=True)
class Later:
    """A setting to come. `*` in the path stands for any name or list position.

    Refused is all but what `works` already.
    """

    path: tuple[str, ...]
    reason: str
    works: tuple[object, ...] = ()


def _each(reason: str, *paths: str) -> tuple[Later, ...]:
    return tuple(Later(tuple(path.split("/")), reason) for path in paths)


LATER: Final[tuple[Later, ...]] = (
    *_each("answers are not cached", "cache", "routes/*/cache"),
    *_each("equal calls in flight are not collapsed", "collapse", "routes/*/collapse"),
    *_each(
        "no limits or budgets are kept",
        "limits",
        "tenants",
        "routes/*/limits",
        "targets/*/limits",
        "targets/*/tier",
    ),
    *_each("calls do not queue", "queue", "routes/*/queue", "targets/*/queue"),
    *_each("nothing is shared through Redis", "redis"),
    *_each(
        "there is no local model to fall back to", "local", "fallback", "routes/*/local", "routes/*/fallback"
    ),
    *_each("there is no FAQ to fall back to", "faq", "routes/*/faq"),
    *_each("no share of the traffic goes to a new version", "canary", "routes/*/canary"),
    *_each("answers are not redacted", "redact", "routes/*/redact", "strict", "routes/*/strict"),
    *_each("callers are known by keys only", "auth", "edge/allow", "edge/deny", "edge/geo"),
    *_each("the ledger is kept in SQLite only", "postgres", "ledger/postgres"),
    *_each("settings come from a file only", "consul"),
    *_each("no traces are exported", "otel"),
    *_each("questions are not packed together", "packing", "routes/*/packing"),
    *_each("there is no shadow report", "shadow"),
    *_each("requests are not repaired", "repairs", "routes/*/repairs", "targets/*/repairs"),
    *_each("breakers and outlier ejection do not exist", "breaker", "routes/*/breaker", "targets/*/breaker"),
    *_each("there is no shared retry budget", "retry_budget", "routes/*/retry_budget"),
    *_each("attempts are not hedged", "hedge", "routes/*/hedge"),
    *_each("calls are not pinned to a target", "affinity", "routes/*/affinity"),
    *_each("conversations are not stored", "conversations", "routes/*/conversations"),
    *_each("alerts and thresholds are not made here", "alerts", "thresholds"),
    *_each("no nginx is configured from here", "nginx", "edge/nginx"),
    *_each(
        "no comments are sent to keep a caller's proxy awake",
        "edge/comment_seconds",
        "routes/*/comment_seconds",
    ),
    *_each("TLS is ended in front of the gateway", "edge/tls", "admin/tls"),
    *_each("there is no console and no login", "console", "admin/console", "admin/login", "admin/users"),
    *_each("logs go to standard output or a file", "log/elasticsearch", "log/syslog"),
    *_each("the Kimi check makes no completion", "health/completion", "health/completion_seconds"),
    Later(("routes", "*", "targets", "*", "weight"), "targets are tried in the order written", works=(1,)),
)


def not_yet(values: Mapping[str, object]) -> Iterator[tuple[Path, str]]:
    """Every setting in a file that is still to come, with the reason. A part is named once, not each key."""
    for later in LATER:
        for path, value in matches(values, later.path):
            if value not in later.works:
                yield path, later.reason
