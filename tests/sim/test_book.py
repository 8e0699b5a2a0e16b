"""The billing book: every execution, what it cost and how it ended."""

import asyncio
import hashlib
from typing import Any

import pytest

from moongate.sim.book import Bill, Book, Execution
from moongate.sim.clients import Client, CutError, HalfCloser, Leaver, Pipeliner, SlowReader, chat_bytes
from moongate.sim.config import Config, accounts_from
from moongate.sim.host import key_name
from moongate.sim.models import FREE, Price, price
from tests.sim.world import World, run

SLOW = {"stream": True, "sim": {"output_tokens": 200, "tokens_per_second": 100}}


def test_a_row_tells_everything() -> None:
    async def story(world: World) -> None:
        members = {"stream": True, "stream_options": {"include_usage": True}}
        raw = chat_bytes(members, X_Request_Id="req-1")
        async with Client(world.running.port) as client:
            usage = (await client.request(raw)).objects()[-1]["usage"]
        (row,) = await world.settled()
        assert row["how"] == "completed"
        assert row["fault"] is None
        assert (row["account"], row["key"], row["host"]) == ("org-sim", key_name("sk-sim"), "kimi")
        assert (row["model"], row["stream"], row["request_id"]) == ("kimi-k2.5", True, "req-1")
        assert row["input_tokens"] == usage["prompt_tokens"]
        assert row["output_tokens"] == row["tokens_emitted"] == usage["completion_tokens"]
        assert row["reasoning_tokens"] == usage["completion_tokens_details"]["reasoning_tokens"]
        assert row["cost_micro"] == round(row["input_tokens"] * 0.6 + row["output_tokens"] * 3.0)
        assert row["currency"] == "USD"
        assert row["started"] <= row["ended"]
        assert row["body_digest"] == hashlib.sha256(raw.partition(b"\r\n\r\n")[2]).hexdigest()

    run(story)


@pytest.mark.parametrize("reset", [False, True])
def test_a_stream_that_is_left_is_charged_for_what_was_made(reset: bool) -> None:
    async def story(world: World) -> None:
        leaver = Leaver(world.running.port)
        await leaver.open()
        await leaver.leave_after(chat_bytes(SLOW), b'"content":"', reset=reset)
        (row,) = await world.settled()
        assert row["how"] == "aborted"
        assert 0 < row["output_tokens"] == row["tokens_emitted"] < 200
        assert row["cost_micro"] == price("kimi-k2.5", "USD").cost(
            row["input_tokens"], 0, row["output_tokens"]
        )
        assert row["ended"] - row["started"] < 1.5

    run(story)


def test_leaving_before_the_first_token_costs_the_prompt() -> None:
    async def story(world: World) -> None:
        leaver = Leaver(world.running.port)
        await leaver.open()
        await leaver.leave_after(chat_bytes({"stream": True, "sim": {"first_token": 60}}), b"\r\n\r\n")
        (row,) = await world.settled()
        assert (row["how"], row["output_tokens"]) == ("aborted", 0)
        assert row["cost_micro"] > 0

    run(story)


def test_a_whole_answer_that_nobody_waits_for_costs_what_was_made_by_then() -> None:
    async def story(world: World) -> None:
        leaver = Leaver(world.running.port)
        await leaver.open()
        await leaver.send(chat_bytes({"sim": {"output_tokens": 400, "tokens_per_second": 100}}))
        await asyncio.sleep(0.5)
        leaver.close()
        (row,) = await world.settled()
        assert row["how"] == "aborted"
        assert 20 <= row["output_tokens"] <= 150

    run(story)


def test_faults_are_charged_as_they_say() -> None:
    async def story(world: World) -> None:
        await world.chat(sim={"fault": "html_504"})
        await world.chat(sim={"fault": "html_504", "bill": "none"})
        await world.chat(sim={"fault": "empty_200;bill=prompt"})
        full, nothing, prompt = await world.book()
        assert full["output_tokens"] > 0
        assert (nothing["input_tokens"], nothing["output_tokens"], nothing["cost_micro"]) == (0, 0, 0)
        assert (prompt["input_tokens"] > 0, prompt["output_tokens"]) == (True, 0)
        assert [row["how"] for row in (full, nothing, prompt)] == ["html_504", "html_504", "empty_200"]

    run(story)


def test_totals_are_the_sums_and_clearing_forgets() -> None:
    async def story(world: World) -> None:
        for _ in range(3):
            await world.chat()
        await world.chat(model="none")
        rows, totals = await world.book(), await world.totals()
        for name in ("input_tokens", "output_tokens", "reasoning_tokens", "cached_tokens"):
            assert totals[name] == sum(row[name] for row in rows)
        assert totals["cost_micro"] == {"USD": sum(row["cost_micro"] for row in rows)}
        assert totals["ended"] == {"completed": 3}
        assert (totals["executions"], totals["open"]) == (3, 0)
        assert totals["refused"] == {"resource_not_found_error": 1}
        await world.call("DELETE", "/_sim/book")
        assert await world.book() == []
        assert (await world.totals())["executions"] == 0

    run(story)


