"""The short way gives what the long way gives, or nothing."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.fold import CHUNK, Fold
from moongate.core.plain import plain_answer
from moongate.core.surface import Answer

USUAL: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1788269279,
    "model": "kimi-k2.5",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hi", "reasoning_content": "hm"},
            "finish_reason": "stop",
        }
    ],
    "usage": {
        "prompt_tokens": 93,
        "completion_tokens": 54,
        "total_tokens": 147,
        "cached_tokens": 93,
        "completion_tokens_details": {"reasoning_tokens": 38},
        "prompt_tokens_details": {"cached_tokens": 93},
    },
}


def the_long_way(body: bytes) -> Answer:
    fold = Fold()
    fold.take(CHUNK.decode(body))
    return fold.answer()


def changed(path: tuple[str | int, ...], value: Any) -> bytes:
    """The usual answer with one member replaced, or removed by `...`."""
    document = msgspec.json.decode(msgspec.json.encode(USUAL))
    within = document
    for step in path[:-1]:
        within = within[step]
    if value is ...:
        within.pop(path[-1], None)
    else:
        within[path[-1]] = value
    return msgspec.json.encode(document)


def test_the_usual_answer_is_read_the_short_way() -> None:
    body = msgspec.json.encode(USUAL)
    answer = plain_answer(body)
    assert answer == the_long_way(body)
    assert answer is not None
    assert answer.usage is not None
    assert (answer.text, answer.reasoning, answer.finish) == ("hi", "hm", "stop")
    assert (answer.usage.input, answer.usage.cached, answer.usage.reasoning) == (93, 93, 38)


USAGE = ("usage",)
CHOICE = ("choices", 0)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("error",), {"message": "no"}),
        (("object",), "error"),
        (("usage",), None),
        (("usage",), ...),
        (("choices",), []),
        (("choices",), [USUAL["choices"][0]] * 2),
        ((*CHOICE, "finish_reason"), None),
        ((*CHOICE, "finish_reason"), ""),
        ((*CHOICE, "finish_reason"), "error"),
        ((*CHOICE, "index"), 1),
        ((*CHOICE, "usage"), {"prompt_tokens": 1}),
        ((*CHOICE, "message", "content"), None),
        ((*CHOICE, "message", "tool_calls"), [{"id": "f:0"}]),
        ((*CHOICE, "message", "reasoning"), "hm"),
        ((*USAGE, "prompt_tokens"), 92),
        ((*USAGE, "prompt_tokens"), -1),
        ((*USAGE, "completion_tokens"), 1 << 41),
        ((*USAGE, "total_tokens"), ...),
        ((*USAGE, "cached_tokens"), 5),
        ((*USAGE, "reasoning_tokens"), 5),
        ((*USAGE, "cache_write_tokens"), 5),
        ((*USAGE, "prompt_tokens_details", "cached_tokens"), 94),
        ((*USAGE, "completion_tokens_details", "reasoning_tokens"), 55),
    ],
)
def test_whatever_is_unusual_goes_the_long_way(path: tuple[str | int, ...], value: Any) -> None:
    assert plain_answer(changed(path, value)) is None


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b"[" * 100_000, b'{"choices":[]}'])
def test_what_is_no_answer_is_none(body: bytes) -> None:
    assert plain_answer(body) is None


ODD: st.SearchStrategy[Any] = st.sampled_from(
    [..., None, 0, 1, 38, 93, -1, 2.0, True, "", "stop", [], {}, {"cached_tokens": 1}]
)
PATHS = st.sampled_from(
    [
        ("id",),
        ("object",),
        ("created",),
        ("model",),
        ("system_fingerprint",),
        *((*CHOICE, name) for name in ("index", "finish_reason", "delta", "usage")),
        *((*CHOICE, "message", name) for name in ("content", "reasoning_content", "reasoning")),
        *((*USAGE, name) for name in USUAL["usage"]),
        (*USAGE, "reasoning_tokens"),
        (*USAGE, "prompt_tokens_details", "cached_tokens"),
        (*USAGE, "completion_tokens_details", "reasoning_tokens"),
    ]
)


@given(PATHS, ODD)
def test_both_ways_give_the_same_answer(path: tuple[str | int, ...], value: Any) -> None:
    body = changed(path, value)
    answer = plain_answer(body)
    if answer is not None:
        assert answer == the_long_way(body)


def test_without_details_the_figures_at_the_top_count() -> None:
    body = changed((*USAGE, "prompt_tokens_details"), ...)
    answer = plain_answer(body)
    assert answer == the_long_way(body)
    body = changed((*USAGE, "completion_tokens_details"), ...)
    answer = plain_answer(body)
    assert answer is not None
    assert answer == the_long_way(body)
