"""Framing must not depend on where reads are cut: properties over every split, against a reader of single bytes."""

import itertools
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moongate.core.sse import LARGEST_EVENT, Event, Framer, parse, split
from tests.recorded import needs_data, streams

CORPUS = [
    b"",
    b"data: a\n\ndata: b\n\n",
    b"data: a\r\n\r\ndata: b\r\n\r\n",
    b"data: a\r\rdata: b\r\r",
    b"data: a\n\r\ndata: b\r\n\ndata: c\r\n\r\n",
    b"data: a\r\n\rdata: b\n\rdata: c\r\r\n",
    b"\xef\xbb\xbfdata: a\n\n: hi\n\nretry: 5\n\n",
    b"\n\n\ndata: a\n\n\n\ndata: b\n\n\n",
    b"\r\n\r\r\ndata:a\r\r\n\n\r",
    b'data: \xe4\xbd\xa0\xe5\xa5\xbd\xf0\x9f\x8c\x99\n\ndata: {"a":"\\ud83c\\udf19"}\n\n',
    b"event: error\ndata: one\ndata: two\nid: 7\n\ndata",
    b"data: a\n\ndata: never ended\n",
    b"data: a\r\n\r\ndata: b\r",
]  # fmt: skip


def fed(pieces: Iterable[bytes], limit: int = LARGEST_EVENT) -> tuple[bytes, bytes, bool]:
    """All that came out, what was left over, and whether an event was too big."""
    framer = Framer(limit)
    out = b"".join([framer.feed(piece) for piece in pieces])
    too_big = framer.too_big
    whole, rest = framer.finish()
    return (out, b"", True) if too_big else (out + whole, rest, False)


def one_by_one(text: bytes, limit: int = LARGEST_EVENT) -> tuple[bytes, bytes, bool]:
    """What `fed` ought to say, found byte by byte: an event ends with the first line that holds nothing."""
    start = line = at = 0
    while at < len(text):
        if text[at] not in b"\r\n":
            at += 1
            continue
        end = at + (2 if text[at : at + 2] == b"\r\n" else 1)
        if end - (start if at == line else at) > limit:
            return text[:start], b"", True
        if at == line:
            start = end
        line = at = end
    if len(text) - start > limit:
        return text[:start], b"", True
    return text[:start], text[start:], False


def cuts(text: bytes, places: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


def every_cut(text: bytes) -> Iterator[list[bytes]]:
    """In one, byte by byte, at every place, and a short one at every two."""
    yield [text]
    yield [text[at : at + 1] for at in range(len(text))]
    for at in range(len(text) + 1):
        yield cuts(text, [at])
    for pair in itertools.combinations(range(len(text) + 1 if len(text) < 40 else 0), 2):
        yield cuts(text, pair)


@pytest.mark.parametrize("text", CORPUS)
def test_any_split_gives_the_same_bytes(text: bytes) -> None:
    expected = one_by_one(text)
    for pieces in every_cut(text):
        assert fed(pieces) == expected, pieces


LINES = st.sampled_from(
    [b"data: x", b"data:y", b": c", b"data", b"id: 1", b"event: error", b"\xef\xbb\xbf", b""]
)
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])
TEXTS = st.lists(st.tuples(LINES, ENDS).map(b"".join), max_size=12).map(b"".join)


@settings(deadline=None, max_examples=300)
@given(TEXTS, st.lists(st.integers(0, 90), max_size=6), st.integers(1, 24))
def test_any_split_of_any_lines_gives_the_same_bytes_within_any_limit(
    text: bytes, places: list[int], limit: int
) -> None:
    pieces = cuts(text, [min(place, len(text)) for place in places])
    assert fed(pieces) == one_by_one(text)
    assert fed(pieces, limit) == one_by_one(text, limit)


