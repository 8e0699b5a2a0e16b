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
        assert not by._pattern._head


@needs_data
def test_recorded_streams_are_read_alike_with_and_without_patterns() -> None:
    for found in streams():
        assert read([found.body]) == read([found.body], Slow()), found.name
