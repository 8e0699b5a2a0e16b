"""`moongate explain`: a call is found by any id it has, and its story says what happened, gateway or not."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.wire.house import House

HOSTS: list[dict[str, Any]] = [{"name": "alpha"}, {"name": "beta"}]
PRICES = "prices: [{model: kimi-k2.5, currency: USD, since: 2026-01-01, hit: 0.05, miss: 0.5, output: 2}]\n"


def told(house: House, name: str, *more: str) -> tuple[int, str]:
    done = house.command("explain", name, "--state", str(house.state), *more)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_a_call_is_found_by_every_id_that_somebody_may_have(house: House) -> None:
    answer = house.ask(headers={"X-Request-Id": "ticket-77", "X-Session-Id": "talk-5"})
    call_id = answer.headers["x-moongate-call-id"]
    record = house.record(call_id)
    [attempt] = record["attempts"]
    names = [
        call_id,
        "ticket-77",
        f"{call_id}-1",
        attempt["provider_request_id"],
        attempt["provider_trace_id"],
    ]
    names.append(json.loads(answer.body)["id"])
    if record["session"]:
        names.append(record["session"])
    for name in names:
        code, text = told(house, name)
        assert code == 0, name
        assert text.startswith(f"call {call_id}  completed 200 in "), name


def test_a_rescued_call_tells_both_attempts_and_which_rule_let_it_go_on(house: House) -> None:
    house.tell_sim(
        "POST", "/_sim/script", {"rules": [{"match": {"host": "alpha"}, "fault": "engine_overloaded"}]}
    )
    answer = house.ask()
    code, text = told(house, answer.headers["x-moongate-call-id"])
    assert (code, answer.headers["x-moongate-attempts"]) == (0, "2")
    assert "core/faults.rule(kimi_engine_overloaded, head) -> paced" in text
    assert "attempt 2  beta" in text
    assert "\x1b" not in text, "plain when it is piped"


def test_the_price_and_who_counted_are_told(tmp_path: Path) -> None:
    house = House(tmp_path, PRICES)
    try:
        answer = house.ask("usage_missing", stream=True)
        code, text = told(house, answer.headers["x-moongate-call-id"])
        assert code == 0
        assert "source counted   [core/charging.counted]" in text
        assert "(hit 0.05, miss 0.5, output 2 USD a million tokens)" in text
        assert "price kimi-k2.5/USD/2026-01-01#" in text
    finally:
        house.close()


def test_several_calls_of_one_name_are_listed(house: House) -> None:
    made = [
        house.ask(headers={"X-Request-Id": "twice-asked"}).headers["x-moongate-call-id"] for _ in range(2)
    ]
    code, text = told(house, "twice-asked")
    assert code == 0
    assert text.startswith("2 calls bear the id twice-asked; name one of them:")
    assert all(f"moongate explain {name}" in text for name in made)
    _, document = told(house, "twice-asked", "--json")
    assert [one["record"]["call_id"] for one in json.loads(document)["calls"]] == made


def test_json_has_the_record_and_the_story(house: House) -> None:
    call_id = house.ask().headers["x-moongate-call-id"]
    code, document = told(house, call_id, "--json")
    [call] = json.loads(document)["calls"]
    assert code == 0
    assert call["record"]["attempts"][0]["state"] == "settled"
    assert {"part": "cache", "what": "off", "at": None, "decided": ""} in call["story"]


def test_an_id_that_nothing_bears_is_answered_with_where_else_to_look(house: House) -> None:
    house.ask()
    code, text = told(house, "0123456789abcdef0123456789ab")
    assert code == 1
    for words in ("its form is that of a call made at", "log.access", "--state", "without a valid key"):
        assert words in text
    code, document = told(house, "no\x1b[31m'such", "--json")
    assert code == 1
    assert any("grep -F 'no?[31m'\\''such'" in line for line in json.loads(document)["elsewhere"])


def test_it_works_on_a_stopped_gateways_directory_and_on_an_empty_one(tmp_path: Path) -> None:
    house = House(tmp_path)
    try:
        call_id = house.ask().headers["x-moongate-call-id"]
        house.gateway.stop()
        code, text = told(house, call_id)
        assert (code, "completed" in text) == (0, True)
        (house.state / "ledger.db").unlink()
        assert told(house, call_id)[0] == 0, "the journals alone suffice"
        empty = tmp_path / "empty"
        (empty / "journal").mkdir(parents=True)
        done = house.command("explain", "x", "--state", str(empty))
        assert (done.returncode, "this ledger has no calls" in done.stdout) == (1, True)
    finally:
        house.close()


@pytest.mark.parametrize("name", ["", "a"])
def test_a_name_that_is_none_is_found_nowhere(house: House, name: str) -> None:
    house.ask()
    assert told(house, name)[0] == 1
