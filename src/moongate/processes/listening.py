"""The listening sockets of every slot: bound once, then kept open for ever.

Slot i has one TCP socket (SO_REUSEPORT, so that the kernel spreads connections over the slots) and one Unix socket
(so that an nginx may choose the slot). They outlive workers: while none accepts, connections wait in the backlog.
"""

import contextlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

BACKLOG: Final = 4096
"""Connections that may wait for a worker; the kernel's own somaxconn may be lower."""


class InUseError(Exception):
    """Something else listens on the address; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The two listening sockets of one slot."""

    tcp: socket.socket
    unix: socket.socket

    @property
    def fds(self) -> tuple[int, int]:
        """Both descriptors, TCP first."""
        return self.tcp.fileno(), self.unix.fileno()

    def close(self) -> None:
        """Give both up; the Unix socket's file goes too."""
        path = self.unix.getsockname()
        self.tcp.close()
        self.unix.close()
        with contextlib.suppress(OSError):
            Path(path).unlink()


def adopt(tcp: int, unix: int) -> Pair:
    """Take over two listening descriptors of another process."""
    return Pair(adopted(tcp), adopted(unix))


def adopted(fd: int) -> socket.socket:
    """A socket out of a descriptor that came from another process or program image."""
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    sock.setblocking(False)
    return sock


def is_reusable_with(pair: Pair, unix_path: Path) -> bool:
    """Whether an adopted pair is still reachable: its Unix socket's file must be the one in our run folder."""
    return pair.unix.getsockname() == os.fspath(unix_path) and unix_path.is_socket()


def make_run_folder(run: Path) -> None:
    """Make the folder of the Unix sockets, mode 0750: an nginx in its group may enter. Raises `OSError`."""
    run.mkdir(mode=0o750, parents=True, exist_ok=True)
    run.chmod(0o750)


def unix_path(run: Path, slot: int) -> Path:
    """Where slot i listens for an nginx on this machine."""
    return run / f"worker-{slot}.sock"


def bind_slot(host: str, port: int, unix: Path) -> Pair:
    """Bind one slot. Raises `OSError`."""
    tcp = _bind_tcp(host, port)
    try:
        return Pair(tcp, _bind_unix(unix))
    except OSError:
        tcp.close()
        raise


def check_free(host: str, port: int) -> None:
    """Refuse an address on which a stranger listens: SO_REUSEPORT alone would share it with him in silence."""
    if port == 0:
        return
    family, address = _resolve(host, port)
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as error:
            raise InUseError(
                f"Cannot listen on {host}:{port}: {error.strerror}. Stop what listens there, "
                "or choose another address with --listen-addr."
            ) from error


def shown(sock: socket.socket) -> str:
    """The address as people write it: `127.0.0.1:8080`, `[::1]:8080`, `unix:/run/x.sock`."""
    name = sock.getsockname()
    if isinstance(name, str):
        return f"unix:{name}"
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bind_tcp(host: str, port: int) -> socket.socket:
    """One TCP socket of the supervisor's own (admin). Raises `OSError`."""
    return _bind_tcp(host, port, shared=False)


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    return family, address


def _bind_tcp(host: str, port: int, *, shared: bool = True) -> socket.socket:
    family, address = _resolve(host, port)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def _bind_unix(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o117)
    try:
        sock.bind(os.fspath(path))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(before)
    return sock
