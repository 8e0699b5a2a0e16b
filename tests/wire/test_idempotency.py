"""A retry finds its first answer, over real sockets: replays, running calls, broken connections, restarts."""

import json
import os
import signal
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.wire.answer import Answer
from tests.wire.house import House, until
from tests.wire.raw import CutError, Raw

HOSTS: list[dict[str, Any]] = [{"name": "kimi"}]
SETTINGS = """
routes:
  kimi-k2.5: {targets: [kimi]}
  other: {model: kimi-k2.5, targets: [kimi]}
  cancel: {model: kimi-k2.5, targets: [kimi], on_abandon: cancel}
"""
SLOW: dict[str, Any] = {"tokens_per_second": 20, "output_tokens": 30, "reasoning_tokens": 0}
SHORT: dict[str, Any] = {"text": "The moon is full tonight.", "reasoning": ""}


def keyed(key: str, **more: str) -> dict[str, str]:
    return {"Idempotency-Key": key} | {name.replace("_", "-"): value for name, value in more.items()}


def code(answer: Answer) -> str:
    text: str = json.loads(answer.body)["error"]["code"]
    return text


def audited(house: House, calls: int) -> None:
    """Hold the ledger against the book, once it has this many closed calls."""

    def closed() -> bool:
        return len(house.rows("SELECT call_id FROM calls WHERE outcome <> ''")) == calls

    until(20, closed, "their records are closed", lambda: house.rows("SELECT call_id, outcome FROM calls"))
    house.audit()


def events(body: bytes) -> list[bytes]:
    return [event + b"\n\n" for event in body.split(b"\n\n")[:-1]]


@pytest.mark.parametrize("stream", [False, True])
def test_the_same_answer_again(house: House, stream: bool) -> None:
    key = f"a-{stream}"
    first = house.ask(SHORT, headers=keyed(key), stream=stream)
    again = house.ask(SHORT, headers=keyed(key), stream=stream)
    assert (first.status, again.status, again.body) == (200, 200, first.body)
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["content-type"] == first.headers["content-type"]
    assert again.headers["x-moongate-model"] == first.headers["x-moongate-model"]
    assert again.headers["x-moongate-call-id"] != first.headers["x-moongate-call-id"]
    assert len(house.executions()) == 1
    record = house.record(again.headers["x-moongate-call-id"])
    assert (record["outcome"], record["retry_of"]) == ("replayed", first.headers["x-moongate-call-id"])
    assert (record["idempotency_key"], record["attempts"], record["input"]) == (key, [], 0)
    other_route = house.ask(SHORT, headers=keyed(key), stream=stream, model="other")
    assert "idempotent-replayed" not in other_route.headers
    stranger = house.add_key(f"globex-{stream}")
    until(10, lambda: house.post(house.body(SHORT), headers={"Authorization": f"Bearer {stranger}"}).status == 200,
          "the new key holds")  # fmt: skip
    theirs = house.post(
        house.body(SHORT, stream=stream), headers=keyed(key) | {"Authorization": f"Bearer {stranger}"}
    )
    assert "idempotent-replayed" not in theirs.headers


def test_another_body_is_refused_and_so_is_what_is_no_key(house: House) -> None:
    house.ask(SHORT, headers=keyed("b"))
    other = house.ask(SHORT, headers=keyed("b"), temperature=1)
    assert (other.status, code(other), other.headers["x-should-retry"]) == (
        422,
        "idempotency_mismatch",
        "false",
    )
    streamed = house.ask(SHORT, headers=keyed("b"), stream=True)
    assert (streamed.status, code(streamed)) == (422, "idempotency_mismatch")
    assert len(house.executions()) == 1
    for key in ("", "x" * 256, "t\tab", "\xe4"):
        bad = house.ask(SHORT, headers=keyed(key))
        assert (bad.status, code(bad)) == (400, "invalid_request"), key
    assert house.ask(SHORT, headers=keyed("x" * 255)).status == 200
    assert len(house.executions()) == 2


def test_a_streamed_key_asked_for_in_other_ways(house: House) -> None:
    """HEAD asks for nothing, a plain call for something else: neither is executed."""
    house.ask(SHORT, headers=keyed("c"), stream=True)
    with Raw(house.port) as raw:
        body = house.body(SHORT, stream=True)
        raw.send(
            b"HEAD /v1/chat/completions HTTP/1.1\r\nHost: a\r\nIdempotency-Key: c\r\nContent-Length: %d\r\n"
            b"Authorization: Bearer %b\r\n\r\n%b" % (len(body), house.key.encode(), body)
        )
        assert raw.head()[0] == 405
        assert raw.rest() == b""
    plain = house.ask(SHORT, headers=keyed("c"))
    assert (plain.status, code(plain)) == (422, "idempotency_mismatch")
    assert len(house.executions()) == 1


