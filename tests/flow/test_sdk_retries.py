"""Retries of SDKs have no key: they are known by their count and by what they ask."""

import asyncio
from pathlib import Path

from moongate.core.faults import Fault, Reach
from moongate.flow.reply import Reply
from moongate.upstream.transport import Phase
from tests.flow.asking import (
    OVERLOADED,
    STREAM,
    Gate,
    ask,
    code_of,
    header,
    plays,
    replayed,
    story,
)
from tests.flow.client import Client
from tests.flow.house import (
    WHOLE,
    House,
    answers,
    fails,
    streams,
)

DAY = 86_400.0


def test_a_retry_joins_the_call_that_still_runs(tmp_path: Path) -> None:
    """Its client went away unseen: there is no more than one live call upstream."""

    async def told(house: House) -> None:
        running = [asyncio.create_task(ask(house))]
        await asyncio.sleep(0.01)
        running += [asyncio.create_task(ask(house, retry=number)) for number in (1, 2)]
        running.append(asyncio.create_task(ask(house, retry=1, words="another")))
        await asyncio.sleep(0.01)
        await gate.step()
        clients = await asyncio.gather(*running)
        assert [client.body for client in clients] == [WHOLE] * 4
        assert [replayed(client) for client in clients] == [False, True, True, False]
        assert plays(house) == 2

    gate = Gate(WHOLE, plain=True)
    story(tmp_path, [gate, answers(WHOLE)], told)


def test_equal_calls_that_are_no_retries_are_meant(tmp_path: Path) -> None:
    async def told(house: House) -> None:
        await asyncio.gather(ask(house), ask(house))
        await ask(house)
        assert plays(house) == 3
        assert {record.fingerprint for record in house.records} == {""}

    story(tmp_path, [answers(WHOLE)] * 3, told)


def test_a_retry_of_an_ambiguous_call_is_the_same_error_for_two_minutes(tmp_path: Path) -> None:
    async def told(house: House) -> None:
        await ask(house)
        again = await ask(house, retry=1)
        assert (code_of(again), header(again, b"x-should-retry: false")) == ("kimi_network_timeout", True)
        assert house.records[0].fingerprint
        assert house.records[0].idempotency_key == ""
        await house.world.sleep(130)
        assert (await ask(house, retry=1)).body == WHOLE
        assert plays(house) == 2

    story(tmp_path, [fails(Fault.KIMI_NETWORK_TIMEOUT, Reach.SENT, Phase.HEAD), answers(WHOLE)], told)


def test_a_drained_answer_is_there_for_the_retry(tmp_path: Path) -> None:
    async def told(house: House) -> None:
        leaver = Client()
        first = asyncio.create_task(ask(house, leaver))
        await asyncio.sleep(0.01)
        leaver.leave()
        await gate.step()
        await first
        again = await ask(house, retry=1)
        assert (again.body, replayed(again)) == (WHOLE, True)
        assert (await ask(house)).body == WHOLE  # no retry: a call of its own
        await house.world.sleep(130)
        assert not replayed(await ask(house, retry=1))
        assert plays(house) == 3
        opener = house.records[0]
        assert (opener.outcome, opener.billed_micro, opener.attempts[0].state) == ("abandoned", 14, "settled")

    gate = Gate(WHOLE, plain=True)
    story(tmp_path, [gate, answers(WHOLE), answers(WHOLE)], told, on_abandon="auto")


def test_a_retry_joins_the_drain_under_way(tmp_path: Path) -> None:
    async def told(house: House) -> None:
        leaver, retry = Client(), Client()
        first = asyncio.create_task(ask(house, leaver))
        await asyncio.sleep(0.01)
        leaver.leave()
        assert len(house.drains.live) == 1
        second = asyncio.create_task(ask(house, retry, retry=1))
        await asyncio.sleep(0.001)
        assert len(house.drains.live) == 0
        await gate.step()
        await asyncio.gather(first, second)
        assert (retry.body, replayed(retry), plays(house)) == (WHOLE, True, 1)

    gate = Gate(WHOLE, plain=True)
    story(tmp_path, [gate], told, on_abandon="auto")


