"""One request's body on its way in: bounded, counted while it comes, unpacked when it is whole."""

import asyncio
from typing import Final

from moongate.core.bodies import ChunkedBody, Gunzip, SizedBody
from moongate.core.faults import FailedError, Fault, refuse
from moongate.core.heads import CHUNKED, RequestHead
from moongate.core.held import Held
from moongate.core.stall import Motion
from moongate.flow.downstream import Downstream

LEAST_PROGRESS: Final = 1024
"""Bytes of body that count as progress: a client that sends fewer in the time for a stalled body stalls."""

_AT_ONCE = 65_536  # bytes unpacked on the loop; the rest of a larger body is unpacked in a thread
_STEP = 262_144


def is_whole(head: RequestHead, body: bytes, most: int, held: Held) -> bool:
    """Whether this is the body that `head` announced, to be taken as it is; it is counted in `held` then.

    Most bodies come whole with their head, and need no `Intake`; whatever else is to be said of one, that says.
    """
    size = len(body)
    return size == head.size <= most and b"content-encoding" not in head.headers and held.take(size)


class Intake:
    """Takes the body that `head` announced, of at most `most` bytes packed and unpacked.

    Whatever it holds is counted in `held` until `release`. Raises FailedError at once for a body that is announced
    too large or in an unknown coding.
    """

    __slots__ = ("_body", "_held", "_most", "_motion", "_packed", "_received", "_taken", "_whole")

    def __init__(self, held: Held, most: int, head: RequestHead, now: float) -> None:
        self._held = held
        self._most = most
        if head.size > most:
            raise self._too_large()
        coding = head.headers.get(b"content-encoding", b"identity").lower()
        self._packed = coding in (b"gzip", b"x-gzip")
        if not self._packed and coding != b"identity":
            raise refuse(Fault.INVALID_REQUEST, "The Content-Encoding of a body must be gzip or none.")
        self._body = ChunkedBody() if head.size == CHUNKED else SizedBody(head.size)
        self._motion = Motion(now)
        self._received = 0
        self._taken = 0
        self._whole: bytes | bytearray = b""

    @property
    def done(self) -> bool:
        """Whether the whole body is here."""
        return self._body.done

    def feed(self, data: bytes) -> int:
        """Take the next bytes; how many of them were used. Raises FailedError (400, 413, 503)."""
        piece, used = self._body.feed(data)
        if piece:
            self._received += len(piece)
            if self._received > self._most:
                raise self._too_large()
            self._take(len(piece))
            if not self._whole:
                self._whole = piece
            elif isinstance(self._whole, bytearray):
                self._whole += piece
            else:
                self._whole = bytearray(self._whole) + piece
        return used

    def stalls(self, now: float, seconds: float) -> bool:
        """Whether the body made no progress worth the name for so long."""
        return self._motion.stands_for(self._received, now, LEAST_PROGRESS) >= seconds

    def whole(self) -> bytes:
        """The whole body, once; empty for a packed one, which is `unpacked` instead."""
        if self._packed:
            return b""
        whole, self._whole = self._whole, b""
        return whole if isinstance(whole, bytes) else bytes(whole)

    async def unpacked(self, down: Downstream) -> bytes:
        """The body without its coding; empty if the client left meanwhile. Raises FailedError (400, 413, 503)."""
        if not self._packed:
            return b""
        packed, self._whole = bytes(self._whole), b""
        gunzip = Gunzip(packed, self._most)
        pieces: list[bytes] = []
        piece = gunzip.step(_AT_ONCE)
        while piece:
            self._take(len(piece))
            pieces.append(piece)
            if len(pieces) == 1 and len(piece) < _AT_ONCE:
                piece = gunzip.step(_AT_ONCE)
            else:
                piece = await asyncio.get_running_loop().run_in_executor(None, gunzip.step, _STEP)
            if down.gone is not None:
                return b""
        self._held.give(len(packed))
        self._taken -= len(packed)
        return b"".join(pieces)

    def release(self) -> None:
        """Give back all that was counted; nothing of the body is held by this any more."""
        self._held.give(self._taken)
        self._taken = 0
        self._whole = b""

    def _take(self, size: int) -> None:
        if not self._held.take(size):
            raise refuse(Fault.GATEWAY_OVERLOADED)
        self._taken += size

    def _too_large(self) -> FailedError:
        return refuse(Fault.PAYLOAD_TOO_LARGE, f"A body may have {self._most} bytes, unpacked too.")
