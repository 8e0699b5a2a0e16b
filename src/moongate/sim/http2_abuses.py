"""What the h2 library would not say, as crafted frames (RFC 9113, section 4.1)."""

import ctypes
import socket
import struct
from typing import Any, Final

from moongate.sim.reply import Word

_DATA, _HEADERS, _RST, _SETTINGS, _PUSH, _PING, _GOAWAY, _CONTINUATION = 0, 1, 3, 4, 5, 6, 7, 9
_END_HEADERS: Final = 4
_LITERAL: Final = b"\x40\x01x\x7d" + b"a" * 125
"""A field of its own: name, length 125, value (RFC 7541, 6.2.1)."""
_LARGE: Final = b"\x40\x01x\x7f\x81\x1e" + b"a" * 3968
_OK: Final = b"\x88"
_SO_ATTACH_FILTER: Final = 26
_DROP_ALL: Final = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0), 8)
"""A packet filter that keeps 0 bytes of whatever comes (socket(7))."""
_MOST: Final = (1 << 31) - 1


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame, whatever it may mean."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def frames(word: Word, number: int, stream: int) -> bytes:
    """The bytes of a word; `number` is its error code or count."""
    match word:
        case Word.GOAWAY:
            return frame(_GOAWAY, 0, 0, struct.pack("!II", max(0, stream - 2), number))
        case Word.RST:
            return frame(_RST, 0, stream, struct.pack("!I", number))
        case Word.RESETS:
            return frame(_RST, 0, stream, struct.pack("!I", 8)) * number
        case Word.CONTINUATION:
            return frame(_HEADERS, 0, stream, _OK) + frame(_CONTINUATION, 0, stream, _LITERAL) * number
        case Word.SETTINGS:
            return frame(_SETTINGS, 0, 0, struct.pack("!HI", 3, 100)) * number
        case Word.PING:
            return frame(_PING, 0, 0, b"moongate") * number
        case Word.HPACK:
            return frame(_HEADERS, _END_HEADERS, stream, _OK + _LARGE + b"\xbe" * number)
        case Word.BAD_FRAME:
            return frame(_DATA, 0, 0, b"x")
        case Word.PUSH:
            return frame(_PUSH, _END_HEADERS, stream, struct.pack("!I", 2) + b"\x82\x84\x86")
        case Word.LAST_STREAM:
            return frame(_HEADERS, _END_HEADERS, _MOST, _OK)
        case Word.MAX_STREAMS:
            return frame(_SETTINGS, 0, 0, struct.pack("!HI", 3, number))
        case _:
            return b""


def vanish(transport: Any) -> None:
    """Have the kernel drop what comes in: the peer's packets are not even acknowledged."""
    program = struct.pack("@HP", 1, ctypes.addressof(_DROP_ALL))
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
