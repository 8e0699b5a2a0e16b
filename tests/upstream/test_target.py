"""What a call becomes on its way to a target."""

import json
import sys
from dataclasses import replace
from typing import Any

import pytest

from moongate.core.addresses import Url
from moongate.core.body import RawBody
from moongate.core.call import Call, Principal
from moongate.core.faults import FailedError, Fault
from moongate.core.routing import Candidate
from moongate.core.secret import Secret
from moongate.core.settings import Settings
from moongate.core.settings import Target as TargetSettings
from moongate.core.surface import Answer
from moongate.upstream.dialects_requests import EDITS
from moongate.upstream.http1 import Http1
from moongate.upstream.http2 import Http2
from moongate.upstream.names import Names
from moongate.upstream.target import Target
from moongate.upstream.transport import Timeouts
from moongate.world import RealWorld

BASE = TargetSettings(Url("https", "api.moonshot.ai", 443, "/v1"), key=Secret("sk-pool"), dialect="moonshot")


def target(**changes: Any) -> Target:
    """A target of these settings."""
    settings = Settings(targets={"t": replace(BASE, **changes)}, routes={})
    return Target.build("t", settings, RealWorld(), Names(RealWorld().clock))


def call(members: bytes = b"", *, stream: bool = False, include_usage: bool = False) -> Call:
    """A call for kimi-k2.5 with these further members."""
    body = RawBody(b'{"model":"kimi-k2.5","messages":[{"role":"user","content":"hi"}]%b}' % members)
    principal = Principal("k1", "acme")
    return Call(
        *("c1", "r-1", principal, "", "", "kimi-k2.5", "kimi-k2.5", body, stream, include_usage),
        arrived=0.0,
        created=0.0,
        deadline=77.0,
    )


def candidate(model: str = "kimi-k2.5") -> Candidate:
    return Candidate("t", "a", model)


def test_a_call_that_needs_no_edit_leaves_as_it_came() -> None:
    asked, timeouts = call(b',"temperature":1, "x" : 9007199254740993', stream=True), Timeouts(connect=1.0)
    prepared = target().prepare(asked, candidate(), timeouts)
    assert prepared.outbound.body is asked.body.data
    assert (prepared.edits, prepared.strip_usage) == ([], False)
    assert (prepared.outbound.method, prepared.outbound.path) == (b"POST", b"/v1/chat/completions")
    assert (prepared.outbound.deadline, prepared.outbound.timeouts) == (77.0, timeouts)
    lines = prepared.outbound.headers.split(b"\r\n")
    assert b"Authorization: Bearer sk-pool" in lines
    assert {b"X-Request-Id: r-1", b"x-kimi-request-id: r-1"} <= set(lines)


def test_edits_are_noted_and_stay_with_their_target() -> None:
    asked = call(b',"temperature":0.2,"stream":true', stream=True)
    before = asked.body.data
    prepared = target().prepare(asked, candidate("kimi-k2.6"), Timeouts())
    assert prepared.edits == ["model", "temperature"]
    assert json.loads(prepared.outbound.body) == {
        "model": "kimi-k2.6",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
    }
    prepared = target(dialect="vllm").prepare(asked, candidate(), Timeouts())
    assert (prepared.edits, prepared.strip_usage) == (["stream_options.include_usage"], True)
    assert json.loads(prepared.outbound.body)["temperature"] == 0.2
    assert asked.body.data is before


@pytest.mark.parametrize(
    ("stream", "include_usage", "members"),
    [(False, False, b""), (True, True, b',"stream_options":{"include_usage":true}')],
)
def test_usage_is_not_asked_for_twice_nor_for_a_plain_answer(
    stream: bool, include_usage: bool, members: bytes
) -> None:
    asked = call(members, stream=stream, include_usage=include_usage)
    prepared = target(dialect="vllm").prepare(asked, candidate(), Timeouts())
    assert (prepared.edits, prepared.strip_usage) == ([], False)


THINKING = b',"thinking":{"type":"disabled"}'


def test_the_switch_of_thinking_is_the_dialects_own() -> None:
    kimi = target().prepare(call(THINKING), candidate(), Timeouts())
    assert kimi.edits == []
    members = THINKING + b',"chat_template_kwargs":{"x":1}'
    own = target(dialect="sglang").prepare(call(members), candidate(), Timeouts())
    assert own.edits == ["thinking"]
    sent = json.loads(own.outbound.body)
    assert sent["chat_template_kwargs"] == {"x": 1, "thinking": False}
    assert "thinking" not in sent


def test_edits_have_the_names_that_are_documented() -> None:
    members = THINKING + b',"temperature":2,"top_p":0.1,"presence_penalty":1,"frequency_penalty":1'
    edits = target().prepare(call(members), candidate("kimi-k2.6"), Timeouts()).edits
    edits += target(dialect="vllm").prepare(call(THINKING, stream=True), candidate(), Timeouts()).edits
    edits += (
        target().prepare(call(stream=True), candidate(), Timeouts(), Answer(text="Hello", choices=1)).edits
    )
    assert set(edits) == EDITS


def test_what_cannot_be_read_is_the_callers_fault() -> None:
    with pytest.raises(FailedError) as caught:
        target(dialect="vllm").prepare(call(b',"stream_options":1', stream=True), candidate(), Timeouts())
    assert caught.value.failure.fault is Fault.INVALID_REQUEST


def test_settings_reach_the_pool() -> None:
    made = target(
        url=Url("https", "api.moonshot.cn", 8443, ""),
        key=None,
        currency="CNY",
        server_name="kimi.test",
        connections=7,
        idle_connections=3,
        idle_seconds=9.0,
    )
    assert isinstance(made.transport, Http1)
    origin = made.transport.origin
    assert (origin.host, origin.port, origin.tls, origin.server_name) == (
        "api.moonshot.cn",
        8443,
        True,
        "kimi.test",
    )
    assert (origin.max_connections, origin.max_idle, origin.idle_seconds) == (7, 3, 9.0)
    assert (made.currency, target().currency) == ("CNY", "USD")
    outbound = made.prepare(call(), candidate(), Timeouts()).outbound
    assert outbound.path == b"/chat/completions"
    assert b"Authorization" not in outbound.headers


def test_answers_are_explained_in_the_targets_dialect() -> None:
    made = target()
    body = b'{"error":{"type":"engine_overloaded_error","message":"x"}}'
    assert made.explain(429, (), body).fault is Fault.KIMI_ENGINE_OVERLOADED
    wait = [(b"retry-after", b"Thu, 01 Jan 2099 00:00:00 GMT")]
    assert made.explain(429, wait, b"").retry_after == 60.0
    assert made.provider_ids([(b"msh-request-id", b"m-1"), (b"x-msh-trace-id", b"t-1")]) == ("m-1", "t-1")


@pytest.mark.parametrize(
    ("scheme", "protocol", "installed", "kind"),
    [
        ("https", "http1", True, Http1),
        ("https", "http2", True, Http2),
        ("https", "auto", True, Http2),
        ("https", "auto", False, Http1),
        ("http", "http2", True, Http2),
        ("http", "auto", True, Http1),
    ],
)
def test_which_protocol_is_spoken(
    monkeypatch: pytest.MonkeyPatch, scheme: str, protocol: str, installed: bool, kind: type
) -> None:
    if not installed:
        monkeypatch.setitem(sys.modules, "pycurl", None)
    made = target(url=Url(scheme, "api.moonshot.ai", 443, "/v1"), protocol=protocol)
    assert isinstance(made.transport, kind)
    assert made.place is not None
    assert made.alpn_fallbacks == 0