def test_ids_stand_in_the_stream_only_with_a_key(house: House) -> None:
    bare = house.ask(SHORT, stream=True)
    answer = house.ask(SHORT, stream=True, headers=keyed("d"))
    assert b"\nid:" not in bare.body
    name = answer.headers["x-moongate-call-id"].encode()
    for number, event in enumerate(events(answer.body), 1):
        assert event.endswith(b"\nid: %b.%d\n\n" % (name, number))


def test_a_running_call_is_joined(house: House) -> None:
    answers: list[Answer] = []
    body = house.body(SLOW, stream=True)

    def ask() -> None:
        answers.append(house.post(body, headers=keyed("e")))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    until(10, lambda: house.total("moongate_in_flight") >= 4, "all run")
    for thread in threads:
        thread.join(30)
    assert len({answer.body for answer in answers}) == 1
    assert answers[0].body.count(b"[DONE]") == 1
    assert [answer.headers.get("idempotent-replayed", "") for answer in answers].count("true") == 3
    assert len(house.executions()) == 1
    records = [house.record(answer.headers["x-moongate-call-id"]) for answer in answers]
    assert sorted(record["source"] for record in records) == ["collapsed"] * 3 + ["upstream"]
    assert sum(record["billed_micro"] or 0 for record in records) == house.executions()[0]["cost_micro"]


@pytest.mark.parametrize("way", ["close", "reset"])
def test_a_dropped_stream_is_taken_up_after_every_event(house: House, way: str) -> None:
    """One call; its client's connection breaks after each event, while it runs and after its end."""
    body = house.body(SLOW | {"output_tokens": 12}, stream=True)
    key = f"Idempotency-Key: f-{way}"
    last, seen = "", b""
    while b"[DONE]" not in seen:
        with Raw(house.port) as raw:
            raw.post(body, house.key, key, *([f"Last-Event-ID: {last}"] if last else []))
            status, headers = raw.head()
            assert (status, headers.get("idempotent-replayed")) == (200, "true" if last else None)
            size = int(raw.until(b"\r\n"), 16)
            event = events(raw.exactly(size))[0]
            if way == "reset":
                raw.reset()
        last = event.split(b"\nid: ")[1].split(b"\n")[0].decode()
        seen += event
    whole = house.post(body, headers=keyed(f"f-{way}"))
    assert whole.body == seen
    assert len(house.executions()) == 1
    after = house.post(body, headers=keyed(f"f-{way}", Last_Event_ID=last))
    assert (after.status, after.body) == (200, b"")
    wrong = house.post(body, headers=keyed(f"f-{way}", Last_Event_ID=last + "9"))
    assert (wrong.status, code(wrong)) == (409, "idempotency_expired")


def test_an_ambiguous_call_is_the_same_error_again(house: House) -> None:
    first = house.ask("reset_before_head", headers=keyed("g"))
    again = house.ask("reset_before_head", headers=keyed("g"))
    assert (again.status, code(again)) == (first.status, code(first)) == (502, "kimi_network_unreachable")
    assert again.headers["x-should-retry"] == "false"
    assert again.headers["idempotent-replayed"] == "true"
    assert len(house.executions()) == 1


def test_what_did_not_run_may_run_under_its_key(house: House) -> None:
    house.tell_sim("POST", "/_sim/script", {"rules": [{"fault": "rate_limit_rpm", "times": 1}]})
    assert house.ask(SHORT, headers=keyed("h")).status == 429
    assert house.ask(SHORT, headers=keyed("h")).status == 200
    assert len(house.executions()) == 1


def test_a_cancelled_stream_is_made_anew(house: House) -> None:
    body = house.body(SLOW, stream=True, model="cancel")
    with Raw(house.port) as raw:
        raw.post(body, house.key, "Idempotency-Key: i")
        _, headers = raw.head()
        raw.until(b"data:")
    until(10, lambda: [one["how"] for one in house.executions()] == ["aborted"], "it is given up")
    until(10, lambda: house.total("moongate_in_flight") == 0, "it has ended")
    again = house.post(body, headers=keyed("i"))
    assert b"[DONE]" in again.body
    assert "idempotent-replayed" not in again.headers
    record = house.record(again.headers["x-moongate-call-id"])
    assert record["retry_of"] == headers["x-moongate-call-id"]
    assert len(house.executions()) == 2


# what upstream does, what the client reads before it leaves; all of these are drained with a key
STAGES: dict[str, tuple[Any, bool, bytes]] = {
    "sent": (SLOW | {"fault": "latency;seconds=0.7"}, False, b""),
    "sent, streamed": (SLOW | {"fault": "latency;seconds=0.7"}, True, b""),
    "head": (SLOW | {"first_token": 0.7}, True, b""),
    "body": (SLOW, False, b""),
    "first event": (SLOW, True, b"\n\n"),
    "in the midst": (SLOW, True, b"\n\n\r\n"),
}


