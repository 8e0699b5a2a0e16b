"""What the simulated Kimi answers when all goes well."""

import json
import time
from typing import Any

from moongate.sim.clients import Client, Response, chat_bytes
from moongate.sim.config import Config, HostConfig
from tests.sim.world import World, run

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
TIME = {
    "type": "function",
    "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}},
}
OFF = {"type": "disabled"}


def ask(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


def merged_calls(response: Response) -> list[dict[str, Any]]:
    calls: dict[int, dict[str, Any]] = {}
    for chunk in response.objects():
        for choice in chunk["choices"]:
            for part in choice["delta"].get("tool_calls", []):
                call = calls.setdefault(part["index"], {"arguments": ""})
                call["id"] = part.get("id", call.get("id"))
                call["name"] = part["function"].get("name", call.get("name"))
                call["arguments"] += part["function"]["arguments"]
    return [calls[index] for index in sorted(calls)]


def test_a_plain_answer_thinks_and_counts() -> None:
    async def story(world: World) -> None:
        response = await world.chat()
        answer = response.json()
        message, usage = answer["choices"][0]["message"], answer["usage"]
        assert response.status == 200
        assert response.head.get("content-type").startswith("application/json")
        assert answer["object"] == "chat.completion"
        assert answer["id"].startswith("chatcmpl-")
        assert len(answer["id"]) == len("chatcmpl-") + 24
        assert answer["model"] == "kimi-k2.5"
        assert message["content"]
        assert message["reasoning_content"]
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]
        assert "cached_tokens" not in usage
        assert "prompt_tokens_details" not in usage
        assert "system_fingerprint" not in answer

    run(story)


def test_a_stream_says_what_the_plain_answer_says_thinking_first() -> None:
    async def story(world: World) -> None:
        plain = await world.chat()
        stream = await world.chat(stream=True)
        assert stream.head.get("content-type") == "text/event-stream"
        assert stream.events()[-1] == "[DONE]"
        assert stream.text() == plain.text()
        assert stream.text("reasoning_content") == plain.text("reasoning_content")
        chunks = stream.objects()
        kinds = ["content" if "content" in c["choices"][0]["delta"] else "other" for c in chunks[1:-1]]
        assert kinds == sorted(kinds, reverse=True)  # every thought before the first word
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert all(chunk["system_fingerprint"].startswith("fpv0_") for chunk in chunks)

    run(story)


def test_usage_stands_in_the_finishing_choice_and_on_request_in_a_chunk_of_its_own() -> None:
    async def story(world: World) -> None:
        bare = (await world.chat(stream=True)).objects()
        asked = (await world.chat(stream=True, stream_options={"include_usage": True})).objects()
        assert bare[-1]["choices"][0]["finish_reason"] == "stop"
        assert bare[-1]["choices"][0]["usage"]["completion_tokens"] > 0
        assert "usage" not in bare[-1]
        assert asked[-1]["choices"] == []
        assert asked[-1]["usage"] == asked[-2]["choices"][0]["usage"]

    run(story)


def test_thinking_can_be_switched_off() -> None:
    async def story(world: World) -> None:
        message = (await world.chat(thinking=OFF)).json()["choices"][0]["message"]
        assert "reasoning_content" not in message
        stream = await world.chat(thinking=OFF, stream=True)
        assert "reasoning_content" not in stream.body.decode()

    run(story)


def test_the_cap_counts_thinking_too() -> None:
    async def story(world: World) -> None:
        answer = (await world.chat(max_tokens=3)).json()
        assert answer["choices"][0]["message"]["content"] == ""
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 3
        longer = (await world.chat(max_completion_tokens=40)).json()
        assert longer["usage"]["completion_tokens"] == 40
        assert longer["choices"][0]["message"]["content"]

    run(story)


def test_equal_requests_get_equal_answers_and_another_seed_another() -> None:
    seen: list[str] = []

    async def story(world: World) -> None:
        seen.append((await world.chat()).text())
        assert (await world.chat()).text() == seen[-1]
        assert (await world.chat(messages=ask("hello?"))).text() != seen[-1]
        assert (await world.chat(user="u", metadata={"a": 1}, max_tokens=30_000)).text() == seen[-1]

    run(story, Config(seed="one"))
    run(story, Config(seed="one"))
    run(story, Config(seed="two"))
    assert seen[0] == seen[1] != seen[2]


