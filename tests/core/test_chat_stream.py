"""What of a streamed answer is passed on, when it is whole, and what is said when it is not."""

from typing import Any

import pytest

from moongate.core.call import Usage
from moongate.core.faults import Failure, Fault, Reach
from moongate.core.sse import LARGEST_EVENT
from moongate.core.surface import Answer, Step, ToolCall
from tests.core.streams import (
    CORPUS,
    DONE,
    FINISH,
    GLUED,
    OVERLOADED,
    USAGE,
    WHOLE,
    chunk,
    cuts,
    data,
    raw,
    read,
    reader,
    steps,
    text,
    usage_chunk,
)
from tests.recorded import needs_data, streams

USED = Usage(8, 11, 8)


def failed(stream: bytes, fault: Fault, reach: Reach, passed: bytes = b"", detail: str = "") -> Answer:
    """The stream fails so, byte by byte as in one, and what was whole before has been passed on."""
    for pieces in ([stream], steps(stream, 1)):
        found = read(pieces)
        assert found.failure is not None, "the stream was taken for whole"
        assert (found.failure.fault, found.failure.reach) == (fault, reach)
        assert found.failure.detail == detail or not detail
        assert found.out == passed
        assert not found.done
    return found.answer


def test_a_whole_stream_passes_as_it_came() -> None:
    found = read([WHOLE])
    assert (found.out, found.beats, found.failure, found.done) == (WHOLE, 7, None, True)
    assert found.answer.text == 'Hello wörld "x"\n'
    assert found.answer.finish == "stop"
    assert (found.answer.id, found.answer.model) == ("chatcmpl-A", "kimi-k2.5")


def test_every_event_is_passed_on_as_soon_as_it_is_whole() -> None:
    by = reader()
    for event in [
        data(chunk(role="assistant", content="")),
        data(chunk(content="a")),
        data(chunk(content="b")),
    ]:
        assert by.feed(event) == Step(event, beats=1)
    assert by.answer().text == "ab"
    assert by.own() == by.answer(), "no part came before it"


def test_usage_inside_the_finish_chunk_and_in_a_chunk_of_its_own() -> None:
    inside = text("a") + data(chunk("stop", usage=USAGE)) + DONE
    assert read([inside]).answer.usage == USED
    later = (
        text("a") + data(chunk("stop", usage=USAGE)) + data(usage_chunk(USAGE | {"prompt_tokens": 9})) + DONE
    )
    found = read([later])
    assert found.out == later
    assert found.answer.usage == Usage(9, 11, 8), "the later one holds; they are never added"
    assert found.answer.usage_suspect, "8 + 11 is the total, 9 + 11 is not"


@pytest.mark.parametrize(
    "more", [{"delta": {}}, {"delta": {"role": "assistant"}}, {}, {"delta": {"content": "x"}}]
)
def test_usage_is_taken_from_any_chunk(more: dict[str, Any]) -> None:
    one = raw({"id": "chatcmpl-A", "choices": [{"index": 0} | more], "usage": USAGE})
    assert read([text("a") + data(one) + FINISH]).answer.usage == USED


def test_the_usage_chunk_is_withheld_if_only_we_asked_for_it() -> None:
    stream = text("a") + FINISH + data(usage_chunk()) + DONE
    for pieces in ([stream], steps(stream, 1)):
        found = read(pieces, reader(strip_usage=True))
        assert found.out == text("a") + FINISH + DONE
        assert found.beats == 5, "it is a sign of life all the same"
        assert found.answer.usage == USED
        assert read(pieces).out == stream


@pytest.mark.parametrize(
    "event",
    [
        data(raw({"id": "chatcmpl-A", "choices": [], "prompt_filter_results": []})),
        data(raw({"id": "chatcmpl-A", "choices": [], "usage": None})),
        data(chunk("stop", usage=USAGE)),
        data(raw({"choices": [{"index": 0, "delta": {"content": "x"}}], "usage": USAGE})),
        b": usage\n\n",
    ],
)
def test_nothing_but_the_usage_chunk_is_withheld(event: bytes) -> None:
    stream = text("a") + event + FINISH + DONE
    assert read([stream], reader(strip_usage=True)).out == stream


def test_a_missing_end_marker_is_supplied_once() -> None:
    for stream in (WHOLE.removesuffix(DONE), WHOLE.removesuffix(DONE) + b": bye\n\n"):
        by = reader()
        assert by.feed(stream).out == stream
        assert by.finish() == Step(DONE, done=True)
        assert by.finish() == Step(done=True), "and never twice"
    assert read([WHOLE]).out.count(b"[DONE]") == 1


