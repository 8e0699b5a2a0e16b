"""The gateway's own life: how it ends, crashes, comes back, and follows what operators change (A5, FAULTS 65, 72)."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.wire.answer import Answer
from tests.wire.house import House, free_port, get, until
from tests.wire.raw import CutError, Raw

SETTINGS = "health: {kimi_seconds: 0.5}\n"
SLOW: Any = {"tokens_per_second": 20, "output_tokens": 20_000}


@contextmanager
def _house(folder: Path, settings: str = "") -> Iterator[House]:
    house = House(folder, settings)
    try:
        yield house
    finally:
        house.close()


class Reader(threading.Thread):
    """One streamed call, read to whatever end it has."""

    def __init__(self, house: House, sim: Any, stream: bool = True) -> None:
        super().__init__()
        self._raw = Raw(house.port)
        self._raw.post(house.body(sim, stream=stream, thinking={"type": "disabled"}), house.key)
        self.answer: Answer | None = None
        self.cut = False
        self.start()

    def run(self) -> None:
        with self._raw as raw:
            try:
                self.answer = raw.answer()
                assert raw.at_end
            except (CutError, ConnectionResetError):
                self.cut = True


def test_a_drain_lets_streams_finish_and_ends_the_rest_honestly(tmp_path: Path) -> None:
    with _house(tmp_path, "drain: {grace_seconds: 2}\n") as house:
        short = [Reader(house, {"tokens_per_second": 20, "output_tokens": 30}) for _ in range(40)]
        long = [Reader(house, SLOW) for _ in range(10)]
        plain = Reader(house, {"fault": "stall_before_head"}, stream=False)
        until(10, lambda: house.sim("/_sim/book/totals")["open"] == 51, "all of them run")
        told = time.monotonic()
        house.gateway.child.send_signal(signal.SIGTERM)
        until(1, lambda: not _ready(house), "it is ready no more")
        assert house.sim("/_sim/book/totals")["open"] > 10
        assert house.gateway.child.wait(10) == 0
        assert 1.9 < time.monotonic() - told < 6
        for reader in (*short, *long, plain):
            reader.join(5)
        for reader in short:
            assert reader.answer is not None
            assert reader.answer.events[-1] == "[DONE]"
        for reader in long:
            assert reader.answer is not None
            assert reader.answer.error["code"] == "gateway_draining"
            assert reader.answer.text
        assert plain.answer is not None
        assert (plain.answer.status, plain.answer.error["code"]) == (503, "gateway_draining")
        assert plain.answer.headers["x-should-retry"] == "false"
        assert house.sim("/_sim/book/totals")["open"] == 0
        ended = house.rows("SELECT outcome, code, COUNT(*) AS n FROM calls GROUP BY 1, 2 ORDER BY 3")
        assert [tuple(row.values()) for row in ended] == [
            ("failed", "gateway_draining", 1),
            ("truncated", "gateway_draining", 10),
            ("completed", "", 40),
        ]
        states = house.rows("SELECT state, COUNT(*) AS n FROM attempts GROUP BY 1 ORDER BY 2")
        assert [tuple(row.values()) for row in states] == [
            ("ambiguous", 1),
            ("settled_est", 10),
            ("settled", 40),
        ]
        house.audit()


def _ready(house: House) -> bool:
    try:
        return get(house.port, "/readyz")[0] == 200
    except OSError:
        return False


def test_a_killed_worker_loses_no_row_and_is_replaced(tmp_path: Path) -> None:
    with _house(tmp_path) as house:
        whole = [house.ask(stream=True) for _ in range(5)]
        cut = [Reader(house, SLOW) for _ in range(3)]
        until(10, lambda: house.sim("/_sim/book/totals")["open"] == 3, "they run")
        time.sleep(0.3)
        [pid] = house.worker_pids()
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        for reader in cut:
            reader.join(5)
            assert reader.cut
        until(5, lambda: _ready(house), "another one serves")
        assert time.monotonic() - killed < 4
        assert house.worker_pids() != [pid]
        assert house.ask().status == 200
        assert house.total("moongate_worker_restarts_total") == 1
        until(
            10, lambda: len(house.rows("SELECT 1 FROM calls WHERE outcome <> ''")) == 9, "every row is there"
        )
        rows = house.rows("SELECT state, cause FROM attempts")
        lost = [row for row in rows if row["state"] != "settled"]
        assert len(lost) == 3
        assert {(row["state"], row["cause"]) for row in lost} == {("ambiguous", "gateway_crash")}
        assert len(rows) == 9
        for answer in whole:
            assert house.record(answer.call_id)["outcome"] == "completed"
        until(3, lambda: house.sim("/_sim/book/totals")["open"] == 0, "upstream noticed")
        house.audit()


def test_a_crash_of_everything_is_recovered_at_the_next_start(tmp_path: Path) -> None:
    with _house(tmp_path) as house:
        assert house.ask().status == 200
        reader = Reader(house, SLOW)
        until(10, lambda: house.sim("/_sim/book/totals")["open"] == 1, "it runs")
        pids = house.worker_pids()
        house.gateway.child.kill()
        house.gateway.child.wait()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        reader.join(5)
        assert reader.cut
        house.start_gateway()
        assert house.ask().status == 200
        until(
            10, lambda: len(house.rows("SELECT 1 FROM calls WHERE outcome <> ''")) == 3, "all rows are there"
        )
        states = house.rows("SELECT state, COUNT(*) AS n FROM attempts GROUP BY 1 ORDER BY 2")
        assert [tuple(row.values()) for row in states] == [("ambiguous", 1), ("settled", 2)]
        house.audit()


def test_keys_come_and_go_without_a_restart(house: House) -> None:
    key = house.add_key("beta", "--label", "till")
    bearer = {"Authorization": f"Bearer {key}"}
    until(3, lambda: house.ask(headers=bearer).status == 200, "the new key opens")
    listed = house.command("keys", "list", "--state", str(house.state)).stdout
    assert "beta" in listed
    assert key not in listed
    [line] = [line for line in listed.splitlines() if "till" in line]
    key_id = next(word for word in line.split() if word.startswith("k_"))
    with Raw(house.port) as raw:
        raw.post(house.body({"tokens_per_second": 20, "output_tokens": 30}, stream=True), key)
        raw.until(b"\n\n")
        done = house.command("keys", "revoke", key_id, "--state", str(house.state))
        assert done.returncode == 0, done.stderr
        until(3, lambda: house.ask(headers=bearer).status == 401, "the revoked key does not")
        assert b"[DONE]" in raw.until(b"0\r\n\r\n")
    assert {row["tenant"] for row in house.rows("SELECT tenant FROM calls")} <= {"acme", "beta"}


def test_health_turns_with_the_provider_and_costs_nothing(house: House) -> None:
    def kimi() -> str:
        status, body = get(house.port, "/healthz")
        word = body.decode().partition('"kimi_api":"')[2].partition('"')[0]
        assert status == (200 if word == "ok" else 503), body
        return word

    until(5, lambda: kimi() == "ok", "well at first")
    house.tell_sim("POST", "/_sim/switch", {"host": "kimi", "down": True})
    began = time.monotonic()
    until(5, lambda: kimi() == "kimi_network_unreachable", "it is seen to be down")
    assert house.total("moongate_upstream_up", target="kimi") == 0
    assert house.ask().error["code"] == "kimi_network_unreachable"
    house.tell_sim("POST", "/_sim/switch", {"host": "kimi", "down": False})
    until(5, lambda: kimi() == "ok", "it is seen to be back")
    assert time.monotonic() - began < 12
    assert house.ask().status == 200
    assert len(house.executions()) == 1
    body = get(house.port, "/healthz")[1]
    assert b'"nginx":"off"' in body
    assert b'"redis":"off"' in body


MISTAKEN = """listen: 127.0.0.1:99999
targts: {}
targets:
  kimi: {url: "ftp://x", key: plain}
