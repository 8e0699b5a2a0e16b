"""Where the supervisor looks, for nothing: at lists of models, balances and gauges, as the settings name targets."""

from moongate.core.gauges import NAMES
from moongate.core.settings import Settings
from moongate.upstream.probes import Look


def models(settings: Settings) -> list[Look]:
    """The list of models of every target."""
    return [Look.of(name, target, f"{target.url.path}/models") for name, target in settings.targets.items()]


def balances(settings: Settings) -> dict[str, Look]:
    """The balance of each account whose provider has one and tells it for nothing."""
    found: dict[str, Look] = {}
    for name, target in settings.targets.items():
        if target.dialect == "moonshot":
            found.setdefault(target.account, Look.of(name, target, f"{target.url.path}/users/me/balance"))
    return found


def gauges(settings: Settings) -> list[tuple[Look, str]]:
    """The metrics page of each self-hosted target: beside the base of its API, which ends in a version; its dialect."""
    return [
        (Look.of(name, target, f"{target.url.path.removesuffix('/v1')}/metrics"), target.dialect)
        for name, target in settings.targets.items()
        if target.dialect in NAMES
    ]
