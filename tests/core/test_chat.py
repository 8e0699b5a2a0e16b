"""Plain answers are read or named for what they are; errors have the shape that SDKs know."""

import json

import pytest

from moongate.core.call import Usage
from moongate.core.chat import CHAT
from moongate.core.faults import Failure, Fault, Reach
from moongate.core.surface import Answer
from tests.core.streams import (
    OVERLOADED,
    USAGE,
    classified,
    data,
    raw,
    text,
)
from tests.recorded import needs_data, plain

USED = Usage(8, 11, 8)


def test_streams_are_read_by_readers_of_their_own() -> None:
    one, other = (CHAT.stream_reader(strip_usage=False, classify=classified) for _ in "12")
    one.feed(text("a"))
    assert one.answer().text == "a"
    assert other.answer() == Answer()


def test_plain_answers_are_read() -> None:
    message = {"role": "assistant", "content": "hi", "reasoning_content": "hm"}
    body = raw(
        {
            "id": "chatcmpl-A",
            "object": "chat.completion",
            "created": 1788269279,
            "model": "kimi-k3",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": USAGE,
        }
    )
    assert CHAT.read_plain(body, classified) == Answer(
        "chatcmpl-A", "kimi-k3", 1788269279, "", "hi", "hm", "stop", usage=USED, choices=1
    )


CHOICES = b'"choices":[{"index":0,"message":{"content":"hi"},"finish_reason":"stop"}]'


@pytest.mark.parametrize(
    "odd",
    [
        b'"x":NaN',
        b'"x":[-Infinity,1e999]',
        b'"x":%b' % (b"9" * 5000),
        b'"x":%b%b' % (b"[" * 100_000, b"]" * 100_000),
        b'"x":1,"x":2',
        b'"x":"\xff"',
        b'"x":"\\ud800"',
        b'"error":null',
        b'"object":"chat.completion"',
    ],
)
def test_an_answer_framed_as_one_value_is_one_whatever_is_in_it(odd: bytes) -> None:
    answer = CHAT.read_plain(b"{%b,%b}\n" % (odd, CHOICES), classified)
    assert isinstance(answer, Answer)
    assert (answer.text, answer.finish) == ("hi", "stop")


@pytest.mark.parametrize(
    ("body", "fault", "detail"),
    [
        (b"", Fault.KIMI_BAD_RESPONSE, "empty_200"),
        (b" \r\n", Fault.KIMI_BAD_RESPONSE, "empty_200"),
        (b"{%b" % CHOICES, Fault.KIMI_BAD_RESPONSE, "json_bad"),
        (b"{%b}}" % CHOICES, Fault.KIMI_BAD_RESPONSE, "json_bad"),
        (b"{%b,%b" % (b'"x":NaN', CHOICES), Fault.KIMI_BAD_RESPONSE, "json_bad"),
        (b"[" * 100_000, Fault.KIMI_BAD_RESPONSE, "json_bad"),
        (b"<html>504 Gateway Time-out</html>", Fault.KIMI_BAD_RESPONSE, "json_bad"),
        (b"[]", Fault.KIMI_BAD_RESPONSE, "json_bad"),
        (b"{}", Fault.KIMI_BAD_RESPONSE, "no_choices"),
        (b'{"choices":[]}', Fault.KIMI_BAD_RESPONSE, "no_choices"),
        (b'{"choices":null}', Fault.KIMI_BAD_RESPONSE, "no_choices"),
        (OVERLOADED, Fault.KIMI_ENGINE_OVERLOADED, "error_in_200"),
        (b'{"error":"x",%b}' % CHOICES, Fault.KIMI_SERVER_ERROR, "error_in_200"),
        (b'{"object":"error","message":"overloaded"}', Fault.KIMI_ENGINE_OVERLOADED, "error_in_200"),
        (b"{%b}" % CHOICES.replace(b"stop", b"error"), Fault.KIMI_SERVER_ERROR, "error_in_200"),
    ],
)
def test_a_200_that_is_no_answer_says_why(body: bytes, fault: Fault, detail: str) -> None:
    assert CHAT.read_plain(body, classified) == Failure(fault, Reach.HEAD, detail=detail)


def test_an_error_has_the_shape_sdks_know() -> None:
    failure = Failure(Fault.INVALID_REQUEST, message='`model` is "missing".', param="model")
    assert json.loads(CHAT.error_body(failure, "req-1")) == {
        "error": {
            "message": '`model` is "missing".',
            "type": "invalid_request_error",
            "code": "invalid_request",
            "param": "model",
            "request_id": "req-1",
        }
    }
    shown = json.loads(CHAT.error_body(Failure(Fault.KIMI_BAD_RESPONSE, detail="org-123 <ak-4>"), "r"))[
        "error"
    ]
    assert shown["message"] == "Kimi's answer cannot be understood."
    assert shown["param"] is None
    assert "org-123" not in str(shown)


def test_a_time_out_says_how_long_and_where() -> None:
    failure = Failure(Fault.KIMI_NETWORK_TIMEOUT, Reach.SENT, phase="head", timeout_ms=30_000)
    error = json.loads(CHAT.error_body(failure, "r"))["error"]
    assert (error["upstream_timeout_ms"], error["phase"]) == (30_000, "head")
    assert "phase" not in json.loads(CHAT.error_body(Failure(Fault.KIMI_UNAVAILABLE), "r"))["error"]


def test_an_error_event_is_one_event_with_the_same_body() -> None:
    failure = Failure(Fault.KIMI_STREAM_TRUNCATED, Reach.EVENTS, message="It broke off.\nHere.")
    event = CHAT.error_event(failure, "r")
    assert event == data(CHAT.error_body(failure, "r"))
    assert event.count(b"\n") == 2


NO_ANSWERS = {"test_openai__test_invalid_response#0", "reasoning-model-legacy-parameter-error.json"}


@needs_data
def test_recorded_plain_answers_are_read_and_errors_are_not_taken_for_answers() -> None:
    for found in plain():
        answer = CHAT.read_plain(found.body, lambda _status, _text: Fault.KIMI_REJECTED)
        assert isinstance(answer, Failure) == (found.status != 200 or found.name in NO_ANSWERS), found.name
        if isinstance(answer, Answer):
            assert answer.finish in {"stop", "tool_calls"}
            assert answer.usage is not None
