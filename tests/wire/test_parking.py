"""What Kimi refuses for good is parked: in the control document, for all workers, until it is released."""

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.wire.house import House, get, lived_in, until
from tests.wire.parking import parks, release

HOSTS: list[dict[str, Any]] = [{"name": "alpha"}, {"name": "beta"}]
CHAT = "/v1/chat/completions"


class Refusal(NamedTuple):
    """What upstream does, what a client without another account sees, and what is parked for which cause."""

    fault: str
    status: int
    code: str
    cause: str
    name: str


REFUSALS = [
    Refusal("quota_exhausted", 503, "kimi_quota_monthly", "kimi_quota_monthly", "alpha"),
    Refusal("auth_401", 502, "kimi_auth_failed", "kimi_auth_failed", "alpha"),
    Refusal("forbidden_403", 502, "kimi_auth_failed", "kimi_permission_denied", "alpha/kimi-k2.5"),
]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[House]:
    """Two workers over two accounts."""
    with lived_in(tmp_path, "workers: 2\n", HOSTS) as house:
        yield house


def refuse(house: House, fault: str, *hosts: str) -> None:
    """Have these hosts refuse every chat from now on; what is free to ask they answer."""
    rules = [{"fault": fault, "match": {"host": host, "path": CHAT}} for host in hosts]
    house.tell_sim("POST", "/_sim/script", {"rules": rules})


def asked(house: House, call_id: str) -> list[str]:
    return [attempt["target"] for attempt in house.record(call_id)["attempts"]]


def audit(house: House) -> list[tuple[str, str, str, str]]:
    """Who did what to whom, and why: the audit log's rows about parks, the oldest first."""
    with contextlib.closing(sqlite3.connect(f"file:{house.state}/control.db?mode=ro", uri=True)) as db:
        rows = db.execute(
            "SELECT who, what, subject, detail FROM audit WHERE what LIKE '%park' ORDER BY version"
        )
        return [tuple(row) for row in rows]


def until_parked(house: House, *names: str) -> None:
    until(20, lambda: set(parks(house)) == set(names), f"parked: {names}", lambda: parks(house))
    house.metrics()  # told on the channel that the document came on


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refused_account_is_left_out_by_every_worker(pair: House, refusal: Refusal) -> None:
    fault, status, code, cause, name = refusal
    refuse(pair, fault, "alpha")
    rescued = pair.ask()
    assert rescued.status == 200
    assert asked(pair, rescued.call_id) == ["alpha", "beta"]
    until_parked(pair, name)
    for _ in range(12):
        answer = pair.ask()
        assert (answer.status, answer.headers["x-moongate-attempts"]) == (200, "1")
    assert asked(pair, answer.call_id) == ["beta"]
    assert parks(pair) == {name: cause}
    assert pair.metrics()['moongate_parked{account="alpha"}'] == 1
    assert pair.metrics()['moongate_parked{account="beta"}'] == 0
    assert audit(pair) == [("moongate", "park", name, cause)]
    assert pair.gateway.printed().count("page:") == 1
    assert f"page: {name} is parked: {cause} at target alpha" in pair.gateway.printed()

    refuse(pair, fault, "beta")
    lost = pair.ask()
    assert (lost.status, lost.error["code"]) == (status, code)
    until_parked(pair, name, name.replace("alpha", "beta"))
    before = len(pair.received())
    for stream in (False, True):
        refused = pair.ask(stream=stream)
        assert (refused.status, refused.error["code"]) == (status, code)
        assert refused.headers["x-should-retry"] == "false"
        assert "retry-after" not in refused.headers
        record = pair.record(refused.call_id)
        assert (record["outcome"], record["cause"], record["attempts"]) == ("refused", cause, [])
    assert len(pair.received()) == before
    assert pair.gateway.printed().count("page:") == 2


def test_a_restart_forgets_nothing(tmp_path: Path) -> None:
    with contextlib.closing(House(tmp_path, hosts=HOSTS)) as house:
        refuse(house, "quota_exhausted", "alpha")
        assert house.ask().status == 200
        until_parked(house, "alpha")
        house.gateway.stop()
        house.start_gateway()
        assert asked(house, house.ask().call_id) == ["beta"]
        assert parks(house) == {"alpha": "kimi_quota_monthly"}


def test_what_is_refused_while_nobody_supervises_is_parked_by_the_next_who_does(tmp_path: Path) -> None:
    with contextlib.closing(House(tmp_path, hosts=HOSTS)) as house:
        refuse(house, "quota_exhausted", "alpha")
        pids = house.worker_pids()
        house.gateway.child.kill()
        house.gateway.child.wait()
        assert int(house.ask().headers["x-moongate-attempts"]) == 2
        assert int(house.ask().headers["x-moongate-attempts"]) == 1  # the worker has its own word
        house.start_gateway()
        assert house.worker_pids() == pids
        until_parked(house, "alpha")
        assert int(house.ask().headers["x-moongate-attempts"]) == 1


def test_an_operator_sees_and_releases_what_is_parked(pair: House) -> None:
    refuse(pair, "auth_401", "alpha")
    assert pair.ask().status == 200
    until_parked(pair, "alpha")
    listed = pair.command("parks", "list", "--state", str(pair.state))
    assert listed.returncode == 0
    assert "alpha" in listed.stdout
    assert "kimi_auth_failed" in listed.stdout
    wrong = pair.command("parks", "release", "alpa", "--state", str(pair.state))
    assert wrong.returncode == 1
    assert 'did you mean "alpha"?' in wrong.stderr
    pair.tell_sim("DELETE", "/_sim/script")
    release(pair)
    answer = pair.ask()
    assert asked(pair, answer.call_id) == ["alpha"]
    assert pair.metrics()['moongate_parked{account="alpha"}'] == 0
    who, what, subject, detail = audit(pair)[-1]
    assert who.endswith("(moongate parks)")
    assert (what, subject, detail) == ("unpark", "alpha", "")
    assert json.loads(get(pair.admin, "/api/parks")[1]) == {"parks": []}


def looks(house: House) -> int:
    """How often the balance was looked at."""
    requests: list[dict[str, Any]] = house.sim("/_sim/requests?limit=1000")["requests"]
    return sum(one["target"] == "/v1/users/me/balance" for one in requests)


def test_money_releases_what_lacked_it_and_nothing_else(tmp_path: Path) -> None:
    with lived_in(tmp_path, "health: {balance_seconds: 0.3}\n", HOSTS) as house:
        refuse(house, "auth_401", "beta")
        house.tell_sim("POST", "/_sim/switch", {"suspended": True})
        assert house.ask().error["code"] == "kimi_auth_failed"
        until_parked(house, "alpha", "beta")
        before = looks(house)
        until(20, lambda: looks(house) >= before + 3, "the balance was looked at")
        assert set(parks(house)) == {"alpha", "beta"}
        assert house.ask().error["code"] == "kimi_quota_monthly"
        house.tell_sim("POST", "/_sim/switch", {"suspended": False})
        until_parked(house, "beta")
        assert asked(house, house.ask().call_id) == ["alpha"]
        assert audit(house)[-1] == ("moongate", "unpark", "alpha", "its balance is 12.5")
        assert "alpha is released: its balance is 12.5" in house.gateway.printed()
