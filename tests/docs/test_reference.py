"""Every setting, fault, header, metric and verb stands in docs/reference, and nothing there that is no more."""

import re

import pytest

from tests.docs.vocabulary import PARTS, Part, faults, metrics, paths, settings
from tests.source import ROOT

REFERENCE = ROOT / "docs" / "reference"
WRITTEN = [part for part in PARTS if part.names()]


def quoted(page: str) -> set[str]:
    """What stands in backticks, as it is, in lower case, and as a command without its `moongate`."""
    path = REFERENCE / page
    text = re.sub(
        r"^```.*?^```", "", path.read_text("utf-8") if path.exists() else "", flags=re.DOTALL | re.MULTILINE
    )
    spans = set(re.findall(r"`([^`\n]+)`", text))
    return (
        spans | {s.lower() for s in spans} | {s.removeprefix("moongate ").partition(" [")[0] for s in spans}
    )


@pytest.mark.parametrize("part", WRITTEN, ids=lambda part: part.page)
def test_each_name_is_documented(part: Part) -> None:
    missing = sorted(part.names() - quoted(part.page))
    assert not missing, f"docs/reference/{part.page} lacks {missing}"


def test_no_fault_is_documented_that_does_not_exist() -> None:
    if (REFERENCE / "faults.md").exists():
        codes = {name for name in quoted("faults.md") if re.fullmatch(r"kimi_[a-z_]+", name)}
        assert codes <= faults() | {"kimi_api"}


def test_no_metric_is_documented_that_does_not_exist() -> None:
    if (REFERENCE / "metrics.md").exists():
        named = {name.removesuffix("_total") for name in quoted("metrics.md") if name.startswith("moongate_")}
        assert named <= {name.removesuffix("_total") for name in metrics()}


def test_no_setting_is_documented_that_does_not_exist() -> None:
    tops = {path.partition(".")[0] for path in settings()}
    if tops and (REFERENCE / "settings.md").exists():
        named = {name for name in quoted("settings.md") if "." in name and name.partition(".")[0] in tops}
        known = settings()
        assert {
            name for name in named if not any(path == name or path.startswith(f"{name}.") for path in known)
        } == set()


def test_paths_of_a_schema_are_its_leaves() -> None:
    schema = {
        "properties": {
            "a": {"type": "integer"},
            "b": {"additionalProperties": {"$ref": "#/$defs/B"}},
            "c": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/B"}]},
        }
    }
    definitions = {"B": {"properties": {"d": {}, "e": {"items": {"type": "string"}}}}}
    assert set(paths(schema, definitions, "")) == {"a", "b.*.d", "b.*.e", "c", "c.d", "c.e"}
