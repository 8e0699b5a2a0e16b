"""Bounds of the gzip decoder."""

import random
import zlib

import pytest

from moongate.upstream.gunzip import MOST_DECODED, PIECE, BadGzipError, Gunzip


def drained(gunzip: Gunzip) -> int:
    """Bytes of all the pieces that can be had now."""
    size = 0
    while piece := gunzip.piece():
        assert len(piece) <= PIECE
        size += len(piece)
    assert gunzip.is_drained
    return size


def test_no_more_than_so_much_is_decoded() -> None:
    packer, gunzip = zlib.compressobj(level=1, wbits=31), Gunzip()
    for _ in range(32):
        text = random.Random(1).randbytes(100_000) + bytes(1024 * 1024 - 100_000)  # ten times smaller, packed
        gunzip.feed(packer.compress(text) + packer.flush(zlib.Z_SYNC_FLUSH))
        assert drained(gunzip) == len(text)
    assert gunzip.given == MOST_DECODED
    gunzip.feed(packer.compress(b"x") + packer.flush())
    with pytest.raises(BadGzipError, match=str(MOST_DECODED)):
        drained(gunzip)


def test_what_was_flushed_can_be_had_at_once() -> None:
    packer, gunzip = zlib.compressobj(wbits=31), Gunzip()
    for size in (1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 10):
        gunzip.feed(packer.compress(random.Random(size).randbytes(size)) + packer.flush(zlib.Z_SYNC_FLUSH))
        assert drained(gunzip) == size
        assert not gunzip.is_whole
    gunzip.feed(packer.flush())
    assert drained(gunzip) == 0
    assert gunzip.is_whole
