"""A small disk of its own for a gateway's state, full when told: a tmpfs in a mount namespace that only it sees.

Where such a thing cannot be made (no root and no user namespaces), `LimitedFiles` stands in: files that may not grow.
"""

import contextlib
import errno
import resource
import shutil
import subprocess
from pathlib import Path
from typing import Final, Protocol

from tests.wire.house import House

SIZE: Final = "4m"
_MOUNT: Final = """set -e; state=$1; shift
cp -a "$state" "$state.before"
mount -t tmpfs -o size=SIZE tmpfs "$state"
cp -a "$state.before/." "$state"
if [ -n "$MOONGATE_TEST_READ_ONLY" ]; then
    place=$state/$MOONGATE_TEST_READ_ONLY
    mkdir -p "$place"; mount --bind "$place" "$place"; mount -o remount,bind,ro "$place"
fi
exec "$@"
""".replace("SIZE", SIZE)


class Disk(Protocol):
    """What a test does with it."""

    def fill(self) -> None:
        """Leave no byte of room."""

    def free(self) -> None:
        """Give it all back."""


class Tmpfs:
    """A real file system, as the gateway's processes see it. `read_only` names a folder in it that is so at first."""

    def __init__(self, house: House, unshare: list[str], read_only: str) -> None:
        self._place, self._read_only = house.state, read_only
        house.gateway.stop()
        environment = ["env", f"MOONGATE_TEST_READ_ONLY={read_only}"]
        house.before = [*environment, *unshare, "sh", "-c", _MOUNT, "sh", str(house.state)]
        house.start_gateway()
        pid = house.gateway.child.pid
        house.inside = ["nsenter", "-m", *(["-U"] if "-rm" in unshare else []), "-t", str(pid)]
        self._inside = house.inside
        self.root = Path(f"/proc/{pid}/root{house.state}")
        self._ballast = self.root / "ballast"

    def fill(self) -> None:
        with self._ballast.open("ab", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:
                ballast.write(b"\0" * 4096)

    def free(self) -> None:
        if self._read_only:
            remount = ["mount", "-o", "remount,bind,rw", f"{self._place}/{self._read_only}"]
            subprocess.run([*self._inside, *remount], check=True, capture_output=True)
        self._ballast.unlink(missing_ok=True)


class LimitedFiles:
    """Not a full disk, but the same to whoever writes: no file of the gateway may grow, the journal's least of all."""

    def __init__(self, house: House, read_only: str) -> None:
        self._house = house
        if read_only:
            self.fill()

    def _limit(self, size: int) -> None:
        for pid in [self._house.gateway.child.pid, *self._house.worker_pids()]:
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))

    def fill(self) -> None:
        self._limit(1)

    def free(self) -> None:
        self._limit(resource.RLIM_INFINITY)


def small_disk(house: House, read_only: str = "") -> Disk:
    """Restart the gateway on a small disk of its own, the best that this machine lets us have."""
    for unshare in (["unshare", "-m"], ["unshare", "-rm"]):
        if shutil.which("unshare") and _can_mount(unshare, house.folder):
            return Tmpfs(house, unshare, read_only)
    return LimitedFiles(house, read_only)


def _can_mount(unshare: list[str], folder: Path) -> bool:
    place = folder / "place"
    place.mkdir(exist_ok=True)
    command = [*unshare, "mount", "-t", "tmpfs", "tmpfs", str(place)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def is_full(disk: Disk) -> bool:
    """Whether a byte more cannot be written there; True where that cannot be asked."""
    if not isinstance(disk, Tmpfs):
        return True
    try:
        with (disk.root / "probe").open("wb", buffering=0) as probe:
            probe.write(b"x")
    except OSError as error:
        return error.errno == errno.ENOSPC
    finally:
        (disk.root / "probe").unlink(missing_ok=True)
    return False