@pytest.mark.parametrize(
    "after", [DONE, data(chunk(content="z")), data(b'{"error":{}}'), b"garbage\n\n", b"x" * 99]
)
def test_what_follows_the_end_marker_is_ignored(after: bytes) -> None:
    assert read([WHOLE + after]).out == WHOLE
    by = reader()
    by.feed(WHOLE)
    assert by.feed(after) == Step(done=True)
    assert by.feed(b"x" * LARGEST_EVENT * 2).failure is None
    assert by.finish() == Step(done=True)
    assert by.answer().text == 'Hello wörld "x"\n'


def test_what_looks_like_the_events_before_is_ignored_behind_the_end_marker() -> None:
    by = reader()
    assert by.feed(FINISH + text("a") + b"data:  [DONE] \n\n").done
    assert by.feed(data(chunk(content="b"))) == Step(done=True)
    assert by.answer().text == "a"


@pytest.mark.parametrize(
    ("rest", "passed"),
    [
        (b"data: [DONE]", b"data: [DONE]\n\n"),
        (b"data: [DONE]\n", b"data: [DONE]\n\n"),
        (b"data: [DONE]\r", b"data: [DONE]\r\r"),
        (b"data: [DONE]\r\r", b"data: [DONE]\r\r"),
        (b"data: [DON", DONE),
        (b"data: 5", DONE),
        (b": bye", DONE),
        (usage_chunk()[:-1], DONE),
        (b"data: " + usage_chunk(), data(usage_chunk()) + DONE),
    ],
)
def test_an_end_that_lacks_its_empty_line(rest: bytes, passed: bytes) -> None:
    found = read([text("a") + FINISH + rest])
    assert found.out == text("a") + FINISH + passed
    assert found.done


def test_a_finish_chunk_that_lacks_its_empty_line_still_finishes() -> None:
    found = read([text("a") + FINISH[:-2]])
    assert (found.out, found.answer.finish) == (text("a") + FINISH + DONE, "stop")


@pytest.mark.parametrize(
    ("stream", "reach"),
    [
        (b"", Reach.HEAD),
        (b": hello\n\n", Reach.HEAD),
        (text(), Reach.EVENTS),
        (text("a", "b"), Reach.EVENTS),
        (text("a") + b": hello\n\n", Reach.EVENTS),
    ],
)
def test_an_end_without_a_finish_reason_is_a_truncation(stream: bytes, reach: Reach) -> None:
    failed(stream, Fault.KIMI_STREAM_TRUNCATED, reach, passed=stream, detail="no_finish_reason")
    failed(stream + b'data: {"id', Fault.KIMI_STREAM_TRUNCATED, reach, passed=stream)


def test_an_end_marker_alone_proves_nothing_and_is_not_passed_on() -> None:
    failed(DONE, Fault.KIMI_STREAM_TRUNCATED, Reach.HEAD)
    failed(text("a") + DONE, Fault.KIMI_STREAM_TRUNCATED, Reach.EVENTS, passed=text("a"))


def test_an_end_marker_behind_the_usage_is_believed() -> None:
    stream = text("a") + data(usage_chunk()) + DONE
    found = read([stream])
    assert (found.out, found.done, found.answer.finish) == (stream, True, "")


def test_of_several_choices_all_must_finish() -> None:
    def other(finish: str | None) -> bytes:
        return data(
            raw({"id": "chatcmpl-A", "choices": [{"index": 1, "delta": {}, "finish_reason": finish}]})
        )

    failed(
        text("a") + other(None) + FINISH,
        Fault.KIMI_STREAM_TRUNCATED,
        Reach.EVENTS,
        text("a") + other(None) + FINISH,
    )
    found = read([text("a") + other(None) + FINISH + other("stop")])
    assert (found.done, found.answer.choices, found.answer.text) == (True, 2, "a")


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        (data(OVERLOADED), Fault.KIMI_ENGINE_OVERLOADED),
        (b"data:" + OVERLOADED + b"\r\n\r\n", Fault.KIMI_ENGINE_OVERLOADED),
        (b"event: error\n" + data(OVERLOADED), Fault.KIMI_ENGINE_OVERLOADED),
        (data(b'{"error":"overloaded"}'), Fault.KIMI_ENGINE_OVERLOADED),
        (data(b'{"\\u0065rror":{"message":"overloaded"}}'), Fault.KIMI_ENGINE_OVERLOADED),
        (data(chunk(content="x")[:-1] + b',"error":{"code":400}}'), Fault.KIMI_SERVER_ERROR),
        (data(b'{"object":"error","message":"overloaded","code":503}'), Fault.KIMI_ENGINE_OVERLOADED),
        (b'event: error\ndata: {"message":"secret"}\n\n', Fault.KIMI_SERVER_ERROR),
        (b"event: error\ndata: secret\n\n", Fault.KIMI_SERVER_ERROR),
        (data(chunk("error", content="secret")), Fault.KIMI_SERVER_ERROR),
    ],
)
def test_an_error_in_the_stream_is_named_and_its_text_is_kept_back(event: bytes, fault: Fault) -> None:
    failed(event, fault, Reach.HEAD)
    failed(b": hi\n\n" + event, fault, Reach.HEAD, passed=b": hi\n\n")
    failed(text("a", "b") + event + FINISH + DONE, fault, Reach.EVENTS, passed=text("a", "b"))
    failed(text("a") + FINISH + event + DONE, fault, Reach.EVENTS, passed=text("a") + FINISH)


