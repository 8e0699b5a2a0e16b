"""The official SDK, sync and async, knows nothing of moongate but a base URL and a key."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel

from tests.wire.house import House, free_port, until
from tests.wire.parking import release

SETTINGS = """
routes:
  kimi-k2.5: {targets: [kimi], on_abandon: cancel}
  quick:
    {model: kimi-k2.5, targets: [kimi], timeouts: {head: 0.5, first_event: 0.5, idle: 0.5, total: 1.0}}
  other: {model: kimi-k2.5, targets: [kimi]}
"""
HELLO: Any = [{"role": "user", "content": "Hello, Kimi!"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
CLOCK: Any = {
    "type": "function",
    "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture
def kimi(house: House) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"http://127.0.0.1:{house.port}/v1", api_key=house.key, max_retries=0) as client:
        yield client


def _ask(client: OpenAI, sim: Any = None, model: str = "kimi-k2.5", **more: Any) -> Any:
    extra = {} if sim is None else {"sim": {"fault": sim} if isinstance(sim, str) else sim}
    return client.chat.completions.create(model=model, messages=HELLO, extra_body=extra, **more)


def _text(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_models_are_listed(kimi: OpenAI) -> None:
    assert {model.id for model in kimi.models.list()} == {"kimi-k2.5", "quick", "other"}
    assert kimi.models.retrieve("kimi-k2.5").id == "kimi-k2.5"
    with pytest.raises(openai.NotFoundError):
        kimi.models.retrieve("gpt-9")


def test_a_plain_chat(kimi: OpenAI, house: House) -> None:
    answer = _ask(kimi, {"text": "The moon is full.", "reasoning": "Let me see."})
    [choice] = answer.choices
    assert choice.message.content == "The moon is full."
    assert choice.message.reasoning_content == "Let me see."
    assert choice.finish_reason == "stop"
    [execution] = house.executions()
    assert answer.usage.prompt_tokens == execution["input_tokens"]
    assert answer.usage.completion_tokens == execution["output_tokens"]


def test_raw_headers_name_the_call(kimi: OpenAI) -> None:
    raw = kimi.chat.completions.with_raw_response.create(model="kimi-k2.5", messages=HELLO)
    assert raw.parse().choices[0].message.content
    assert raw.headers["x-moongate-call-id"]
    assert raw.headers["x-moongate-model"] == "kimi-k2.5"
    assert raw.parse()._request_id == raw.headers["x-request-id"]


def test_a_stream(kimi: OpenAI) -> None:
    chunks = list(_ask(kimi, {"text": "The moon is full."}, stream=True))
    assert _text(chunks) == "The moon is full."
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_usage_chunk_comes_to_whom_asked(kimi: OpenAI, house: House) -> None:
    chunks = list(_ask(kimi, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens == house.executions()[-1]["output_tokens"]
    assert all(chunk.choices for chunk in _ask(kimi, stream=True))


def test_the_stream_helper_puts_it_together(kimi: OpenAI) -> None:
    with kimi.chat.completions.stream(
        model="kimi-k2.5", messages=HELLO, extra_body={"sim": {"text": "One two three."}}
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "content.delta" in kinds
    assert final.choices[0].message.content == "One two three."


def test_leaving_a_stream_early(kimi: OpenAI, house: House) -> None:
    with _ask(kimi, {"tokens_per_second": 20, "output_tokens": 400}, stream=True) as stream:
        for _, chunk in zip(range(3), stream, strict=False):
            assert chunk.choices
    until(5, lambda: [one["how"] for one in house.executions()] == ["aborted"], "it is given up")
    assert house.executions()[0]["output_tokens"] < 60


def test_parallel_tools_plain_and_streamed(kimi: OpenAI) -> None:
    sim = {"tool_calls": ["weather", "clock"]}
    message = _ask(kimi, sim, tools=[WEATHER, CLOCK]).choices[0].message
    assert [call.function.name for call in message.tool_calls] == ["weather", "clock"]
    assert "city" in json.loads(message.tool_calls[0].function.arguments)
    with kimi.chat.completions.stream(
        model="kimi-k2.5", messages=HELLO, tools=[WEATHER, CLOCK], extra_body={"sim": sim}
    ) as stream:
        streamed = stream.get_final_completion().choices[0].message
    assert streamed.tool_calls is not None
    assert [call.function.model_dump(include={"name", "arguments"}) for call in streamed.tool_calls] == [
        {"name": call.function.name, "arguments": call.function.arguments} for call in message.tool_calls
    ]
    assert [call.id for call in streamed.tool_calls] == [call.id for call in message.tool_calls]


def test_a_tool_call_and_its_result_go_back(kimi: OpenAI, house: House) -> None:
    first = _ask(kimi, {"tool_calls": ["weather"]}, tools=[WEATHER]).choices[0].message
    call = first.tool_calls[0]
    history: Any = [
        *HELLO,
        first.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    answer = kimi.chat.completions.create(model="kimi-k2.5", messages=history, tools=[WEATHER])
    assert answer.choices[0].finish_reason == "stop"
    assert len(house.executions()) == 2


class City(BaseModel):
    name: str
    people: int


def test_structured_output(kimi: OpenAI) -> None:
    answer = kimi.chat.completions.parse(
        model="kimi-k2.5",
        messages=HELLO,
        response_format=City,
        extra_body={"sim": {"text": '{"name": "Beijing", "people": 21893000}'}},
    )
    assert answer.choices[0].message.parsed == City(name="Beijing", people=21893000)


PARKS = ("quota_exhausted", "auth_401", "forbidden_403")
ERRORS = [
    ("400", openai.BadRequestError, "invalid_request"),
    ("content_filter", openai.BadRequestError, "content_filtered"),
    ("rate_limit_rpm", openai.RateLimitError, "kimi_rate_limit_burst"),
    ("rate_limit_tpd", openai.RateLimitError, "kimi_quota_daily"),
    ("quota_exhausted", openai.InternalServerError, "kimi_quota_monthly"),
    ("auth_401", openai.InternalServerError, "kimi_auth_failed"),
    ("500", openai.InternalServerError, "kimi_server_error"),
    ("503", openai.InternalServerError, "kimi_unavailable"),
    ("html_200", openai.InternalServerError, "kimi_bad_response"),
    ("reset_before_head", openai.InternalServerError, "kimi_network_unreachable"),
]


@pytest.mark.parametrize("stream", [False, True])
def test_error_classes(kimi: OpenAI, house: House, stream: bool) -> None:
    for fault, error, code in ERRORS:
        with pytest.raises(error) as caught:
            _ask(kimi, fault, stream=stream)
        assert caught.value.code == code
        assert caught.value.request_id == caught.value.response.headers["x-request-id"]
        if fault in PARKS:
            release(house)


def test_errors_of_the_caller(kimi: OpenAI, house: House) -> None:
    with pytest.raises(openai.AuthenticationError):
        _ask(kimi.with_options(api_key="mg_wrong"))
    with pytest.raises(openai.NotFoundError) as unknown:
        _ask(kimi, model="gpt-9")
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError) as path:
        kimi.embeddings.create(model="kimi-k2.5", input="x")
    assert path.value.code == "not_enabled"
    with pytest.raises(openai.BadRequestError) as half:
        kimi.chat.completions.create(model="kimi-k2.5", messages=HELLO, extra_body={"stream": "yes"})
    assert half.value.param == "stream"
    narrow = house.add_key("narrow", "--route", "other")
    with pytest.raises(openai.PermissionDeniedError) as denied:
        _until_known(kimi.with_options(api_key=narrow))
    assert denied.value.code == "forbidden"
    assert house.executions() == []


def _until_known(client: OpenAI) -> None:
    """A new key is known within a second; a slow machine is given ten."""
    for _ in range(200):
        try:
            _ask(client)
        except openai.AuthenticationError:
            time.sleep(0.05)
    raise AssertionError("the key never became known")


def test_an_error_after_the_first_token_is_raised_in_the_loop(kimi: OpenAI) -> None:
    stream = _ask(kimi, {"fault": "reset_mid_stream", "text": "One two three four five six."}, stream=True)
    with pytest.raises(openai.APIError, match="broke off") as caught:
        list(stream)
    assert caught.value.code == "kimi_stream_truncated"
    assert not isinstance(caught.value, openai.APIStatusError)


def test_time_outs(kimi: OpenAI, house: House) -> None:
    with pytest.raises(openai.APITimeoutError):
        _ask(kimi.with_options(timeout=0.3), "stall_before_head")
    with pytest.raises(openai.InternalServerError) as caught:
        _ask(kimi, "stall_before_head", model="quick")
    assert caught.value.response.status_code == 504
    error: Any = caught.value.body
    assert (error["code"], error["phase"], error["upstream_timeout_ms"]) == (
        "kimi_network_timeout",
        "total",
        1000,
    )
    until(5, lambda: [one["how"] for one in house.executions()] == ["aborted"] * 2, "both are given up")


def test_nobody_there(house: House) -> None:
    del house
    with (
        OpenAI(base_url=f"http://127.0.0.1:{free_port()}/v1", api_key="x", max_retries=0) as client,
        pytest.raises(openai.APIConnectionError),
    ):
        _ask(client)


MAY_HAVE_BEEN_PAID = [
    *("500", "502", "504", "html_504", "html_error_page;code=503", "html_200", "empty_200"),
    *("json_truncated", "short_body", "gzip_broken", "br_unasked", "reset_before_head", "down"),
    *("reset_after_head", "redirect_307", "two_lengths", "1xx_flood", "keep_alive_close"),
]
NEVER_WORTH_IT = ["400", "content_filter", "quota_exhausted", "auth_401", "forbidden_403", "rate_limit_tpd"]


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_that_may_have_been_paid_is_sent_twice(kimi: OpenAI, house: House, stream: bool) -> None:
    patient = kimi.with_options(max_retries=2)
    for fault in (*MAY_HAVE_BEEN_PAID, *NEVER_WORTH_IT):
        before, ran = len(house.received()), len(house.executions())
        with pytest.raises(openai.APIError):
            list(_ask(patient, fault, stream=stream))
        assert len(house.received()) == before + 1, fault
        assert len(house.executions()) <= ran + 1, fault
        if fault in PARKS:
            release(house)


def test_what_did_not_run_is_tried_again_and_paid_once(kimi: OpenAI, house: House) -> None:
    for fault in ("rate_limit_rpm", "503", "engine_overloaded", "error_in_200"):
        house.begin()
        house.tell_sim("POST", "/_sim/script", {"rules": [{"fault": fault, "times": 1}]})
        assert _ask(kimi.with_options(max_retries=2)).choices[0].message.content
        assert len(house.received()) == 2, fault
        assert len(house.executions()) == 1, fault


def test_retries_are_given_up_in_the_end(kimi: OpenAI, house: House) -> None:
    with pytest.raises(openai.RateLimitError) as caught:
        _ask(kimi.with_options(max_retries=1), "rate_limit_rpm")
    assert caught.value.response.headers["retry-after"] == "1"
    assert len(house.received()) == 2
    assert house.executions() == []


async def _gathered(stream: AsyncIterator[ChatCompletionChunk]) -> list[ChatCompletionChunk]:
    return [chunk async for chunk in stream]


def test_the_async_client(house: House) -> None:
    async def main() -> None:
        base = f"http://127.0.0.1:{house.port}/v1"
        async with AsyncOpenAI(base_url=base, api_key=house.key, max_retries=0) as kimi:
            create = kimi.chat.completions.create
            plain = await create(model="kimi-k2.5", messages=HELLO)
            streams = await asyncio.gather(
                *(create(model="kimi-k2.5", messages=HELLO, stream=True) for _ in range(8))
            )
            texts = [_text(await _gathered(stream)) for stream in streams]
            assert texts == [plain.choices[0].message.content] * 8
            with pytest.raises(openai.RateLimitError):
                await create(
                    model="kimi-k2.5", messages=HELLO, extra_body={"sim": {"fault": "rate_limit_rpm"}}
                )
            stream = await create(
                model="kimi-k2.5",
                messages=HELLO,
                stream=True,
                extra_body={"sim": {"fault": "error_event"}},
            )
            with pytest.raises(openai.APIError) as caught:
                await _gathered(stream)
            assert caught.value.code == "kimi_bad_response"
            with pytest.raises(openai.APITimeoutError):
                await kimi.with_options(timeout=0.3).chat.completions.create(
                    model="kimi-k2.5", messages=HELLO, extra_body={"sim": {"fault": "stall_before_head"}}
                )
            slow = {"sim": {"tokens_per_second": 20, "output_tokens": 400}}
            task = asyncio.create_task(create(model="kimi-k2.5", messages=HELLO, extra_body=slow))
            await asyncio.sleep(0.3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
