"""What the simulated Kimi refuses, and in which words."""

from datetime import date
from typing import Any

import pytest

from moongate.sim.clients import Client, Response, request_bytes
from moongate.sim.config import DEFAULT_AS_OF, Config
from moongate.sim.rules import HIGH_RISK
from tests.sim.world import World, run

HELLO = [{"role": "user", "content": "hello"}]
OFF = {"type": "disabled"}
CALL = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
BAD = "invalid_request_error"


def tool(parameters: Any = None, name: str = "get_weather") -> dict[str, Any]:
    function: dict[str, Any] = {"name": name}
    if parameters is not None:
        function["parameters"] = parameters
    return {"type": "function", "function": function}


def typed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


MFJS = "tools.function.parameters is not a valid moonshot flavored json schema, details: <At path "

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("temperature", {"temperature": 0.7}, "invalid temperature: only 1 is allowed for this model"),
    (
        "temperature without thinking",
        {"temperature": 1, "thinking": OFF},
        "invalid temperature: only 0.6 is allowed for this model",
    ),
    ("top_p", {"top_p": 1}, "invalid top_p: only 0.95 is allowed for this model"),
    ("n", {"n": 2}, "invalid n: only 1 is allowed for this model"),
    ("penalty", {"presence_penalty": 0.5}, "invalid presence_penalty: only 0 is allowed for this model"),
    (
        "six stops",
        {"stop": list("abcdef")},
        "stop array too long. Expected an array with maximum length 5, but got 6",
    ),
    ("long stop", {"stop": "x" * 33}, "Invalid request: stop string too long, at most 32 bytes are allowed"),
    ("no messages", {"messages": []}, "Invalid request: messages must not be empty"),
    (
        "empty assistant",
        {"messages": [*HELLO, {"role": "assistant", "content": ""}, *HELLO]},
        "Invalid request: the message at position 1 with role 'assistant' must not be empty",
    ),
    (
        "absent content",
        {"messages": [{"role": "user"}]},
        "Invalid request: the message at position 0 with role 'user' must not be empty",
    ),
    (
        "empty text part",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]},
        "text content is empty",
    ),
    (
        "image from the web",
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]}
            ]
        },
        "Invalid request: unsupported image url: https://x/y.png",
    ),
    (
        "developer",
        {"messages": [{"role": "developer", "content": "x"}]},
        "Invalid request: the message at position 0 has unknown role 'developer'",
    ),
    (
        "missing reasoning",
        {"messages": [*HELLO, {"role": "assistant", "content": "", "tool_calls": [CALL]}]},
        "thinking is enabled but reasoning_content is missing in assistant tool call message at index 1",
    ),
    (
        "empty reasoning",
        {"messages": [*HELLO, {"role": "assistant", "tool_calls": [CALL], "reasoning_content": ""}]},
        "thinking is enabled but reasoning_content is missing in assistant tool call message at index 1",
    ),
    (
        "tool answer to nothing",
        {"messages": [*HELLO, {"role": "tool", "tool_call_id": "x", "content": "y"}]},
        "role 'tool' must be a response to a preceding message with 'tool_calls'",
    ),
    (
        "tool answer to another call",
        {
            "messages": [
                *HELLO,
                {"role": "assistant", "tool_calls": [CALL], "reasoning_content": " "},
                {"role": "tool", "tool_call_id": "x", "content": "y"},
            ]
        },
        "tool_call_id x is not found",
    ),
    (
        "required with thinking",
        {"tools": [tool()], "tool_choice": "required"},
        "tool_choice 'required' is incompatible with thinking enabled",
    ),
    (
        "specified with thinking",
        {"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
        "tool_choice 'specified' is incompatible with thinking enabled",
    ),
    (
        "no root type",
        {"tools": [tool({"properties": {}})]},
        'tools.function.parameters.type is required and must be "object"',
    ),
    (
        "untyped property",
        {"tools": [tool(typed(a={}))]},
        f"{MFJS}'/properties/a': type is not defined>",
    ),
    (
        "type beside anyOf",
        {"tools": [tool(typed(a={"type": "string", "anyOf": [{"type": "string"}]}))]},
        f"{MFJS}'/properties/a': type should be defined in anyOf items instead of the parent schema>",
    ),
    (
        "keys beside $ref",
        {
            "tools": [
                tool({**typed(a={"$ref": "#/$defs/x", "title": "t"}), "$defs": {"x": {"type": "string"}}})
            ]
        },
        f"{MFJS}'/properties/a': $ref must not have sibling keys>",
    ),
    (
        "foreign $ref",
        {"tools": [tool(typed(a={"$ref": "https://x/y"}))]},
        f"{MFJS}'/properties/a': only local $ref is supported>",
    ),
    (
        "$defs below the root",
        {"tools": [tool(typed(a={"type": "object", "$defs": {}}))]},
        f"{MFJS}'/properties/a': $defs is only allowed at the root>",
    ),
    (
        "tuple",
        {"tools": [tool(typed(a={"type": "array", "prefixItems": []}))]},
        f"{MFJS}'/properties/a': prefixItems is not supported>",
    ),
    (
        "prompt and cap beyond the context",
        {"max_tokens": 262_144},
        "Invalid request: Your request exceeded model token limit: 262144 (requested: 262150)",
    ),
    (
        "prompt beyond the context",
        {"messages": [{"role": "user", "content": "x" * 1_100_000}]},
        "Input token length too long",
    ),
]