routes:
  kimi-k2.5: {targets: [moon]}
redis: {state: "redis://x"}
"""


def test_check_tells_every_mistake_at_once(house: House, tmp_path: Path) -> None:
    good = house.command("check", str(house.settings))
    assert good.returncode == 0, good.stdout
    bad = tmp_path / "bad.yaml"
    bad.write_text(MISTAKEN)
    told = house.command("check", str(bad))
    assert told.returncode == 1
    for line, word in ((1, "listen"), (2, "targets"), (4, "url"), (4, "key"), (6, "moon"), (7, "not yet")):
        assert any(f":{line}" in each and word in each for each in told.stdout.splitlines()), (
            line,
            word,
            told.stdout,
        )
    serving = house.command("serve", "-c", str(bad), "--state", str(tmp_path / "none"))
    assert serving.returncode == 2
    assert sorted(serving.stderr.splitlines()) == sorted(
        each for each in told.stdout.splitlines() if each in serving.stderr
    )
    assert not (tmp_path / "none").exists()


def test_flags_override_the_file(tmp_path: Path) -> None:
    with _house(tmp_path) as house:
        house.gateway.stop()
        other = tmp_path / "other"
        house.state, old = other, house.state
        house.key = house.add_key("acme")
        flags = ["--state", str(other), "--max-concurrent-requests", "1"]
        house.port = free_port()
        flags += ["--listen-addr", f"127.0.0.1:{house.port}"]
        house.start_gateway(*flags)
        answers: list[Answer] = []
        threads = [
            threading.Thread(target=lambda: answers.append(house.ask({"first_token": 1.0})))
            for _ in range(12)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        refused = [answer for answer in answers if answer.status != 200]
        assert len(refused) == 11
        for answer in refused:
            assert (answer.status, answer.error["code"]) == (503, "gateway_overloaded")
            assert (answer.headers["x-should-retry"], answer.headers["retry-after"]) == ("true", "1")
        until(
            10, lambda: len(house.rows("SELECT 1 FROM calls")) == 12, "both workers' calls are in one ledger"
        )
        assert house.total("moongate_calls_total") == 12
        assert old.exists()
        house.gateway.stop()
        later = house.command("serve", "-c", str(house.settings), "--redis-url", "redis://127.0.0.1/0")
        assert later.returncode == 2
        assert "not yet" in later.stderr


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz"])
def test_health_needs_no_key(house: House, path: str) -> None:
    status, body = get(house.port, path)
    assert (status, b'"status":"ok"' in body) == (200, True)