@settings(deadline=None)
@given(TEXTS, st.data())
def test_what_is_whole_is_not_held_back(text: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    whole, _, _ = one_by_one(text[:at])
    given_out = Framer().feed(text[:at])
    assert whole.startswith(given_out)
    assert given_out == whole or text[:at].endswith(b"\r"), "only a CR may have to wait for its LF"


def test_a_cr_and_its_lf_in_two_reads_are_one_boundary_and_stay_together() -> None:
    framer = Framer()
    assert framer.feed(b"data: a\r\n\r") == b""
    assert framer.feed(b"\ndata: b\r\n") == b"data: a\r\n\r\n"
    assert framer.feed(b"\r\n") == b"data: b\r\n\r\n"


def test_a_cr_that_ends_the_stream_needs_no_lf() -> None:
    framer = Framer()
    assert framer.feed(b"data: a\r\r") == b""
    assert framer.finish() == (b"data: a\r\r", b"")
    assert framer.finish() == (b"", b"")


def test_an_event_of_the_limit_passes_and_one_more_byte_does_not() -> None:
    size = LARGEST_EVENT - len(b"data: \n\n")
    whole, larger = b"data: %b\n\n" % (b"x" * size), b"data: %b\n\n" % (b"x" * (size + 1))
    for step in (1 << 14, 1 << 21):
        assert fed(cuts(whole, range(step, len(whole), step))) == (whole, b"", False)
        assert fed(cuts(b"data: 1\n\n" + larger, range(step, len(larger), step))) == (
            b"data: 1\n\n",
            b"",
            True,
        )


def test_endless_bytes_without_a_line_end_are_not_kept() -> None:
    framer = Framer(limit=1000)
    for _ in range(50):
        assert framer.feed(b"x" * 100) == b""
    assert framer.too_big
    assert len(framer._tail) <= 1100
    assert framer.feed(b"data: a\n\n") == b"", "whatever follows is not looked at"


def test_small_reads_of_a_large_event_take_linear_time() -> None:
    class Counted(Framer):
        searched = 0

        def _boundary(self, tail: bytearray, start: int) -> int:
            self.searched += len(tail) - start
            return super()._boundary(tail, start)

    for ending in (b"\n", b"\r\n"):
        framer, text = Counted(), (b"data: 12345678" + ending) * 2000 + ending
        out = b"".join(framer.feed(text[at : at + 7]) for at in range(0, len(text), 7))
        assert out == text
        assert framer.searched < 2 * len(text)


@pytest.mark.parametrize(
    ("raw", "data", "kind"),
    [
        (b"data: a\n\n", b"a", b""),
        (b"data:a\n\n", b"a", b""),
        (b"data:  a\r\n\r\n", b" a", b""),
        (b"data: a\rdata: b\ndata:\r\ndata:c\n\n", b"a\nb\n\nc", b""),
        (b"data\ndata\n\n", b"\n", b""),
        (b"event: error\ndata: {}\nid: 4\nretry: 10\nother: 1\n\n", b"{}", b"error"),
        (b"event:done\n\n", b"", b"done"),
        (b": data: a\n\n", b"", b""),
        (b"data: a\r\n\n", b"a", b""),
        (b"\xef\xbb\xbfdata: a\n\n", b"a", b""),
        (b"\n", b"", b""),
        (b"data: a: b\n\n", b"a: b", b""),
        (b"data: a\n", b"a", b""),
        (b"datax: a\n\n", b"", b""),
        (b" data: a\n\n", b"", b""),
    ],
)
def test_an_event_says_what_the_standard_says(raw: bytes, data: bytes, kind: bytes) -> None:
    assert parse(raw) == Event(raw, data, kind)


@settings(deadline=None)
@given(TEXTS)
def test_events_joined_are_what_came(text: bytes) -> None:
    whole = one_by_one(text)[0]
    events = split(whole)
    assert b"".join(event.raw for event in events) == whole
    assert all(one_by_one(event.raw)[0] == event.raw for event in events)
    assert [event.data for event in events if event.data] == standard(whole)


def standard(whole: bytes) -> list[bytes]:
    """The payloads by the standard's own words, on text whose line ends were made alike."""
    payloads: list[bytes] = []
    data: list[bytes] = []
    lines = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    for line in lines:
        name, _, value = line.removeprefix(b"\xef\xbb\xbf").partition(b":")
        if not line:
            payloads += [b"\n".join(data)] if any(data) or len(data) > 1 else []
            data = []
        elif name == b"data":
            data.append(value[1:] if value[:1] == b" " else value)
    return payloads


@needs_data
@pytest.mark.parametrize("name", [found.name for found in streams()])
def test_recorded_streams_are_cut_the_same_way_everywhere(name: str) -> None:
    body = next(found.body for found in streams() if found.name == name)
    expected = one_by_one(body)
    for step in (1, 7, 64, 1000, len(body)):
        assert fed(cuts(body, range(step, len(body), step))) == expected
