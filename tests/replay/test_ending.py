"""The last events of a stream: completed or why not, tokens, model."""

import json
from typing import Any

import pytest

from moongate.core.call import Usage
from moongate.replay.ending import TAIL_BYTES, Answer, of_refusal, of_stream

USAGE = {"prompt_tokens": 30, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 20}}


def events(*payloads: Any) -> bytes:
    return b"".join(
        b"data: %b\n\n" % (p if isinstance(p, bytes) else json.dumps(p).encode()) for p in payloads
    )


def chunk(**members: Any) -> dict[str, Any]:
    return {"model": "kimi-k2.5", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], **members}


def test_a_whole_stream_is_completed_and_tells_its_tokens() -> None:
    tail = events(chunk(), chunk(choices=[], usage=USAGE), b"[DONE]")
    assert of_stream(tail, 0.1, 0.2) == Answer("completed", 0.1, 0.2, Usage(30, 7, 20), "kimi-k2.5")


def test_usage_beside_the_finish_reason_counts_where_there_is_no_other() -> None:
    last = chunk(choices=[{"index": 0, "delta": {}, "finish_reason": "stop", "usage": USAGE}])
    assert of_stream(events(last, b"[DONE]"), 0, 0).usage == Usage(30, 7, 20)
    both = events(last, chunk(choices=[], usage=USAGE | {"completion_tokens": 8}), b"[DONE]")
    assert of_stream(both, 0, 0).usage == Usage(30, 8, 20)


def test_a_stream_without_its_end_is_not_completed() -> None:
    cut = of_stream(events(chunk(usage=USAGE)), 0.1, 0.2)
    assert (cut.outcome, cut.usage) == ("no_done", Usage(30, 7, 20))
    assert of_stream(b"", -1, 0.2).outcome == "no_done"


@pytest.mark.parametrize(
    ("error", "code"),
    [({"code": "stream_truncated", "type": "x"}, "stream_truncated"), ({"type": "x"}, "x"), ("no", "error")],
)
def test_an_error_among_the_events_is_the_outcome_even_before_done(error: Any, code: str) -> None:
    assert of_stream(events(chunk(), {"error": error}, b"[DONE]"), 0, 0).outcome == code
    assert of_stream(events(chunk(), {"error": error}), 0, 0).outcome == code


def test_a_tail_that_begins_within_an_event_is_read_from_the_next_one() -> None:
    whole = events(*(chunk(id="x" * 300) for _ in range(90)), chunk(choices=[], usage=USAGE), b"[DONE]")
    for at in range(TAIL_BYTES, TAIL_BYTES + 700):
        answer = of_stream(whole[-at:], 0, 0)
        assert (answer.outcome, answer.usage) == ("completed", Usage(30, 7, 20))


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"error": {"code": "unauthenticated", "type": "t"}}', "unauthenticated"),
        (b'{"error": {"type": "t", "code": null}}', "t"),
        (b"<html>502</html>", "status_502"),
        (b"{}", "status_502"),
    ],
)
def test_a_refusal_is_named_by_its_code(body: bytes, code: str) -> None:
    assert of_refusal(502, body, 0.3) == Answer(code, -1.0, 0.3)
