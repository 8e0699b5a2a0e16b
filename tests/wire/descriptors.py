"""What processes hold open, as the kernel tells it."""

import contextlib
from collections.abc import Iterable
from pathlib import Path

_ESTABLISHED = "01"  # as /proc/net/tcp writes it


def links(pid: int) -> list[str]:
    """What each descriptor of a process stands for."""
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed while we looked
            found.append(str(path.readlink()))
    return found


def outbound(pids: Iterable[int], listening: int) -> int:
    """Established TCP connections of these processes that did not come in on the port they listen on."""
    number = 0
    for pid in pids:
        mine = set(links(pid))
        for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
            _, local, _, state, _, _, _, _, _, inode, *_ = line.split()
            here = int(local.partition(":")[2], 16)
            number += f"socket:[{inode}]" in mine and state == _ESTABLISHED and here != listening
    return number
