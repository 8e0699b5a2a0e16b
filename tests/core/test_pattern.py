"""An event passes by its pattern only if parsing it would have let it pass, and would have read the same."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moongate.core.chat_stream import ChatReader
from moongate.core.faults import Fault
from moongate.core.pattern import MOST_VAIN_LESSONS
from moongate.core.sse import Event
from moongate.core.surface import Step
from tests.core.streams import (
    FINISH,
    USAGE,
    chunk,
    classified,
    data,
    raw,
    read,
    reader,
    steps,
    usage_chunk,
)
from tests.recorded import needs_data, streams


class Parsing(ChatReader):
    """Counts the events that are parsed."""

    parsed = 0

    def _take(self, event: Event, step: Step) -> bool:
        self.parsed += 1
        return super()._take(event, step)


def test_plain_deltas_are_not_parsed() -> None:
    pieces = [data(chunk(reasoning_content=f"r{n}")) for n in range(50)]
    pieces += [data(chunk(content=f"c{n} \\ é月")) for n in range(50)]
    for arguments in [f"[{n}]" for n in range(50)]:
        pieces.append(data(chunk(tool_calls=[{"index": 0, "function": {"arguments": arguments}}])))
    for stream in (pieces, [b"".join(pieces)], [piece.replace(b'":', b'": ') for piece in pieces]):
        by = Parsing(strip_usage=False, classify=classified)
        assert b"".join(by.feed(piece).out for piece in stream) == b"".join(stream)
        assert by.parsed == 3, "the first of each kind"
        answer = by.answer()
        assert answer.text == "".join(f"c{n} \\ é月" for n in range(50))
        assert answer.reasoning == "".join(f"r{n}" for n in range(50))
        assert answer.tool_calls[0].arguments == "".join(f"[{n}]" for n in range(50))


def test_a_stream_without_a_pattern_is_parsed_and_soon_no_pattern_is_looked_for() -> None:
    by = Parsing(strip_usage=False, classify=classified)
    for n in range(30):
        odd = chunk(content="a")[:-1] + b',"obfuscation":"%d"}' % n
        assert by.feed(data(odd)).beats == 1
    assert by.parsed == 30
    assert by._pattern._vain <= MOST_VAIN_LESSONS
    assert by.answer().text == "a" * 30


INSIDES = [
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
PLACES = ["content", "reasoning_content", "reasoning", "arguments"]


def pasted(spot: str, inside: str, spaced: bool = False) -> bytes:
    """An event with this text pasted, not encoded, into one of its strings."""
    delta = (
        {"tool_calls": [{"index": 0, "function": {"arguments": "@"}}]} if spot == "arguments" else {spot: "@"}
    )
    event = chunk(**delta)
    event = event.replace(b'":', b'": ') if spaced else event
    return data(event.replace(b"@", inside.encode()))


class Slow(ChatReader):
    """Parses every event."""

    def __init__(self) -> None:
        super().__init__(strip_usage=False, classify=classified)
        self._pattern._vain = 1000


@settings(deadline=None, max_examples=400)
@given(
    st.lists(
        st.builds(pasted, st.sampled_from(PLACES), st.sampled_from(INSIDES) | st.just("plain"), st.booleans())
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


def learned(event: bytes) -> ChatReader:
    by = reader()
    assert by.feed(event).failure is None
    assert by._pattern._head, "the event was to teach a pattern"
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


D = chunk(content="d")


@pytest.mark.parametrize(
    "event",
    [
        D,
        D.replace(b'"content":', b'"content" :'),
        D.replace(b'"content":', b'"cont\\u0065nt":'),
        D[:-1] + b',"x":{"content":"d"}}',
        b'{"x":{"content":"d"},' + D[1:],
        b'{"x":{"content":"d"},' + D[1:].replace(b'"content":', b'"content" :'),
        b'{"x":{"content":"d"},' + D[1:].replace(b'"content":', b'"cont\\u0065nt":'),
        b'{"x":{"content":7,"y":"d"},' + D[1:].replace(b'"content":', b'"cont\\u0065nt":'),
        D.replace(b'"content":', b'"content":"c","content":'),
        D.replace(b'"content":', b'"content":"d","content":'),
        chunk(content="d", reasoning_content="d"),
        chunk(content="d", tool_calls=[{"index": 0, "function": {"arguments": "d"}}]),
        chunk("stop", content="d"),
        chunk(content="d", usage=USAGE),
        D[:-1] + b',"usage":%b}' % raw(USAGE),
        D.replace(b'"index":0', b'"index":1'),
        D.replace(b'"delta"', b'"message"'),
        chunk(content=7),
        chunk(tool_calls=[{"index": 0, "id": "t", "function": {"name": "d", "arguments": "d"}}]),
        chunk(
            tool_calls=[
                {"index": 0, "function": {"arguments": "d"}},
                {"index": 1, "function": {"arguments": "d"}},
            ]
        ),
        chunk(tool_calls=[{"index": 0, "function": {"arguments": "d"}}, {"index": 1, "id": "d"}]),
        chunk(tool_calls=[{"index": 0}]),
        raw({"model": "d", "choices": [{"delta": {"reasoning": "l"}}]}).replace(
            b'"reasoning":', b'"reasoning":  '
        ),
        raw({"choices": [{"delta": {"content": "d"}}, {"delta": {"reasoning": "d"}}]}),
        raw({"choices": [{"delta": {"content": "d"}}, {"index": 1, "delta": {"content": "d"}}]}),
        raw({"choices": []}),
    ],
)
def test_whatever_an_event_looks_like_its_likes_are_read_as_if_parsed(event: bytes) -> None:
    likes = [event]
    for at in range(event.count(b'"d"')):
        parts = event.split(b'"d"')
        likes += [
            b'"d"'.join(parts[: at + 1]) + b'"%b"' % new + b'"d"'.join(parts[at + 1 :])
            for new in (b"e", b"ee")
        ]
    for other in likes:
        by, slow = reader(), Slow()
        for one in (event, other, event, other, FINISH[6:-2]):
            assert by.feed(data(one)) == slow.feed(data(one))
        assert by.answer() == slow.answer()


@pytest.mark.parametrize("spaced", [False, True])
def test_every_event_that_only_looks_like_the_pattern_is_parsed(spaced: bool) -> None:
    for spot in PLACES:
        for inside in INSIDES:
            events = [pasted(spot, "plain", spaced), pasted(spot, inside, spaced), FINISH]
            assert read(events) == read(events, Slow()), (spot, inside)


def test_an_escape_that_could_be_shorter_makes_no_pattern() -> None:
    taught = data(chunk(content="@").replace(b"@", b'\\/\\"'))
    broken = data(chunk(content="@").replace(b'"@"', b'"x""'))
    by = reader()
    assert by.feed(taught).failure is None
    assert by.feed(broken).failure is not None


def test_arguments_go_to_the_call_that_now_has_the_index() -> None:
    def piece(arguments: str, **more: str) -> bytes:
        return data(chunk(tool_calls=[{"index": 0, **more, "function": {"arguments": arguments}}]))

    by = reader()
    for event in [piece("", id="a"), piece("1"), piece("2"), piece("", id="b"), piece("3"), piece("4")]:
        by.feed(event)
    assert [(call.id, call.arguments) for call in by.answer().tool_calls] == [("a", "12"), ("b", "34")]


def test_arguments_that_come_with_the_id_alone_go_to_its_call() -> None:
    def piece(arguments: str, given: str) -> bytes:
        return data(chunk(tool_calls=[{"id": given, "function": {"arguments": arguments}}]))

    by = reader()
    for event in [piece("1", "a"), piece("2", "b"), piece("3", "a"), piece("4", "a"), piece("5", "b")]:
        by.feed(event)
    assert [(call.id, call.arguments) for call in by.answer().tool_calls] == [("a", "134"), ("b", "25")]


def test_a_stream_that_often_changes_its_kind_keeps_its_patterns() -> None:
    by = Parsing(strip_usage=False, classify=classified)
    for _ in range(30):
        for event in [chunk(content="c"), chunk(content="d"), chunk(reasoning="r"), chunk(reasoning="s")]:
            by.feed(data(event))
    assert by.parsed == 60
    assert by.answer().text == "cd" * 30


def test_a_pattern_needs_the_plain_form_of_an_event() -> None:
    for event in (data(chunk(content="d")).replace(b"\n", b"\r\n"), b"data:" + chunk(content="d") + b"\n\n"):
        by = reader()
        assert by.feed(event).beats == 1
        assert not by._pattern._head


@needs_data
def test_recorded_streams_are_read_alike_with_and_without_patterns() -> None:
    for found in streams():
        assert read([found.body]) == read([found.body], Slow()), found.name
