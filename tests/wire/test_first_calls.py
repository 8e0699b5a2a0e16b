"""What a newcomer does first, over real sockets."""

import base64

import pytest

from tests.wire.house import SIM_KEY, House


def test_a_plain_call_is_answered_and_recorded(house: House) -> None:
    answer = house.ask()
    assert answer.status == 200
    assert answer.json["choices"][0]["finish_reason"] == "stop"
    record = house.record(answer.call_id)
    assert (record["outcome"], record["tenant"], record["status"]) == ("completed", "acme", 200)
    [attempt] = record["attempts"]
    assert attempt["state"] == "settled"
    [execution] = house.sim("/_sim/book")["executions"]
    assert (record["input"], record["output"]) == (execution["input_tokens"], execution["output_tokens"])


def test_a_stream_is_what_upstream_sent(house: House) -> None:
    answer = house.ask(stream=True)
    assert answer.status == 200
    assert answer.events[-1] == "[DONE]"
    assert answer.headers["x-accel-buffering"] == "no"
    plain = house.ask()
    assert answer.text == plain.text


def test_the_body_arrives_byte_for_byte_and_no_header_of_the_client_does(house: House) -> None:
    said = b'[{"role":"user","content":"\\u4f60\\u597d"}]'
    body = b'{ "model" : "kimi-k2.5",\n "messages":' + said + b', "big": 9007199254740993 }'
    answer = house.post(body, headers={"Cookie": "c=1", "X-Internal-Token": "t", "X-Request-Id": "mine-7"})
    assert answer.status == 200
    assert answer.headers["x-request-id"] == "mine-7"
    received = house.sim("/_sim/requests")["requests"][-1]
    sent = {name.lower(): value for name, value in received["headers"]}
    assert base64.b64decode(received["body_base64"]) == body
    assert sent["authorization"] == f"Bearer {SIM_KEY}"
    assert sent["x-request-id"] == sent["x-kimi-request-id"] == "mine-7"
    assert not {"cookie", "x-internal-token"} & set(sent)


@pytest.mark.parametrize("key", ["", "mg_wrong", "sk-sim"])
def test_without_a_valid_key_nothing_happens(house: House, key: str) -> None:
    answer = house.post(house.body(), headers={"Authorization": f"Bearer {key}"})
    assert (answer.status, answer.error["code"]) == (401, "unauthenticated")
    assert answer.headers["x-should-retry"] == "false"
    assert house.sim("/_sim/book/totals")["executions"] == 0


def test_a_body_that_is_too_large_is_refused_and_recorded_like_any_other_call(house: House) -> None:
    answer = house.ask(padding="x" * (33 << 20))
    assert (answer.status, answer.error["code"]) == (413, "payload_too_large")
    record = house.record(answer.call_id)
    assert (record["outcome"], record["tenant"], record["attempts"]) == ("refused", "acme", [])
