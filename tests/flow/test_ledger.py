"""A disk that fails while calls run: what was paid is written down as it was, what was not sent is not called sent."""

import asyncio
import errno
from pathlib import Path

from moongate.core.faults import Fault
from moongate.store.frames import Kind
from tests.flow.house import DONE, USAGE, WHOLE, Client, House, answers, chunk, played, streams
from tests.stores.ill_disk import ill_disk

STREAM = (chunk("hel"), chunk("lo"), chunk("", "stop", USAGE), DONE)


def test_who_leaves_while_the_journal_is_written_sent_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        house, client = House(tmp_path, {"alpha": [answers(WHOLE)]}), Client()
        asyncio.get_running_loop().call_soon(client.leave)
        await house.gateway.handle(house.call(), client)
        [record] = house.records
        assert (record.outcome, record.cause, record.attempts) == ("abandoned", Fault.CLIENT_CLOSED, [])
        assert house.upstreams["alpha"].plays == []
        assert [kind for kind, _ in house.written()] == [Kind.SENT, Kind.CLOSED]
        house.at_rest()

    played(story)


def test_calls_that_run_when_the_disk_fills_up_end_as_they_ended(tmp_path: Path) -> None:
    async def story() -> None:
        with ill_disk() as disk:
            house, clients = (
                House(tmp_path, {"alpha": [streams(*STREAM), answers(WHOLE)]}),
                [Client(), Client()],
            )
            fill = lambda _data: disk.fall_ill(errno.ENOSPC)  # noqa: E731 - one use
            clients[0].on_write = fill
            await house.gateway.handle(house.call(stream=True), clients[0])
            refused = Client()
            await house.gateway.handle(house.call(), refused)
            assert (refused.status, b"ledger_unavailable" in refused.body) == (503, True)
            await asyncio.sleep(60)
            disk.recover()
            await house.gateway.handle(house.call(), clients[1])
            assert [client.status for client in clients] == [200, 200]
            closed = [record for kind, record in house.written() if kind is Kind.CLOSED]
            assert [[one.state for one in record.attempts] for record in closed] == [
                ["settled"],
                [],
                ["settled"],
            ]
            assert len(house.upstreams["alpha"].plays) == 2
            house.at_rest()

    played(story)


def test_on_a_full_disk_refusals_are_forgotten_before_what_was_paid(tmp_path: Path) -> None:
    async def story() -> None:
        with ill_disk() as disk:
            house, client = House(tmp_path, {"alpha": [streams(*STREAM)]}), Client()

            def fill(_data: bytes) -> None:
                disk.fall_ill(errno.ENOSPC)
                while house.journal.has_room:
                    house.journal.append(Kind.AMENDED, b"x" * 100_000, now=False)

            client.on_write = fill
            await house.gateway.handle(house.call(stream=True), client)
            for _ in range(5):
                await house.gateway.handle(house.call(), Client())
            assert house.journal.lost == 5
            disk.recover()
            house.journal.flush()
            segment = next((tmp_path / "journal").glob("*.journal"))
            assert house.records[0].call_id.encode() in segment.read_bytes().split(b"x" * 1000)[-1]
            assert [len(record.attempts) for record in house.records] == [1, 0, 0, 0, 0, 0]

    played(story)
