"""Reading a stream must not depend on where it is cut, nor on whether its events matched a pattern."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moongate.core.chat import CHAT, ChatReader
from moongate.core.faults import Failure, Fault
from moongate.core.surface import Answer
from tests.core.streams import (
    DONE,
    FINISH,
    USAGE,
    WHOLE,
    chunk,
    classified,
    cuts,
    data,
    raw,
    read,
    reader,
    steps,
    text,
    usage_chunk,
)
from tests.recorded import needs_data, plain, streams

CORPUS = {
    "whole": text("你", '🌙"') + FINISH + DONE,
    "usage twice": text("a") + data(chunk("stop", usage=USAGE)) + data(usage_chunk()) + DONE,
    "crlf": (text("a", "b") + FINISH).replace(b"\n", b"\r\n") + DONE,
    "cr": (text("a", "b") + FINISH + DONE).replace(b"\n", b"\r"),
    "comments": b": hi\n\n" + text("a") + b"\n\n: hi\r\n\r\n" + FINISH,
    "error": text("a", "b") + data(b'{"error":{"message":"overloaded"}}') + DONE,
    "glued": text("a", "b") + data(b'{"id":"chatcmpl-Adata:' + chunk(content="x")) + FINISH,
    "cut": text("a", "b") + chunk(content="c")[:40],
    "foreign": text("a", "b") + data(chunk(content="c", cid="chatcmpl-B")) + FINISH,
    "no empty line": text("a") + FINISH[:-2],
}


@pytest.mark.parametrize("name", CORPUS)
@pytest.mark.parametrize("strip_usage", [False, True])
def test_every_cut_gives_the_same(name: str, strip_usage: bool) -> None:
    stream = CORPUS[name]
    expected = read([stream], reader(strip_usage=strip_usage))
    for at in range(len(stream) + 1):
        assert read(cuts(stream, at), reader(strip_usage=strip_usage)) == expected, at
    for size in range(1, 40):
        assert read(steps(stream, size), reader(strip_usage=strip_usage)) == expected, size


HOSTILE = st.sampled_from(
    [
        "plain",
        'x"},"finish_reason":"stop"}],"error":{"message":"secret"},"y":[{"z":{"content":"',
        'x"},"finish_reason":"stop"}],"y":[{"z":{"content":"',
        'x"}}],"usage":{"prompt_tokens":1},"y":[{"z":{"content":"',
        "",
        '"',
        "\\",
        "\\u12",
        "\\x",
        "\\ud83c",
        "\\udf19",
        "a\n\nb",
        "a\n\ndata: b",
        "a\r\n\r\nb",
        "a\tb",
        "\x00",
        "月",
        '","error":"inner","content":"',
    ]
)
SPOTS = st.sampled_from(["content", "reasoning_content", "reasoning", "arguments"])


def pasted(spot: str, inside: str, spaced: bool = False) -> bytes:
    """An event with this text pasted, not encoded, into one of its strings."""
    delta = (
        {"tool_calls": [{"index": 0, "function": {"arguments": "@"}}]} if spot == "arguments" else {spot: "@"}
    )
    event = chunk(**delta)  # type: ignore[arg-type] - a delta's members, not the other arguments
    event = event.replace(b'":', b'": ') if spaced else event
    return data(event.replace(b"@", inside.encode()))


class Slow(ChatReader):
    """Parses every event."""

    def __init__(self) -> None:
        super().__init__(strip_usage=False, classify=classified)
        self._vain = 1000


@settings(deadline=None, max_examples=400)
@given(
    st.lists(
        st.builds(pasted, SPOTS, HOSTILE | st.just("plain"), st.booleans())
        | st.sampled_from(
            [FINISH, data(usage_chunk()), b": c\n\n", data(chunk(content="", reasoning_content="r"))]
        ),
        max_size=9,
    ),
    st.integers(1, 2000),
)
def test_a_pattern_proves_what_parsing_would(events: list[bytes], size: int) -> None:
    stream = b"".join(events)
    expected = read([stream], Slow())
    assert read([stream]) == expected
    assert read(events) == expected
    assert read(steps(stream, size)) == expected
    assert b"secret" not in expected.out


def learned(event: bytes) -> ChatReader:
    by = reader()
    assert by.feed(event).failure is None
    assert by._head, "the event was to teach a pattern"
    return by


@pytest.mark.parametrize(
    "taught",
    [
        chunk(content="a"),
        chunk(content="a").replace(b'":', b'": '),
        chunk(content="", reasoning_content="a"),
        chunk(content=None, reasoning="a"),
        chunk(cid=None, content="a"),
        chunk(content="a")[:-1] + b',"usage":null}',
    ],
)
def test_an_event_between_the_same_bytes_must_still_hold_one_string(taught: bytes) -> None:
    head, _, _ = data(taught).partition(b'a"}') if b'"a"}' in taught else data(taught).partition(b'a"')
    foot = data(taught)[len(head) + 1 :]
    for inside, fault in [
        (b'","error":{"message":"secret"},"x":"', Fault.KIMI_SERVER_ERROR),
        (b"\\", Fault.KIMI_BAD_RESPONSE),
        (b"x\n\ny", Fault.KIMI_BAD_RESPONSE),
    ]:
        event = head + inside + foot
        if b"error" in inside:
            event = head + b'x"}}],"error":{"message":"secret"},"y":[{"z":{"w":"' + foot
        step = learned(data(taught)).feed(event)
        assert step.failure is not None
        assert step.failure.fault is fault
        assert b"secret" not in step.out
    overlapping = head + foot[1:]
    step = learned(data(taught)).feed(overlapping)
    assert step.failure is not None, "the bytes before and behind may not share one"


@pytest.mark.parametrize(
    "event",
    [
        chunk(content="d").replace(b'"content":', b'"content" :'),
        chunk(content="d").replace(b'"content":', b'"cont\\u0065nt":'),
        chunk(content="d")[:-1] + b',"x":{"content":"d"}}',
        b'{"x":{"content":"d"},' + chunk(content="d")[1:],
        b'{"x":{"content":"d"},' + chunk(content="d")[1:].replace(b'"content":', b'"cont\\u0065nt":'),
        chunk(content="d").replace(b'"content":', b'"content":"c","content":'),
        chunk(content="/").replace(b"/", b"\\/"),
        chunk(content="d", reasoning_content="e"),
        chunk(content="d", tool_calls=[{"index": 0}]),
        chunk("stop", content="d"),
        chunk(content="d", usage=USAGE),
        chunk(content="d")[:-1] + b',"usage":%b}' % raw(USAGE),
        chunk(content="d").replace(b'"index":0', b'"index":1'),
        chunk(content="d").replace(b'"delta"', b'"message"'),
        chunk(content=7),
        chunk(tool_calls=[{"index": 0, "id": "t", "function": {"arguments": "d"}}]),
        chunk(tool_calls=[{"index": 0, "function": {"name": "t", "arguments": "d"}}]),
        chunk(
            tool_calls=[
                {"index": 0, "function": {"arguments": "d"}},
                {"index": 1, "function": {"arguments": "d"}},
            ]
        ),
        chunk(tool_calls=[{"index": 0}]),
        raw({"model": "d", "choices": [{"delta": {"reasoning": "l"}}]}).replace(
            b'"reasoning":', b'"reasoning":  '
        ),
        raw({"choices": [{"index": 0, "delta": {"content": "a"}}, {"index": 0, "delta": {"content": "b"}}]}),
        raw({"choices": []}),
    ],
)
def test_no_pattern_is_made_of_an_event_that_could_be_read_in_two_ways(event: bytes) -> None:
    by = reader()
    assert by.feed(data(event)).failure is None
    for other in (b"e", b"ee"):
        changed = data(event.replace(b'"d"', b'"%b"' % other))
        by.feed(changed)
    slow = Slow()
    for one in [data(event), *(data(event.replace(b'"d"', b'"%b"' % other)) for other in (b"e", b"ee"))]:
        slow.feed(one)
    assert by.answer() == slow.answer()


def test_a_pattern_needs_the_plain_form_of_an_event() -> None:
    for event in (data(chunk(content="d")).replace(b"\n", b"\r\n"), b"data:" + chunk(content="d") + b"\n\n"):
        by = reader()
        assert by.feed(event).beats == 1
        assert not by._head


RECORDED = [found.name for found in streams()]


@needs_data
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_streams_pass_unchanged_however_they_are_cut(name: str) -> None:
    body = next(found.body for found in streams() if found.name == name)
    expected = read([body])
    assert read([body], Slow()) == expected
    for size in (1 if len(body) < 20_000 else 7, 17, 1000):
        assert read(steps(body, size)) == expected
    if len(body) < 2000:
        for at in range(len(body)):
            assert read(cuts(body, at)) == expected, at
    if expected.failure is None:
        assert expected.out == (body if DONE in body else body.rstrip() + b"\n\n" + DONE)
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


NO_ANSWERS = {"test_openai__test_invalid_response#0", "reasoning-model-legacy-parameter-error.json"}


@needs_data
def test_recorded_plain_answers_are_read_and_errors_are_not_taken_for_answers() -> None:
    for found in plain():
        answer = CHAT.read_plain(found.body, lambda _status, _text: Fault.KIMI_REJECTED)
        assert isinstance(answer, Failure) == (found.status != 200 or found.name in NO_ANSWERS), found.name
        if isinstance(answer, Answer):
            assert answer.finish in {"stop", "tool_calls"}
            assert answer.usage is not None


def test_the_corpus_holds_both_ends() -> None:
    ends = {read([stream]).failure is None for stream in itertools.chain(CORPUS.values(), [WHOLE])}
    assert ends == {True, False}
