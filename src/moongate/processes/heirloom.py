"""What a supervisor leaves to the next program image when it re-executes itself: descriptors, workers, totals.

It lies in an anonymous file (memfd_create(2)) whose descriptor number stands in the environment.
"""

import os
from collections.abc import Iterable
from typing import Final

import msgspec

from moongate.ops.metrics import Row
from moongate.processes.slots import Heritage

_VARIABLE: Final = "MOONGATE_HEIRLOOM"


class Heirloom(msgspec.Struct, frozen=True):
    """Descriptors of the state lock, the channel's socket, the admin socket and each slot's pair; and who serves."""

    lock: int
    channel: int
    admin: int
    pairs: list[tuple[int, int]]
    workers: list[Heritage]
    retired: list[Row]

    @property
    def fds(self) -> Iterable[int]:
        """Every descriptor in it."""
        return (self.lock, self.channel, self.admin, *(fd for pair in self.pairs for fd in pair))


def leave(heirloom: Heirloom) -> None:
    """Put it where the next image finds it; from here on its descriptors survive exec and reach children."""
    fd = os.memfd_create("moongate-heirloom", 0)
    os.write(fd, msgspec.msgpack.encode(heirloom))
    for inherited in (fd, *heirloom.fds):
        os.set_inheritable(inherited, True)
    os.environ[_VARIABLE] = str(fd)


def find() -> Heirloom | None:
    """What the last image left, once: then no child of ours inherits any of it."""
    named = os.environ.pop(_VARIABLE, "")
    if not named:
        return None
    fd = int(named)
    size = os.fstat(fd).st_size
    heirloom = msgspec.msgpack.decode(os.pread(fd, size, 0), type=Heirloom)
    os.close(fd)
    for inherited in heirloom.fds:
        os.set_inheritable(inherited, False)
    return heirloom
