"""The ledger held against the simulated provider's book through the command line, beside a gateway and without one."""

import contextlib
import http.client
import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.wire.house import House, lived_in, until
from tests.wire.raw import Raw

FAULTS = (
    *("usage_missing", "usage_negative", "usage_inconsistent", "reset_before_head", "reset_mid_stream"),
    *("close_mid_stream", "chunk_truncated", "500", "rate_limit_rpm", "empty_200", "error_event_mid_stream"),
)


def verify(house: House, *more: str, book: bool = True) -> tuple[int, dict[str, Any]]:
    against = ["--book", f"http://127.0.0.1:{house.ports['control']}"] if book else []
    done = house.command("ledger", "verify", "--state", str(house.state), "--json", *against, *more)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def misbehave(house: House) -> None:
    """Calls that go well, break, are counted and are left, plain and streamed, in two languages."""
    chinese = [{"role": "user", "content": "你好月亮大门" * 80}]
    for stream in (False, True):
        house.ask(stream=stream)
        for fault in FAULTS:
            if stream or "mid_stream" not in fault:
                house.ask(fault, stream=stream)
        house.ask({"fault": "usage_missing", "language": "zh"}, stream=stream, messages=chinese)
    house.ask({"fault": "reset_mid_stream", "language": "zh"}, stream=True, messages=chinese)
    for read in (b"HTTP/1.1 200", b'"content":"'):
        with Raw(house.port) as raw:
            raw.post(house.body({"tokens_per_second": 30, "output_tokens": 3000}, stream=True), house.key)
            raw.until(read)


def test_the_books_balance_whatever_went_wrong(house: House) -> None:
    misbehave(house)
    house.at_rest()
    code, told = verify(house)
    assert (code, told["ok"], told["findings"]) == (0, True, [])
    book = told["book"]
    assert book["executions"] == len(house.executions())
    assert book["calls_paid_twice"] == 0
    assert min(book["settled"], book["settled_est"], book["ambiguous"]) >= 2
    assert book["billed_micro"]["USD"] <= book["charged_micro"]["USD"]
    streamed = [one for one in book["estimated"] if one["output_theirs"] == one["output"]]
    assert len(streamed) >= 8, "on a stream the count is exact"
    assert all(one["input"] == one["input_theirs"] for one in book["estimated"])


def test_hits_of_the_prompt_cache_are_counted_as_such_on_a_stream_that_breaks(house: House) -> None:
    house.begin()
    messages = [{"role": "user", "content": "a long prompt that the provider keeps " * 60}]
    house.ask(messages=messages)
    answer = house.ask("reset_mid_stream", stream=True, messages=messages)
    record = house.record(answer.headers["x-moongate-call-id"])
    [attempt] = record["attempts"]
    assert (attempt["state"], attempt["cached"] > 0) == ("settled_est", True)
    code, told = verify(house)
    assert (code, told["findings"]) == (0, [])


def test_beside_a_running_gateway_calls_that_run_are_no_findings(house: House) -> None:
    house.begin()
    with Raw(house.port) as raw:
        raw.post(house.body({"tokens_per_second": 5, "output_tokens": 500}, stream=True), house.key)
        raw.until(b'"content":"')
        code, told = verify(house)
        assert (code, told["findings"]) == (0, [])
        assert told["calls"]["open"] == told["book"]["running"] == 1
    house.at_rest()


_QUICK = "routes: {kimi-k2.5: {targets: [kimi], timeouts: {head: 2, first_event: 2, idle: 1, total: 4}}}\n"
_LEFT_OUT = frozenset(
    (
        "thinking_only",  # its usage is more than its book charges: that is found, and right so
        "gzip_bomb",  # it keeps the simulator's only thread for seconds
        *("down", "auth_401", "forbidden_403", "ip_403", "wrong_key_401"),  # nothing runs after these
        *("quota_403", "quota_credit", "quota_exhausted"),
    )
)


def test_the_books_balance_under_every_fault_of_the_catalogue(tmp_path: Path) -> None:
    house = House(tmp_path, _QUICK)
    try:
        names = sorted({one["name"] for one in house.sim("/_sim/faults")["faults"]} - _LEFT_OUT)
        assert len(names) >= 90

        def ask(number: int) -> None:
            stream = bool(number % 2)
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                house.ask({"fault": names[number // 2], "seconds": 3}, stream=stream)

        with ThreadPoolExecutor(8) as clients:
            list(clients.map(ask, range(2 * len(names))))
        until(20, lambda: house.total("moongate_in_flight") == 0, "no call in flight")
        until(20, lambda: house.sim("/_sim/book/totals")["open"] == 0, "no execution upstream")
        code, told = verify(house)
        assert (code, told["findings"]) == (0, [])
        assert sum(told["calls"].values()) == 2 * len(names)
        assert told["book"]["executions"] == len(house.executions())
    finally:
        house.close()


def tamper(house: House, state: str | None) -> None:
    """Change the only record behind the gateway's back: its attempt's state, or what it cost."""
    with closing(sqlite3.connect(house.state / "ledger.db")) as db, db:
        [(text, cost)] = db.execute("SELECT record, billed_micro FROM records").fetchall()
        changed = (
            text.replace('"settled"', f'"{state}"') if state else text.replace(f",{cost},", f",{cost + 1},")
        )
        assert changed != text
        db.execute("UPDATE records SET record = ?", (changed,))


@pytest.mark.parametrize(
    ("state", "kind"), [(None, "settled_differs"), ("released", "released_charged"), ("sent", "left_open")]
)
def test_a_ledger_that_was_changed_is_found_out_on_a_stopped_gateways_directory(
    tmp_path: Path, state: str | None, kind: str
) -> None:
    house = House(tmp_path)
    try:
        house.ask()
        house.gateway.stop()
        assert verify(house)[0] == 0
        tamper(house, state)
        code, told = verify(house)
        assert code == 1
        assert kind in [finding["kind"] for finding in told["findings"]]
        words = house.command("ledger", "verify", "--state", str(house.state), "--book", "/no/such/file")
        assert words.returncode == 2
        assert "/no/such/file cannot be read" in words.stderr
    finally:
        house.close()


def test_without_a_ledger_or_with_a_time_that_is_none_it_says_what_to_write(tmp_path: Path) -> None:
    with lived_in(tmp_path) as house:
        house.ask()
        nowhere = house.command("ledger", "verify", "--state", str(tmp_path / "nowhere"))
        assert (nowhere.returncode, nowhere.stdout) == (2, "")
        assert "name the gateway's state directory with --state" in nowhere.stderr
        odd = house.command("ledger", "verify", "--state", str(house.state), "--from", "yesterday")
        assert odd.returncode == 2
        assert "write 2026-11-30" in odd.stderr
        later = house.command("ledger", "verify", "--state", str(house.state), "--from", "2999-01-01")
        assert later.returncode == 0
        assert "calls         0: none" in later.stdout
        plain = house.command("ledger", "verify", "--state", str(house.state))
        assert plain.stdout.splitlines()[-1] == "the books balance"
        assert "\x1b" not in plain.stdout
