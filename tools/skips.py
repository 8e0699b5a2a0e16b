"""Fail when a test was skipped for want of something that `make test` should have set up.

A test may be left out only for what a checkout cannot bring along; it then says so: its reason starts with
`not here: `. Usage: `skips.py REPORT`, a JUnit file written by pytest.
"""

import sys
from pathlib import Path
from xml.etree import ElementTree as ET


def unexcused(report: Path) -> list[str]:
    """One line for each test that was skipped without a reason that counts."""
    return [
        f"{case.get('classname')}::{case.get('name')}: {skip.get('message')}"
        for case in ET.parse(report).iter("testcase")  # noqa: S314 - written by our own pytest a moment ago
        for skip in case.iter("skipped")
        if skip.get("type") != "pytest.xfail" and not (skip.get("message") or "").startswith("not here: ")
    ]


def main() -> int:
    """Print the unexcused; 1 if there are any."""
    lines = unexcused(Path(sys.argv[1]))
    sys.stderr.writelines(f"ci: skipped without an excuse: {line}\n" for line in lines)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
