"""What the journal acknowledged is there, whatever happens to disk and process; what is not there was refused."""

import asyncio
import fcntl
import os
import random
from pathlib import Path

import pytest

from moongate.core.record import decode_owner
from moongate.store import frames, owners
from moongate.store import journal as journals
from moongate.store.frames import Kind
from moongate.store.group_commit import GroupCommit
from moongate.store.journal import Journal, JournalError
from tests.stores.journals import OWNER, files_no_larger_than, frames_of, payloads, start_writer


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.journal"))


def test_what_is_appended_now_is_in_the_file_when_it_returns(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, OWNER)
    journal.append(Kind.SENT, b"one", now=True)
    assert payloads(tmp_path) == [b"one"]
    journal.append(Kind.SENT, b"", now=True)
    assert payloads(tmp_path) == [b"one", b""]
    assert journal.available
    assert journal.sequence == 2
    journal.close()


def test_a_record_that_goes_now_takes_those_that_wait_before_it(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, OWNER)
    journal.append(Kind.CLOSED, b"waits", now=False)
    journal.append(Kind.CLOSED, b"too", now=False)
    assert not list(tmp_path.glob("*.journal"))
    assert journal.pending_bytes == 2 * frames.OVERHEAD + 8
    journal.append(Kind.SENT, b"goes", now=True)
    assert payloads(tmp_path) == [b"waits", b"too", b"goes"]
    assert [frame.kind for frame in frames_of(tmp_path)] == [Kind.CLOSED, Kind.CLOSED, Kind.SENT]
    assert journal.pending_bytes == 0
    journal.close()


def test_what_waits_is_written_at_the_end_of_the_tick(tmp_path: Path) -> None:
    async def main() -> None:
        journal = Journal.open(tmp_path, OWNER, loop=asyncio.get_running_loop())
        for number in range(100):
            journal.append(Kind.CLOSED, str(number).encode(), now=False)
        assert size_of(tmp_path) == 0
        await asyncio.sleep(0)
        assert payloads(tmp_path) == [str(number).encode() for number in range(100)]
        journal.append(Kind.CLOSED, b"last", now=False)
        journal.close()
        assert payloads(tmp_path)[-1] == b"last"
        await asyncio.sleep(0)

    asyncio.run(main())


def test_a_segment_begins_with_its_owner_and_the_sequence_before_it(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, OWNER, segment_bytes=300, slot=2, started=17.5)
    for _ in range(20):
        journal.append(Kind.SENT, b"x" * 50, now=True)
    journal.close()
    listed = owners.segments(tmp_path)[OWNER]
    assert len(listed) > 3
    assert payloads(tmp_path) == [b"x" * 50] * 20
    for segment in listed:
        assert segment.path.stat().st_size <= 300
        read, _, _ = frames.scan(segment.path.read_bytes(), frames.seed(OWNER), 0)
        header = decode_owner(read[0].payload)
        assert (header.format, header.owner, header.slot, header.pid) == (1, OWNER, 2, os.getpid())
        assert read[0].sequence == segment.first - 1
        assert read[1].sequence == segment.first


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    directory = tmp_path / "state" / "journal"
    journal = Journal.open(directory, OWNER)
    journal.append(Kind.SENT, b"x", now=True)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
    journal.close()


def test_an_owner_is_dead_only_when_its_process_let_go(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, OWNER)
    journal.append(Kind.SENT, b"x", now=True)
    assert not owners.is_dead(tmp_path, OWNER)
    with pytest.raises(JournalError, match="another process"):
        Journal.open(tmp_path, OWNER)
    journal.close()
    journal.close()
    assert owners.is_dead(tmp_path, OWNER)
    assert owners.is_dead(tmp_path, "never was")


def test_a_lock_that_was_swept_away_is_taken_anew(tmp_path: Path) -> None:
    first = owners.OwnerLock.take(tmp_path, OWNER)
    first.path.unlink()
    second = owners.OwnerLock.take(tmp_path, OWNER)
    first.release()
    assert not owners.is_dead(tmp_path, OWNER)
    second.release()


def test_a_lock_swept_away_while_it_is_taken_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def sweep(file: int, operation: int) -> None:
        (tmp_path / f"{OWNER}.lock").unlink()
        monkeypatch.undo()
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", sweep)
    lock = owners.OwnerLock.take(tmp_path, OWNER)
    assert not owners.is_dead(tmp_path, OWNER)
    lock.release()


