"""The way of a call: what the client gets, what the ledger says, what is left behind."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from moongate.core.faults import Fault, Reach
from moongate.store.frames import Kind
from moongate.upstream.transport import Phase
from tests.flow.client import Client
from tests.flow.house import (
    DONE,
    JSON,
    SSE,
    USAGE,
    WHOLE,
    Act,
    House,
    answers,
    chunk,
    fails,
    hangs,
    played,
    streams,
)

STREAM = (chunk("hel"), chunk("lo"), chunk("", "stop", USAGE), DONE)


def error_of(body: bytes) -> dict[str, object]:
    error: dict[str, object] = msgspec.json.decode(body.removeprefix(b"data: "))["error"]
    return error


def one(folder: Path, acts: dict[str, list[Act]], judge: Callable[[House, Client], None], **ask: Any) -> None:
    """Play one call to its end and look at everything."""

    async def story() -> None:
        house, client = House(folder, acts), Client()
        await house.gateway.handle(house.call(**ask), client)
        judge(house, client)
        house.at_rest()

    played(story)


def test_a_plain_call_is_answered_whole_and_recorded_once(tmp_path: Path) -> None:
    def judge(house: House, client: Client) -> None:
        assert (client.status, client.body, client.ended) == (200, WHOLE, True)
        [record] = house.records
        assert (record.outcome, record.status, record.input, record.output) == ("completed", 200, 8, 3)
        assert record.billed_micro == 14  # 8 x 0.60 + 3 x 3.00 millionths of a dollar, rounded once
        assert [kind for kind, _ in house.written()] == [Kind.SENT, Kind.CLOSED]
        assert record.attempts[0].state == "settled"

    one(tmp_path, {"alpha": [answers(WHOLE)]}, judge)


def test_a_stream_is_passed_on_byte_for_byte_and_its_head_waits_for_the_first_event(tmp_path: Path) -> None:
    def judge(house: House, client: Client) -> None:
        assert client.body == b"".join(STREAM)
        assert client.head is not None
        assert b"X-Accel-Buffering: no" in client.head.headers
        [record] = house.records
        assert (record.outcome, record.output, record.delivered_bytes) == ("completed", 3, len(client.body))

    one(tmp_path, {"alpha": [streams(*STREAM)]}, judge, stream=True)


def test_the_attempt_is_in_the_journal_before_upstream_sees_anything(tmp_path: Path) -> None:
    async def story() -> None:
        seen: list[Kind] = []

        async def act(play: Any) -> Any:
            seen.extend(kind for kind, _ in house.written())
            return await answers(WHOLE)(play)

        house = House(tmp_path, {"alpha": [act]})
        await house.gateway.handle(house.call(), Client())
        assert seen == [Kind.SENT]

    played(story)


@pytest.mark.parametrize(
    "act",
    [
        fails(Fault.KIMI_NETWORK_UNREACHABLE, Reach.NOTHING_SENT),
        answers(b'{"error":{"message":"The engine is currently overloaded, please try again later",'
                b'"type":"engine_overloaded_error"}}', 429),
        answers(b'{"error":{"message":"busy","type":"server_unavailable"}}', 503),
    ],
    ids=["unreachable", "overloaded", "503-own-json"],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_what_was_not_executed_is_rescued_by_the_next_target(tmp_path: Path, act: Act, stream: bool) -> None:
    def judge(house: House, client: Client) -> None:
        assert client.status == 200
        [record] = house.records
        assert [(a.target, a.state) for a in record.attempts] == [("alpha", "released"), ("beta", "settled")]
        assert record.outcome == "completed"

    good = streams(*STREAM) if stream else answers(WHOLE)
    one(tmp_path, {"alpha": [act], "beta": [good]}, judge, stream=stream)


@pytest.mark.parametrize(
    ("act", "code", "status"),
    [
        (fails(Fault.KIMI_NETWORK_UNREACHABLE, Reach.SENT), "kimi_network_unreachable", 502),
        (fails(Fault.KIMI_NETWORK_TIMEOUT, Reach.SENT, Phase.HEAD), "kimi_network_timeout", 504),
        (answers(b"<html>", 502), "kimi_server_error", 502),
        (answers(b"", 200), "kimi_bad_response", 502),
        (answers(b'{"id":"c-1","choices":[', 200), "kimi_bad_response", 502),
    ],
)
def test_what_may_have_been_executed_is_never_sent_again(
    tmp_path: Path, act: Act, code: str, status: int
) -> None:
    def judge(house: House, client: Client) -> None:
        assert client.status == status
        assert error_of(client.body)["code"] == code
        assert client.head is not None
        assert b"x-should-retry: false" in client.head.headers
        [record] = house.records
        assert [(a.target, a.state) for a in record.attempts] == [("alpha", "ambiguous")]
        assert (record.outcome, record.code) == ("failed", code)

    one(tmp_path, {"alpha": [act], "beta": [answers(WHOLE)]}, judge)


def test_a_route_that_may_pay_twice_does(tmp_path: Path) -> None:
    def judge(house: House, client: Client) -> None:
        assert client.status == 200
        assert [a.state for a in house.records[0].attempts] == ["ambiguous", "settled"]

    acts = {"alpha": [fails(Fault.KIMI_NETWORK_UNREACHABLE, Reach.SENT)], "beta": [answers(WHOLE)]}
    one(tmp_path, acts, judge, route="twice")


@pytest.mark.parametrize("fault", [Fault.KIMI_STREAM_TRUNCATED, Fault.KIMI_NETWORK_TIMEOUT])
def test_a_stream_that_breaks_after_events_ends_with_an_error_event_and_an_estimate(
    tmp_path: Path, fault: Fault
) -> None:
    def judge(house: House, client: Client) -> None:
        passed, error = client.body[: len(STREAM[0])], client.body[len(STREAM[0]) :]
        assert passed == STREAM[0]
        assert error_of(error)["code"] == fault.value
        assert client.ended
        assert b"[DONE]" not in client.body
        [record] = house.records
        assert (record.outcome, record.status) == ("truncated", 200)
        [attempt] = record.attempts
        assert (attempt.state, attempt.reach, attempt.tokens_source) == ("settled_est", "events", "counted")
        assert attempt.output == 1

    acts = {"alpha": [streams(STREAM[0], fault=fault)], "beta": [streams(*STREAM)]}
    one(tmp_path, acts, judge, stream=True)


def test_a_stream_without_its_end_marker_is_complete_if_it_finished(tmp_path: Path) -> None:
    def judge(house: House, client: Client) -> None:
        assert client.body == b"".join(STREAM)
        assert house.records[0].outcome == "completed"

    one(tmp_path, {"alpha": [streams(*STREAM[:-1])]}, judge, stream=True)


def test_a_stream_that_just_stops_is_truncated_not_complete(tmp_path: Path) -> None:
    def judge(house: House, client: Client) -> None:
        assert error_of(client.body.split(b"\n\n")[1])["code"] == "kimi_stream_truncated"
        assert house.records[0].outcome == "truncated"

    one(tmp_path, {"alpha": [streams(STREAM[0])]}, judge, stream=True)


def test_comments_alone_do_not_commit_to_a_status(tmp_path: Path) -> None:
    def judge(_house: House, client: Client) -> None:
        assert client.status == 504
        assert client.head is not None
        assert b"json" in client.head.headers

    act = streams(b": keep-alive\n\n", fault=Fault.KIMI_NETWORK_TIMEOUT)
    one(tmp_path, {"alpha": [act]}, judge, stream=True)


def test_upstream_that_lingers_after_done_holds_the_record_a_second_and_the_client_not_at_all(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async def act(play: Any) -> Any:
            await streams(*STREAM)(play)
            return await play.until_cut()

        house, client = House(tmp_path, {"alpha": [act]}), Client()
        began = house.world.clock()
        await house.gateway.handle(house.call(stream=True), client)
        assert client.ended
        assert 0.9 <= house.world.clock() - began <= 1.1
        assert house.records[0].outcome == "completed"
        house.at_rest()

    played(story)


def leaving(folder: Path, act: Act, when: Callable[[Client], Coroutine[Any, Any, None]], **ask: Any) -> House:
    found: list[House] = []

    async def story() -> None:
        house, client = House(folder, {"alpha": [act]}), Client()
        found.append(house)
        task = asyncio.ensure_future(house.gateway.handle(house.call(**ask), client))
        await when(client)
        client.leave()
        await task
        house.at_rest()

    played(story)
    return found[0]


async def a_turn(_client: Client) -> None:
    await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("opened", "state"), [(False, "released"), (True, "ambiguous")], ids=["connecting", "sent"]
)
def test_who_leaves_before_an_answer_ends_the_exchange(
    tmp_path: Path, stream: bool, opened: bool, state: str
) -> None:
    house = leaving(tmp_path, hangs(opened=opened), a_turn, stream=stream)
    [record] = house.records
    assert (record.outcome, record.status, record.code) == ("abandoned", 499, "client_closed")
    assert record.attempts[0].state == state


def test_who_leaves_at_once_is_recorded_too(tmp_path: Path) -> None:
    async def at_once(_client: Client) -> None:
        return None

    house = leaving(tmp_path, hangs(opened=True), at_once)
    assert house.records[0].outcome == "abandoned"


def test_who_leaves_in_the_middle_of_a_stream_pays_for_what_came(tmp_path: Path) -> None:
    async def act(play: Any) -> Any:
        play.sink.open(play)
        play.sink.head(200, SSE)
        play.sink.data(STREAM[0])
        return await play.until_cut()

    house = leaving(tmp_path, act, a_turn, stream=True)
    [record] = house.records
    assert (record.outcome, record.attempts[0].state) == ("abandoned", "settled_est")
    assert record.attempts[0].output == 1


def test_who_leaves_after_the_end_has_had_the_answer(tmp_path: Path) -> None:
    async def story() -> None:
        async def act(play: Any) -> Any:
            await streams(*STREAM)(play)
            client.leave()
            return await play.until_cut()

        house, client = House(tmp_path, {"alpha": [act]}), Client()
        await house.gateway.handle(house.call(stream=True), client)
        assert house.records[0].outcome == "completed"
        house.at_rest()

    played(story)


def test_a_client_that_reads_slowly_holds_upstream_back_and_loses_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        house, client = House(tmp_path, {"alpha": [streams(*STREAM)]}), Client()

        def fill(_data: bytes) -> None:
            client.ready = False
            asyncio.get_running_loop().call_later(5.0, client.make_room)

        client.on_write = fill
        began = house.world.clock()
        await house.gateway.handle(house.call(stream=True), client)
        assert client.body == b"".join(STREAM)
        assert house.upstreams["alpha"].plays[0].pauses == len(STREAM)
        assert house.world.clock() - began >= 4.9 * (len(STREAM) - 1)
        house.at_rest()

    played(story)


def test_a_cap_on_calls_refuses_with_a_wait_and_records_the_refusal(tmp_path: Path) -> None:
    async def story() -> None:
        house = House(tmp_path, {"alpha": [hangs(opened=True)]}, most=1)
        first, second = Client(), Client()
        running = asyncio.ensure_future(house.gateway.handle(house.call(), first))
        await asyncio.sleep(0.01)
        await house.gateway.handle(house.call(), second)
        assert (second.status, error_of(second.body)["code"]) == (503, "gateway_overloaded")
        assert second.head is not None
        assert b"Retry-After: 1" in second.head.headers
        assert house.records[0].outcome == "refused"
        first.leave()
        await running
        house.at_rest()

    played(story)


def test_draining_refuses_new_calls_lets_live_ones_finish_and_ends_the_rest_honestly(tmp_path: Path) -> None:
    async def story() -> None:
        async def slow(play: Any) -> Any:
            await asyncio.sleep(3)
            return await answers(WHOLE)(play)

        async def stuck(play: Any) -> Any:
            play.sink.open(play)
            play.sink.head(200, SSE)
            play.sink.data(STREAM[0])
            return await play.until_cut()

        house = House(tmp_path, {"alpha": [slow, stuck]})
        fine, cut, late = Client(), Client(), Client()
        calls = [
            asyncio.ensure_future(house.gateway.handle(house.call(), fine)),
            asyncio.ensure_future(house.gateway.handle(house.call(stream=True), cut)),
        ]
        await asyncio.sleep(0.01)
        house.gateway.begin_drain()
        await house.gateway.handle(house.call(), late)
        assert error_of(late.body)["code"] == "gateway_draining"
        assert await house.gateway.drained(10.0) == 1
        await asyncio.gather(*calls)
        assert fine.status == 200
        assert error_of(cut.body[len(STREAM[0]) :])["code"] == "gateway_draining"
        assert cut.ended
        house.at_rest()

    played(story)


def test_an_unwritable_journal_stops_the_call_before_anything_is_sent(tmp_path: Path) -> None:
    async def story() -> None:
        house, client = House(tmp_path, {"alpha": [answers(WHOLE)]}), Client()
        house.journal.close()
        await house.gateway.handle(house.call(), client)
        assert (client.status, error_of(client.body)["code"]) == (503, "ledger_unavailable")
        assert house.upstreams["alpha"].plays == []
        assert house.records[0].outcome == "refused"

    played(story)


def test_memory_for_answers_is_bounded_and_given_back(tmp_path: Path) -> None:
    def judge(_house: House, client: Client) -> None:
        assert (client.status, error_of(client.body)["code"]) == (503, "gateway_overloaded")

    async def act(play: Any) -> Any:
        play.sink.open(play)
        play.sink.head(200, JSON)
        for _ in range(20):
            if not play.cut_by:
                play.sink.data(b" " * 100_000)
        return await play.until_cut() if play.cut_by else None

    one(tmp_path, {"alpha": [act]}, judge)


def test_a_bug_in_the_gateway_ends_the_call_with_a_500_and_a_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def judge(house: House, client: Client) -> None:
        assert (client.status, error_of(client.body)["code"]) == (500, "gateway_error")
        assert house.records[0].outcome == "failed"
        assert "planted" in caplog.text

    async def act(_play: Any) -> Any:
        raise RuntimeError("planted")

    one(tmp_path, {"alpha": [act]}, judge)
