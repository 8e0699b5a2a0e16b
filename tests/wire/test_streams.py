"""Streams arrive whole and unchanged, wherever upstream's bytes are cut, and are metered (CASES S1 to S25)."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.wire.answer import Answer, payloads
from tests.wire.house import House, until
from tests.wire.raw import Raw

HOSTS: list[dict[str, Any]] = [
    {"name": "kimi"},
    {"name": "vllm", "face": "vllm"},
    {"name": "sglang", "face": "sglang"},
]
SETTINGS = """
routes:
  kimi-k2.5: {targets: [kimi]}
  vllm: {model: moonshotai/Kimi-K2.5, targets: [vllm]}
  sglang: {model: moonshotai/Kimi-K2.5, targets: [sglang]}
  quick: {model: kimi-k2.5, targets: [kimi], timeouts: {head: 1, first_event: 0.6, idle: 0.6, total: 5}}
"""
EVENT_STREAM = {"Content-Type": "text/event-stream"}
CHINESE: Any = [{"role": "user", "content": "用中文写一首关于月亮的诗。🌙"}]
PLAIN: Any = {"thinking": {"type": "disabled"}}


def _event(delta: dict[str, Any] | None, finish: str | None = None, **more: Any) -> str:
    choice = {"index": 0, "finish_reason": finish} | ({} if delta is None else {"delta": delta})
    chunk = {"id": "c-1", "object": "chat.completion.chunk", "model": "kimi-k2.5", "choices": [choice]}
    return f"data: {json.dumps(chunk | more, ensure_ascii=False)}\n\n"


USAGE = {"prompt_tokens": 7, "completion_tokens": 11, "total_tokens": 18}
DONE = "data: [DONE]\n\n"
STORY = (
    _event({"role": "assistant", "content": ""})
    + _event({"content": "月亮 🌙\\n "})
    + _event({"content": 'a"b\\u4f60\n'})
    + _event({}, "stop", usage=USAGE)
    + DONE
)


def _verbatim(house: House, body: str | bytes, model: str = "kimi-k2.5", **sim: Any) -> Answer:
    text = body if isinstance(body, str) else body.decode()
    given = {"fault": "verbatim", "body": text, "framing": "chunked", "headers": EVENT_STREAM, **sim}
    return house.ask(given, stream=True, model=model)


FRAMINGS: dict[str, Callable[[str], str]] = {
    "lf": lambda story: story,
    "crlf": lambda story: story.replace("\n", "\r\n"),
    "cr": lambda story: story.replace("\n", "\r"),
    "mixed": lambda story: story.replace("\n\n", "\r\n\r\n", 1).replace("\n\n", "\n\r", 1),
    "no space": lambda story: story.replace("data: ", "data:"),
    "bom": lambda story: "\ufeff" + story,
    "comments": lambda story: ": hello\n\n" + story.replace("data:", ":\n\ndata:"),
    "a comment inside": lambda story: story.replace("data: {", ": hb\ndata: {"),
    "two data lines": lambda story: story.replace(', "object"', ',\ndata: "object"'),
    "other fields": lambda story: story.replace("data:", "event: message\nid: 7\nretry: 10\nmoon: x\ndata:"),
    "empty lines": lambda story: "\n\n" + story.replace("\n\ndata", "\n\n\ndata"),
}


def test_events_come_byte_for_byte_however_they_are_written(house: House) -> None:
    for name, write in FRAMINGS.items():
        given = write(STORY)
        answer = _verbatim(house, given)
        assert answer.body == given.encode(), name
        assert answer.text == '月亮 🌙\\n a"b\\u4f60\n', name


def test_events_do_not_depend_on_where_they_are_cut(house: House) -> None:
    wrote = {name: FRAMINGS[name](STORY).encode() for name in ("lf", "crlf", "two data lines")}
    cuts = [(given, [at]) for given in wrote.values() for at in range(1, len(given), 3)]
    cuts += [(given, list(range(1, len(given)))) for given in wrote.values()]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda cut: _verbatim(house, cut[0], slices=cut[1]), cuts))
    for (given, slices), answer in zip(cuts, answers, strict=True):
        assert answer.body == given, slices
    house.at_rest()
    states = house.rows(
        "SELECT state, input, output FROM attempts WHERE started >= ? GROUP BY 1, 2, 3", house.cleared
    )
    assert states == [{"state": "settled", "input": 7, "output": 11}]


SETTLED = [
    *("crlf", "cr", "mixed_newlines", "bom", "comments", "multi_line_data", "no_space", "other_fields"),
    *("one_byte_chunks", "event_split_inside_utf8", "content_null", "usage_twice", "no_done"),
    *("no_done_close", "after_done", "gzip", "drip;bytes=64;seconds=0.001", "slow_close;seconds=0.1"),
]


def test_the_simulators_framings_lose_no_word_and_no_token(house: House) -> None:
    plain = house.ask({"output_tokens": 60}, messages=CHINESE).text
    with ThreadPoolExecutor(8) as pool:
        asked = {
            fault: pool.submit(
                house.ask, {"fault": fault, "output_tokens": 60}, stream=True, messages=CHINESE
            )
            for fault in SETTLED
        }
    for fault, asking in asked.items():
        answer = asking.result()
        assert answer.text == plain, fault
        assert answer.events.count("[DONE]") == 1, fault
        assert "content-encoding" not in answer.headers
    house.at_rest()  # holds the ledger's tokens against the provider's
    states = house.rows("SELECT DISTINCT state FROM attempts WHERE started >= ?", house.cleared)
    assert states == [{"state": "settled"}]


@pytest.mark.parametrize("route", ["vllm", "sglang"])
def test_usage_is_asked_for_where_it_must_be_and_kept_from_whom_did_not_ask(house: House, route: str) -> None:
    quiet = house.ask(stream=True, model=route)
    assert quiet.headers["x-moongate-edits"] == "model, stream_options.include_usage"
    assert all(event == "[DONE]" or event["choices"] for event in quiet.events)
    assert b"usage" not in quiet.body.replace(b'"usage":null', b"")
    asked = house.ask(stream=True, model=route, stream_options={"include_usage": True})
    assert asked.headers["x-moongate-edits"] == "model"
    assert asked.events[-2]["choices"] == []
    assert asked.events[-2]["usage"]["completion_tokens"] == house.executions()[-1]["output_tokens"]
    assert quiet.text == asked.text
    for answer in (quiet, asked):
        [attempt] = house.record(answer.call_id)["attempts"]
        assert (attempt["state"], attempt["output"]) == ("settled", house.executions()[-1]["output_tokens"])


@pytest.mark.parametrize(
    "last",
    [
        _event(None, "stop", usage=USAGE),
        _event({}, "stop", usage=USAGE),
        _event({"role": "assistant"}, "stop", usage=USAGE),
        _event({}, "stop") + f'data: {{"id":"c-1","choices":[],"usage":{json.dumps(USAGE)}}}\n\n',
        _event({}, "stop").replace('"finish_reason"', f'"usage":{json.dumps(USAGE)},"finish_reason"'),
    ],
    ids=["no delta", "empty delta", "role only", "a chunk of its own", "in the choice"],
)
def test_usage_is_metered_wherever_it_stands(house: House, last: str) -> None:
    story = _event({"content": "a"}) + last + DONE
    answer = _verbatim(house, story)
    assert answer.body == story.encode()
    record = house.record(answer.call_id)
    assert (record["input"], record["output"], record["attempts"][0]["state"]) == (7, 11, "settled")


def test_a_missing_done_is_supplied_once(house: House) -> None:
    for cut in (DONE, "\n\n" + DONE, "\n" + DONE):
        assert _verbatim(house, STORY.removesuffix(cut)).body == STORY.encode()
    assert _verbatim(house, STORY + DONE + _event({"content": "late"})).body == STORY.encode()


def test_an_end_without_finish_reason_is_an_error_not_an_end(house: House) -> None:
    begun = _event({"content": "a"})
    for story in (begun, begun + DONE, begun + _event({"content": "b"})[:40]):
        answer = _verbatim(house, story)
        assert answer.body.startswith(begun.encode())
        assert answer.error["code"] == "kimi_stream_truncated"
        assert len(answer.events) == 2
        assert answer.body.endswith(b"}\n\n")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"code": "request_timeout", "type": "invalid_request_error", "message": "x"}, "kimi_bad_response"),
        ({"type": "rate_limit_reached_error", "message": "organization max RPM: 3"}, "kimi_rate_limit_burst"),
        ({"type": "engine_overloaded_error", "message": "org-abc is busy"}, "kimi_engine_overloaded"),
    ],
)
def test_an_error_in_the_stream_is_mapped_by_its_cause(
    house: House, error: dict[str, str], code: str
) -> None:
    raised = f"data: {json.dumps({'error': error})}\n\n"
    late = _verbatim(house, _event({"content": "a"}) + raised + DONE)
    assert [late.status, late.events[-1]["error"]["code"], len(late.events)] == [200, code, 2]
    assert late.error["type"] != "invalid_request_error"
    early = _verbatim(house, ": hb\n\n" + raised)
    assert early.status in (429, 502, 503)
    assert early.error["code"] == code
    assert b"org-abc" not in late.body + early.body
    assert house.ask(stream=True).events[-1] == "[DONE]"


def test_comments_are_no_sign_of_life(house: House) -> None:
    beats = ": hb\n\n" * 30
    slices = list(range(6, len(beats), 6))
    silent = _verbatim(house, beats + STORY, "quick", slices=slices, pause=0.1)
    assert (silent.status, silent.error["code"], silent.error["phase"]) == (
        504,
        "kimi_network_timeout",
        "first_event",
    )
    first = _event({"content": "a"})
    marks = [len(first.encode()), *(len(first.encode()) + at for at in slices)]
    stalled = _verbatim(house, first + beats + STORY, "quick", slices=marks, pause=0.1)
    assert (stalled.status, stalled.error["phase"]) == (200, "idle")


def test_each_event_leaves_at_once_and_nobody_may_buffer_it(house: House) -> None:
    sim = {"tokens_per_second": 20, "output_tokens": 30, "first_token": 0.1}
    with Raw(house.port) as raw:
        began = time.monotonic()
        raw.post(house.body(sim, stream=True), house.key)
        status, headers = raw.head()
        raw.until(b"\n\n")
        assert time.monotonic() - began < 1
        seen = [time.monotonic()]
        while b"[DONE]" not in raw.until(b"\n\n"):
            seen.append(time.monotonic())
    assert seen[-1] - seen[0] > 0.5
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    assert (headers["x-accel-buffering"], headers["cache-control"]) == ("no", "no-store")
    assert headers["transfer-encoding"] == "chunked"
    assert "content-length" not in headers


def test_gzip_is_undone(house: House) -> None:
    plain = house.ask("gzip")
    assert plain.json["choices"]
    assert "content-encoding" not in plain.headers
    assert int(plain.headers["content-length"]) == len(plain.body)


def test_tool_calls_pass_untouched(house: House) -> None:
    def call(index: int | None, arguments: str, **more: str) -> dict[str, Any]:
        place = {} if index is None else {"index": index}
        return place | more | {"function": {"arguments": arguments}}

    story = "".join(
        _event({"tool_calls": calls})
        for calls in (
            [call(0, "", id="a:0", type="function"), call(1, "", id="b:1", type="function")],
            [call(1, '{"x"')],
            [call(0, '{"y"')],
            [call(1, ":1}"), call(0, ":2}")],
            [call(None, "", id="c:2")],
            [call(None, "{}")],
        )
    )
    given = story + _event({}, "tool_calls") + DONE
    answer = _verbatim(house, given)
    assert answer.body == given.encode()
    [attempt] = house.record(answer.call_id)["attempts"]
    assert attempt["state"] == "settled_est"
    assert attempt["output"] > 0
    schema = {"type": "object", "properties": {}}
    tools = [{"type": "function", "function": {"name": name, "parameters": schema}} for name in ("f", "g")]
    sim = {"tool_calls": ["f", "g"]}
    whole = house.ask(sim, stream=True, tools=tools)
    missing = house.ask(sim | {"fault": "tool_index_missing"}, stream=True, tools=tools)
    assert missing.events[-1] == whole.events[-1] == "[DONE]"


def test_a_line_without_end_costs_no_memory(house: House) -> None:
    [pid] = house.worker_pids()
    house.ask({"fault": "endless_line", "bytes": 2_000_000}, stream=True)
    before = _resident(pid)
    for _ in range(4):
        answer = house.ask({"fault": "endless_line", "bytes": 40_000_000}, stream=True)
        assert answer.error["code"] == "kimi_bad_response"
    assert _resident(pid) - before < 8_000_000


def test_slow_readers_cost_no_memory_and_nobody_elses_time(house: House) -> None:
    [pid] = house.worker_pids()
    flood = ", ".join(["big_event;bytes=60000"] * 180)  # 10 MB a stream
    body = house.body({"fault": flood}, stream=True)
    with ExitStack() as stack:
        clients = [stack.enter_context(Raw(house.port, buffer=4096)) for _ in range(24)]
        for client in clients:
            client.post(body, house.key)
        until(20, lambda: house.total("moongate_in_flight") == len(clients), "every stream runs")
        sizes = []
        for _ in range(6):
            for client in clients:
                client.receive(1024)
            began = time.monotonic()
            assert house.ask().status == 200
            assert time.monotonic() - began < 2
            time.sleep(0.4)
            sizes.append(_resident(pid))
        assert house.total("moongate_in_flight") == len(clients)
        assert max(sizes[2:]) - sizes[1] < 2_000_000, sizes
    until(10, lambda: house.sim("/_sim/book/totals")["open"] == 0, "upstream is let go")
    assert {one["how"] for one in house.executions() if one["stream"]} == {"aborted"}


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def test_a_reader_of_the_standard_reads_what_we_write(house: House) -> None:
    broken = _verbatim(house, STORY.replace("\n", "\r")[:-30])
    assert [json.loads(each) for each in payloads(broken.body)][-1]["error"][
        "code"
    ] == "kimi_stream_truncated"
