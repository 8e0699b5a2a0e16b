"""Recorded answers cut in two at every byte, through the real gateway, relays and readers.

The cut is made at the transport's border, where bytes arrive: 20 answers are cut at every byte of theirs, the others
at 64 seeded ones. Over real sockets the same answers are played by tests/wire/test_recorded.py.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from moongate.core.body import RawBody
from moongate.core.faults import Reach
from moongate.core.record import CallRecord
from moongate.core.surface import Answer
from moongate.upstream.transport import Ended, Headers, Phase
from tests.flow.client import Client
from tests.flow.house import Act, Dialect, House, Play, played
from tests.plain_reading import DONE, Reading, Tokens, blocks, due, read_plain, read_stream, said
from tests.plain_reading import Call as ToolCall
from tests.recorded import Exchange, needs_data, plain, streams

SEEDED_CUTS = 64
CUT_EVERYWHERE = 20
NO_ANSWERS = {"test_openai__test_invalid_response#0", "reasoning-model-legacy-parameter-error.json"}
STREAMS = {found.name: found for found in streams()}
PLAIN = {found.name: found for found in plain() if found.status == 200 and found.name not in NO_ANSWERS}
ASKS = b'{"model":"kimi-k2.5","messages":[],"stream":true,"stream_options":{"include_usage":true}}'


class Mode(NamedTuple):
    """How a stream is asked for, and whether its usage chunk is ours to take out."""

    dialect: Dialect
    asks: bool
    strips: bool


USUAL = Mode("generic", asks=False, strips=True)
MODES = [USUAL, Mode("generic", asks=True, strips=False), Mode("moonshot", asks=False, strips=False)]


def smallest(found: Iterable[Exchange], number: int) -> set[str]:
    return {each.name for each in sorted(found, key=lambda each: len(each.body))[:number]}


EVERYWHERE = smallest(STREAMS.values(), 10) | smallest(PLAIN.values(), CUT_EVERYWHERE - 10)


def cuts_of(exchange: Exchange) -> Sequence[int]:
    """Where to cut: 0 is no cut at all."""
    if exchange.name in EVERYWHERE:
        return range(len(exchange.body))
    return seeded_cuts(exchange, SEEDED_CUTS)


def seeded_cuts(exchange: Exchange, number: int) -> list[int]:
    return random.Random(exchange.name).sample(range(len(exchange.body)), number)


def cut(body: bytes, at: int, headers: Headers) -> Act:
    """An act: this body in two pieces."""

    async def act(play: Play) -> Ended:
        play.sink.open(play)
        play.sink.head(200, headers)
        for piece in filter(None, (body[:at], body[at:])):
            if not play.cut_by:
                play.sink.data(piece)
        return await play.until_cut() if play.cut_by else Ended(Reach.HEAD, None, Phase.IDLE)

    return act


class Seen(NamedTuple):
    """What came of one call."""

    client: Client
    record: CallRecord
    answer: Answer


def through(
    folder: Path, exchange: Exchange, cuts: Sequence[int], *, stream: bool, mode: Mode = USUAL
) -> list[Seen]:
    """Play the exchange once for each cut."""
    seen: list[Seen] = []
    headers = [(name.encode(), value.encode()) for name, value in exchange.headers]

    async def story() -> None:
        acts = [cut(exchange.body, at, headers) for at in cuts]
        house = House(folder, {"alpha": acts}, dialect=mode.dialect)
        for _ in cuts:
            client, call = Client(), house.call(stream=stream)
            if mode.asks:
                call = msgspec.structs.replace(call, body=RawBody(ASKS), include_usage=True)
            await house.gateway.handle(call, client)
            answer = house.upstreams["alpha"].plays[-1].sink.answer  # type: ignore[attr-defined]  # a relay
            seen.append(Seen(client, house.records[-1], answer))
        house.at_rest()

    played(story)
    return seen


def folded(answer: Answer) -> Reading:
    """The gateway's fold in the words of the plain reading."""
    used = None if answer.usage_suspect else answer.usage
    return Reading(
        answer.text,
        answer.reasoning,
        [ToolCall(call.index, call.id, call.kind, call.name, call.arguments) for call in answer.tool_calls],
        answer.finish,
        None
        if used is None
        else Tokens(used.input, used.output, used.cached, used.reasoning, used.cache_write),
    )


