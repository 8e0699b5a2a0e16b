"""Records that share a write: whoever waits is told the truth about his own."""

import asyncio
from pathlib import Path

import pytest

from moongate.store.frames import Kind
from moongate.store.journal import Journal, JournalError
from tests.stores.journals import OWNER, files_no_larger_than, payloads


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.journal"))


def test_records_of_one_turn_are_in_the_file_in_order_when_their_waits_end(tmp_path: Path) -> None:
    async def main() -> None:
        journal = Journal.open(tmp_path, OWNER, loop=asyncio.get_running_loop())
        seen: list[list[bytes]] = []

        async def send(number: int) -> None:
            await journal.append_with_others(Kind.SENT, b"%d" % number)
            seen.append(payloads(tmp_path))

        journal.append(Kind.CLOSED, b"before", now=False)
        await asyncio.gather(*(send(number) for number in range(5)))
        whole = [b"before", *(b"%d" % number for number in range(5))]
        assert seen == [whole] * 5
        journal.close()

    asyncio.run(main())


def test_a_full_disk_refuses_every_one_of_them(tmp_path: Path) -> None:
    async def main() -> None:
        journal = Journal.open(tmp_path, OWNER, loop=asyncio.get_running_loop())
        await journal.append_with_others(Kind.SENT, b"fits")
        with files_no_larger_than(size_of(tmp_path)):
            told = await asyncio.gather(
                *(journal.append_with_others(Kind.SENT, b"no") for _ in range(3)), return_exceptions=True
            )
            assert [type(each) for each in told] == [JournalError] * 3
        await journal.append_with_others(Kind.SENT, b"again")
        assert payloads(tmp_path)[-1] == b"again"
        assert journal.available
        journal.close()

    asyncio.run(main())


def test_a_closed_journal_refuses_them_too(tmp_path: Path) -> None:
    async def main() -> None:
        journal = Journal.open(tmp_path, OWNER, loop=asyncio.get_running_loop())
        journal.close()
        told = await asyncio.gather(
            *(journal.append_with_others(Kind.SENT, b"no") for _ in range(2)), return_exceptions=True
        )
        assert [type(each) for each in told] == [JournalError] * 2

    asyncio.run(main())


def test_who_is_cancelled_while_it_waits_harms_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        journal = Journal.open(tmp_path, OWNER, loop=asyncio.get_running_loop())
        leaves = asyncio.create_task(journal.append_with_others(Kind.SENT, b"leaves"))
        stays = asyncio.create_task(journal.append_with_others(Kind.SENT, b"stays"))
        asyncio.get_running_loop().call_soon(leaves.cancel)
        await stays
        with pytest.raises(asyncio.CancelledError):
            await leaves
        assert b"stays" in payloads(tmp_path)
        journal.close()

    asyncio.run(main())
