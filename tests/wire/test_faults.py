"""Whatever upstream does has one name, one answer, one state in the ledger and one line in the log.

All calls of `rows` are made at once over one gateway; each test reads what became of one of them.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from tests.wire.answer import Answer
from tests.wire.house import House, until
from tests.wire.parking import release
from tests.wire.rows import ROWS, Row, See


class Case(NamedTuple):
    row: Row
    stream: bool

    @property
    def see(self) -> See:
        see = self.row.stream if self.stream else self.row.plain
        assert see is not None
        return see

    @property
    def label(self) -> str:
        more = "".join(f"-{value}" for value in self.row.sim.values())
        return f"{self.row.number}-{self.row.name}{more}-{'stream' if self.stream else 'plain'}"

    @property
    def route(self) -> str:
        """That of the row; but what parks its account has one of its own."""
        return f"own-{self.label}".replace("=", "-") if self.see.parks else self.row.model


CASES = [
    Case(row, stream) for row in ROWS for stream in (False, True) if (row.stream if stream else row.plain)
]


_DEAD = ("refused", "full_backlog", "silent", "tls_stall")
_ILL_TLS = ("expired", "wrong_name", "unknown_ca", "tls10")
HOSTS: list[dict[str, Any]] = [
    {"name": "kimi"},
    {"name": "alpha"},
    {"name": "beta"},
    *({"name": kind, "kind": kind} for kind in _DEAD),
    *({"name": kind, "tls": kind} for kind in _ILL_TLS),
    {"name": "http1_only", "tls": "good", "http2": False},
    {"name": "no_alpn", "tls": "good", "alpn": []},
    *({"name": case.route} for case in CASES if case.see.parks),
]
_SHORT = "{connect: 0.6, tls: 0.6, head: 0.7, first_event: 0.7, idle: 0.7, total: 1.6}"
_ROUTES = {host["name"]: f"[{host['name']}]" for host in HOSTS[3:]} | {
    "quick": "[kimi]",
    "behind-refused": "[refused, kimi]",
    "behind-expired": "[expired, kimi]",
}
SETTINGS = (
    "routes:\n  kimi-k2.5: {targets: [kimi]}\n  pair: {model: kimi-k2.5, targets: [alpha, beta]}\n"
    + "".join(
        f"  {name}: {{model: kimi-k2.5, targets: {targets}, timeouts: {_SHORT}}}\n"
        for name, targets in _ROUTES.items()
    )
)

SECRETS = ("org-sim", "ak-", "Your account", "insufficient balance", "<html", "captive portal", "sim-pad")


@dataclass
class Told:
    """What one call left behind."""

    answer: Answer
    record: dict[str, Any]
    line: dict[str, Any]
    metrics: dict[str, float]


def _call(house: House, case: Case) -> Answer:
    sim = {"fault": case.row.name, "output_tokens": 40, **case.row.sim}
    if case.row.model not in ("kimi-k2.5", "quick"):
        sim = {}
    messages = [{"role": "user", "content": "用中文写一首关于月亮的诗。"}]
    thinking = {"type": "disabled"}  # so that the first events carry text
    return house.ask(sim, model=case.route, stream=case.stream, messages=messages, thinking=thinking)


@pytest.fixture(scope="module")
def told(shared_house: House) -> dict[str, Told]:
    """Every case's call, made at once; the house is at rest afterwards."""
    house = shared_house
    house.begin()
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda case: _call(house, case), CASES))
    house.at_rest()
    metrics = house.metrics()
    lines = {line["call_id"]: line for line in house.logged()}
    records = [house.record(answer.call_id) for answer in answers]
    return {
        case.label: Told(answer, record, lines[answer.call_id], metrics)
        for case, answer, record in zip(CASES, answers, records, strict=True)
    }


@pytest.fixture(params=CASES, ids=lambda case: case.label)
def case(request: pytest.FixtureRequest) -> Case:
    given: Case = request.param
    return given


def test_a_row_of_the_catalogue(case: Case, told: dict[str, Told]) -> None:
    seen = told[case.label]
    the_client_sees_what_the_table_says(case.see, seen.answer)
    the_ledger_says_how_it_ended(case.see, seen.record)
    the_log_and_the_metrics_say_the_same(case, seen)
    nobody_learns_whose_account_it_is(seen.answer)


def the_client_sees_what_the_table_says(see: See, answer: Answer) -> None:
    assert answer.status == see.status
    if not see.code:
        the_answer_is_whole(answer)
        return
    error = answer.error
    assert error["code"] == see.code
    assert set(error) >= {"message", "type", "code", "param", "request_id"}
    assert error["request_id"] == answer.headers["x-request-id"]
    if see.code == "kimi_network_timeout":
        assert error["phase"] == see.phase
        assert error["upstream_timeout_ms"] in (600, 700, 1600)
    if see.in_band:
        assert "[DONE]" not in answer.events
        assert answer.text
        return
    assert answer.headers["x-should-retry"] == ("true" if see.retry else "false")
    waits = answer.headers.get("retry-after")
    if see.wait is None:
        assert waits is None
    else:
        assert waits is not None
        assert see.wait - 2 < int(waits) <= see.wait


def the_answer_is_whole(answer: Answer) -> None:
    """Some of these answers are no strict JSON, on purpose: they come as upstream sent them."""
    assert b'"content":"' in answer.body
    if answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.body.count(b"data: [DONE]\n\n") == 1
        assert answer.body.endswith(b"data: [DONE]\n\n")
    else:
        assert answer.body.endswith(b"}")


