"""`moongate ledger report` says what the provider's book says, in three forms."""

import csv
import io
import json
from typing import Any

from tests.wire.house import House

HOSTS: list[dict[str, Any]] = [{"name": "alpha"}, {"name": "beta"}]


def told(house: House, *words: str) -> str:
    done = house.command("ledger", "report", "--state", str(house.state), *words)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_the_report_is_what_the_provider_charges(house: House) -> None:
    house.ask()
    house.ask(stream=True)
    house.ask("reset_mid_stream", stream=True)
    house.ask("empty_200")
    house.at_rest()
    document = json.loads(told(house, "--by", "target", "--format", "json"))
    [row] = document["rows"]
    assert row["target"] == "alpha"
    assert row["outcomes"] == {"completed": 2, "failed": 1, "truncated": 1}
    assert (row["attempts_in_doubt"], row["attempts_counted"]) == (1, 1)
    money = row["money_micro"]["USD"]
    whole = [one for one in house.executions() if one["how"] == "completed"]
    assert money["settled"] == sum(one["cost_micro"] for one in whole)
    assert money["billed"] == money["settled"] + money["counted"]
    assert row["tokens"]["input"] == sum(
        one["input_tokens"] for one in house.executions() if one["how"] != "empty_200"
    )
    assert document["total"]["money_micro"] == row["money_micro"]


def test_csv_has_a_line_a_group_and_columns_for_each_currency(house: House) -> None:
    house.ask()
    house.post(house.body(model="=cmd()"))
    rows = list(csv.DictReader(io.StringIO(told(house, "--by", "tenant", "--by", "day", "--format", "csv"))))
    assert [row["tenant"] for row in rows] == ["acme"]
    assert float(rows[0]["billed_USD"]) > 0
    assert int(rows[0]["calls"]) >= 2


def test_the_table_is_plain_when_piped_and_an_empty_time_has_no_rows(house: House) -> None:
    house.ask("empty_200")
    text = told(house)
    assert text.splitlines()[0].split()[:2] == ["day", "calls"]
    assert "attempts are in doubt" in text
    assert "\x1b" not in text
    empty = json.loads(told(house, "--from", "2001-01-01", "--to", "2001-01-02", "--format", "json"))
    assert (empty["rows"], empty["total"]["calls"]) == ([], 0)
