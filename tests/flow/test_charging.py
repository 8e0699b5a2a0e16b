"""What a call is billed when it does not end as it should: by proof, by count, or not yet."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from moongate.core.faults import Fault, Reach
from moongate.core.record import AttemptRecord, CallRecord
from moongate.upstream.transport import Headers
from tests.flow.client import Client
from tests.flow.house import (
    DONE,
    SSE,
    USAGE,
    WHOLE,
    Act,
    House,
    answers,
    chunk,
    fails,
    played,
    streams,
)

SAVED: Headers = [*SSE, (b"msh-context-cache-token-saved", b"3")]
PROMPT = 5  # a frame of 4 and a token for "hi"


def one(folder: Path, *acts: Act, leaves: bool = False, dialect: Any = "generic", **ask: Any) -> CallRecord:
    """The record of one call over targets that do so, in turn; `leaves`: its client does after a moment."""
    found: list[CallRecord] = []

    async def story() -> None:
        scripts = {name: [act] for name, act in zip(("alpha", "beta"), acts, strict=False)}
        house, client = House(folder, scripts, dialect=dialect), Client()
        task = asyncio.ensure_future(house.gateway.handle(house.call(**ask), client))
        if leaves:
            await asyncio.sleep(0.01)
            client.leave()
        await task
        found.extend(house.records)
        house.at_rest()

    played(story)
    [record] = found
    return record


def only(record: CallRecord) -> AttemptRecord:
    [attempt] = record.attempts
    return attempt


def hangs_after(*chunks: bytes, headers: Headers = SSE) -> Act:
    async def act(play: Any) -> Any:
        play.sink.open(play)
        play.sink.head(200, headers)
        for data in chunks:
            play.sink.data(data)
        return await play.until_cut()

    return act


def test_an_attempt_in_doubt_is_not_charged(tmp_path: Path) -> None:
    record = one(tmp_path, fails(Fault.KIMI_NETWORK_UNREACHABLE, Reach.SENT))
    assert only(record).state == "ambiguous"
    assert (record.billed_micro, record.input, record.output) == (0, 0, 0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_is_charged_its_prompt_at_once(tmp_path: Path, stream: bool) -> None:
    record = one(tmp_path, hangs_after(), leaves=True, stream=stream)
    attempt = only(record)
    assert (attempt.state, attempt.cause, attempt.tokens_source) == ("ambiguous", "client_closed", "counted")
    assert (attempt.input, attempt.output) == (PROMPT, 0)
    assert record.billed_micro == attempt.cost_micro == 3  # 5 x 0.60 millionths of a dollar


def test_what_the_prompt_cache_saved_is_known_from_the_head_and_charged_so(tmp_path: Path) -> None:
    act = hangs_after(chunk("one"), chunk(" two"), headers=SAVED)
    attempt = only(one(tmp_path, act, leaves=True, dialect="moonshot", stream=True))
    assert (attempt.state, attempt.input, attempt.cached, attempt.output) == ("settled_est", PROMPT, 3, 2)
    assert attempt.cost_micro == 8  # 2 x 0.60 + 3 x 0.10 + 2 x 3.00
    assert attempt.answer_id == "c-1"


def test_pieces_are_counted_however_they_were_read(tmp_path: Path) -> None:
    pieces = [chunk("xy") for _ in range(20)]  # one word, and 40 bytes: only the pieces tell
    record = one(tmp_path, streams(*pieces, fault=Fault.KIMI_STREAM_TRUNCATED), stream=True)
    assert only(record).output == 20


@pytest.mark.parametrize(
    ("usage", "flag"),
    [
        ("", "usage_missing"),
        (',"usage":{"prompt_tokens":8,"completion_tokens":-1,"total_tokens":7}', "usage_suspect"),
        (',"usage":{"prompt_tokens":8,"completion_tokens":3,"total_tokens":9999}', "usage_suspect"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_usage_that_is_missing_or_absurd_is_replaced_by_our_count_and_flagged(
    tmp_path: Path, stream: bool, usage: str, flag: str
) -> None:
    whole = WHOLE.replace(
        b',"usage":{"prompt_tokens":8,"completion_tokens":3,"total_tokens":11}', usage.encode()
    )
    act = streams(chunk("hello"), chunk("", "stop", usage), DONE) if stream else answers(whole)
    record = one(tmp_path, act, stream=stream)
    attempt = only(record)
    assert record.outcome == "completed"
    assert (attempt.state, attempt.tokens_source, attempt.detail) == ("settled_est", "counted", flag)
    assert (attempt.input, attempt.output) == (PROMPT, 1)
    assert record.billed_micro == attempt.cost_micro == 6


def test_usage_that_came_before_the_break_is_proof(tmp_path: Path) -> None:
    act = streams(chunk("hello", None, USAGE), fault=Fault.KIMI_STREAM_TRUNCATED)
    attempt = only(one(tmp_path, act, stream=True))
    assert (attempt.state, attempt.input, attempt.output) == ("settled", 8, 3)


def test_on_a_route_that_may_pay_twice_the_doubtful_attempt_is_not_billed_with_the_good_one(
    tmp_path: Path,
) -> None:
    record = one(tmp_path, fails(Fault.KIMI_NETWORK_UNREACHABLE, Reach.SENT), answers(WHOLE), route="twice")
    assert [attempt.state for attempt in record.attempts] == ["ambiguous", "settled"]
    assert record.billed_micro == 14


def test_an_error_of_our_own_leaves_no_attempt_open(tmp_path: Path) -> None:
    async def act(_play: Any) -> Any:
        raise ZeroDivisionError

    record = one(tmp_path, act)
    attempt = only(record)
    assert (attempt.state, attempt.cause, attempt.code) == ("ambiguous", "gateway_error", "gateway_error")
    assert record.billed_micro == 0


def test_a_task_that_is_killed_leaves_no_attempt_open(tmp_path: Path) -> None:
    async def story() -> None:
        house = House(tmp_path, {"alpha": [hangs_after()]})
        task = asyncio.ensure_future(house.gateway.handle(house.call(), Client()))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        [record] = house.records
        assert (only(record).state, only(record).cause) == ("ambiguous", "gateway_draining")

    played(story)
