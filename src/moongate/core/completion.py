"""Defaults that depend on other settings, written into the values of a file before they are checked."""

from collections.abc import Iterator
from typing import Final

from moongate.core.catalogue import Setting, all_settings
from moongate.core.models import MOONSHOT_HOSTS
from moongate.core.section import NAME, PATH
from moongate.core.settings import PRESETS, Settings, model_routes

Values = dict[str, object]

KEY_VARIABLE: Final = "MOONSHOT_API_KEY"
"""The environment variable that holds the key where no file names targets."""


def default_targets() -> Values:
    """Moonshot's platform, as a file could write it."""
    key = f"${{env:{KEY_VARIABLE}}}"
    return {"kimi": {"url": "https://api.moonshot.ai/v1", "key": key, "dialect": "moonshot"}}


def without_nulls(values: Values, level: tuple[Setting, ...] | None = None) -> Values:
    """The same without known keys that are null: they mean their default. A null entry of a name is empty.

    `level` are the settings that may stand here; None: those at the top.
    """
    known = {each.name: each for each in (all_settings() if level is None else level)}
    kept: Values = {}
    for name, value in values.items():
        setting = known.get(name)
        if setting is None:
            kept[name] = value
        elif value is not None:
            kept[name] = _pruned(value, setting)
    return kept


def _pruned(value: object, setting: Setting) -> object:
    inside = setting.within
    if setting.shape == "list" and isinstance(value, list):
        return [without_nulls(item, inside) if isinstance(item, dict) else item for item in value]
    if not isinstance(value, dict):
        return value
    if setting.shape == "one":
        return without_nulls(value, inside)
    entries = {name: {} if entry is None else entry for name, entry in value.items()}
    return {
        n: without_nulls(entry, inside) if isinstance(entry, dict) else entry for n, entry in entries.items()
    }


def completed(values: Values) -> Values:
    """The same with every default that depends on others. What is wrong is left alone, and nothing follows it."""
    state = values.get("state", Settings().state)
    if PATH.takes(state):
        values.setdefault("run", f"{state}/run")
    targets = values.get("targets")
    names = [name for name in targets if NAME.takes(name)] if isinstance(targets, dict) else []
    if names:
        values.setdefault(
            "routes", {name: {"targets": list(names), **r} for name, r in model_routes().items()}
        )
    for name, target in _entries(values, "targets"):
        if NAME.takes(name):
            target.setdefault("account", name)
        target.setdefault(
            "dialect", "moonshot" if host_of(target.get("url")) in MOONSHOT_HOSTS else "generic"
        )
        target.setdefault("currency", "CNY" if host_of(target.get("url")).endswith(".cn") else "USD")
    for name, route in _entries(values, "routes"):
        _complete_route(name, route, targets if isinstance(targets, dict) else {})
    return values


def _complete_route(name: str, route: Values, targets: Values) -> None:
    if NAME.takes(name):
        route.setdefault("model", name)
    timeouts = route.get("timeouts")
    if isinstance(timeouts, dict) and isinstance(preset := timeouts.get("preset"), str):
        route["timeouts"] = {**PRESETS.get(preset, {}), **timeouts}
    places = route.get("targets")
    if not isinstance(places, list):
        return
    for at, place in enumerate(places):
        leg = {"target": place} if isinstance(place, str) else place
        if isinstance(leg, dict):
            target = targets.get(str(leg.get("target")))
            own = target.get("model") if isinstance(target, dict) else None
            model = route.get("model") if own is None else own
            places[at] = {"model": model, **leg} if NAME.takes(model) else leg


def _entries(values: Values, part: str) -> Iterator[tuple[str, Values]]:
    entries = values.get(part)
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        if isinstance(entry, dict):
            yield name, entry


def host_of(url: object) -> str:
    """The host of a URL that may yet prove wrong, without its port."""
    return url.partition("://")[2].partition("/")[0].partition(":")[0].lower() if isinstance(url, str) else ""
