"""What leaves for an upstream: headers, and the members that its dialect needs otherwise."""

import timeit

import pytest

from moongate.core.body import RawBody
from moongate.upstream.dialects import GENERIC, MOONSHOT, VLLM, Dialect
from moongate.upstream.dialects_requests import ask_for_usage, drop_pinned, is_thinking_off, outbound_headers

NAMES = ("X-Request-Id", "x-kimi-request-id")


def test_only_the_pools_key_and_the_ids_leave() -> None:
    extra = [
        (b"TraceParent", b"00-1"),
        (b"Cookie", b"c"),
        (b"X-Api-Key", b"k"),
        (b"Authorization", b"Bearer mine"),
    ]
    lines = outbound_headers(MOONSHOT, "sk-pool", "r-1", NAMES, extra).decode().split("\r\n")
    assert lines == [
        "Authorization: Bearer sk-pool",
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
        "Accept-Encoding: identity",
        "User-Agent: moongate",
        "X-Request-Id: r-1",
        "x-kimi-request-id: r-1",
        "TraceParent: 00-1",
        "",
    ]
    assert b"Authorization" not in outbound_headers(VLLM, "", "r-1", NAMES)


@pytest.mark.parametrize(
    ("key", "request_id", "name"),
    [
        ("k\r\nX: y", "r", "X"),
        ("k", "r\r\nX: y", "X"),
        ("k", "r\x00", "X"),
        ("k", "r", "X\r\nY"),
        ("ключ", "r", "X"),
    ],
)
def test_nothing_splits_a_head(key: str, request_id: str, name: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        outbound_headers(MOONSHOT, key, request_id, (name,))


def test_headers_cost_almost_nothing() -> None:
    taken = timeit.repeat(
        lambda: outbound_headers(MOONSHOT, "sk-pool", "r-0123456789", NAMES), number=2000, repeat=9
    )
    print(f"outbound_headers: {min(taken) / 2000 * 1e6:.2f} us")
    assert min(taken) / 2000 < 10e-6


@pytest.mark.parametrize(
    ("given_options", "sent"),
    [
        (b"", b'{"include_usage":true}'),
        (b',"stream_options":null', b'{"include_usage":true}'),
        (b',"stream_options":{}', b'{"include_usage":true}'),
        (b',"stream_options":{"x":1}', b'{"x":1,"include_usage":true}'),
        (b',"stream_options":{"include_usage":false}', b'{"include_usage":true}'),
    ],
)
def test_usage_is_asked_for_where_it_does_not_come_unasked(given_options: bytes, sent: bytes) -> None:
    body = RawBody(b'{"model":"m"%b}' % given_options)
    before = body.data
    assert not ask_for_usage(MOONSHOT, body)
    assert body.data == before
    assert ask_for_usage(VLLM, body)
    assert body.get("stream_options") == sent
    assert not ask_for_usage(VLLM, body)


OFF = b',"thinking":{"type":"disabled"}'


@pytest.mark.parametrize(
    ("model", "members", "dropped"),
    [
        ("kimi-k2.5", b',"temperature":0.3', ["temperature"]),
        ("kimi-k2.5", b',"temperature":1', []),
        ("kimi-k2.5", b',"temperature":1.0,"top_p":0.9', ["top_p"]),
        ("kimi-k2.5", b',"temperature":0.6', ["temperature"]),
        ("kimi-k2.5", b',"temperature":0.6' + OFF, []),
        ("kimi-k2.6", b',"temperature":1' + OFF, ["temperature"]),
        ("kimi-k2.6", b',"presence_penalty":0.5,"frequency_penalty":0', ["presence_penalty"]),
        ("kimi-k3.1-pro", b',"temperature":0', ["temperature"]),
        ("kimi-k2.5", b',"n":2,"temperature":null,"top_p":"x"', []),
        ("kimi-k2-0905-preview", b',"temperature":0.3', []),
        ("moonshot-v1-8k", b',"temperature":0.3', []),
    ],
)
def test_sampling_that_the_model_pins_is_dropped(model: str, members: bytes, dropped: list[str]) -> None:
    body = RawBody(b'{"messages":[]%b}' % members)
    before = body.data
    assert drop_pinned(VLLM, model, body) == []
    assert drop_pinned(MOONSHOT, model, body) == dropped
    assert (body.data == before) == (not dropped)
    assert not any(name in body for name in dropped)


@pytest.mark.parametrize(
    ("dialect", "member", "off"),
    [
        (MOONSHOT, b'"thinking":{"type":"disabled","x":1}', True),
        (MOONSHOT, b'"thinking":{"type":"enabled"}', False),
        (MOONSHOT, b'"thinking":"disabled"', False),
        (MOONSHOT, b'"thinking":' + b"[" * 20000 + b"]" * 20000, False),
        (VLLM, b'"chat_template_kwargs":{"thinking":false}', True),
        (GENERIC, b'"thinking":{"type":"disabled"}', False),
    ],
)
def test_thinking_is_switched_off_in_the_dialects_own_way(dialect: Dialect, member: bytes, off: bool) -> None:
    try:
        body = RawBody(b"{%b}" % member)
    except Exception:  # noqa: BLE001 - nested too deeply for the body already
        return
    assert is_thinking_off(dialect, body) is off
