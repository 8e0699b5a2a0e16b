"""docs/reference/faults.md is what the fault table says."""

from tools import faults_page


def test_the_page_is_up_to_date() -> None:
    assert faults_page.PAGE.read_text("utf-8") == faults_page.page(), "run `python -m tools.faults_page`"
