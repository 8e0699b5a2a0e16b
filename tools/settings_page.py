"""Write docs/reference/settings.md and settings.schema.json from the settings themselves.

Run it as `python -m tools.settings_page` after a setting was added or changed; a test holds the pages to it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from moongate.core.catalogue import Setting, all_settings, every_setting, json_schema
from moongate.core.flags import FLAGS
from moongate.core.kinds import Bytes
from moongate.core.later import LATER
from moongate.core.settings import PRESETS

REFERENCE: Final = Path(__file__).parent.parent / "docs" / "reference"
PAGE: Final = REFERENCE / "settings.md"
SCHEMA: Final = REFERENCE / "settings.schema.json"

_HEAD: Final = """\
# Settings

<!-- Written by `python -m tools.settings_page`; change the settings or that program, not this page. -->

No file is needed: without one moongate serves Kimi's models from Moonshot's platform with the key in the
environment variable `MOONSHOT_API_KEY`. A file is named with `moongate serve -c FILE`, and whatever it leaves out
has the default given here. `moongate check FILE` tells whether a file can be used, with every mistake in it at once:

```
moongate.yaml:1:1: workerz: unknown setting; did you mean "workers"?
moongate.yaml:5:16: edge.body_bytes: "32XB" is not a size; write bytes, or a size such as "64KB", "32MB" or "12GB"
moongate.yaml:9:12: routes.kimi.targets[0]: there is no target "kmi"; did you mean "kimi"?
```

A file that says something:

```yaml
listen: 0.0.0.0:8080
targets:
  kimi:
    url: https://api.moonshot.ai/v1
    key: ${file:/run/credentials/moongate/kimi}
  own:
    url: http://10.0.0.7:8000/v1
    dialect: vllm
    model: moonshotai/Kimi-K2.5
routes:
  kimi-k2.5:
    aliases: [kimi-2.5]
    targets: [kimi, own]
    successors: [kimi-k2.6]
```

## How values are written

- The file is YAML in UTF-8. Only `true` and `false` are true and false: `off`, `no` and `on` are words. A key that
  stands twice is a mistake. Anchors, aliases and merge keys may be used.
- A size is a number of bytes, or a number with KB, MB, GB or TB: powers of 1024.
- A duration is a number of seconds, or a number with ms, s, m, h or d.
- A secret never stands in the file. `${env:NAME}` takes it from the environment, `${file:PATH}` from a file, less the
  blanks around it. It is read once, when the settings are, and is never printed.
- `null`, or nothing, means the default.
- Relative paths start at the working directory.
- `*` stands for a name that you choose, `[]` for each item of a list.

An editor that knows JSON Schema can help with [settings.schema.json](settings.schema.json).
"""

_FLAGS: Final = """
## Flags of `moongate serve`

A flag wins over the file.

| flag | writes |
|---|---|
"""

_LATER: Final = """
## Not yet

These are refused with `not yet` and the reason, never ignored, until their part is built.

```
"""


def page() -> str:
    """The reference page as it should be."""
    parts = [
        _HEAD,
        *_tables(),
        "\n## What a preset of `routes.*.timeouts` means\n",
        *_presets(),
        _FLAGS,
        *_flags(),
    ]
    return "".join([*parts, _LATER, *_later(), "```\n"])


def schema() -> str:
    """The JSON Schema as it should be."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _tables() -> Iterator[str]:
    """One table for each section: first what stands at the top, then sections in order."""
    yield "\n## At the top\n\n"
    yield from _table("", all_settings())
    for path, setting in every_setting():
        if setting.within:
            inside = path + {"one": "", "list": "[]", "names": ".*"}[setting.shape]
            yield f"\n## `{inside}`\n\n{setting.about}\n\n"
            yield from _table(f"{inside}.", setting.within)


def _table(prefix: str, level: tuple[Setting, ...]) -> Iterator[str]:
    yield "| setting | written as | default | meaning |\n|---|---|---|---|\n"
    for setting in level:
        if setting.kind is None:
            what = {"one": "section", "list": "list", "names": "mapping"}[setting.shape]
        else:
            what = {"list": "list, each: "}.get(setting.shape, "") + setting.kind.word
        yield f"| `{prefix}{setting.name}` | {what} | {_default(setting)} | {setting.note} |\n"


def _default(setting: Setting) -> str:
    value = setting.default
    if setting.required:
        return "must be written"
    if setting.kind is None or value == "":
        return "see there" if setting.shape == "one" and setting.kind is None else "see meaning"
    if isinstance(setting.kind, Bytes) and isinstance(value, int):
        unit, size = next(((u, s) for u, s in (("MB", 1024**2), ("KB", 1024)) if value % s == 0), ("", 1))
        return f"`{value // size}{unit}`"
    if isinstance(value, float):
        return f"`{value:g}`"
    if isinstance(value, list):
        return f"`[{', '.join(value)}]`"
    return f"`{json.dumps(value).strip(chr(34))}`"


def _presets() -> Iterator[str]:
    yield "\nWhat is not named stays at its default.\n\n| preset | seconds |\n|---|---|\n"
    for name, values in PRESETS.items():
        yield f"| `{name}` | {', '.join(f'{phase} {seconds:g}' for phase, seconds in values.items()) or 'as above'} |\n"


def _flags() -> Iterator[str]:
    later = {each.path[0] for each in LATER if len(each.path) == 1}
    for name, flag in FLAGS.items():
        target = "not yet" if flag.path[0] in later else f"`{flag.path[0]}`"
        text = "`url` of target `kimi`, or of the only target" if len(flag.path) > 2 else target
        yield f"| `{name}` | {text} |\n"


def _later() -> Iterator[str]:
    width = max(len(".".join(each.path)) for each in LATER)
    for each in sorted(LATER, key=lambda each: each.path):
        only = f" (other than {each.works[0]})" if each.works else ""
        yield f"{'.'.join(each.path):<{width}}  {each.reason}{only}\n"


def main() -> None:
    """Write both files."""
    REFERENCE.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    SCHEMA.write_text(schema(), encoding="utf-8")


if __name__ == "__main__":
    main()
