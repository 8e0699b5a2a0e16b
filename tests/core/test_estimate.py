"""A prompt is counted as near as can be, an answer never above the truth."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.estimate import FRAME_TOKENS, IMAGE_TOKENS, estimate, least_tokens, prompt_tokens


def counted(messages: object, tools: object = None) -> int:
    given = b"" if tools is None else json.dumps(tools).encode()
    return prompt_tokens(json.dumps(messages).encode(), given)


def said(content: object, **more: object) -> dict[str, object]:
    return {"role": "user", "content": content, **more}


def test_a_token_is_four_bytes_and_a_started_one_counts() -> None:
    assert [estimate(size) for size in (0, 1, 4, 5, 8, 400)] == [0, 1, 1, 2, 2, 100]


def test_a_prompt_is_its_texts_and_a_frame_for_each_message() -> None:
    assert counted([said("12345678")]) == FRAME_TOKENS + 2
    assert counted([said("12345678"), said("1234")]) == 2 * FRAME_TOKENS + 3
    assert counted([said("月亮")]) == FRAME_TOKENS + 2, "bytes, not characters"
    assert counted([said(None), {}]) == 2 * FRAME_TOKENS
    assert counted([]) == prompt_tokens(b"", b"") == FRAME_TOKENS


def test_parts_of_a_message_are_texts_and_pictures() -> None:
    parts = [
        {"type": "text", "text": "1234"},
        {"type": "image_url"},
        {"type": "video_url"},
        "odd",
        {"text": 5},
    ]
    assert counted([said(parts)]) == FRAME_TOKENS + 1 + 2 * IMAGE_TOKENS


def test_calls_and_tools_are_their_json_without_blanks() -> None:
    call = [{"id": "a"}]
    assert counted([said("", tool_calls=call)]) == FRAME_TOKENS + estimate(len('[{"id":"a"}]'))
    assert counted([], call) == FRAME_TOKENS + estimate(len('[{"id":"a"}]'))


@pytest.mark.parametrize("messages", [b"5", b"[[", b"[" * 5000])
def test_what_cannot_be_read_is_a_quarter_of_its_bytes(messages: bytes) -> None:
    assert prompt_tokens(messages, b"[}") == estimate(len(messages)) + 1


@pytest.mark.parametrize(
    ("text", "least"), [("", 0), ("a", 1), ("one two three", 3), ("x" * 80, 10), ("月亮大门河流光明", 3)]
)
def test_a_word_is_one_token_at_least_and_so_are_eight_bytes(text: str, least: int) -> None:
    assert least_tokens(text) == least


@given(st.text(max_size=200), st.text(max_size=200))
def test_more_text_is_never_less(first: str, second: str) -> None:
    assert least_tokens(first) <= least_tokens(first + second)