def judge(seen: Seen, reading: Reading) -> None:
    """The fold is right, and the ledger has what the answer says it used, or what we counted."""
    assert folded(seen.answer) == replace(reading, error=False)
    record = seen.record
    [attempt] = record.attempts
    assert record.usage == attempt.usage
    counted = Tokens(record.input, record.output, record.cached, record.reasoning, record.cache_write)
    if reading.tokens is not None:
        assert (attempt.state, attempt.tokens_source) == ("settled", "provider")
        assert counted == reading.tokens
    else:
        assert (attempt.state, attempt.tokens_source) == ("settled_est", "counted")
        assert min(counted.input, counted.output) > 0
    code, outcome = ("kimi_bad_response", "truncated") if reading.error else ("", "completed")
    assert (record.outcome, record.code, attempt.code) == (outcome, code, code)
    assert (record.status, seen.client.status, seen.client.ended) == (200, 200, True)
    assert record.delivered_bytes <= len(seen.client.body)


def judge_stream(folder: Path, exchange: Exchange, cuts: Sequence[int], mode: Mode) -> None:
    reading = read_stream(exchange.body)
    wanted = due(exchange.body, strips_usage=mode.strips)
    for at, seen in zip(cuts, through(folder, exchange, cuts, stream=True, mode=mode), strict=True):
        judge(seen, reading)
        body = seen.client.body
        if wanted.breaks:
            assert body.startswith(wanted.body), at
            [(_, last)] = map(said, blocks(body[len(wanted.body) :]))
            assert last["error"]["code"] == "kimi_bad_response", at
        else:
            assert body == wanted.body, at


@needs_data
@pytest.mark.parametrize("name", STREAMS)
def test_streams_pass_unchanged_however_they_are_cut(tmp_path: Path, name: str) -> None:
    exchange = STREAMS[name]
    judge_stream(tmp_path, exchange, cuts_of(exchange), USUAL)


@needs_data
@pytest.mark.parametrize("mode", MODES[1:], ids=["the client asks for usage", "Kimi tells usage unasked"])
def test_usage_chunks_that_are_not_ours_stay(tmp_path: Path, mode: Mode) -> None:
    for at, exchange in enumerate(STREAMS.values()):
        judge_stream(tmp_path / f"{at}", exchange, seeded_cuts(exchange, 4), mode)


@needs_data
@pytest.mark.parametrize("missing", [DONE, b"\n" + DONE, b"\n\n" + DONE], ids=repr)
def test_a_missing_end_is_supplied_where_the_answer_is_whole(tmp_path: Path, missing: bytes) -> None:
    readings = {name: read_stream(each.body) for name, each in STREAMS.items()}
    whole = [STREAMS[name] for name, reading in readings.items() if reading.finish and not reading.error]
    endless = [each._replace(body=each.body.removesuffix(missing)) for each in whole]
    assert len(endless) > 15
    for at, exchange in enumerate(endless):
        judge_stream(tmp_path / f"{at}", exchange, seeded_cuts(exchange, 4), USUAL)


@needs_data
@pytest.mark.parametrize("name", PLAIN)
def test_plain_answers_pass_unchanged_however_they_are_cut(tmp_path: Path, name: str) -> None:
    exchange = PLAIN[name]
    for seen in through(tmp_path, exchange, cuts_of(exchange), stream=False):
        judge(seen, read_plain(exchange.body))
        assert seen.client.body == exchange.body


@needs_data
def test_twenty_answers_are_cut_at_every_byte() -> None:
    assert len(EVERYWHERE) == CUT_EVERYWHERE
    assert {"moonshotai-stream.chunks.txt", "moonshotai-reasoning.json"} < EVERYWHERE