def error_of(response: Response) -> tuple[int, str, str]:
    error = response.json()["error"]
    assert set(error) == {"message", "type"}
    return response.status, error["type"], error["message"]


@pytest.mark.parametrize(("name", "members", "message"), REFUSED, ids=[one[0] for one in REFUSED])
def test_refused_with_kimi_s_words(name: str, members: dict[str, Any], message: str) -> None:
    async def story(world: World) -> None:
        assert error_of(await world.chat(**members)) == (400, BAD, message), name
        assert await world.book() == []
        assert (await world.totals())["refused"] == {BAD: 1}

    run(story)


ALLOWED: list[dict[str, Any]] = [
    {"temperature": 1.0, "top_p": 0.95, "n": 1, "presence_penalty": 0, "frequency_penalty": 0},
    {"temperature": 0.6, "thinking": OFF},
    {"messages": [*HELLO, {"role": "assistant", "tool_calls": [CALL], "reasoning_content": " "}]},
    {"messages": [*HELLO, {"role": "assistant", "tool_calls": [CALL]}], "thinking": OFF},
    {
        "messages": [
            *HELLO,
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": CALL["id"], "content": "x"},
            {"role": "assistant", "content": "y"},
            *HELLO,
        ]
    },
    {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}],
            }
        ]
    },
    {"tools": [tool(), tool(typed(a={"type": "string"}), "_other-one")]},
    {"stop": ["a", "b", "c", "d", "e"]},
]


@pytest.mark.parametrize("members", ALLOWED)
def test_allowed(members: dict[str, Any]) -> None:
    async def story(world: World) -> None:
        response = await world.chat(**members)
        assert response.status == 200, response.body

    run(story)


@pytest.mark.parametrize("name", ["1st", "", "a b", "x" * 257, "名"])
def test_tool_names_must_be_identifiers(name: str) -> None:
    async def story(world: World) -> None:
        status, kind, message = error_of(await world.chat(tools=[tool(name=name)]))
        assert (status, kind) == (400, BAD)
        assert message.startswith("Invalid request: function name is invalid")

    run(story)


def test_too_many_tools() -> None:
    async def story(world: World) -> None:
        tools = [tool(name=f"tool_{at}") for at in range(129)]
        assert (await world.chat(tools=tools)).status == 400
        assert (await world.chat(tools=tools[:128])).status == 200

    run(story)


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"nul", b'{"model":"kimi-k2.5"}', b'{"model":1,"messages":[]}', b"\xff"]
)
def test_a_body_that_is_none(raw: bytes) -> None:
    async def story(world: World) -> None:
        async with Client(world.running.port) as client:
            head = {"Authorization": "Bearer sk-sim"}
            response = await client.request(request_bytes("POST", "/v1/chat/completions", raw, head))
            assert response.status == 400
            assert response.json()["error"]["message"].startswith("Invalid request: ")
            assert (await client.request(request_bytes("GET", "/_sim"))).status == 200

    run(story)


