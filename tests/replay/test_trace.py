"""Traces as their authors publish them, and whatever else may stand in a file."""

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.record import CallRecord
from moongate.ops.access_log import line
from moongate.replay.trace import Arrival, Survey, TraceError, read, select, survey
from tests.recorded import DATA, needs_data

TRACES = DATA / "traces"
AZURE = [
    b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n",
    b"2023-11-16 23:59:59.9799600,4808,10\r\n",
    b"2023-11-17 00:00:00.2299600,34,0\r\n",
]


def everything(lines: Iterable[bytes]) -> list[Arrival]:
    return list(read(lines))


def opened(name: str) -> list[bytes]:
    path: Path = TRACES / name
    assert path.exists(), f"{path} is missing from the recorded traffic"
    return path.read_bytes().splitlines(keepends=True)


@needs_data
def test_the_conversation_trace_reads_as_published() -> None:
    lines = opened("mooncake_conversation_trace.jsonl")
    arrivals = everything(lines)
    assert arrivals[1] == Arrival(0.0, 7322, 490, [0, *range(14, 28)])
    assert survey(arrivals) == Survey(12_031, 0, 3536.999, 144_793_823, 4_122_048)
    ten = list(select(read(lines), None, 600))
    assert survey(ten) == Survey(1750, 0, 597.0, 24_486_514, 619_615)


@needs_data
def test_the_synthetic_trace_reads_as_published() -> None:
    arrivals = everything(opened("mooncake_synthetic_trace.jsonl"))
    assert arrivals[0] == Arrival(0.0, 40_160, 6, list(range(79)))
    assert (len(arrivals), arrivals[-1].at) == (3993, 1022.025)


@needs_data
@pytest.mark.parametrize(
    ("name", "calls", "second", "seconds"),
    [
        ("azure2023_code.csv", 8819, (0.052, 3180, 8), 3435.948056),
        ("azure2023_conv.csv", 19_366, (4.314579, 396, 109), 3501.721937),
    ],
)
def test_the_azure_traces_read_as_published(
    name: str, calls: int, second: tuple[float, int, int], seconds: float
) -> None:
    arrivals = everything(opened(name))
    assert len(arrivals) == calls
    assert arrivals[1].at == pytest.approx(second[0])
    assert (arrivals[1].input, arrivals[1].output) == second[1:]
    assert arrivals[-1].at == pytest.approx(seconds)
    assert len({arrival.blocks[0] for arrival in arrivals}) == calls


rows = st.lists(
    st.tuples(
        st.integers(0, 10**9),
        st.integers(1, 10**6),
        st.integers(0, 10**4),
        st.lists(st.integers(0, 10**7), min_size=1),
    ),
    min_size=1,
)


@given(rows)
def test_a_mooncake_trace_comes_back_as_it_was_written(
    written: list[tuple[int, int, int, list[int]]],
) -> None:
    written.sort(key=lambda row: row[0])
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    lines = [msgspec.json.encode(dict(zip(names, row, strict=True))) + b"\n" for row in written]
    arrivals = everything([b"\n", *lines, b"\n"])
    assert [(a.input, a.output, a.blocks) for a in arrivals] == [row[1:] for row in written]
    assert [a.at for a in arrivals] == pytest.approx([(row[0] - written[0][0]) / 1000 for row in written])


@given(
    st.lists(st.binary(max_size=60), max_size=4),
    st.sampled_from([b"", b'{"hash_ids"', b'{"call_id"', AZURE[0]]),
)
def test_whatever_the_file_holds_only_a_trace_error_comes(lines: list[bytes], first: bytes) -> None:
    with contextlib.suppress(TraceError):
        assert all(arrival.blocks for arrival in everything([first, *lines]))


def test_azure_counts_over_midnight_and_knows_no_shared_prompts() -> None:
    first, second = everything(AZURE)
    assert second.at - first.at == second.at == pytest.approx(0.25)
    assert (first.input, first.output, second.output) == (4808, 10, 0)
    assert len(first.blocks) == 10
    assert not set(first.blocks) & set(second.blocks)


def test_a_byte_order_mark_is_no_part_of_the_header() -> None:
    assert len(everything([b"\xef\xbb\xbf" + AZURE[0], *AZURE[1:]])) == 2


def test_columns_are_found_by_name() -> None:
    swapped = [b"TIMESTAMP,Model,GeneratedTokens,ContextTokens\n", b"2023-11-16 18:17:03,x,7,600\n"]
    [found] = everything(swapped)
    assert (found.input, found.output) == (600, 7)


def logged(**members: Any) -> bytes:
    return msgspec.json.encode(line(CallRecord(**members))) + b"\n"


def test_an_access_log_plays_in_the_order_of_arrivals() -> None:
    lines = [
        logged(call_id="b", created=107.5, input=1000, output=9),
        logged(call_id="c", created=109.0),
        logged(call_id="a", created=100.0, input=500, output=3),
    ]
    arrivals = everything(lines)
    assert [(a.at, a.input, a.output) for a in arrivals] == [(0.0, 500, 3), (7.5, 1000, 9), (9.0, 0, 0)]
    assert survey(arrivals) == Survey(calls=2, left_out=1, seconds=9.0, input=1500, output=12)


def test_calls_of_one_conversation_share_their_beginnings_and_others_do_not() -> None:
    lines = [
        logged(call_id="a", session="s", created=1.0, input=600),
        logged(call_id="b", session="s", created=2.0, input=2000),
        logged(call_id="c", created=3.0, input=600),
        logged(call_id="d", created=4.0, input=600),
    ]
    first, longer, other, another = (list(arrival.blocks) for arrival in everything(lines))
    assert longer[: len(first)] == first
    assert len({first[0], other[0], another[0]}) == 3


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "line 1: no trace"),
        ([b"\n", b"GET / HTTP/1.1\n"], "line 2: no trace"),
        ([b'{"hash_ids": [1], "timestamp": 0, "input_length": 5}'], "line 1: Object missing required field"),
        ([*AZURE, b"2023-11-16 18:17:03,1,2\n"], "line 4: earlier"),
        ([*AZURE, b"yesterday,1,2\n"], "line 4: Invalid isoformat"),
        ([*AZURE, b"2023-11-18 18:17:03,1\n"], "line 4: list index"),
        ([b"TIMESTAMP,Tokens\n"], "line 1: wanted the columns"),
        (
            [b'{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": []}'],
            "line 1: wanted lengths that are not negative, and blocks",
        ),
        (
            [b'{"timestamp": 0, "input_length": 5, "output_length": -1, "hash_ids": [1]}'],
            "line 1: wanted lengths that are not negative",
        ),
    ],
)
def test_what_cannot_be_read_is_told_with_its_line(lines: list[bytes], says: str) -> None:
    with pytest.raises(TraceError, match=f"^{says}"):
        everything(lines)


def test_a_part_is_the_first_calls_of_the_first_seconds() -> None:
    arrivals = [Arrival(float(at), 10, 1, [at]) for at in range(6)]
    assert list(select(arrivals, None, None)) == arrivals
    assert list(select(arrivals, 2, None)) == arrivals[:2]
    assert list(select(arrivals, None, 3)) == arrivals[:3]
    assert list(select(arrivals, 2, 3)) == arrivals[:2]


def test_a_trace_is_read_no_further_than_it_is_played() -> None:
    def endless() -> Iterable[bytes]:
        at = 0
        while True:
            yield b'{"timestamp": %d, "input_length": 5, "output_length": 1, "hash_ids": [1]}' % at
            at += 1000

    assert survey(select(read(endless()), None, 50)).calls == 50
