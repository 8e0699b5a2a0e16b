"""When a broken answer can be continued, and what is asked for then."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.body import RawBody
from moongate.core.resume import Means, continued, obstacle, produced
from moongate.core.surface import Answer, ToolCall

KIMI = Means(message=(("partial", b"true"),), inside_reasoning=True)
HOSTED = Means(call=(("continue_final_message", b"true"), ("add_generation_prompt", b"false")))
HELLO = Answer(text="Hello", choices=1)


def body(**members: Any) -> RawBody:
    asked = {"model": "kimi-k2.5", "messages": [{"role": "user", "content": "Hi"}], "stream": True} | members
    return RawBody(json.dumps(asked, ensure_ascii=False).encode())


@pytest.mark.parametrize(
    ("members", "so_far", "means", "reason"),
    [
        ({}, HELLO, None, "this target cannot continue an answer"),
        ({}, Answer(text="x", tool_calls=[ToolCall(0)]), KIMI, "a tool call was under way"),
        ({}, Answer(text="x", choices=2), KIMI, "several answers were asked for"),
        ({"n": 2}, HELLO, KIMI, "several answers were asked for"),
        ({"logprobs": True}, HELLO, KIMI, "token probabilities were asked for"),
        ({"top_logprobs": 3}, HELLO, KIMI, "token probabilities were asked for"),
        ({"stop": ["END"]}, HELLO, KIMI, "stop words were given"),
        ({"stop": "END"}, HELLO, KIMI, "stop words were given"),
        ({"response_format": {"type": "json_object"}}, HELLO, KIMI, "the answer is JSON"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, HELLO, KIMI, "the answer is JSON"),
        ({"response_format": "json"}, HELLO, KIMI, "the answer is JSON"),
        (
            {"messages": [{"role": "assistant", "content": "Once", "partial": True}]},
            HELLO,
            KIMI,
            "the call itself continues a message",
        ),
        ({"messages": []}, HELLO, KIMI, "the call itself continues a message"),
        ({"messages": "?"}, HELLO, KIMI, "the call itself continues a message"),
        ({}, Answer(choices=1), KIMI, "nothing was delivered"),
        ({}, Answer(reasoning="Hm", choices=1), HOSTED, "it broke off while thinking"),
        ({"max_tokens": 2}, HELLO, KIMI, "its tokens were used up"),
        ({"max_completion_tokens": 1, "max_tokens": 100}, HELLO, KIMI, "its tokens were used up"),
    ],
)
def test_what_stands_in_the_way(
    members: dict[str, Any], so_far: Answer, means: Means | None, reason: str
) -> None:
    assert obstacle(body(**members), so_far, means) == reason


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"n": 1, "logprobs": False, "stop": None, "response_format": {"type": "text"}},
        {"n": None, "stop": [], "response_format": None, "top_logprobs": None},
        {"max_tokens": 3},
        {"max_tokens": None},
        {"max_tokens": "many"},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
    ],
)
def test_one_plain_text_can_be_continued(members: dict[str, Any]) -> None:
    assert obstacle(body(**members), HELLO, KIMI) == ""


def test_thinking_can_be_continued_where_the_dialect_can() -> None:
    assert obstacle(body(), Answer(reasoning="Hm", choices=1), KIMI) == ""
    assert obstacle(body(), Answer(reasoning="Hm", text="H", choices=1), HOSTED) == ""


def test_kimi_is_asked_in_partial_mode() -> None:
    asked = body(max_tokens=100, temperature=1)
    resumed = continued(asked, Answer(text='He said "你好"\n', reasoning="Hm", choices=1), KIMI)
    assert json.loads(resumed.data) == {
        "model": "kimi-k2.5",
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": 'He said "你好"\n', "reasoning_content": "Hm", "partial": True},
        ],
        "stream": True,
        "max_tokens": 100 - 5 - 1,
        "temperature": 1,
    }
    assert asked.get("max_tokens") == b"100", "the client's own body stays as it is"


def test_self_hosted_models_are_asked_to_continue_the_final_message() -> None:
    resumed = json.loads(continued(body(max_completion_tokens=10), HELLO, HOSTED).data)
    assert resumed["messages"][-1] == {"role": "assistant", "content": "Hello"}
    assert (resumed["continue_final_message"], resumed["add_generation_prompt"]) == (True, False)
    assert resumed["max_completion_tokens"] == 8


def test_limits_that_are_no_numbers_are_the_providers_to_refuse() -> None:
    assert json.loads(continued(body(max_tokens="many"), HELLO, KIMI).data)["max_tokens"] == "many"


def test_what_was_produced_is_counted_by_bytes() -> None:
    assert produced(Answer(text="你好", reasoning="abcd")) == 2 + 1


@given(st.lists(st.text(), min_size=1), st.text(min_size=1), st.sampled_from(["", " ", "\n", "\t \r\n"]))
def test_the_clients_messages_travel_on_byte_for_byte(contents: list[str], text: str, space: str) -> None:
    messages = json.dumps([{"role": "user", "content": one} for one in contents])
    spaced = f"{messages[:-1]}{space}]"
    raw = f'{{"model":"k","messages":{spaced}{space},"x":9007199254740993}}'.encode()
    resumed = continued(RawBody(raw), Answer(text=text, choices=1), KIMI)
    assert (resumed.get("messages") or b"").startswith(spaced[:-1].encode())
    assert json.loads(resumed.data)["messages"][:-1] == json.loads(messages)
    assert json.loads(resumed.data)["messages"][-1]["content"] == text
    assert resumed.get("x") == b"9007199254740993"
