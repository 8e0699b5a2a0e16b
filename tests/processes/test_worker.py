"""Whom a worker trusts, and what it does when nobody comes."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from moongate.processes import channel, worker
from moongate.processes.channel import Channel, Hello, Message, Reception, Welcome
from moongate.processes.state_lock import StateLock
from moongate.processes.worker import NEVER_WELCOME, Birth, Worker
from moongate.world import RealWorld
from tests.processes.toy import build


class Hurrying(RealWorld):
    """A second passes whenever the clock is read."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.clock = self.tick

    def tick(self) -> float:
        self.now += 1.0
        return self.now


class Impostor:
    """Greets whoever says hello."""

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.greeted = 0

    def received(self, line: Channel, message: Message, fds: list[int]) -> None:
        for fd in fds:
            os.close(fd)
        if isinstance(message, Hello):
            self.greeted += 1
            line.send(Welcome(self.identity, b"", b"", {}, 0.0))

    def closed(self, _: Channel) -> None:
        pass


def life(folder: Path, identity: str, lock: Path, said: Callable[[], str]) -> tuple[int, int]:
    """Exit code of a worker that somebody greets with another identity, and how often it was greeted."""
    birth = Birth(0, 1, os.fspath(folder / "s.sock"), os.fspath(lock), identity, os.dup(0), os.dup(0))

    async def main() -> tuple[int, int]:
        sock = channel.listen(folder / "s.sock")
        impostor = Impostor(said())
        reception = Reception(sock, lambda: impostor)
        code = await Worker(birth, build, Hurrying()).run()
        reception.close()
        sock.close()
        return code, impostor.greeted

    ended = asyncio.run(main())
    os.close(birth.tcp)
    os.close(birth.unix)
    return ended


def test_a_supervisor_of_another_state_is_not_followed(tmp_path: Path) -> None:
    ours, other = StateLock.take(tmp_path / "a"), StateLock.take(tmp_path / "b")
    code, greeted = life(tmp_path, ours.identity, tmp_path / "a/lock", lambda: other.identity)
    assert code == NEVER_WELCOME
    assert greeted > 1
    ours.release()
    other.release()


def test_a_supervisor_that_does_not_hold_the_lock_is_not_followed(tmp_path: Path) -> None:
    lock = StateLock.take(tmp_path / "a")
    (tmp_path / "a/lock").write_text("1\n")
    code, greeted = life(tmp_path, lock.identity, tmp_path / "a/lock", lambda: lock.identity)
    assert code == NEVER_WELCOME
    assert greeted > 1
    lock.release()


def test_the_soft_limit_becomes_the_hard_one() -> None:
    import resource  # noqa: PLC0415 - only wanted here

    hard = worker.raise_descriptor_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
