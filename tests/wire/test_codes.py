"""Every code that clients can read is met over the wire somewhere in this folder, or said to come later."""

import re
from pathlib import Path

from tests.source import ROOT

LATER = {
    "malformed_token": "JWTs are not read yet",
    "user_rate_limited": "no limits yet",
    "region_rate_limited": "no limits yet",
    "budget_exhausted": "no budgets yet",
    "deadline_exceeded": "nothing waits before it is sent yet: a call that late ends in kimi_network_timeout",
}


def test_every_code_is_met_over_the_wire() -> None:
    page = (ROOT / "docs" / "reference" / "faults.md").read_text().partition("## What follows")[0]
    codes = set(re.findall(r"^\| `(\w+)` \| \d", page, re.MULTILINE))
    assert len(codes) > 25
    here = Path(__file__).parent
    told = "".join(path.read_text() for path in here.glob("*.py") if path.name != "test_codes.py")
    assert {code for code in codes if f'"{code}"' not in told} == set(LATER)
