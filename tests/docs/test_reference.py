"""Every setting, fault, header, metric and verb stands in docs/reference, and nothing there that is no more."""

import re

import pytest

from moongate.core.faults import Fault
from tests.docs.vocabulary import PARTS, Part, faults, metrics, settings
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
        causes = {fault.value for fault in Fault}
        assert codes <= faults() | causes | {"kimi_api"}


def test_no_metric_is_documented_that_does_not_exist() -> None:
    if (REFERENCE / "metrics.md").exists():
        named = {name.removesuffix("_total") for name in quoted("metrics.md") if name.startswith("moongate_")}
        assert named <= {name.removesuffix("_total") for name in metrics()}


def test_no_setting_is_documented_that_does_not_exist() -> None:
    known = settings()
    tops = {re.split(r"[.\[]", path)[0] for path in known}
    named = {name for name in quoted("settings.md") if re.fullmatch(r"\w+(\[\])?(\.[\w*]+(\[\])?)+", name)}
    strangers = {name for name in named if name.partition(".")[0] in tops} - known
    assert not {
        name for name in strangers if not any(path.startswith((f"{name}.", f"{name}[")) for path in known)
    }
