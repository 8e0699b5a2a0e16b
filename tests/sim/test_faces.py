"""vLLM and SGLang as the simulator plays them."""

import asyncio
import re
from typing import Any

import pytest

from moongate.sim.config import Config, HostConfig
from tests.sim.world import World, run

MODEL = "moonshotai/Kimi-K2.5"
TOOL = {
    "type": "function",
    "function": {"name": "get_time", "parameters": {"properties": {}, "type": "object"}},
}
VLLM = Config(hosts=(HostConfig(face="vllm"),))
SGLANG = Config(hosts=(HostConfig(face="sglang"),))
BOTH = [VLLM, SGLANG]


def asked(content: str = "hello") -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}]}


@pytest.mark.parametrize(("config", "member"), [(VLLM, "reasoning"), (SGLANG, "reasoning_content")])
def test_thinking_has_the_face_s_name(config: Config, member: str) -> None:
    async def story(world: World) -> None:
        whole = await world.chat(**asked())
        message = whole.json()["choices"][0]["message"]
        assert message[member]
        assert len([name for name in message if name.startswith("reasoning")]) == 1
        stream = await world.chat(**asked(), stream=True)
        assert stream.text(member) == message[member]
        assert stream.text() == message["content"]

    run(story, config)


@pytest.mark.parametrize("config", BOTH)
def test_a_stream_has_no_usage_unless_asked(config: Config) -> None:
    async def story(world: World) -> None:
        assert b"usage" not in (await world.chat(**asked(), stream=True)).body
        chunks = (await world.chat(**asked(), stream=True, stream_options={"include_usage": True})).objects()
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] > 0
        assert sum("usage" in chunk for chunk in chunks) == 1
        assert not any("usage" in choice for chunk in chunks for choice in chunk["choices"])

    run(story, config)


@pytest.mark.parametrize("config", BOTH)
def test_nothing_is_pinned_and_no_schema_is_checked(config: Config) -> None:
    async def story(world: World) -> None:
        loose = {"type": "function", "function": {"name": "1 x", "parameters": {"properties": {"a": {}}}}}
        members: dict[str, Any] = {**asked(), "temperature": 0.2, "top_p": 0.5, "n": 2, "tools": [loose]}
        answer = await world.chat(**members)
        assert answer.status == 200
        assert len(answer.json()["choices"]) == 2
        assert (await world.chat(**{**asked(), "temperature": -1})).status == 400

    run(story, config)


@pytest.mark.parametrize("config", BOTH)
def test_the_thinking_switch_is_the_template_s(config: Config) -> None:
    async def story(world: World) -> None:
        off = await world.chat(**asked(), chat_template_kwargs={"thinking": False})
        assert "reasoning" not in off.body.decode()
        other = await world.chat(**asked(), thinking={"type": "disabled"})
        assert "reasoning" in other.body.decode()

    run(story, config)


