"""docs/reference/settings.md and its JSON Schema are what the settings say, and the examples on the page are true."""

import re
from pathlib import Path

import pytest
from tools import settings_page

from moongate.core.catalogue import every_setting
from moongate.core.later import LATER
from moongate.core.reading import check, load

TEXT = settings_page.PAGE.read_text("utf-8")
EXAMPLE = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)[0]


@pytest.mark.parametrize(
    ("path", "made"),
    [(settings_page.PAGE, settings_page.page()), (settings_page.SCHEMA, settings_page.schema())],
    ids=["page", "schema"],
)
def test_the_reference_is_up_to_date(path: Path, made: str) -> None:
    assert path.read_text("utf-8") == made, "run `python -m tools.settings_page`"


@pytest.mark.parametrize("path", [path for path, _ in every_setting()])
def test_each_setting_is_documented(path: str) -> None:
    assert f"| `{path}` |" in TEXT


@pytest.mark.parametrize("path", [".".join(later.path) for later in LATER])
def test_each_part_to_come_is_named(path: str) -> None:
    assert re.search(rf"^{re.escape(path)} ", TEXT, re.MULTILINE)


def test_the_example_can_be_used() -> None:
    settings = load(EXAMPLE, origin="page", read_env=lambda _: None, read_file=lambda _: "sk-1")
    assert list(settings.targets) == ["kimi", "own"]


def test_the_mistakes_shown_are_what_is_said() -> None:
    text = "workerz: 1\n\ntargets: {kimi: {url: http://h/v1}}\nedge:\n   body_bytes: 32XB\nroutes:\n"
    text += "  kimi:\n    targets:\n         [ kmi]\n"
    lines, _ = check(text, origin="moongate.yaml", read_env=lambda _: None, read_file=lambda _: "")
    assert "\n".join(lines[:-1]) in TEXT
