"""Doubt ends by the provider's word: its book, its statement, or after a time; and the books balance throughout."""

import csv
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.wire.house import House, lived_in, until
from tests.wire.raw import Raw

CANCELS = "routes: {kimi-k2.5: {targets: [kimi], on_abandon: cancel}}\n"
DOUBTS = ("reset_before_head", "empty_200", "json_truncated")


def ledger(house: House, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = house.command("ledger", *words, "--state", str(house.state))
    assert done.returncode == code, done.stdout + done.stderr
    return done


def balanced(house: House) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(ledger(house, "verify", "--json", "--book", address(house)).stdout)
    return told


def address(house: House) -> str:
    return f"http://127.0.0.1:{house.ports['control']}"


def corrections(house: House, *words: str) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = json.loads(ledger(house, "reconcile", "--json", *words).stdout)[
        "corrections"
    ]
    return told


def leave(house: House) -> None:
    """A client asks for a whole answer and leaves before it."""
    with Raw(house.port) as raw:
        raw.post(house.body({"tokens_per_second": 30, "output_tokens": 3000}), house.key)
        time.sleep(0.3)


def test_a_providers_book_settles_and_the_customers_charge_follows(tmp_path: Path) -> None:
    with lived_in(tmp_path, CANCELS) as house:
        house.ask()
        doubted = [house.ask(fault).headers["x-moongate-call-id"] for fault in DOUBTS]
        leave(house)
        house.at_rest()
        before = balanced(house)
        assert (before["by_state"]["ambiguous"], before["ambiguous_charged_for_now"]) == (4, 1)
        planned = corrections(house, "--book", address(house), "--dry-run")
        assert balanced(house)["by_state"] == before["by_state"], "a dry run changes nothing"
        made = corrections(house, "--book", address(house))
        assert [one["attempt_id"] for one in made] == [one["attempt_id"] for one in planned]
        assert {one["after"] for one in made} == {"settled"}
        after = balanced(house)
        assert after["ok"]
        assert (after["by_state"], after["corrected_calls"]) == ({"settled": 5}, 4)
        assert after["book"]["billed_micro"] == after["book"]["charged_micro"], "to the last millionth"
        assert corrections(house, "--book", address(house)) == [], "a second look finds nothing"
        story = house.command("explain", doubted[0], "--state", str(house.state)).stdout
        assert "ends ambiguous, corrected later to settled" in story
        assert "the bill was 0.00 USD, now" in story


def test_what_the_provider_never_ran_is_released(tmp_path: Path) -> None:
    with lived_in(tmp_path) as house:
        doubted = house.ask("500").headers["x-moongate-call-id"]
        house.ask()
        house.at_rest()
        assert corrections(house, "--book", address(house)) == [], "before the book's first execution"
        assert corrections(house, "--book", address(house), "--from", "2020-01-01") == [], "it may come yet"
        [made] = corrections(house, "--book", address(house), "--from", "2020-01-01", "--late", "0")
        assert (made["attempt_id"], made["after"]) == (f"{doubted}-1", "released")
        assert balanced(house)["ok"]


def statement_of(house: House, path: Path, *, leave_out: str = "") -> None:
    """The simulator's book as a provider might export it, one row a request, with days before and after."""
    with path.open("w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(
            ["Request ID", "Created At", "Model Name", "Prompt Tokens", "Completion Tokens", "Cost (USD)"]
        )
        rows.writerow(["old", "2020-01-01T00:00:00Z", "kimi-k2.5", 1, 1, "0.000001"])
        for one in house.executions():
            if one["id"] != leave_out:
                at = datetime.fromtimestamp(one["started"], UTC).isoformat()
                cost = f"${one['cost_micro'] / 1e6:.6f}"
                rows.writerow([one["id"], at, one["model"], one["input_tokens"], one["output_tokens"], cost])
        rows.writerow(["new", "2099-01-01T00:00:00Z", "kimi-k2.5", 1, 1, "0.000001"])


def test_a_statement_is_imported_compared_and_looked_at_by_the_next_round(tmp_path: Path) -> None:
    with lived_in(tmp_path) as house:
        house.ask()
        house.ask("stall_mid_stream;after=1;seconds=0.1", stream=True)
        house.at_rest()
        path = tmp_path / "statement.csv"
        statement_of(house, path)
        told = json.loads(ledger(house, "statement", str(path), "--json").stdout)
        assert (told["new"], told["problems"], told["rows"]) == (True, [], len(house.executions()) + 2)
        today = [day for day in told["days"] if day["ours_micro"]]
        assert [day["ours_micro"] - day["theirs_micro"] for day in today] == [0]
        text = ledger(house, "statement", str(path)).stdout
        assert "it was imported before" in text
        assert "kimi-k2.5" in text
        assert corrections(house) == []
        odd = ledger(house, "statement", str(path), "--column", "cost=Paid", code=2)
        assert "the file has no column Paid; it has Request ID" in odd.stderr
        assert (
            "write it as cost=Amount" in ledger(house, "statement", str(path), "--column", "x", code=2).stderr
        )
        assert "cannot be read" in ledger(house, "statement", str(tmp_path / "gone"), code=2).stderr


def test_what_stays_without_proof_is_written_off_when_it_is_old(tmp_path: Path) -> None:
    with lived_in(tmp_path) as house:
        call_id = house.ask("empty_200").headers["x-moongate-call-id"]
        house.at_rest()
        assert corrections(house) == [], "young, and without proof"
        [made] = corrections(house, "--write-off-days", "0")
        assert (made["before"], made["after"]) == ("ambiguous", "written_off")
        assert "no proof was found in 0 days" in made["why"]
        record = house.record(call_id)
        assert record["attempts"][0]["state"] == "written_off"
        assert balanced(house)["ok"]


def test_a_gateway_fills_in_what_calls_cost_once_their_price_is_known(tmp_path: Path) -> None:
    house = House(tmp_path)
    try:
        settings = house.settings.read_text()
        house.gateway.stop()
        house.settings.write_text(settings.replace("dialect: moonshot", "dialect: moonshot, currency: EUR"))
        house.start_gateway()
        call_id = house.ask().headers["x-moongate-call-id"]
        assert house.record(call_id)["billed_micro"] is None
        missing = ledger(house, "verify", code=1).stdout
        assert "1 attempts of kimi-k2.5 have no price in EUR: write `prices` for it" in missing
        house.gateway.stop()
        priced = "dialect: moonshot, currency: EUR, prices: [{miss: 0.5, output: 2.5}]"
        house.settings.write_text(settings.replace("dialect: moonshot", priced))
        house.start_gateway()
        until(20, lambda: house.record(call_id)["billed_micro"], "its bill is known")
        [attempt] = house.record(call_id)["attempts"]
        assert attempt["price_row"].startswith("*/EUR/1970-01-01#")
        assert "the books balance" in ledger(house, "verify").stdout
        told = json.loads(ledger(house, "report", "--by", "target", "--format", "json").stdout)
        assert told["rows"][0]["money_micro"]["EUR"]["billed"] == attempt["cost_micro"] > 0
    finally:
        house.close()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as somebody else")
def test_root_leaves_no_file_of_its_own_in_the_state_directory(open_folder: Path) -> None:
    house = House(open_folder)
    try:
        house.ask("empty_200")
        house.gateway.stop()
        for path in (house.state, *house.state.rglob("*")):
            os.chown(path, 65534, 65534)
        assert len(corrections(house, "--write-off-days", "0")) == 1
        assert {path.stat().st_uid for path in house.state.rglob("*")} == {65534}
    finally:
        house.close()
