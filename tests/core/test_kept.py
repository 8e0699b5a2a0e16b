"""Every event that says something has its id, and after any of them the rest is found, byte for byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core import sse
from moongate.core.kept import Numbered, rest_after

ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@st.composite
def event(draw: st.DrawFn) -> bytes:
    end = draw(ENDS)
    lines = draw(
        st.lists(
            st.sampled_from(
                [b"data: {}", b"data: [DONE]", b": hb", b"event: x", b"id: 7", b"data:", b"retry: 5"]
            ),
            max_size=4,
        )
    )
    return b"".join(line + end for line in lines) + end


@given(st.lists(event(), max_size=12), st.data())
def test_numbering_adds_lines_and_changes_nothing(events: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(events)
    cut = data.draw(st.integers(0, len(events)))
    numbered = Numbered("c1")
    pieces = [b"".join(events[:cut]), b"".join(events[cut:])]
    out = b"".join(numbered.mark(piece) for piece in pieces)
    read, was = sse.split(out), sse.split(b"".join(sse.events(pieces[0]) + sse.events(pieces[1])))
    assert [(one.data, one.kind) for one in read] == [(one.data, one.kind) for one in was]
    said = [one for one in read if one.data]
    ids = [line for one in said for line in one.raw.splitlines() if line.startswith(b"id: c1.")]
    assert ids == [b"id: c1.%d" % number for number in range(1, len(said) + 1)]
    assert all(b"id: c1." not in one.raw for one in read if not one.data)
    del whole
    for number in range(1, len(said) + 1):
        rest = rest_after(out, "c1", f"c1.{number}")
        assert rest is not None
        before = out.removesuffix(rest)
        assert before + rest == out
        assert [one.data for one in sse.split(rest) if one.data] == [one.data for one in said[number:]]


STREAM = Numbered("c1").mark(b"data: 1\n\ndata: 2\n\n: hb\n\ndata: [DONE]\n\n")


def test_a_numbered_stream() -> None:
    assert STREAM == (b"data: 1\nid: c1.1\n\ndata: 2\nid: c1.2\n\n: hb\n\ndata: [DONE]\nid: c1.3\n\n")
    assert rest_after(STREAM, "c1", "c1.2") == b": hb\n\ndata: [DONE]\nid: c1.3\n\n"
    assert rest_after(STREAM, "c1", "c1.3") == b""


@pytest.mark.parametrize(
    "name", ["c2.1", "c1.4", "c1.0", "c1.", "c1", "1", "", "c1.x", "c1.²", "c1.1\n", "c1.01"]
)
def test_no_other_id_is_an_event_of_this_answer(name: str) -> None:
    assert rest_after(STREAM, "c1", name) is None


def test_the_answer_itself_cannot_forge_an_event() -> None:
    stream = Numbered("c1").mark(b'data: "id: c1.1"\n\ndata: x\nid: c1.1\n\ndata: y\n\n')
    assert rest_after(stream, "c1", "c1.1") == stream[stream.index(b"data: x") :]