def the_ledger_says_how_it_ended(see: See, record: dict[str, Any]) -> None:
    [attempt] = record["attempts"]
    cause = see.cause or see.code
    assert (attempt["state"], attempt["cause"], attempt["code"]) == (see.state, cause, see.code)
    assert (record["cause"], record["code"], record["phase"]) == (cause, see.code, see.phase)
    assert record["status"] == see.status
    assert record["outcome"] == ("truncated" if see.in_band else "failed" if see.code else "completed")
    if see.state in ("released", "ambiguous"):
        assert attempt["cost_micro"] in (0, None)
        assert record["billed_micro"] in (0, None)
    else:
        assert attempt["output"] > 0
        assert attempt["tokens_source"] == ("provider" if see.state == "settled" else "counted")


def the_log_and_the_metrics_say_the_same(case: Case, seen: Told) -> None:
    see = case.see
    line = seen.line
    assert (line["fault"], line["cause"], line["status"]) == (see.code, see.cause or see.code, see.status)
    assert [attempt["state"] for attempt in line["attempts"]] == [see.state]
    fault, outcome = see.code or "none", line["outcome"]
    calls = f'moongate_calls_total{{fault="{fault}",outcome="{outcome}",route="{case.route}"}}'
    attempt = line["attempts"][0]
    tried = (
        f'moongate_attempts_total{{fault="{fault}",reach="{attempt["reach"]}",target="{attempt["target"]}"}}'
    )
    assert seen.metrics[calls] >= 1
    assert seen.metrics[tried] >= 1


def nobody_learns_whose_account_it_is(answer: Answer) -> None:
    shown = answer.body.decode("utf-8", "replace") + json.dumps(answer.headers)
    for secret in SECRETS:
        assert secret not in shown
    assert not [name for name in answer.headers if name.startswith(("msh-", "set-cookie", "cf-", "x-sim"))]


def test_redirects_are_not_followed_and_nothing_is_sent_twice(
    told: dict[str, Told], shared_house: House
) -> None:
    del told
    seen = [one["body_base64"] for one in shared_house.received()]
    asked = [case for case in CASES if case.row.model in ("kimi-k2.5", "quick", "http1_only", "no_alpn")]
    assert len(seen) == len(asked)


@pytest.mark.parametrize(
    ("route", "cause"),
    [("behind-refused", "kimi_network_unreachable"), ("behind-expired", "kimi_tls_refused")],
)
def test_the_next_target_answers_where_nothing_was_sent(house: House, route: str, cause: str) -> None:
    for stream in (False, True):
        answer = house.ask(model=route, stream=stream)
        assert answer.status == 200
        assert answer.text
        assert answer.headers["x-moongate-attempts"] == "2"
        record = house.record(answer.call_id)
        assert [(one["state"], one["cause"]) for one in record["attempts"]] == [
            ("released", cause),
            ("settled", ""),
        ]
        assert record["outcome"] == "completed"
    assert len(house.executions()) == 2


@pytest.mark.parametrize(
    ("fault", "moves_on"),
    [
        ("rate_limit_rpm", True),
        ("503", True),
        ("quota_exhausted", True),
        ("auth_401", True),
        ("400", False),
        ("500", False),
        ("reset_before_head", False),
        ("html_error_page;code=503", False),
        ("empty_200", False),
    ],
)
def test_the_next_target_is_asked_only_where_nothing_ran(house: House, fault: str, moves_on: bool) -> None:
    rule = {"fault": fault, "match": {"host": "alpha"}}
    house.tell_sim("POST", "/_sim/script", {"rules": [rule]})
    answer = house.ask(model="pair")
    assert (answer.status == 200) is moves_on
    assert [attempt["target"] for attempt in house.record(answer.call_id)["attempts"]] == (
        ["alpha", "beta"] if moves_on else ["alpha"]
    )
    assert len(house.received()) == (2 if moves_on else 1)
    if fault in ("quota_exhausted", "auth_401"):
        release(house)
    if not moves_on:
        assert answer.headers["x-should-retry"] == "false"


def test_when_every_target_refuses_the_last_word_counts(house: House) -> None:
    rules = [
        {"fault": "rate_limit_rpm", "match": {"host": "alpha"}},
        {"fault": "engine_overloaded", "match": {"host": "beta"}},
    ]
    house.tell_sim("POST", "/_sim/script", {"rules": rules})
    answer = house.ask(model="pair")
    assert (answer.status, answer.error["code"]) == (503, "kimi_engine_overloaded")
    assert [one["state"] for one in house.record(answer.call_id)["attempts"]] == ["released", "released"]


def test_the_operator_sees_which_targets_are_ill(house: House) -> None:
    def ill() -> bool:
        metrics = house.metrics()
        return all(metrics[f'moongate_upstream_up{{target="{name}"}}'] == 0 for name in (*_DEAD, *_ILL_TLS))

    until(10, ill, "every dead target is down")
    assert house.metrics()['moongate_upstream_up{target="kimi"}'] == 1


def test_the_operator_sees_why_a_target_is_not_trusted(told: dict[str, Told], house: House) -> None:
    del told
    reasons = {name: name for name in _ILL_TLS} | {"tls10": "version"}
    for name, reason in reasons.items():
        assert house.total("moongate_tls_refused_total", target=name, reason=reason) >= 2
        assert house.total("moongate_tls_refused_total", target=name) == house.total(
            "moongate_tls_refused_total", target=name, reason=reason
        )
