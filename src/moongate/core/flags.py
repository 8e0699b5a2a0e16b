"""What the command line of `moongate serve` may override."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from moongate.core.mistakes import Path, Place
from moongate.core.places import Written, scalar


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag and the setting it writes. `text`: the value is a text even where it looks like a number."""

    path: Path
    text: bool = True


API_URL: Final = "--kimi-api-url"

FLAGS: Final[Mapping[str, Flag]] = {
    "--listen-addr": Flag(("listen",)),
    API_URL: Flag(("targets", "kimi", "url")),
    "--max-concurrent-requests": Flag(("max_concurrent_requests",), text=False),
    "--state": Flag(("state",)),
    "--run": Flag(("run",)),
    "--workers": Flag(("workers",), text=False),
    "--cache-capacity": Flag(("cache", "capacity_bytes")),
    "--redis-url": Flag(("redis", "state")),
    "--kimi-max-gpu-concurrency": Flag(("local", "concurrency"), text=False),
}
"""By name on the command line. Where the part is not built yet, `core/later` refuses the setting."""


def with_flags(page: Written, flags: Mapping[str, str]) -> None:
    """Write flags over what the file says; mistakes in them are told with the flag in place of a line.

    `--kimi-api-url` sets the URL of target `kimi`, or of the only target if that has another name.
    """
    for name, value in flags.items():
        path = _target_url(page) if name == API_URL else FLAGS[name].path
        if path is None:
            page.places["targets",] = Place(name)
            page.add(
                ("targets",),
                "there are several targets and none is called kimi",
                "set their `url` in the file",
            )
            continue
        within = page.values
        for step in path[:-1]:
            below = within.get(str(step))
            if not isinstance(below, dict):
                below = within[str(step)] = {}
            within = below
        number = None if FLAGS[name].text else scalar(value)
        within[str(path[-1])] = value if number is None else number
        page.places[path] = page.keys[path] = Place(name)


def _target_url(page: Written) -> Path | None:
    targets = page.values.get("targets")
    names = list(targets) if isinstance(targets, dict) else []
    if not names or "kimi" in names:
        return FLAGS[API_URL].path
    return ("targets", names[0], "url") if len(names) == 1 else None
