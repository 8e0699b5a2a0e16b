"""A disk that fails in whatever way refuses what it must, loses nothing, and is used again as soon as it is well."""

import asyncio
import errno
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.store import frames, owners, reader
from moongate.store import journal as journals
from moongate.store.frames import Kind
from moongate.store.journal import Journal, JournalError
from tests.stores.ill_disk import KINDS, IllDisk, ill_disk
from tests.stores.journals import OWNER


def all_payloads(directory: Path) -> list[bytes]:
    """What a reader finds, torn ends passed over; fails if a sequence is missing or comes twice."""
    found: list[frames.Frame] = []
    for segment in owners.segments(directory).get(OWNER, []):
        after = found[-1].sequence if found else 0
        read, _, _ = frames.scan(segment.path.read_bytes(), frames.seed(OWNER), after)
        found += [frame for frame in read if frame.kind != Kind.OWNER]
    assert [frame.sequence for frame in found] == list(range(1, len(found) + 1))
    return [frame.payload for frame in found]


steps = st.one_of(
    st.tuples(st.just("now"), st.integers(0, 300)),
    st.tuples(st.just("later"), st.integers(0, 300)),
    st.tuples(st.just("together"), st.integers(1, 5)),
    st.tuples(st.just("flush"), st.none()),
    st.tuples(st.just("well"), st.none()),
    st.tuples(
        st.just("ill"),
        st.tuples(
            st.sampled_from(KINDS), st.sampled_from([0, 1, 20, 70, 200, 900]), st.booleans(), st.booleans()
        ),
    ),
)


@given(st.lists(steps, max_size=30), st.sampled_from([300, 1000, 1 << 20]))
def test_what_was_acknowledged_is_there_and_what_was_refused_is_not(
    plan: list[tuple[str, object]], segment_bytes: int
) -> None:
    directory = Path(tempfile.mkdtemp())
    try:
        asyncio.run(_played(directory, plan, segment_bytes))
    finally:
        shutil.rmtree(directory)


async def _played(directory: Path, plan: list[tuple[str, object]], segment_bytes: int) -> None:
    kept: list[bytes] = []
    with ill_disk() as disk:
        journal = Journal.open(
            directory,
            OWNER,
            segment_bytes=segment_bytes,
            loop=asyncio.get_running_loop(),
            clock=lambda: 1000.0,
        )
        for number, (what, how) in enumerate(plan):
            name = b"%d;" % number
            if what == "ill":
                assert isinstance(how, tuple)
                disk.fall_ill(how[0], how[1], fixed=how[2], deaf=how[3])
            elif what == "well":
                disk.recover()
            elif what == "flush":
                journal.flush()
            elif what == "later":
                kept.append(name * how)  # type: ignore[operator]
                journal.append(Kind.CLOSED, kept[-1], now=False)
            elif what == "now":
                _now(journal, disk, kept, name * how)  # type: ignore[operator]
            else:
                await _together(journal, disk, kept, [name + b"%d" % each for each in range(how)])  # type: ignore[call-overload]
        disk.recover()
        journal.append(Kind.SENT, b"last", now=True)  # the first after it is well again
        assert journal.available
        assert journal.lost == 0
        assert all_payloads(directory) == [*kept, b"last"]
        journal.close()


def _now(journal: Journal, disk: IllDisk, kept: list[bytes], payload: bytes) -> None:
    try:
        journal.append(Kind.SENT, payload, now=True)
        kept.append(payload)
    except JournalError:
        assert disk.error, "refused by a disk that is well"
        assert not journal.available


async def _together(journal: Journal, disk: IllDisk, kept: list[bytes], payloads: list[bytes]) -> None:
    told = await asyncio.gather(
        *(journal.append_with_others(Kind.SENT, payload) for payload in payloads), return_exceptions=True
    )
    assert disk.error or not any(told)
    assert all(each is None or isinstance(each, JournalError) for each in told)
    kept += [payload for payload, each in zip(payloads, told, strict=True) if each is None]


