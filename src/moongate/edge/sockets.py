"""What the server asks of the kernel about one socket."""

import fcntl
import socket
import struct
import sys
import termios
from asyncio import BaseTransport
from typing import Final

_RESET = struct.pack("ii", 1, 0)


SEND_BUFFER: Final = 256 * 1024
"""Bytes; the kernel doubles it for its own needs. Left alone it grows to megabytes for a reader that has stalled: that
much of an answer would be called delivered, and paid for, before anyone noticed."""


def bound_send_buffer(listener: socket.socket) -> None:
    """Bound what the kernel takes for each client; accepted sockets inherit it."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)


def untaken(transport: BaseTransport) -> int:
    """Bytes that the kernel holds because the peer has not acknowledged them; 0 where it cannot tell.

    Without it a slow reader looks like a stalled one: the kernel asks for more only when a third of its buffer,
    which may be megabytes, is free again.
    """
    sock = transport.get_extra_info("socket")
    try:
        return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except (OSError, ValueError):  # ValueError: closed meanwhile
        return 0


def reset_on_close(transport: BaseTransport) -> None:
    """Let the close of this connection be a reset, which no reader takes for an end. TCP only."""
    sock = transport.get_extra_info("socket")
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