def test_the_content_filter() -> None:
    async def story(world: World) -> None:
        response = await world.chat(messages=[{"role": "user", "content": f"say {HIGH_RISK}"}])
        message = "The request was rejected because it was considered high risk"
        assert error_of(response) == (400, "content_filter", message)

    run(story)


def test_the_two_401() -> None:
    async def story(world: World) -> None:
        unknown = (401, "incorrect_api_key_error", "Incorrect API key provided")
        invalid = (401, "invalid_authentication_error", "Invalid Authentication")
        assert (
            error_of(await world.call("POST", "/v1/chat/completions", {"model": "x", "messages": []}))
            == unknown
        )
        assert error_of(await world.chat(key="sk-wrong-1")) == unknown
        assert error_of(await world.chat(key="sk-revoked-1")) == invalid
        assert error_of(await world.call("GET", "/v1/models", Authorization="Basic eDp5")) == invalid

    run(story)


def on(day: str) -> Config:
    return Config(as_of=date.fromisoformat(day))


@pytest.mark.parametrize(
    ("day", "model", "status"),
    [
        ("2026-01-26", "kimi-k2.5", 404),
        ("2026-01-27", "kimi-k2.5", 200),
        ("2026-08-30", "kimi-k2.5", 200),
        ("2026-08-31", "kimi-k2.5", 404),
        ("2026-08-31", "kimi-k2.6", 200),
        ("2026-08-31", "moonshot-v1-8k", 404),
        ("2026-05-24", "kimi-k2-thinking", 200),
        ("2026-05-25", "kimi-k2-thinking", 404),
        ("2026-01-27", "kimi-latest", 200),
        ("2026-01-28", "kimi-latest", 404),
        ("2026-11-30", "kimi-k3", 200),
        ("2026-11-30", "kimi-2.5", 404),
    ],
)
def test_models_come_and_go(day: str, model: str, status: int) -> None:
    async def story(world: World) -> None:
        response = await world.chat(model=model)
        assert response.status == status
        listed = (await world.call("GET", "/v1/models", Authorization="Bearer sk-sim")).json()
        assert (model in [one["id"] for one in listed["data"]]) is (status == 200)
        if status == 404:
            _, kind, message = error_of(response)
            assert kind == "resource_not_found_error"
            new = day >= "2026-08"
            assert message.startswith(
                "Model not found, or this account" if new else f"Not found the model {model}"
            )

    run(story, on(day))


def test_the_default_day_is_one_when_k25_answered() -> None:
    assert date(2026, 6, 1) == DEFAULT_AS_OF


def test_models_that_always_think_refuse_not_to() -> None:
    async def story(world: World) -> None:
        refused = await world.chat(model="kimi-k2.7-code", thinking=OFF)
        assert error_of(refused)[2] == "invalid thinking: only type=enabled is allowed for this model"
        free = await world.chat(model="kimi-k3", thinking=OFF)
        assert "reasoning_content" not in free.json()["choices"][0]["message"]
        forced = await world.chat(model="kimi-k3", tools=[tool()], tool_choice="required")
        assert forced.json()["choices"][0]["finish_reason"] == "tool_calls"

    run(story, on("2026-11-30"))


def test_sampling_is_free_within_bounds_on_old_models() -> None:
    async def story(world: World) -> None:
        old: dict[str, Any] = {"model": "moonshot-v1-8k"}
        assert (await world.chat(**old, temperature=0.3, top_p=0.5)).status == 200
        assert (await world.chat(**old, temperature=1.5)).status == 400
        assert (await world.chat(**old, n=6, temperature=1)).status == 400
        assert (await world.chat(**old, n=2)).status == 400

    run(story)
