"""Secrets that were planted are found nowhere but where they are meant to be (DESIGN 14)."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from tests.wire.house import SIM_KEY, House, get
from tests.wire.parking import release

PROMPT = "PLANTED-PROMPT-4711"
ANSWER = "PLANTED-ANSWER-4712"
WRONG_KEY = "mg_PLANTED-WRONG-KEY-4713"
COOKIE = "PLANTED-COOKIE-4714"
ORGANISATION = "org-PLANTED4715"
ACCOUNT_KEY = "ak-PLANTED4716"
LOCATION = "http://127.0.0.1:1/PLANTED-4717"
FAULTS = [
    *(None, "rate_limit_rpm", "quota_exhausted", "auth_401", "500", "html_504", "error_in_200"),
    *("reset_mid_stream", "json_truncated", "cross_talk", "big_headers"),
]


def _plant(house: House) -> None:
    messages = [{"role": "user", "content": PROMPT}]
    for fault in FAULTS:
        for stream in (False, True):
            sim = {"text": ANSWER, "reasoning": ANSWER} | ({"fault": fault} if fault else {})
            house.ask(sim, stream=stream, messages=messages, user="u-7", headers={"Cookie": COOKIE})
            if fault in ("quota_exhausted", "auth_401"):
                release(house)
    house.ask({"fault": "error_event", "message": f"{ORGANISATION} {ACCOUNT_KEY}"}, stream=True)
    told = f"Your account {ORGANISATION}<{ACCOUNT_KEY}> may not; {SIM_KEY} is bad"
    for code in (400, 401, 403, 429, 500, 503):
        answer = house.ask({"fault": "status", "code": code, "message": told}, messages=messages)
        for secret in (ORGANISATION, ACCOUNT_KEY, SIM_KEY):
            assert secret not in answer.body.decode() + json.dumps(answer.headers)
        if code in (401, 403):
            release(house)
    house.ask({"fault": "redirect_307", "location": LOCATION}, messages=messages)
    house.post(house.body(messages=messages), headers={"Authorization": f"Bearer {WRONG_KEY}"})
    house.post(b'{"model":"kimi-k2.5","messages":"' + PROMPT.encode() + b'\\ud800"}')
    house.post(b'{"model":"' + b"x" * 300 + PROMPT.encode() + b'","messages":[]}')
    house.at_rest()


def _places(house: House) -> Iterator[tuple[str, bytes]]:
    """Everything the gateway wrote, shows or tells the kernel."""
    for path in house.state.rglob("*"):
        if path.is_file():
            yield path.name, path.read_bytes()
    for name in ("access.log", "gateway.log", "moongate.yaml"):
        yield name, (house.folder / name).read_bytes()
    for page in ("/metrics", "/api/config", "/api/workers", "/api/parks", "/healthz", "/"):
        yield page, get(house.admin, page)[1]
    yield "healthz", get(house.port, "/healthz")[1]
    for pid in (house.gateway.child.pid, *house.worker_pids()):
        yield f"command line of {pid}", Path(f"/proc/{pid}/cmdline").read_bytes()


def test_planted_secrets_are_found_nowhere(house: House) -> None:
    _plant(house)
    secrets = (
        PROMPT,
        ANSWER,
        WRONG_KEY,
        COOKIE,
        ORGANISATION,
        ACCOUNT_KEY,
        "PLANTED-4717",
        SIM_KEY,
        house.key,
    )
    names = set()
    for name, content in _places(house):
        names.add(name)
        for secret in secrets:
            assert secret.encode() not in content, f"{secret} in {name}"
    assert {"ledger.db", "access.log", "gateway.log", "/metrics"} <= names
    assert any("journal" in str(path) for path in house.state.rglob("*") if path.is_file())


def test_what_is_meant_to_be_there_is_there(house: House) -> None:
    answer = house.ask("rate_limit_rpm", headers={"X-Request-Id": "meant-1", "X-Session-Id": "meant-2"})
    record = house.record(answer.call_id)
    assert (record["request_id"], record["session"]) == ("meant-1", "meant-2")
    assert record["attempts"][0]["provider_request_id"]
    kept = b"".join(path.read_bytes() for path in house.state.rglob("*") if path.is_file())
    assert hashlib.sha256(house.key.encode()).hexdigest().encode() in kept
    config = json.loads(get(house.admin, "/api/config")[1])
    assert "kimi" in json.dumps(config)


def test_the_state_is_for_its_owner_alone(house: House) -> None:
    assert house.state.stat().st_mode & 0o077 == 0
    assert (house.folder / "access.log").stat().st_mode & 0o007 == 0