def test_a_backlog_does_not_make_each_refusal_dear(tmp_path: Path) -> None:
    with ill_disk() as disk:
        journal = Journal.open(tmp_path, OWNER)
        journal.append(Kind.SENT, b"one", now=True)
        disk.fall_ill(errno.ENOSPC)
        for _ in range(10_000):
            journal.append(Kind.CLOSED, b"x" * 1000, now=False)
        journal.flush()
        disk.tried = 0
        for _ in range(100):
            with pytest.raises(JournalError):
                journal.append(Kind.SENT, b"refused", now=True)
        assert disk.tried <= 100 * 300_000
        disk.recover()
        journal.append(Kind.SENT, b"last", now=True)
        assert len(all_payloads(tmp_path)) == 10_002
        journal.close()


def test_refusals_do_not_fill_the_memory_that_closed_calls_need(tmp_path: Path) -> None:
    async def main() -> None:
        with ill_disk() as disk:
            journal = Journal.open(tmp_path, OWNER, loop=asyncio.get_running_loop())
            await journal.append_with_others(Kind.SENT, b"paid")
            disk.fall_ill(errno.ENOSPC)
            for _ in range(20):
                asked = (journal.append_with_others(Kind.SENT, b"x" * 100_000) for _ in range(20))
                told = await asyncio.gather(*asked, return_exceptions=True)
                assert all(isinstance(each, JournalError) for each in told)
            assert journal.pending_bytes == 0
            journal.append(Kind.CLOSED, b"paid", now=False)
            disk.recover()
            journal.flush()
            assert all_payloads(tmp_path) == [b"paid", b"paid"]
            journal.close()

    asyncio.run(main())


def test_a_disk_that_takes_long_to_say_no_is_asked_for_a_twentieth_of_the_time(tmp_path: Path) -> None:
    now = 1000.0
    with ill_disk() as disk:
        journal = Journal.open(tmp_path, OWNER, clock=lambda: now)
        journal.append(Kind.SENT, b"one", now=True)
        disk.fall_ill(errno.ENOSPC)
        fail = disk._raise

        def slowly() -> None:
            nonlocal now
            now += 0.03
            fail()

        disk._raise = slowly  # type: ignore[method-assign]
        began, disk.writes = now, 0
        while now < began + 60:
            with pytest.raises(JournalError):
                journal.append(Kind.SENT, b"refused", now=True)
            now += 0.001
        assert 40 < disk.writes < 120, "a write of 30 ms each 0.6 s"
        disk.recover()
        now += 1.0
        journal.append(Kind.SENT, b"two", now=True)
        assert all_payloads(tmp_path) == [b"one", b"two"]
        journal.close()


def test_a_directory_that_was_removed_is_made_anew(tmp_path: Path) -> None:
    directory = tmp_path / "journal"
    journal = Journal.open(directory, OWNER, segment_bytes=200)
    journal.append(Kind.SENT, b"x" * 150, now=True)
    shutil.rmtree(directory)
    journal.append(Kind.SENT, b"y" * 150, now=True)
    assert not owners.is_dead(directory, OWNER)
    [segment] = owners.segments(directory)[OWNER]
    assert reader.read(segment, 0, segment.first - 1, final=False).sequence == 2
    journal.close()


def test_who_watches_is_told_of_each_change_once(tmp_path: Path) -> None:
    told: list[int] = []
    with ill_disk() as disk:
        disk.fall_ill(errno.EROFS)
        journal = Journal.open(
            tmp_path, OWNER, on_change=lambda error: told.append(error.errno or 0 if error else 0)
        )
        for error in (errno.EROFS, errno.ENOSPC):
            disk.fall_ill(error)
            for _ in range(3):
                with pytest.raises(JournalError):
                    journal.append(Kind.SENT, b"no", now=True)
            disk.recover()
            for _ in range(3):
                journal.append(Kind.SENT, b"yes", now=True)
        journal.close()
    assert told == [errno.EROFS, 0, errno.ENOSPC, 0]