def test_sampling_lets_equal_requests_differ_and_repeats_with_the_seed() -> None:
    runs: list[list[str]] = []

    async def story(world: World) -> None:
        runs.append([(await world.chat()).text() for _ in range(4)])
        assert len(set(runs[-1])) == 4
        assert (await world.chat(sim={"sampling": False})).text() == (
            await world.chat(sim={"sampling": False})
        ).text()

    config = Config(hosts=(HostConfig(sampling=True),))
    run(story, config)
    run(story, config)
    assert runs[0] == runs[1]


def test_chinese_is_answered_in_chinese() -> None:
    async def story(world: World) -> None:
        text = (await world.chat(messages=ask("你好月亮"))).text()
        assert any("\u4e00" <= char <= "\u9fff" for char in text)
        assert not any(char.isascii() and char.isalpha() for char in text)

    run(story)


def test_unknown_members_are_ignored() -> None:
    async def story(world: World) -> None:
        extra: dict[str, Any] = {
            "store": True,
            "metadata": {},
            "verbosity": "low",
            "service_tier": "x",
            "parallel_tool_calls": False,
        }
        assert (await world.chat(**extra)).status == 200

    run(story)


def test_a_named_tool_is_called_with_arguments_that_fit() -> None:
    async def story(world: World) -> None:
        answer = (await world.chat(messages=ask("use get_weather"), tools=[TOOL])).json()
        choice = answer["choices"][0]
        call = choice["message"]["tool_calls"][0]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] == ""
        assert choice["message"]["reasoning_content"]
        assert call["id"] == "functions.get_weather:0"
        arguments = json.loads(call["function"]["arguments"])
        assert isinstance(arguments["city"], str)
        assert isinstance(arguments["days"], int)
        plain = (await world.chat(messages=ask("hello"), tools=[TOOL])).json()
        assert "tool_calls" not in plain["choices"][0]["message"]

    run(story)


def test_parallel_calls_are_interleaved_in_a_stream() -> None:
    async def story(world: World) -> None:
        stream = await world.chat(
            messages=ask("use get_weather and get_time"), tools=[TOOL, TIME], thinking=OFF, stream=True
        )
        whole = await world.chat(
            messages=ask("use get_weather and get_time"), tools=[TOOL, TIME], thinking=OFF
        )
        calls = merged_calls(stream)
        assert [call["id"] for call in calls] == ["functions.get_weather:0", "functions.get_time:1"]
        expected = whole.json()["choices"][0]["message"]["tool_calls"]
        assert [call["arguments"] for call in calls] == [one["function"]["arguments"] for one in expected]
        order = [
            part["index"]
            for chunk in stream.objects()
            for choice in chunk["choices"]
            for part in choice["delta"].get("tool_calls", [])
        ]
        assert order[:4] == [0, 1, 0, 1]
        assert stream.objects()[-1]["choices"][0]["finish_reason"] == "tool_calls"

    run(story)


def test_a_forced_tool_is_called_and_none_is_obeyed() -> None:
    async def story(world: World) -> None:
        named = {"type": "function", "function": {"name": "get_time"}}
        answer = (await world.chat(tools=[TOOL, TIME], tool_choice=named, thinking=OFF)).json()
        assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "get_time"
        answer = (await world.chat(tools=[TOOL, TIME], tool_choice="required", thinking=OFF)).json()
        assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
        answer = (await world.chat(messages=ask("use get_weather"), tools=[TOOL], tool_choice="none")).json()
        assert answer["choices"][0]["finish_reason"] == "stop"

    run(story)