def test_a_retry_of_a_stream_that_was_left_is_made_anew(tmp_path: Path) -> None:
    async def told(house: House) -> None:
        leaver = Client()
        first = asyncio.create_task(ask(house, leaver, stream=True))
        await asyncio.sleep(0.01)
        await gate.step()
        leaver.leave()
        await first
        again = await ask(house, retry=1, stream=True)
        assert again.body == b"".join(STREAM)
        assert house.records[1].retry_of == house.records[0].call_id

    gate = Gate(*STREAM)
    story(tmp_path, [gate, streams(*STREAM)], told, on_abandon="auto")


def test_a_large_body_has_its_fingerprint_too(tmp_path: Path) -> None:
    async def told(house: House) -> None:
        words = "x" * 300_000
        await ask(house, key="k", words=words)
        assert replayed(await ask(house, key="k", words=words))
        assert (await ask(house, key="k", words=words + "y")).status == 422

    story(tmp_path, [answers(WHOLE)], told)


def test_an_answer_that_was_lost_on_its_way_is_there_for_the_retry(tmp_path: Path) -> None:
    """The connection broke just after the whole answer: the edge says so, the SDK comes back."""

    async def told(house: House) -> None:
        first = await ask(house, retry=0)
        assert isinstance(first.answered, Reply)
        house.idempotency.forsaken(first.answered)
        again = await ask(house, retry=1)
        assert (again.body, replayed(again), plays(house)) == (WHOLE, True, 1)
        assert header(again, b"X-Moongate-Model: kimi-k2.5")
        assert isinstance(again.answered, Reply)
        house.idempotency.forsaken(again.answered)  # lost as well
        assert replayed(await ask(house, retry=1))
        assert replayed(await ask(house, retry=2))
        assert house.records[1].retry_of == house.records[0].call_id
        assert (await ask(house)).answered is None  # no SDK, or one that does not say so
        house.idempotency.forsaken(first.answered)
        await house.world.sleep(25)
        assert not replayed(await ask(house, retry=1))

    story(tmp_path, [answers(WHOLE)] * 3, told)


def test_a_retry_is_of_a_try_that_had_fewer_before_it(tmp_path: Path) -> None:
    """An equal call, broken as often as the one before it, is not that one's retry."""

    async def told(house: House) -> None:
        first = await ask(house, retry=2)
        assert isinstance(first.answered, Reply)
        house.idempotency.forsaken(first.answered)
        assert not replayed(await ask(house, retry=2))
        assert replayed(await ask(house, retry=3))
        assert plays(house) == 2

    story(tmp_path, [answers(WHOLE)] * 2, told)


def test_the_retry_of_what_was_refused_is_not_of_an_equal_call_before_it(tmp_path: Path) -> None:
    async def told(house: House) -> None:
        first = await ask(house, retry=0)
        assert isinstance(first.answered, Reply)
        house.idempotency.forsaken(first.answered)  # its client just closed its connection
        assert (await ask(house, retry=0)).status == 503
        assert not replayed(await ask(house, retry=1))
        assert plays(house) == 3

    story(tmp_path, [answers(WHOLE), OVERLOADED, answers(WHOLE)], told)


def test_with_a_key_nothing_is_kept_twice(tmp_path: Path) -> None:
    async def told(house: House) -> None:
        first = await ask(house, retry=0, key="k")
        assert isinstance(first.answered, Reply)
        house.idempotency.forsaken(first.answered)
        assert not replayed(await ask(house, retry=1))
        assert replayed(await ask(house, retry=1, key="k"))

    story(tmp_path, [answers(WHOLE)] * 2, told)


def test_a_retry_without_a_key_does_not_join_a_call_with_one(tmp_path: Path) -> None:
    async def told(house: House) -> None:
        keyed, bare = Client(), Client()
        running = [asyncio.create_task(ask(house, keyed, key="k", stream=True))]
        await asyncio.sleep(0.01)
        running.append(asyncio.create_task(ask(house, bare, retry=1, stream=True)))
        await asyncio.sleep(0.01)
        await gate.step(4)
        await asyncio.gather(*running)
        assert bare.body == b"".join(STREAM)
        assert plays(house) == 2

    gate = Gate(*STREAM)
    story(tmp_path, [gate, streams(*STREAM)], told)