def test_memory_for_what_cost_nothing_is_bounded_first(tmp_path: Path) -> None:
    with ill_disk() as disk:
        journal = Journal.open(tmp_path, OWNER)
        journal.append(Kind.SENT, b"one", now=True)
        disk.fall_ill(errno.ENOSPC)
        piece = b"x" * (1 << 18)
        while journal.has_room:
            journal.append(Kind.CLOSED, piece, now=False)
        journal.skip()
        assert (journal.lost, journal.pending_bytes < journals.PENDING_BYTES // 2) == (1, True)
        journal.append(Kind.CLOSED, b"paid", now=False)
        disk.recover()
        journal.flush()
        segment = owners.segments(tmp_path)[OWNER][0]
        read, gaps, _ = frames.scan(segment.path.read_bytes(), frames.seed(OWNER), 0)
        assert not gaps
        assert read[-1].payload == b"paid"
        assert read[-1].sequence - read[-2].sequence == 2, "one is known to be missing"
        journal.close()


def test_a_descriptor_that_is_gone_costs_one_refusal(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, OWNER)
    journal.append(Kind.SENT, b"one", now=True)
    os.close(journal._segment.file)
    journal.append(Kind.CLOSED, b"two", now=False)
    with pytest.raises(JournalError, match="descriptor"):
        journal.append(Kind.SENT, b"refused", now=True)
    journal.append(Kind.SENT, b"three", now=True)
    assert all_payloads(tmp_path) == [b"one", b"two", b"three"]
    journal.close()


def test_after_a_failed_fsync_a_disk_that_is_full_too_keeps_what_waits(tmp_path: Path) -> None:
    async def main() -> None:
        with ill_disk() as disk:
            loop = asyncio.get_running_loop()
            journal = Journal.open(tmp_path, OWNER, fsync=True, loop=loop)
            await journal.append_with_others(Kind.SENT, b"one")
            await journal.durable()
            disk.unsynced = True
            await journal.append_with_others(Kind.SENT, b"two")
            with pytest.raises(JournalError):
                await journal.durable()
            disk.fall_ill(errno.ENOSPC)
            journal.append(Kind.CLOSED, b"three", now=False)
            journal.flush()
            with pytest.raises(JournalError, match="storage failed"):
                await journal.append_with_others(Kind.SENT, b"refused")
            disk.recover()
            asked = disk.syncs
            journal.append(Kind.CLOSED, b"four", now=False)
            journal.flush()
            assert not journal.available
            journal.close()
            assert disk.syncs == asked, "an fsync was tried again"
        assert all_payloads(tmp_path) == [b"one", b"two", b"three", b"four"]
        assert len(owners.segments(tmp_path)[OWNER]) == 2

    asyncio.run(main())


def test_a_segment_that_was_removed_while_it_is_written_is_brought_back(tmp_path: Path) -> None:
    directory = tmp_path / "journal"
    journal = Journal.open(directory, OWNER)
    journal.append(Kind.SENT, b"one", now=True)
    assert journal.look()
    shutil.rmtree(directory)
    journal.append(Kind.SENT, b"two", now=True)
    assert not journal.look()
    assert journal.look()
    journal.append(Kind.SENT, b"three", now=True)
    assert all_payloads(directory) == [b"one", b"two", b"three"]
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
    assert not owners.is_dead(directory, OWNER)
    journal.close()
    assert owners.is_dead(directory, OWNER)


def test_an_owner_whose_lock_was_removed_lives_as_long_as_it_holds_its_segment(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, OWNER)
    journal.append(Kind.SENT, b"one", now=True)
    (tmp_path / f"{OWNER}.lock").unlink()
    assert not owners.is_dead(tmp_path, OWNER)
    journal.close()
    assert owners.is_dead(tmp_path, OWNER)
