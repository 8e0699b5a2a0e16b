"""JSON goes through as it is, both ways; what is none is refused before anything is sent (CASES J1 to J7)."""

import base64
import json
from typing import Any

from tests.recorded import json_suite, needs_data
from tests.wire.answer import Answer
from tests.wire.house import House
from tests.wire.raw import Raw

BIG = b"9007199254740993"
SAID = b'"model":"kimi-k2.5","messages":[{"role":"user","content":"Hi"}]'


def _arrived(house: House) -> list[bytes]:
    return [base64.b64decode(one["body_base64"]) for one in house.received()]


def _all(house: House, bodies: list[bytes]) -> list[Answer]:
    """Answers to these bodies, over one connection as long as it is kept."""
    answers = []
    raw = Raw(house.port)
    for body in bodies:
        raw.post(body, house.key)
        answers.append(raw.answer())
        if answers[-1].headers.get("connection") == "close":
            raw.close()
            raw = Raw(house.port)
    raw.close()
    return answers


@needs_data
def test_every_file_of_the_suite_as_a_member(house: House) -> None:
    suite = json_suite()
    bodies = {name: b'{%b,"x":%b}' % (SAID, text) for name, text in suite.items()}
    answers = dict(zip(bodies, _all(house, list(bodies.values())), strict=True))
    arrived = _arrived(house)
    for name, answer in answers.items():
        if name.startswith("n_"):
            assert (answer.status, answer.error["code"]) == (400, "invalid_request"), name
            assert bodies[name] not in arrived, name
        elif name.startswith("y_"):
            assert answer.status == 200, (name, answer.body)
            assert bodies[name] in arrived, name
        else:
            assert answer.status in (200, 400), name
            assert (bodies[name] in arrived) is (answer.status == 200), name
    assert len(suite) > 300
    assert len(arrived) == sum(answer.status == 200 for answer in answers.values())


@needs_data
def test_every_file_of_the_suite_as_a_body(house: House) -> None:
    for name, answer in zip(json_suite(), _all(house, list(json_suite().values())), strict=True):
        assert (answer.status, answer.error["code"]) == (400, "invalid_request"), name
        assert answer.error["message"]
    assert _arrived(house) == []


def test_big_numbers_keep_their_digits(house: House) -> None:
    body = b'{%b,"seed":%b,"x":{"deep":[%b,1.0,1e2,-0]}}' % (SAID, BIG, BIG)
    assert house.post(body).status == 200
    assert house.post(body.replace(b"kimi-k2.5", b"kimi-2.5")).headers["x-moongate-edits"] == "model"
    assert _arrived(house) == [body, body]
    given = _plain(f'"x":{BIG.decode()},"y":1.50')
    assert house.ask({"fault": "verbatim", "body": given}).body == given.encode()


def _chunk(more: str, finish: str = "null", model: str = "m") -> str:
    head = f'{{"id":"c-1","object":"chat.completion.chunk","model":"{model}",'
    return f'data: {head}"choices":[{{"index":0,"delta":{{"content":"a"{more}}},"finish_reason":{finish}}}]{more}}}\n\n'


def test_big_numbers_keep_their_digits_in_streams(house: House) -> None:
    given = _chunk(f',"x":{BIG.decode()}') * 3 + _chunk(',"y":1.50', '"stop"') + "data: [DONE]\n\n"
    sim = {
        "fault": "verbatim",
        "body": given,
        "framing": "chunked",
        "headers": {"Content-Type": "text/event-stream"},
    }
    assert house.ask(sim, stream=True).body == given.encode()


def _plain(more: str) -> str:
    return (
        f'{{"id":"c-1","choices":[{{"index":0,"message":{{"content":"a"}},"finish_reason":"stop",{more}}}]}}'
    )


def test_what_is_not_quite_json_comes_as_it_is(house: House) -> None:
    for token in ("NaN", "-Infinity", "1e999", '"\\ud800"', "[" * 300 + "]" * 300):
        given = _plain(f'"logprobs":{token}')
        assert house.ask({"fault": "verbatim", "body": given}).body == given.encode()
        events = _chunk(f',"logprobs":{token}') + _chunk("", '"stop"') + "data: [DONE]\n\n"
        sim = {"fault": "verbatim", "body": events, "headers": {"Content-Type": "text/event-stream"}}
        assert house.ask(sim, stream=True).body == events.encode()


DECIDING = {
    "model": '"kimi-k2.5"',
    "messages": "[]",
    "stream": "false",
    "stream_options": "{}",
    "tools": "[]",
    "tool_choice": '"none"',
    "n": "1",
    "max_tokens": "5",
    "max_completion_tokens": "5",
    "temperature": "1",
    "top_p": "0.95",
    "stop": '"x"',
    "logprobs": "false",
    "response_format": '{"type":"text"}',
    "thinking": '{"type":"enabled"}',
    "user": '"u"',
    "prompt_cache_key": '"k"',
}