def test_an_error_at_the_very_end_is_seen_without_its_empty_line() -> None:
    failed(text("a") + b"data: " + OVERLOADED, Fault.KIMI_ENGINE_OVERLOADED, Reach.EVENTS, passed=text("a"))


def test_usage_beside_an_error_is_taken_and_text_beside_it_is_not() -> None:
    event = data(chunk(content="secret")[:-1] + b',"error":{"code":400},"usage":%b}' % raw(USAGE))
    answer = failed(text("a") + event, Fault.KIMI_SERVER_ERROR, Reach.EVENTS, passed=text("a"))
    assert (answer.text, answer.usage) == ("a", USED)


@pytest.mark.parametrize("nothing", [b"null", b"false", b'""', b"{}"])
def test_an_error_member_that_holds_none_is_no_error(nothing: bytes) -> None:
    stream = data(chunk(content="x")[:-1] + b',"error":%b}' % nothing) + FINISH + DONE
    assert read([stream]).out == stream


@pytest.mark.parametrize(
    "broken", [GLUED, b'{"id":', b"<html>504</html>", b"5", b"[]", b'{"choices":"none"}', b"ok"]
)
def test_an_event_that_cannot_be_read_ends_the_answer(broken: bytes) -> None:
    failed(data(broken), Fault.KIMI_BAD_RESPONSE, Reach.HEAD, detail="event_unreadable")
    failed(text("a") + data(broken) + FINISH, Fault.KIMI_BAD_RESPONSE, Reach.EVENTS, passed=text("a"))


def test_events_of_another_completion_are_kept_back() -> None:
    foreign = data(chunk(content="of somebody else", cid="chatcmpl-B"))
    answer = failed(
        text("a") + foreign + WHOLE,
        Fault.KIMI_BAD_RESPONSE,
        Reach.EVENTS,
        passed=text("a"),
        detail="id_mismatch",
    )
    assert answer.text == "a"
    failed(text("a") + FINISH + foreign, Fault.KIMI_BAD_RESPONSE, Reach.EVENTS, passed=text("a") + FINISH)


def test_chunks_without_an_id_belong_to_the_answer() -> None:
    stream = data(chunk(cid="", content="a")) + text("b") + data(chunk(cid=None, content="c")) + FINISH + DONE
    found = read([stream])
    assert (found.out, found.answer.text, found.answer.id) == (stream, "abc", "chatcmpl-A")


@pytest.mark.parametrize("size", [1 << 14, 1 << 22])
def test_an_event_larger_than_the_bound_ends_the_answer(size: int) -> None:
    before = text("a")
    large = data(chunk(content="x" * LARGEST_EVENT))
    for stream in (before + large + FINISH, before + b"x" * (LARGEST_EVENT + 1)):
        by = reader()
        found = read(steps(stream, size), by)
        assert found.out == before
        assert found.failure == Failure(Fault.KIMI_BAD_RESPONSE, Reach.EVENTS, detail="event_too_big")
        assert by.feed(b"x" * 9) == Step(), "said once"
    just = chunk(content="x" * (LARGEST_EVENT - len(data(chunk(content="")))))
    assert read(steps(data(just) + FINISH, size)).done


def test_after_a_failure_nothing_is_said_any_more() -> None:
    by = reader()
    assert by.feed(text("a") + data(GLUED) + text("b")).out == text("a")
    assert by.feed(data(chunk(content="c"))) == Step(), "not even what looks like the events before"
    assert by.feed(text("c") + FINISH + DONE) == Step()
    assert by.finish() == Step()
    assert by.answer().text == "a"


@pytest.mark.parametrize(
    "event", [b": keep-alive\n\n", b"retry: 10\n\n", b"id: 7\n\n", b"\n", b"event: ping\n\n", b"data:\n\n"]
)
def test_what_carries_no_data_passes_and_does_not_beat(event: bytes) -> None:
    stream = event + text("a") + event + FINISH + event + DONE
    found = read([stream])
    assert (found.out, found.beats) == (stream, 4)
    assert reader().feed(event) == Step(event, beats=0)


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("colon", [b": ", b":"])
def test_any_line_end_and_no_space_behind_the_colon(ending: bytes, colon: bytes) -> None:
    stream = b"\xef\xbb\xbf" + WHOLE.replace(b"data: ", b"data" + colon).replace(b"\n", ending)
    for pieces in ([stream], steps(stream, 1)):
        found = read(pieces)
        assert (found.out, found.beats, found.answer.text) == (stream, 7, 'Hello wörld "x"\n')


