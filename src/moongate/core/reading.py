"""Settings as an operator wrote them, to a checked snapshot or all mistakes at once.

The way: YAML to values with places (`core/places`), flags over them (`core/flags`), what is still to come
refused (`core/later`), what depends on other settings filled in (`core/completion`), secrets resolved, each
value checked (`core/verdict`), and at last what settings must agree on (`core/agreement`). What is wrong at
one step is taken out before the next, so that no mistake hides another and none is told twice.
"""

import re
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, Final

from moongate.core.agreement import disagreements
from moongate.core.completion import KEY_VARIABLE, completed, default_targets, host_of, without_nulls
from moongate.core.flags import with_flags
from moongate.core.kinds import WrongError
from moongate.core.later import not_yet
from moongate.core.mistakes import Path, SettingsError
from moongate.core.models import MOONSHOT_HOSTS
from moongate.core.places import ReadFile, Written, matches, why_unread, written
from moongate.core.price_files import with_price_files
from moongate.core.secret import Reference, Secret, is_reference, reference
from moongate.core.section import NAME
from moongate.core.settings import Route, Settings
from moongate.core.verdict import checked

ReadEnv = Callable[[str], str | None]
"""The value of an environment variable, None where it is not set."""

NO_FILE: Final = "defaults"
"""The origin to name where no file was given."""

EVERY_EXTRA: Final = frozenset(("http2",))
"""The extras that a setting may need."""

_NO_KEY: Final = (
    f"set {KEY_VARIABLE}, name another upstream with --kimi-api-url, or write `targets` in a file"
)


def load(
    text: str,
    *,
    origin: str,
    read_env: ReadEnv,
    read_file: ReadFile,
    overrides: Mapping[str, str] | None = None,
    extras: Container[str] = EVERY_EXTRA,
) -> Settings:
    """Read settings from YAML text; an empty one means all defaults.

    `origin` names the text in mistakes. `overrides` are flags of the command line, by name (`core/flags`); `extras`
    are the optional parts of the program that are installed.
    Raises `SettingsError` with every mistake found; a mistake never repeats a secret.
    """
    page = written(text, origin)
    if page.mistakes and not page.values:  # no settings at all: what else could be said would only confuse
        raise SettingsError(page.mistakes)
    of_default = page.values.get("targets") is None
    if of_default:
        page.values["targets"] = default_targets()
    with_flags(page, overrides or {})
    for path, reason in list(not_yet(page.values)):
        page.add(path, f"not yet: {reason}", "leave it out", at_key=True)
        page.drop(path)
    for path in list(_strays(page.values, ())):
        page.add(path, "a reference means something in a secret only", "write the value itself")
        page.drop(path)
    page.values = completed(without_nulls(page.values))
    targets = page.values["targets"]
    names = list(targets) if isinstance(targets, dict) and all(map(NAME.takes, targets)) else None
    _resolve(page, read_env, read_file, of_default=of_default)
    settings = checked(page)
    _open_authorities(page, settings, read_file)
    _miss_extras(page, settings, extras)
    for each in disagreements(settings, names):
        if not page.is_dropped(page.as_written(each.path)) and not (
            each.other and page.is_dropped(each.other)
        ):
            page.add(each.path, each.problem, each.mend)
    settings = with_price_files(page, settings, read_file)
    if page.mistakes:
        raise SettingsError(page.mistakes)
    return settings


def check(
    text: str, *, origin: str, read_env: ReadEnv, read_file: ReadFile, extras: Container[str] = EVERY_EXTRA
) -> tuple[list[str], int]:
    """What `moongate check FILE` prints, and its exit code: 0 if the settings can be used, else 1."""
    try:
        settings = load(text, origin=origin, read_env=read_env, read_file=read_file, extras=extras)
    except SettingsError as error:
        return [*map(str, error.mistakes), _counted(len(error.mistakes), "mistake")], 1
    targets = _counted(len(settings.targets), "target")
    head = f"{origin}: good, {targets}, {_counted(len(settings.routes), 'route')}"
    return [head, *(_shown(name, route) for name, route in settings.routes.items())], 0


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _shown(name: str, route: Route) -> str:
    aliases = f" ({', '.join(route.aliases)})" if route.aliases else ""
    return f"  {name}{aliases} -> {', '.join(leg.target for leg in route.targets)}"


def _resolve(page: Written, read_env: ReadEnv, read_file: ReadFile, *, of_default: bool) -> None:
    """Put secrets in place of their references."""
    for path, value in list(matches(page.values, ("targets", "*", "key"))):
        target: Any = page.values["targets"]
        try:
            target[path[1]]["key"] = Secret(_fetched(reference(value), read_env, read_file))
        except WrongError as error:
            elsewhere = of_default and host_of(target[path[1]].get("url")) not in MOONSHOT_HOSTS
            if not elsewhere:
                page.add(path, error.problem, _NO_KEY if of_default else error.mend)
            page.drop(path)


def _fetched(where: Reference, read_env: ReadEnv, read_file: ReadFile) -> str:
    """A secret's text. Raises `WrongError` if it is missing or cannot stand in a header (RFC 9110, 5.5)."""
    if where.source == "env":
        text = read_env(where.name)
        if text is None:
            raise WrongError(
                f"the environment variable {where.name} is not set", "set it, or refer to another"
            )
    else:
        try:
            text = read_file(where.name)
        except (OSError, UnicodeError) as error:
            problem = f"the file {where.name} cannot be read ({why_unread(error)})"
            raise WrongError(problem, "mend the path or the file's rights") from None
    text = text.strip()
    if re.fullmatch(r"[\x21-\x7e]+", text) is None:
        problem = f"what {where.name} holds is empty or has blanks or characters that no header takes"
        raise WrongError(problem, "store the bare key in it")
    return text


def _strays(value: object, path: Path) -> Iterator[Path]:
    """Where references stand that are not secrets, last ones first."""
    if is_reference(value):
        if (path[0], *path[2:]) != ("targets", "key"):
            yield path
    elif isinstance(value, dict):
        for name, below in value.items():
            yield from _strays(below, (*path, name))
    elif isinstance(value, list):
        for at in reversed(range(len(value))):
            yield from _strays(value[at], (*path, at))


def _miss_extras(page: Written, settings: Settings, extras: Container[str]) -> None:
    for name, target in settings.targets.items():
        if target.protocol == "http2" and "http2" not in extras:
            path, mend = (
                ("targets", name, "protocol"),
                "pip install 'moongate[http2]', or write http1 or auto",
            )
            page.add(path, "HTTP/2 needs libcurl, which is not installed", mend)


def _open_authorities(page: Written, settings: Settings, read_file: ReadFile) -> None:
    for name, target in settings.targets.items():
        if target.ca_file is None:
            continue
        path = ("targets", name, "ca_file")
        try:
            if "-----BEGIN CERTIFICATE-----" not in read_file(target.ca_file):
                page.add(path, f'"{target.ca_file}" holds no certificate', "name a PEM file")
        except (OSError, UnicodeError) as error:
            page.add(
                path,
                f'"{target.ca_file}" cannot be read ({why_unread(error)})',
                "mend the path or the file's rights",
            )