def test_several_may_ask_at_once_whether_an_owner_is_dead(tmp_path: Path) -> None:
    owners.OwnerLock.take(tmp_path, OWNER).release()
    asking = os.open(tmp_path / f"{OWNER}.lock", os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)
    assert owners.is_dead(tmp_path, OWNER)
    os.close(asking)


def test_a_full_disk_refuses_the_record_and_keeps_what_waited(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, OWNER)
    journal.append(Kind.SENT, b"one", now=True)
    with files_no_larger_than(size_of(tmp_path)):
        journal.append(Kind.CLOSED, b"waits", now=False)
        for _ in range(3):
            with pytest.raises(JournalError, match="cannot be written"):
                journal.append(Kind.SENT, b"refused", now=True)
            assert not journal.available
        journal.flush()
        assert payloads(tmp_path) == [b"one"]
    journal.append(Kind.SENT, b"three", now=True)
    assert journal.available
    assert payloads(tmp_path) == [b"one", b"waits", b"three"]
    assert journal.lost == 0
    journal.close()


@pytest.mark.parametrize("room", range(0, 120, 3))
def test_a_cut_write_leaves_only_whole_records(tmp_path: Path, room: int) -> None:
    journal = Journal.open(tmp_path, OWNER)
    journal.append(Kind.SENT, b"one", now=True)
    with files_no_larger_than(size_of(tmp_path) + room):
        for number in range(4):
            journal.append(Kind.CLOSED, b"waits %d" % number, now=False)
        with pytest.raises(JournalError):
            journal.append(Kind.SENT, b"refused" * 10, now=True)
        whole = payloads(tmp_path)
        assert whole == [b"one", *(b"waits %d" % number for number in range(len(whole) - 1))]
        assert len(whole) == 1 + min(room // (frames.OVERHEAD + 7), 4)
    journal.append(Kind.SENT, b"six", now=True)
    assert payloads(tmp_path) == [b"one", *(b"waits %d" % number for number in range(4)), b"six"]
    journal.close()


@pytest.mark.parametrize("room", [0, 1, 30, 80, 100])
def test_a_disk_that_is_full_at_the_start_of_a_segment(tmp_path: Path, room: int) -> None:
    journal = Journal.open(tmp_path, OWNER)
    with files_no_larger_than(room), pytest.raises(JournalError):
        journal.append(Kind.SENT, b"refused" * 10, now=True)
    journal.append(Kind.SENT, b"one", now=True)
    assert payloads(tmp_path) == [b"one"]
    journal.close()


def test_a_torn_end_that_cannot_be_cut_off_is_left_behind_for_readers_to_see(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, OWNER)
    journal.append(Kind.SENT, b"one", now=True)
    before = size_of(tmp_path)
    reader, writer = os.pipe()  # takes bytes, but can be neither cut nor read back
    os.dup2(writer, journal._segment.file)
    journal._segment.keep(0)
    journal._trouble = True
    journal.append(Kind.SENT, b"two", now=True)
    assert payloads(tmp_path) == [b"one", b"two"]
    assert len(owners.segments(tmp_path)[OWNER]) == 2
    assert owners.segments(tmp_path)[OWNER][0].path.stat().st_size == before
    journal.close()
    os.close(reader)
    os.close(writer)


def test_a_place_that_cannot_be_written_leaves_a_journal_that_waits_for_it(tmp_path: Path) -> None:
    directory = tmp_path / "journal"
    directory.write_text("in the way")
    journal = Journal.open(directory, OWNER)
    before = journal.available
    with pytest.raises(JournalError):
        journal.append(Kind.SENT, b"refused", now=True)
    journal.append(Kind.CLOSED, b"one", now=False)
    directory.unlink()
    journal.append(Kind.SENT, b"two", now=True)
    assert (before, journal.available) == (False, True)
    assert payloads(directory) == [b"one", b"two"]
    journal.close()


def test_without_traffic_it_comes_back_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "RETRY_SECONDS", 0.01)

    async def main() -> None:
        journal = Journal.open(tmp_path, OWNER, loop=asyncio.get_running_loop())
        journal.append(Kind.SENT, b"one", now=True)
        with files_no_larger_than(size_of(tmp_path)):
            journal.append(Kind.CLOSED, b"two", now=False)
            await asyncio.sleep(0.03)
            seen = [journal.available]
        await asyncio.sleep(0.2)
        assert [*seen, journal.available] == [False, True]
        assert payloads(tmp_path) == [b"one", b"two"]
        journal.close()

    asyncio.run(asyncio.wait_for(main(), 5))