def test_a_running_execution_shows_and_survives_clearing() -> None:
    async def story(world: World) -> None:
        async with Client(world.running.port) as client:
            await client.send(chat_bytes(SLOW))
            await client.until(b"data: ")
            assert [row["how"] for row in await world.book()] == ["running"]
            await world.call("DELETE", "/_sim/book")
            assert (await world.totals())["open"] == 1
        (row,) = await world.settled()
        assert row["how"] == "aborted"
        assert (await world.totals())["ended"] == {"aborted": 1}

    run(story)


def test_rows_can_be_asked_for_by_any_member() -> None:
    async def story(world: World) -> None:
        await world.chat(headers={"X_Request_Id": "a"})
        await world.chat(headers={"X_Request_Id": "b"})
        found = (await world.call("GET", "/_sim/book?request_id=b")).json()["executions"]
        assert [row["request_id"] for row in found] == ["b"]
        assert len((await world.call("GET", "/_sim/book?limit=1")).json()["executions"]) == 1

    run(story)


def execution(number: int, bill: Bill = Bill.SENT, cost: Price = FREE) -> Execution:
    members: dict[str, Any] = {"host": "h", "account": "a", "key": "k", "model": "m", "currency": "USD"}
    return Execution(
        id=str(number), price=cost, started=0.0, input_tokens=10, cached_tokens=4, output_tokens=6,
        reasoning_tokens=5, stream=True, request_id="", digest="", bill=bill, **members,
    )  # fmt: skip


def test_the_book_keeps_only_so_many_rows_but_counts_all() -> None:
    book = Book(keep=3)
    for number in range(5):
        one = execution(number)
        book.open(one)
        one.emitted = 6
        book.close(one, "completed", 1.0)
        book.close(one, "aborted", 2.0)
    assert [row["id"] for row in book.rows({}, 10)] == ["2", "3", "4"]
    assert book.totals()["executions"] == 5
    assert book.totals()["output_tokens"] == 30
    assert book.totals()["ended"] == {"completed": 5}


def test_cached_tokens_cost_the_hit_price_and_sums_round_once() -> None:
    assert Price(100_000, 600_000, 3_000_000).cost(1000, 400, 7) == round(600 * 0.6 + 400 * 0.1 + 7 * 3)
    assert Price(0, 500_000, 0).cost(1, 0, 0) == 1  # half up
    assert price("kimi-k2.5", "CNY").cost(1_000_000, 0, 1_000_000) == 25_000_000
    assert price("unknown", "USD") is FREE


def test_yuan_accounts_pay_in_yuan() -> None:
    async def story(world: World) -> None:
        await world.chat(key="sk-cn", sim={"output_tokens": 100})
        (row,) = await world.book()
        assert row["currency"] == "CNY"
        assert row["cost_micro"] == row["input_tokens"] * 4 + 100 * 21

    run(story, Config(accounts=accounts_from([{"id": "cn", "keys": ["sk-cn"], "currency": "CNY"}])))


def test_a_slow_reader_is_waited_for_and_costs_only_what_was_made() -> None:
    async def story(world: World) -> None:
        reader = SlowReader(world.running.port, size=512, pause=0.01)
        await reader.open()
        await reader.send(chat_bytes({"stream": True, "sim": {"output_tokens": 50_000}}))
        await reader.until(b"data: ")
        await asyncio.sleep(0.2)
        (row,) = await world.book()
        assert row["how"] == "running"
        reader.close()
        (row,) = await world.settled()
        assert row["how"] == "aborted"
        assert row["output_tokens"] < 50_000

    run(story)


def test_pipelined_requests_are_answered_in_order() -> None:
    async def story(world: World) -> None:
        async with Pipeliner(world.running.port) as client:
            wanted = [
                chat_bytes({"sim": {"text": str(number), "first_token": 0.02 * (number % 2)}})
                for number in range(6)
            ]
            assert [answer.text() for answer in await client.pipeline(*wanted)] == list("012345")

    run(story)


def test_closing_the_sending_half_is_taken_for_leaving() -> None:
    async def story(world: World) -> None:
        closer = HalfCloser(world.running.port)
        await closer.open()
        with pytest.raises(CutError):
            await closer.request(chat_bytes(SLOW))
        closer.close()
        assert [row["how"] for row in await world.settled()] == ["aborted"]

    run(story)