def test_a_member_that_decides_is_given_once(house: House) -> None:
    for name, value in DECIDING.items():
        head = "" if name in ("model", "messages") else f'"{name}":{value},'
        for spelled in (name, f"\\u{ord(name[0]):04x}{name[1:]}"):
            body = f'{{{head}{SAID.decode()},"{spelled}":{value}}}'
            answer = house.post(body.encode())
            assert (answer.status, answer.error["code"]) == (400, "invalid_request"), body
            assert answer.error["param"] == name
            assert name in answer.error["message"]
    assert _arrived(house) == []


def test_other_members_may_come_twice_and_go_on_so(house: House) -> None:
    body = b'{"x":1,%b,"x" : [2],"metadata":{"a":1,"a":2}}' % SAID
    assert house.post(body).status == 200
    assert _arrived(house) == [body]


def test_half_of_a_surrogate_pair_is_refused_and_the_next_call_is_fine(house: House) -> None:
    for text in (rb"\ud800", rb"a\udc00b", rb"\ud83d\ud83d\ude00", rb"\uDE00\uD83D"):
        answer = house.post(b'{"model":"kimi-k2.5","messages":[{"role":"user","content":"%b"}]}' % text)
        assert (answer.status, answer.error["code"]) == (400, "invalid_request")
        assert "surrogate" in answer.error["message"]
        good = b'{"model":"kimi-k2.5","messages":[{"role":"user","content":"\\ud83d\\ude00"}]}'
        assert house.post(good).status == 200
    assert len(_arrived(house)) == 4


def test_unknown_members_travel_at_every_level_both_ways(house: House) -> None:
    tool = '{"type":"function","x_tool":[1],"function":{"name":"f","parameters":{"type":"object"},"strict":null}}'
    message = '{"role":"user","content":[{"type":"text","text":"Hi","x_part":{}}],"x_message":0.10}'
    body = (
        f'{{"x_top":{{"a":[null]}},"model":"kimi-k2.5","messages":[{message}],"tools":[{tool}],'
        '"thinking":{"type":"enabled","x_thinking":"keep"},"prompt_cache_key":"k-1","partial":false}'
    ).encode()
    assert house.post(body).status == 200
    assert _arrived(house) == [body]
    for stream in (False, True):
        answer = house.ask("unknown_fields", stream=stream)
        first = answer.events[0] if stream else answer.json
        assert first["x_new"] == {"big": int(BIG), "list": [1, None]}
        assert first["choices"][0]["x_new"] == "moon"


def test_an_assistant_turn_may_have_no_content(house: House) -> None:
    call = '{"id":"weather:0","type":"function","function":{"name":"weather","arguments":"{}"}}'
    for content in ('"content":null,', '"content":"",', ""):
        turn = f'{{"role":"assistant",{content}"reasoning_content":"I must look.","tool_calls":[{call}]}}'
        body = (
            '{"model":"kimi-k2.5","messages":[{"role":"user","content":"Hi"},'
            f'{turn},{{"role":"tool","tool_call_id":"weather:0","content":"sunny"}}]}}'
        ).encode()
        answer = house.post(body)
        assert answer.status == 200, answer.body
        assert _arrived(house)[-1] == body


BAD_BODIES: list[tuple[bytes, str | None]] = [
    (b"", None),
    (b"[]", None),
    (b"\xef\xbb\xbf{%b}" % SAID, None),
    (b"{%b" % SAID, None),
    (b'{%b,"x":"\xff"}' % SAID, None),
    (b'{"messages":[]}', "model"),
    (b'{"model":7,"messages":[]}', "model"),
    (b'{"model":"kimi-k2.5"}', "messages"),
    (b'{%b,"stream":"true"}' % SAID, "stream"),
    (b'{%b,"stream":1}' % SAID, "stream"),
    (b'{%b,"stream":true,"stream_options":[]}' % SAID, "stream_options"),
    (b'{%b,"stream":true,"stream_options":{"include_usage":1}}' % SAID, "stream_options.include_usage"),
]


def test_a_bad_body_is_refused_with_the_members_name(house: House) -> None:
    answers = [house.post(body) for body, _ in BAD_BODIES]
    for answer, (body, param) in zip(answers, BAD_BODIES, strict=True):
        assert (answer.status, answer.error["code"]) == (400, "invalid_request"), body
        assert answer.error["param"] == param
        assert answer.headers["x-should-retry"] == "false"
        record = house.record(answer.call_id)
        assert (record["outcome"], record["code"], record["attempts"]) == ("refused", "invalid_request", [])
    assert _arrived(house) == []


def test_nesting_is_no_way_to_bring_it_down(house: House) -> None:
    deep: list[Any] = [b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 50_000 + b"1" + b"}" * 50_000]
    for value in deep:
        answer = house.post(b'{%b,"x":%b}' % (SAID, value))
        assert answer.status in (200, 400)
    assert json.loads(house.ask().body)["choices"]