def test_what_cannot_be_kept_is_counted_and_leaves_a_gap(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, OWNER)
    piece = b"x" * (1 << 20)
    for _ in range(20):
        journal.append(Kind.CLOSED, piece, now=False)
    assert journal.pending_bytes <= journals.PENDING_BYTES
    assert journal.lost == 20 - 15
    journal.append(Kind.SENT, b"on", now=True)
    assert [frame.sequence for frame in frames_of(tmp_path)] == [*range(1, 16), 21]
    journal.close()
    journal.append(Kind.CLOSED, b"too late", now=False)
    assert journal.lost == 6
    with pytest.raises(JournalError, match="no more records"):
        journal.append(Kind.SENT, b"too late", now=True)


def test_what_waits_when_it_is_closed_on_a_full_disk_is_counted(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, OWNER)
    journal.append(Kind.SENT, b"one", now=True)
    with files_no_larger_than(size_of(tmp_path)):
        journal.append(Kind.CLOSED, b"lost", now=False)
        journal.close()
    assert journal.lost == 1
    assert not journal.available


def test_fsync_is_shared_and_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        journal = Journal.open(tmp_path, OWNER, fsync=True, loop=loop, segment_bytes=2000)

        async def one(number: int) -> None:
            journal.append(Kind.SENT, b"%03d" % number * 10, now=True)
            await journal.durable()

        await asyncio.gather(*(one(number) for number in range(200)))
        waiter = asyncio.ensure_future(one(200))
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.sleep(0.05)
        await journal.durable()
        assert journal.available
        journal.append(Kind.CLOSED, b"last", now=False)
        journal.close()
        assert len(payloads(tmp_path)) == 202
        assert len(owners.segments(tmp_path)[OWNER]) > 3

    before = open_files()
    asyncio.run(main())
    assert open_files() == before


def test_a_failed_fsync_ends_the_journal_for_good(tmp_path: Path) -> None:
    told: list[OSError] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        journal = Journal.open(tmp_path, OWNER, fsync=True, loop=loop, on_dead=told.append)
        journal.append(Kind.SENT, b"one", now=True)
        await journal.durable()
        reader, writer = os.pipe()  # takes bytes, but cannot be synced
        os.dup2(writer, journal._segment.file)
        journal.append(Kind.SENT, b"two", now=True)
        with pytest.raises(JournalError, match="storage failed"):
            await journal.durable()
        assert not journal.available
        with pytest.raises(JournalError):
            journal.append(Kind.SENT, b"three", now=True)
        journal.append(Kind.CLOSED, b"four", now=False)
        await asyncio.sleep(0)
        last = owners.segments(tmp_path)[OWNER][-1].path.read_bytes()
        assert b"four" in last, "how a call ended that ran already is told in another segment"
        assert journal.lost == 0
        with pytest.raises(JournalError):
            await journal.durable()
        journal.close()
        assert len(os.read(reader, 1000)) == frames.OVERHEAD + 3, "nothing more was written there"
        os.close(reader)
        os.close(writer)

    asyncio.run(main())
    assert len(told) == 1


def test_a_failure_seen_only_at_the_end_is_told_too(tmp_path: Path) -> None:
    told: list[OSError] = []

    async def main() -> None:
        commit = GroupCommit(asyncio.get_running_loop(), told.append)
        commit.switch(-2, tmp_path)
        commit.close()
        commit.switch(99_999, tmp_path)
        commit.close()
        assert not await commit.durable()

    asyncio.run(main())
    assert [error.errno for error in told] == [9]


def test_fsync_needs_a_loop(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="loop"):
        Journal.open(tmp_path, OWNER, fsync=True)


def test_without_fsync_durable_does_not_wait(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, OWNER)
    asyncio.run(journal.durable())
    journal.close()


def test_a_killed_process_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    dice = random.Random(65)
    for run in range(30):
        owner = f"{run:028x}"
        writer = start_writer(tmp_path, owner)
        assert writer.stdout is not None
        wanted = dice.randrange(1, 400)
        heard = 0
        while heard < wanted:
            heard = int(writer.stdout.readline())
        writer.kill()
        heard = max([heard, *(int(line) for line in writer.stdout.read().split("\n")[:-1])])
        writer.wait()
        writer.stdout.close()
        assert owners.is_dead(tmp_path, owner)
        sent = [frame for frame in frames_of(tmp_path, owner, torn=True) if frame.kind == Kind.SENT]
        assert heard <= len(sent) <= heard + 1
