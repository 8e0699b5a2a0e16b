"""Read traces: lines of text become arrivals, with their lengths in tokens and the blocks of their prompts.

Known are Mooncake's traces (JSON lines with `hash_ids`), Azure's (CSV with `ContextTokens`) and moongate's own
access log (JSON lines with `call_id`). Which one it is, the first line tells.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Final, TypeVar

import msgspec

BLOCK_TOKENS: Final = 512
"""Tokens of one prompt block, as Mooncake cuts them."""

_BLOCKS_OF_ONE: Final = 1 << 20  # ids kept apart for each prompt whose blocks the trace does not name
_AZURE: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BOM: Final = b"\xef\xbb\xbf"
T = TypeVar("T")


class TraceError(ValueError):
    """A trace that cannot be read; says the line and what is wanted there."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One call of a trace: `at` in seconds after the first one, lengths in tokens.

    Prompts share their beginnings as far as their `blocks` do; each block is 512 tokens, the last one whatever is
    left. `input` 0: the trace does not know the prompt (the call was refused before it was read).
    """

    at: float
    input: int
    output: int
    blocks: Sequence[int]


@dataclass(frozen=True, slots=True)
class Survey:
    """What a trace holds: calls that can be played and ones that cannot, seconds to the last, tokens."""

    calls: int = 0
    left_out: int = 0
    seconds: float = 0.0
    input: int = 0
    output: int = 0


class _Mooncake(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


class _Logged(msgspec.Struct):
    call_id: str
    time: float
    conversation_id: str = ""
    input_tokens: int = 0
    output_tokens: int = 0


def read(lines: Iterable[bytes]) -> Iterator[Arrival]:
    """Every call of a trace, in the order of arrival.

    Mooncake and Azure are read line by line as they are asked for and must be in order; an access log is written in the
    order of the ends and is therefore held and sorted. Raises `TraceError`.
    """
    rest = iter(lines)
    number, first = next(((at, line) for at, line in enumerate(rest, 1) if line.strip()), (0, b""))
    first = first.removeprefix(_BOM)
    every = enumerate(chain([first], rest), max(number, 1))
    if first.startswith(_AZURE[0].encode()):
        return _in_order(_azure(every))
    if b'"hash_ids"' in first:
        return _in_order(_mooncake(every))
    if b'"call_id"' in first:
        return _logged(every)
    wanted = 'JSON lines with "hash_ids" (Mooncake) or "call_id" (access log), or CSV with TIMESTAMP (Azure)'
    raise TraceError(f"line {max(number, 1)}: no trace that is known; wanted: {wanted}")


def select(arrivals: Iterable[Arrival], limit: int | None, seconds: float | None) -> Iterator[Arrival]:
    """The first `limit` arrivals of the first `seconds`; None: all."""
    for number, arrival in enumerate(arrivals):
        if (limit is not None and number >= limit) or (seconds is not None and arrival.at >= seconds):
            return
        yield arrival


def survey(arrivals: Iterable[Arrival]) -> Survey:
    """Count a trace through."""
    calls = left_out = tokens_in = tokens_out = 0
    last = 0.0
    for arrival in arrivals:
        last = arrival.at
        calls += arrival.input > 0
        left_out += arrival.input <= 0
        tokens_in += arrival.input
        tokens_out += arrival.output if arrival.input > 0 else 0
    return Survey(calls, left_out, last, tokens_in, tokens_out)


def _mooncake(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, float, int, int, Sequence[int]]]:
    decoder = msgspec.json.Decoder(_Mooncake)
    for number, line in lines:
        if line.strip():
            row = _decoded(decoder, number, line)
            yield number, row.timestamp / 1000, row.input_length, row.output_length, row.hash_ids


def _azure(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, float, int, int, Sequence[int]]]:
    rows = ((number, line.decode("utf-8", "replace")) for number, line in lines if line.strip())
    _, header = next(rows)
    names = header.strip().split(",")
    if not set(_AZURE) <= set(names):
        raise TraceError(f"line 1: wanted the columns {', '.join(_AZURE)}")
    when, context, generated = (names.index(name) for name in _AZURE)
    for number, line in rows:
        row = line.strip().split(",")
        try:
            at = datetime.fromisoformat(row[when]).replace(tzinfo=UTC).timestamp()
            lengths = int(row[context]), int(row[generated])
        except (ValueError, IndexError, TypeError) as error:
            raise TraceError(f"line {number}: {error}; wanted {', '.join(_AZURE)}") from None
        yield number, at, *lengths, _own_blocks(number, lengths[0])


def _logged(lines: Iterable[tuple[int, bytes]]) -> Iterator[Arrival]:
    decoder = msgspec.json.Decoder(_Logged)
    rows = [_decoded(decoder, number, line) for number, line in lines if line.strip()]
    rows.sort(key=lambda row: row.time)
    for row in rows:
        name = (row.conversation_id or row.call_id).encode()
        key = int.from_bytes(hashlib.sha256(name).digest()[:6], "big")
        blocks = _own_blocks(key, row.input_tokens)
        yield Arrival(row.time - rows[0].time, max(row.input_tokens, 0), max(row.output_tokens, 0), blocks)


def _own_blocks(key: int, tokens: int) -> Sequence[int]:
    """Blocks that only prompts of the same key begin with."""
    start = key * _BLOCKS_OF_ONE
    return range(start, start + max(-(-tokens // BLOCK_TOKENS), 1))


def _in_order(rows: Iterable[tuple[int, float, int, int, Sequence[int]]]) -> Iterator[Arrival]:
    first: float | None = None
    last = 0.0
    for number, at, tokens_in, tokens_out, blocks in rows:
        if first is None:
            first = last = at
        if at < last:
            raise TraceError(f"line {number}: earlier than the line before it; sort the trace by time")
        if tokens_in < 0 or tokens_out < 0 or not blocks:
            raise TraceError(f"line {number}: wanted lengths that are not negative, and blocks")
        last = at
        yield Arrival(at - first, tokens_in, tokens_out, blocks)


def _decoded(decoder: msgspec.json.Decoder[T], number: int, line: bytes) -> T:
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"line {number}: {error}") from None
