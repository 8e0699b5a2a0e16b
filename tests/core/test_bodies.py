"""Request bodies: where they end, what is refused, and unpacking in bounded steps."""

import gzip
import zlib
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.bodies import (
    CHUNKS_A_TURN,
    LONGEST_SIZE_LINE,
    LONGEST_TRAILERS,
    ChunkedBody,
    Gunzip,
    SizedBody,
)
from moongate.core.faults import FailedError, Fault
from tests.core.requests import BAD, CHUNKS, HEAD


def decode(data: bytes) -> tuple[bytes, bytes]:
    """The body, and what follows it."""
    body = ChunkedBody()
    whole = b""
    while data and not body.done:
        part, used = body.feed(data)
        assert used
        whole += part
        data = data[used:]
    assert body.done
    return whole, data


def ends(pieces: Iterable[bytes]) -> bool:
    """Whether a chunked body is whole after these pieces; False if it was refused."""
    body = ChunkedBody()
    try:
        for piece in pieces:
            body.feed(piece)
    except FailedError as error:
        return not refuses(error)
    return body.done


def refuses(error: FailedError) -> bool:
    return error.failure.fault is Fault.INVALID_REQUEST


def test_a_sized_body_ends_where_it_says() -> None:
    body = SizedBody(5)
    assert (body.feed(b"abc"), body.done) == ((b"abc", 3), False)
    assert (body.feed(b"deGET /"), body.done) == ((b"de", 2), True)
    assert SizedBody(0).done


@given(st.lists(st.binary(min_size=1, max_size=40)), st.binary(max_size=10), st.data())
def test_chunks_decode_to_what_was_encoded(chunks: list[bytes], rest: bytes, data: st.DataObject) -> None:
    encoded = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    assert decode(encoded + rest) == (b"".join(chunks), rest)
    body = ChunkedBody()
    whole = b""
    position = 0
    while not body.done:
        size = data.draw(st.integers(1, 8))
        part, used = body.feed((encoded + rest)[position : position + size])
        whole += part
        position += used
    assert whole == b"".join(chunks)
    assert position == len(encoded)


@pytest.mark.parametrize("name", [name for name in BAD if HEAD + CHUNKS in BAD[name]])
@pytest.mark.parametrize("step", [1, 1000])
def test_wrong_chunks_and_trailers_are_refused(name: str, step: int) -> None:
    data = BAD[name].partition(CHUNKS)[2]
    assert not ends(data[start : start + step] for start in range(0, len(data), step))


def test_tiny_chunks_are_taken_in_turns() -> None:
    encoded = b"1\r\nx\r\n" * (CHUNKS_A_TURN + 10) + b"0\r\n\r\n"
    body = ChunkedBody()
    part, used = body.feed(encoded)
    assert len(part) <= CHUNKS_A_TURN
    assert not body.done
    assert body.feed(encoded[used:])[1] == len(encoded) - used
    assert body.done


@pytest.mark.parametrize("split", [False, True])
def test_bounds_of_size_lines_and_trailers(*, split: bool) -> None:
    def cut(data: bytes) -> list[bytes]:
        return [data[n : n + 1] for n in range(len(data))] if split else [data]

    longest = b"0;" + b"a" * (LONGEST_SIZE_LINE - 4) + b"\r\n"
    assert ends(cut(longest + b"\r\n"))
    assert not ends(cut(longest.replace(b";", b";a") + b"\r\n"))
    trailers = b"0\r\nX: " + b"a" * (LONGEST_TRAILERS - 7) + b"\r\n\r\n"
    assert ends(cut(trailers))
    assert not ends(cut(trailers.replace(b"X", b"XX")))
    assert not ends(cut(b"0\r\n" + b"X: 1\r\n" * 1400 + b"\r\n"))


def unpack(packed: bytes, limit: int, most: int = 1000) -> bytes:
    gunzip = Gunzip(packed, limit)
    whole = b""
    while piece := gunzip.step(most):
        assert len(piece) <= most
        whole += piece
    assert gunzip.step(most) == b""
    return whole


@given(st.binary(max_size=5000), st.integers(1, 3000))
def test_gzip_comes_out_as_it_went_in(data: bytes, most: int) -> None:
    assert unpack(gzip.compress(data), len(data), most) == data


def test_large_bodies_are_fed_in_slices() -> None:
    data = bytes((n * n) >> 3 & 255 for n in range(300_000))
    packed = gzip.compress(data, compresslevel=0)
    assert unpack(packed, len(data), 100_000) == data


def fault(packed: bytes, limit: int = 10_000) -> Fault:
    with pytest.raises(FailedError) as error:
        unpack(packed, limit)
    return error.value.failure.fault


def test_what_unpacks_to_more_than_the_limit_stops_there() -> None:
    assert fault(gzip.compress(b"x" * 10_001)) is Fault.PAYLOAD_TOO_LARGE
    assert unpack(gzip.compress(b"x" * 10_000), 10_000) == b"x" * 10_000


def test_what_follows_a_member_is_found_wherever_the_member_ends() -> None:
    data = bytes(65_536 - 10 - 5 - 8)  # header, one stored block and trailer fill one slice exactly
    packed = gzip.compress(data, compresslevel=0)
    assert len(packed) == 65_536
    assert unpack(packed, 100_000) == data
    assert fault(packed + b"x", 100_000) is Fault.INVALID_REQUEST


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"x",
        zlib.compress(b"hello"),
        gzip.compress(b"hello")[:-1],
        gzip.compress(b"hello")[:-9],
        gzip.compress(b"hello") + b"x",
        gzip.compress(b"hello") + gzip.compress(b"again"),
        gzip.compress(b"hello")[:-8] + bytes(8),
        gzip.compress(b"a" * 100_000, compresslevel=0) + b"x" * 70_000,
    ],
)
def test_only_one_whole_member_is_gzip(packed: bytes) -> None:
    assert fault(packed, 200_000) is Fault.INVALID_REQUEST