def test_the_index_of_a_call_goes_on_over_the_conversation_and_a_tool_s_answer_is_answered() -> None:
    async def story(world: World) -> None:
        call = {"id": "call_x", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
        history = [
            *ask("use get_weather"),
            {"role": "assistant", "tool_calls": [call], "reasoning_content": " "},
            {"role": "tool", "tool_call_id": "call_x", "content": "sunny"},
        ]
        answer = (await world.chat(messages=history, tools=[TOOL])).json()
        assert answer["choices"][0]["finish_reason"] == "stop"
        more = [*history, {"role": "assistant", "content": "sunny"}, *ask("get_weather again")]
        answer = (await world.chat(messages=more, tools=[TOOL])).json()
        assert answer["choices"][0]["message"]["tool_calls"][0]["id"] == "functions.get_weather:1"

    run(story)


def test_structured_output_fits_its_schema() -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 30},
            "kind": {"enum": ["a", "b"]},
            "age": {"type": "integer", "minimum": 18, "maximum": 19},
            "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2},
            "deep": {"$ref": "#/$defs/deep"},
        },
        "required": ["name", "kind", "age", "tags", "deep"],
        "$defs": {"deep": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}},
    }

    async def story(world: World) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        value = json.loads((await world.chat(response_format=form, stream=True)).text())
        assert len(value["name"]) >= 30
        assert value["kind"] in {"a", "b"}
        assert 18 <= value["age"] <= 19
        assert len(value["tags"]) == 2
        assert isinstance(value["deep"]["ok"], bool)
        assert isinstance(
            json.loads((await world.chat(response_format={"type": "json_object"})).text()), dict
        )

    run(story)


def test_stop_ends_the_text_before_the_word() -> None:
    async def story(world: World) -> None:
        whole = (await world.chat()).text()
        word = whole.split()[5]
        assert (await world.chat(stop=[word])).text() == whole[: whole.index(word)]

    run(story)


def test_steering_sets_lengths_words_and_pieces() -> None:
    async def story(world: World) -> None:
        usage = (await world.chat(sim={"output_tokens": 500})).json()["usage"]
        assert usage["completion_tokens"] == 500
        usage = (await world.chat(sim={"output_tokens": 50, "reasoning_tokens": 20})).json()["usage"]
        assert usage["completion_tokens_details"]["reasoning_tokens"] == 20
        said = await world.chat(sim={"text": "the moon 月", "reasoning": "hm"}, stream=True)
        assert said.text() == "the moon 月"
        assert said.text("reasoning_content") == "hm"
        few = await world.chat(sim={"output_tokens": 400, "chunks": 10}, stream=True)
        deltas = [one for one in few.objects() if one["choices"][0]["delta"].get("content")]
        assert 5 <= len(deltas) <= 10
        assert (await world.chat(sim={"output_tokens": "many", "chunks": -1, "text": 7})).status == 200

    run(story)


def test_n_answers_where_the_model_allows_it() -> None:
    async def story(world: World) -> None:
        old: dict[str, Any] = {"model": "moonshot-v1-8k", "temperature": 0.5, "n": 2}
        choices = (await world.chat(**old)).json()["choices"]
        assert [choice["index"] for choice in choices] == [0, 1]
        assert choices[0]["message"]["content"] != choices[1]["message"]["content"]
        stream = await world.chat(**old, stream=True)
        for index in (0, 1):
            text = "".join(
                choice["delta"].get("content", "")
                for chunk in stream.objects()
                for choice in chunk["choices"]
                if choice["index"] == index
            )
            assert text == choices[index]["message"]["content"]

    run(story)


def test_the_pace_is_what_was_asked_for() -> None:
    async def story(world: World) -> None:
        for stream in (True, False):
            began = time.monotonic()
            await world.chat(
                stream=stream, sim={"first_token": 0.1, "tokens_per_second": 200, "output_tokens": 40}
            )
            took = time.monotonic() - began
            assert 0.28 <= took < 1.5, took

    run(story)


def test_the_head_of_a_stream_comes_before_its_first_token() -> None:
    async def story(world: World) -> None:
        async with Client(world.running.port) as client:
            began = time.monotonic()
            await client.send(chat_bytes({"stream": True, "sim": {"first_token": 0.3}}))
            await client.until(b"\r\n\r\n")
            head = time.monotonic() - began
            await client.until(b"[DONE]")
            assert head < 0.25
            assert time.monotonic() - began >= 0.3

    run(story)