@pytest.mark.parametrize("config", BOTH)
def test_foreign_ids_in_the_history_end_the_calling_of_tools(config: Config) -> None:
    def history(call_id: str) -> list[Any]:
        call = {"id": call_id, "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
        return [
            {"role": "user", "content": "get_time"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call_id, "content": "noon"},
            {"role": "user", "content": "get_time once more"},
        ]

    async def story(world: World) -> None:
        native = await world.chat(model=MODEL, messages=history("functions.get_time:0"), tools=[TOOL])
        assert native.json()["choices"][0]["message"]["tool_calls"][0]["id"] == "functions.get_time:1"
        assert native.json()["choices"][0]["message"]["content"] is None
        foreign = await world.chat(model=MODEL, messages=history("call_abc"), tools=[TOOL])
        assert foreign.json()["choices"][0]["finish_reason"] == "stop"

    run(story, config)


@pytest.mark.parametrize("config", BOTH)
def test_the_final_message_can_be_continued(config: Config) -> None:
    async def story(world: World) -> None:
        whole = (await world.chat(**asked())).text()
        messages = [*asked()["messages"], {"role": "assistant", "content": whole[:40]}]
        more: dict[str, Any] = {"continue_final_message": True, "add_generation_prompt": False}
        rest = await world.chat(model=MODEL, messages=messages, **more)
        assert whole[:40] + rest.text() == whole
        answered = await world.chat(model=MODEL, messages=messages)
        assert whole[:40] + answered.text() != whole

    run(story, config)


def test_a_stream_cut_on_one_host_goes_on_on_another_of_another_face() -> None:
    config = Config(hosts=(HostConfig(name="kimi"), HostConfig(name="own", face="vllm")))

    async def story(world: World) -> None:
        whole = (await world.chat()).text()
        messages = [*asked()["messages"], {"role": "assistant", "content": whole[:40]}]
        own = world.running.ports["own"]
        rest = await world.chat(port=own, model=MODEL, messages=messages, continue_final_message=True)
        assert whole[:40] + rest.text() == whole
        assert {row["host"] for row in await world.book()} == {"kimi", "own"}

    run(story, config)


def test_errors_have_the_face_s_shape() -> None:
    async def vllm(world: World) -> None:
        response = await world.chat(model="none", messages=asked()["messages"])
        assert response.status == 404
        assert response.json()["error"] == {
            "message": "The model `none` does not exist.",
            "type": "NotFoundError",
            "param": None,
            "code": 404,
        }

    async def sglang(world: World) -> None:
        response = await world.chat(**{**asked(), "top_p": 2})
        assert response.json()["object"] == "error"
        assert response.json()["type"] == "BadRequestError"

    run(vllm, VLLM)
    run(sglang, SGLANG)


@pytest.mark.parametrize("config", BOTH)
def test_no_account_shows_and_the_request_id_comes_back(config: Config) -> None:
    async def story(world: World) -> None:
        head = (await world.chat(**asked(), headers={"X_Request_Id": "r-1"})).head
        assert head.get("x-request-id") == "r-1"
        assert not [name for name, _ in head.headers if name.startswith(("msh", "cf", "set-cookie"))]
        (row,) = await world.book()
        assert row["cost_micro"] == 0

    run(story, config)


@pytest.mark.parametrize(("config", "prefix"), [(VLLM, "vllm"), (SGLANG, "sglang")])
def test_health_and_metrics(config: Config, prefix: str) -> None:
    running, waiting = {
        "vllm": ("vllm:num_requests_running", "vllm:num_requests_waiting"),
        "sglang": ("sglang:num_running_reqs", "sglang:num_queue_reqs"),
    }[prefix]

    async def story(world: World) -> None:
        assert (await world.call("GET", "/health")).status == 200
        await world.chat(**asked())
        page = (await world.call("GET", "/metrics")).body.decode()
        assert re.search(rf'^{running}{{model_name="{MODEL}"}} 0\.0$', page, re.MULTILINE)
        assert waiting in page
        assert "cache_config_info" in page
        await world.call("POST", "/_sim/switch", {"overload": True})
        assert (await world.call("GET", "/health")).status == 503
        assert (await world.chat(**asked())).status == 503

    run(story, config)


@pytest.mark.parametrize("face", ["vllm", "sglang"])
def test_gauges_tell_the_truth_under_load(face: str) -> None:
    names = {
        "vllm": ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
        "sglang": ("sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage"),
    }[face]

    async def gauges(world: World) -> list[float]:
        page = (await world.call("GET", "/metrics")).body.decode()
        found = [re.search(rf"^{name}{{.*}} (.*)$", page, re.MULTILINE) for name in names]
        return [float(one[1]) for one in found if one]

    async def shows(world: World, *wanted: float) -> None:
        for _ in range(1000):
            if await gauges(world) == list(wanted):
                return
            await asyncio.sleep(0.02)
        raise AssertionError(await gauges(world))

    async def story(world: World) -> None:
        slow = asked() | {"stream": True, "sim": {"tokens_per_second": 1, "output_tokens": 60}}
        held = [asyncio.create_task(world.chat(**slow)) for _ in range(2)]
        await shows(world, 2, 0, 1)
        quick = [asyncio.create_task(world.chat(**asked())) for _ in range(2)]
        impatient = asyncio.create_task(world.chat(**asked()))
        await shows(world, 2, 3, 1)
        impatient.cancel()
        await shows(world, 2, 2, 1)
        held[0].cancel()
        assert [answer.status for answer in await asyncio.gather(*quick)] == [200, 200]
        await shows(world, 1, 0, 0.5)
        held[1].cancel()
        await asyncio.wait([*held, impatient])
        await shows(world, 0, 0, 0)

    run(story, Config(hosts=(HostConfig(face=face, slots=2),)))


def test_a_key_is_wanted_only_where_one_is_set() -> None:
    async def story(world: World) -> None:
        assert (await world.chat(**asked(), key="other")).status == 401
        assert (await world.chat(**asked(), key="secret")).status == 200

    run(story, Config(hosts=(HostConfig(face="vllm", api_key="secret", models=(MODEL, "tiny")),)))


def test_models_and_tokenize() -> None:
    async def story(world: World) -> None:
        listed = (await world.call("GET", "/v1/models")).json()["data"]
        assert [one["id"] for one in listed] == [MODEL]
        assert listed[0]["max_model_len"] == 262_144
        total = (await world.call("POST", "/tokenize", asked())).json()["count"]
        assert (await world.chat(**asked())).json()["usage"]["prompt_tokens"] == total
        assert (await world.call("GET", "/v1/users/me/balance")).status == 404

    run(story, VLLM)