@pytest.mark.parametrize("key", ["", "Idempotency-Key: j-"])
def test_what_its_client_left_is_read_to_its_end_and_paid_once(house: House, key: str) -> None:
    for name, (sim, stream, read) in STAGES.items():
        if stream and not key:
            continue
        house.begin()
        body = house.body(sim, stream=stream, user=name)
        with Raw(house.port) as raw:
            raw.post(body, house.key, key + name.replace(", ", "-") if key else "X-Nothing: x")
            if read:
                raw.until(read)
            else:
                until(10, lambda: house.sim("/_sim/book/totals")["open"], f"{name}: it runs")
        until(
            10,
            lambda: house.total("moongate_drains") == house.total("moongate_in_flight"),
            f"{name}: read on",
        )
        until(20, lambda: house.total("moongate_in_flight") == 0, f"{name}: it has ended")
        [execution] = house.executions()
        assert execution["how"] == "completed", name
        [record] = until(10, lambda: house.rows(
            "SELECT * FROM calls WHERE created >= ? AND outcome <> ''", house.cleared
        ), "its record")  # fmt: skip
        assert (record["outcome"], record["code"]) == ("abandoned", "client_closed"), name
        assert record["billed_micro"] == execution["cost_micro"], name
        given = keyed("j-" + name.replace(", ", "-")) if key else {"X-Stainless-Retry-Count": "1"}
        again = house.post(body, headers=given)
        assert (again.status, again.headers["idempotent-replayed"]) == (200, "true"), name
        assert len(house.executions()) == 1, name
        house.at_rest()


def test_a_restart_in_between(tmp_path: Path) -> None:
    with closing(House(tmp_path, SETTINGS)) as house:
        body, broken = house.body(SHORT, stream=True), house.body("reset_before_head")
        first = house.post(body, headers=keyed("k"))
        error = house.post(broken, headers=keyed("l"))
        house.gateway.stop()
        house.start_gateway()
        again = house.post(body, headers=keyed("k"))
        assert (again.status, again.body, again.headers["idempotent-replayed"]) == (200, first.body, "true")
        same = house.post(broken, headers=keyed("l"))
        assert (same.status, code(same), same.headers["x-should-retry"]) == (
            error.status,
            code(error),
            "false",
        )
        assert house.post(house.body(), headers=keyed("k")).status == 422
        assert len(house.executions()) == 2
        house.gateway.stop()
        for path in house.state.glob("answers.db*"):
            path.write_bytes(b"no database" * 1000)
        house.start_gateway()
        gone = house.post(body, headers=keyed("k"))
        assert (gone.status, code(gone)) == (409, "idempotency_expired")
        assert house.post(body, headers=keyed("m")).status == 200
        assert len(house.executions()) == 3
        audited(house, 7)


def test_a_worker_that_is_killed_in_the_middle_pays_once(tmp_path: Path) -> None:
    with closing(House(tmp_path, SETTINGS)) as house:
        plain, stream = house.body(SLOW), house.body(SLOW, stream=True)
        with Raw(house.port) as one, Raw(house.port) as two:
            one.post(plain, house.key, "Idempotency-Key: n")
            two.post(stream, house.key, "Idempotency-Key: o")
            two.head()
            until(10, lambda: house.sim("/_sim/book/totals")["open"] == 2, "both run")
            for pid in house.worker_pids():
                os.kill(pid, signal.SIGKILL)
            with pytest.raises((ConnectionResetError, CutError)):
                one.answer()
        house.wait_ready()
        for body, key in ((plain, "n"), (stream, "o")):
            again = house.post(body, headers=keyed(key))
            assert (again.status, code(again), again.headers["x-should-retry"]) == (
                500,
                "gateway_error",
                "false",
            )
        assert len(house.executions()) == 2
        audited(house, 4)
        until(10, lambda: house.sim("/_sim/book/totals")["open"] == 0, "both are given up")


def test_nobody_can_read_what_is_kept(tmp_path: Path) -> None:
    secret = "xyzzy-plugh-nothing-happens"
    with closing(House(tmp_path, SETTINGS)) as house:
        assert secret.encode() in house.ask(SHORT | {"text": secret}, headers=keyed("p")).body
        until(10, lambda: list(house.state.glob("answers.db")), "it is written")
        house.gateway.stop()
        for path in house.state.rglob("*"):
            if path.is_file():
                assert secret.encode() not in path.read_bytes(), path
        assert (house.state / "answers.key").stat().st_mode & 0o777 == 0o600
        house.start_gateway()
        assert secret.encode() in house.ask(SHORT | {"text": secret}, headers=keyed("p")).body
        audited(house, 2)
