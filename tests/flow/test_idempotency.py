"""A call that was made before under the same key finds its first answer, or is told why not."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from moongate.core.faults import Fault, Reach
from moongate.core.kept import LARGEST
from moongate.core.record import CallRecord
from moongate.core.sse import split
from moongate.upstream.transport import Phase
from tests.flow.asking import (
    OVERLOADED,
    SAID,
    STREAM,
    Gate,
    ask,
    code_of,
    data_of,
    header,
    plays,
    replayed,
    story,
)
from tests.flow.client import Client
from tests.flow.house import (
    WHOLE,
    Act,
    House,
    answers,
    fails,
    played,
    streams,
)

DAY = 86_400.0


@pytest.mark.parametrize("stream", [False, True])
def test_the_same_key_and_body_give_the_same_answer_and_cost_nothing(tmp_path: Path, stream: bool) -> None:
    async def told(house: House) -> None:
        first = await ask(house, key="k", stream=stream)
        for _ in range(3):
            again = await ask(house, key="k", stream=stream)
            assert (again.status, again.body, again.ended) == (200, first.body, True)
            assert replayed(again)
            assert header(again, b"X-Moongate-Model: kimi-k2.5")
            assert header(again, b"X-Moongate-Attempts: 1")
        assert not replayed(first)
        assert plays(house) == 1
        opener, *others = house.records
        assert (opener.outcome, opener.idempotency_key) == ("completed", "k")
        for record in others:
            assert (record.outcome, record.status, record.attempts) == ("replayed", 200, [])
            assert (record.retry_of, record.billed_micro, record.input) == (opener.call_id, 0, 0)

    story(tmp_path, [streams(*STREAM) if stream else answers(WHOLE)], told)


def test_a_streams_events_have_ids_only_with_a_key(tmp_path: Path) -> None:
    async def told(house: House) -> None:
        keyed, bare = await ask(house, key="k", stream=True), await ask(house, stream=True)
        assert bare.body == b"".join(STREAM)
        assert data_of(keyed.body) == SAID
        name = house.records[0].call_id.encode()
        for number, event in enumerate(split(keyed.body), 1):
            assert event.raw.endswith(b"\nid: %b.%d\n\n" % (name, number))

    story(tmp_path, [streams(*STREAM), streams(*STREAM)], told)


def test_another_body_under_the_same_key_is_refused(tmp_path: Path) -> None:
    async def told(house: House) -> None:
        await ask(house, key="k")
        other = await ask(house, key="k", words="bye")
        assert (other.status, code_of(other)) == (422, "idempotency_mismatch")
        plain_to_stream = await ask(house, key="k", stream=True)
        assert plain_to_stream.status == 422
        assert header(other, b"x-should-retry: false")
        assert [record.outcome for record in house.records] == ["completed", "refused", "refused"]
        assert (await ask(house, key="k")).status == 200

    story(tmp_path, [answers(WHOLE)], told)


def test_a_key_means_another_call_on_another_route_and_another_key_another_call(tmp_path: Path) -> None:
    async def told(house: House) -> None:
        for key, route in (("k", "kimi-k2.5"), ("l", "kimi-k2.5"), ("k", "twice")):
            assert not replayed(await ask(house, key=key, route=route))
        assert plays(house) == 3

    story(tmp_path, [answers(WHOLE)] * 3, told)


def test_a_key_is_free_again_after_a_day(tmp_path: Path) -> None:
    async def told(house: House) -> None:
        await ask(house, key="k")
        await house.world.sleep(DAY - 5)
        assert replayed(await ask(house, key="k"))
        await house.world.sleep(10)
        assert not replayed(await ask(house, key="k", words="bye"))

    story(tmp_path, [answers(WHOLE)] * 2, told)


@pytest.mark.parametrize(
    "act",
    [
        OVERLOADED,
        fails(Fault.KIMI_NETWORK_UNREACHABLE, Reach.NOTHING_SENT),
        answers(b'{"error":{"message":"no","type":"invalid_request_error"}}', 400),
    ],
)
def test_what_did_not_run_is_not_held_against_its_retry(tmp_path: Path, act: Act) -> None:
    async def told(house: House) -> None:
        assert (await ask(house, key="k")).status != 200
        again = await ask(house, key="k")
        assert (again.status, again.body, replayed(again)) == (200, WHOLE, False)
        assert house.records[1].retry_of == ""
        assert (await ask(house, key="l", words="else")).status == 200

    story(tmp_path, [act, answers(WHOLE), answers(WHOLE)], told)


@pytest.mark.parametrize("stream", [False, True])
def test_what_may_have_run_is_the_same_error_again_and_never_run_again(tmp_path: Path, stream: bool) -> None:
    async def told(house: House) -> None:
        first = await ask(house, key="k", stream=stream)
        for _ in range(2):
            again = await ask(house, key="k", stream=stream)
            assert (
                (again.status, code_of(again))
                == (first.status, code_of(first))
                == (504, "kimi_network_timeout")
            )
            assert header(again, b"x-should-retry: false")
            assert replayed(again)
        assert plays(house) == 1
        assert [record.outcome for record in house.records] == ["failed", "replayed", "replayed"]
        assert house.records[1].code == "kimi_network_timeout"
        assert house.records[1].retry_of == house.records[0].call_id

    story(tmp_path, [fails(Fault.KIMI_NETWORK_TIMEOUT, Reach.SENT, Phase.HEAD)], told)


def test_the_reconcilers_word_ends_the_waiting(tmp_path: Path) -> None:
    async def told(house: House) -> None:
        await ask(house, key="k")
        found[0] = house.records[0]
        found[0].attempts[0].state = "released"
        assert (await ask(house, key="k")).body == WHOLE
        assert plays(house) == 2

    found: list[CallRecord] = [CallRecord("")]

    async def whole() -> None:
        house = House(tmp_path, {"alpha": [fails(Fault.KIMI_NETWORK_TIMEOUT, Reach.SENT), answers(WHOLE)]})
        looked = house.idempotency

        async def look(_call_id: str) -> CallRecord | None:
            return found[0] if found[0].call_id else None

        looked._look = look
        await told(house)
        house.at_rest()

    played(whole)


def test_a_stream_that_broke_is_told_again_as_far_as_it_came(tmp_path: Path) -> None:
    async def told(house: House) -> None:
        first = await ask(house, key="k", stream=True)
        again = await ask(house, key="k", stream=True)
        *events, error = split(again.body)
        assert [event.raw for event in events] == [event.raw for event in split(first.body)[:-1]]
        assert msgspec.json.decode(error.data)["error"]["code"] == "kimi_stream_truncated"
        after_one = await ask(house, key="k", stream=True, after=f"{1:028x}.1")
        assert data_of(after_one.body)[:-1] == SAID[1:2]
        assert plays(house) == 1
        assert [record.outcome for record in house.records] == ["truncated", "replayed", "replayed"]
        assert house.records[1].code == "kimi_stream_truncated"

    story(tmp_path, [streams(*STREAM[:2], fault=Fault.KIMI_STREAM_TRUNCATED)], told)


@pytest.mark.parametrize("reads", [0, 1])
def test_a_stream_that_its_client_cancelled_is_made_anew(tmp_path: Path, reads: int) -> None:
    async def told(house: House) -> None:
        leaver = Client()
        first = asyncio.create_task(ask(house, leaver, key="k", stream=True))
        await asyncio.sleep(0.01)
        await gate.step(reads)
        leaver.leave()
        await first
        assert code_of(await ask(house, key="k", stream=True, after=f"{1:028x}.1")) == "idempotency_expired"
        again = await ask(house, key="k", stream=True)
        assert data_of(again.body) == SAID
        assert not replayed(again)
        assert house.records[-1].retry_of == house.records[0].call_id
        assert house.records[-1].outcome == "completed"
        assert (await ask(house, key="k", stream=True)).body == again.body
        assert plays(house) == 2

    gate = Gate(*STREAM)
    story(tmp_path, [gate, streams(*STREAM)], told, on_abandon="cancel")


def test_a_plain_call_that_was_cancelled_is_not_paid_again(tmp_path: Path) -> None:
    async def told(house: House) -> None:
        leaver = Client()
        first = asyncio.create_task(ask(house, leaver, key="k"))
        await asyncio.sleep(0.01)
        leaver.leave()
        await first
        again = await ask(house, key="k")
        assert (again.status, code_of(again)) == (409, "idempotency_expired")
        assert plays(house) == 1

    story(tmp_path, [Gate(WHOLE, plain=True)], told, on_abandon="cancel")


def test_an_answer_that_is_too_large_to_keep_is_gone_and_not_made_anew(tmp_path: Path) -> None:
    large = WHOLE.replace(b"hello", b"x" * LARGEST)

    async def told(house: House) -> None:
        assert (await ask(house, key="k")).body == large
        again = await ask(house, key="k")
        assert (again.status, code_of(again)) == (409, "idempotency_expired")
        assert plays(house) == 1

    async def whole() -> None:
        house = House(tmp_path, {"alpha": [answers(large)]})
        house.held.limit = 1 << 24
        await told(house)
        house.at_rest()

    played(whole)


def test_a_restart_knows_every_key(tmp_path: Path) -> None:
    """What the ledger holds is enough; an answer that is gone with the process is 409, never a second execution."""

    async def told(house: House) -> None:
        done, ambiguous, cancelled = "done", "ambiguous", "cancelled"
        await ask(house, key=done)
        await ask(house, key=ambiguous)
        leaver = Client()
        first = asyncio.create_task(ask(house, leaver, key=cancelled, stream=True))
        await asyncio.sleep(0.01)
        leaver.leave()
        await first
        await ask(house, key="refused")
        old, house.idempotency._keys = house.idempotency._keys, type(house.idempotency._keys)()
        assert len(old) == 3
        house.idempotency.load(house.records)
        assert replayed(await ask(house, key=done))
        again = await ask(house, key=ambiguous)
        assert (code_of(again), replayed(again)) == ("kimi_network_timeout", True)
        assert header(again, b"x-should-retry: false")
        assert not replayed(await ask(house, key=cancelled, stream=True))
        assert (await ask(house, key=done, words="else")).status == 422
        house.answers.close()
        assert code_of(await ask(house, key=done)) == "idempotency_expired"
        assert plays(house) == 5

    acts: list[Act] = [
        answers(WHOLE), fails(Fault.KIMI_NETWORK_TIMEOUT, Reach.SENT, Phase.HEAD), Gate(*STREAM), OVERLOADED,
        streams(*STREAM),
    ]  # fmt: skip
    story(tmp_path, acts, told, on_abandon="cancel")


def test_a_call_that_runs_elsewhere_is_in_progress_until_the_ledger_knows_better(tmp_path: Path) -> None:
    async def whole() -> None:
        house = House(tmp_path, {"alpha": [answers(WHOLE), answers(WHOLE)]})
        await ask(house, key="k")
        elsewhere = house.records.pop()
        house.journal.flush()
        elsewhere.outcome = ""
        told: list[CallRecord | None] = [None]

        async def look(_call_id: str) -> CallRecord | None:
            return told[0]

        house.idempotency._look = look
        house.idempotency.load([elsewhere])
        for newest in (None, elsewhere):
            told[0] = newest
            client = await ask(house, key="k")
            assert (client.status, code_of(client)) == (409, "idempotency_in_progress")
        elsewhere.outcome = "completed"
        assert replayed(await ask(house, key="k"))
        assert plays(house) == 1

    played(whole)


def test_what_ran_before_it_was_refused_elsewhere_is_not_run_again(tmp_path: Path) -> None:
    """On a route that may pay twice the last target's word is `try again`; the first target may have been paid."""

    async def whole() -> None:
        acts = {"alpha": [fails(Fault.KIMI_NETWORK_TIMEOUT, Reach.SENT, Phase.HEAD)], "beta": [OVERLOADED]}
        house = House(tmp_path, acts)
        first = await ask(house, key="k", route="twice")
        again = await ask(house, key="k", route="twice")
        assert code_of(first) == code_of(again) == "kimi_engine_overloaded"
        assert header(again, b"x-should-retry: false")
        assert [len(upstream.plays) for upstream in house.upstreams.values()] == [1, 1]
        house.at_rest()

    played(whole)