def test_data_in_several_lines_is_one_event() -> None:
    event = b'data: {"id":"chatcmpl-A","choices":\ndata: [{"index":0,"delta":{"content":"a"}}]}\n\n'
    found = read([event + FINISH + DONE])
    assert (found.out, found.answer.text) == (event + FINISH + DONE, "a")


@pytest.mark.parametrize(
    ("odd", "shown"),
    [
        (b'{"content":"a"},"logprobs":{"a":NaN,"b":1e999}', "a"),
        (b'{"content":"a\xffb"}', "a\ufffdb"),
        (b'{"content":"a\\ud83c"}', "a\ufffd"),
        (b'{"content":"a\tb"}', "a b"),
        (b'{"content":"a","x":' + b"[" * 2000 + b"]" * 2000 + b"}", "a"),
    ],
)
def test_what_is_framed_but_no_clean_json_passes_as_it_came(odd: bytes, shown: str) -> None:
    event = data(b'{"id":"chatcmpl-A","choices":[{"index":0,"delta":%b}]}' % odd)
    found = read([event + FINISH + DONE])
    assert (found.out, found.answer.text) == (event + FINISH + DONE, shown)


def test_tool_calls_of_a_stream_are_folded() -> None:
    def piece(at: int, arguments: str, **more: str) -> bytes:
        name = {"name": more.pop("name")} if more else {}
        call = {"index": at} | more | {"function": name | {"arguments": arguments}}
        return data(chunk(tool_calls=[call]))

    stream = piece(0, "", id="get:0", name="get") + b"".join(
        piece(0, one) for one in ['{"a"', ":", '"\\n"', "}"]
    )
    stream += piece(1, "", id="get:1", name="get") + piece(1, "[") + piece(0, " ") + piece(1, "]")
    for pieces in ([stream + FINISH], steps(stream + FINISH, 1)):
        assert read(pieces).answer.tool_calls == [
            ToolCall(0, "get:0", "function", "get", '{"a":"\\n"} '),
            ToolCall(1, "get:1", "function", "get", "[]"),
        ]


@pytest.mark.parametrize("name", CORPUS)
@pytest.mark.parametrize("strip_usage", [False, True])
def test_every_cut_gives_the_same(name: str, strip_usage: bool) -> None:
    stream = CORPUS[name]
    expected = read([stream], reader(strip_usage=strip_usage))
    for at in range(len(stream) + 1):
        assert read(cuts(stream, at), reader(strip_usage=strip_usage)) == expected, at
    for size in range(1, 40):
        assert read(steps(stream, size), reader(strip_usage=strip_usage)) == expected, size


RECORDED = [found.name for found in streams()]


@needs_data
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_streams_pass_unchanged_however_they_are_cut(name: str) -> None:
    body = next(found.body for found in streams() if found.name == name)
    expected = read([body])
    for size in (1 if len(body) < 20_000 else 7, 17, 1000):
        assert read(steps(body, size)) == expected
    if len(body) < 2000:
        for at in range(len(body)):
            assert read(cuts(body, at)) == expected, at
    if expected.failure is None:
        assert expected.out == body.rstrip() + b"\n\n" + (b"" if b"[DONE]" in body else DONE)
    else:
        assert expected.failure.detail == "error_in_200"
        assert body.startswith(expected.out)


@needs_data
def test_recorded_streams_fold_to_what_their_chunks_say() -> None:
    answers = {name: read([found.body]).answer for name, found in zip(RECORDED, streams(), strict=True)}
    kimi = answers["moonshotai-stream.chunks.txt"]
    assert (kimi.text, kimi.reasoning, kimi.finish) == ("Hello!", "Thinking aloud. ", "stop")
    assert kimi.usage is not None
    assert (kimi.usage.input, kimi.usage.output, kimi.usage.reasoning) == (9, 12, 7)
    calls = {name: [(c.name, c.arguments) for c in answer.tool_calls] for name, answer in answers.items()}
    assert calls["deepseek-tool-call.chunks.txt"] == [("weather", '{"location": "San Francisco"}')]
    assert calls["mistral-incremental-tool-call.chunks.txt"] == [
        ("webSearchTool", '{"query": "current Berlin weather"}')
    ]
    finished = [name for name, answer in answers.items() if answer.finish]
    assert len(finished) >= len(RECORDED) - 2
    for name, answer in answers.items():
        assert all(call.arguments.endswith("}") for call in answer.tool_calls), name
