"""Send a reply at the pace of its model, whatever the transport."""

import asyncio
from typing import Protocol

from moongate.sim.reply import FOREVER, Act, Do, Reply


class Wire(Protocol):
    """The half of a transport that writes one answer."""

    @property
    def paused(self) -> bool:
        """Whether the peer reads too slowly."""

    def head(self, reply: Reply) -> None:
        """Write status and headers."""

    def data(self, data: bytes) -> None:
        """Write a part of the body as one chunk or frame."""

    def raw(self, data: bytes) -> None:
        """Write bytes outside of any framing."""

    def speak(self, act: Act) -> bool:
        """Say what only HTTP/2 can say, or nothing; whether that was the last of this exchange."""

    def end(self, reply: Reply) -> None:
        """End the message as its framing asks."""

    def close(self) -> None:
        """Close the connection, what was written first."""

    def reset(self) -> None:
        """Drop the connection so that the peer sees a reset."""

    def doom(self) -> None:
        """Close the connection when the next request arrives."""

    async def drain(self) -> None:
        """Wait until the peer has taken enough."""


class Tally(Protocol):
    """Where the count of tokens that were made is kept."""

    emitted: int


_SETTLE = 0.02  # a reset overtakes what the kernel has not delivered yet


async def play(reply: Reply, wire: Wire, tally: Tally) -> bool:
    """Send the reply; whether its message was ended as the framing asks.

    `tally.emitted` counts tokens as they are made. If the task is cancelled it says how many a whole answer
    had made by then.
    """
    loop = asyncio.get_running_loop()
    start = loop.time()
    player = _Player(reply, wire, tally, start)
    try:
        return await player.run()
    except asyncio.CancelledError:
        if player.ended:
            return True  # the answer was whole; the peer left because it had it
        if reply.whole and reply.per_token > 0:
            made = int((loop.time() - start - reply.first) / reply.per_token)
            tally.emitted = max(tally.emitted, min(made, _tokens(reply)))
        raise


class _Player:
    """Where a reply stands while it is sent."""

    def __init__(self, reply: Reply, wire: Wire, tally: Tally, start: float) -> None:
        self._reply = reply
        self._wire = wire
        self._tally = tally
        self._first = start + reply.first
        self._now = asyncio.get_running_loop().time
        self._headless = True
        self.ended = False

    async def run(self) -> bool:
        """Send everything; whether the message was ended as its framing asks."""
        reply = self._reply
        for act in reply.before:
            if await perform(act, reply, self._wire):
                return False
        if not reply.whole:
            self._head()
        for item in reply.items:
            if isinstance(item, Act):
                if await self._act(item):
                    return self.ended
            else:
                await self._content(*item)
        self._head()
        if not self.ended:
            self._wire.end(reply)
        return True

    def _head(self) -> None:
        if self._headless:
            self._headless = False
            self._wire.head(self._reply)

    async def _act(self, act: Act) -> bool:
        if act.do is Do.HEAD:
            self._head()
            return False
        self.ended = self.ended or act.do is Do.END
        return await perform(act, self._reply, self._wire)

    async def _content(self, data: bytes, tokens: int) -> None:
        reply, tally = self._reply, self._tally
        made = tally.emitted + tokens if self._headless else tally.emitted
        wait = self._first + made * reply.per_token - self._now()
        if wait > 0:
            await asyncio.sleep(wait)
        self._head()
        self._wire.data(data)
        tally.emitted += tokens
        if reply.gap:
            await asyncio.sleep(reply.gap)
        if self._wire.paused:
            await self._wire.drain()


def play_at_once(reply: Reply, wire: Wire, tally: Tally) -> bool:
    """Send a whole reply that has nothing to wait for; False if it has, and nothing is sent."""
    if reply.before or not reply.whole or reply.first or reply.per_token or reply.gap:
        return False
    items = reply.items
    if not isinstance(items, list) or len(items) != 1 or isinstance(items[0], Act):
        return False
    wire.head(reply)
    wire.data(items[0][0])
    tally.emitted = items[0][1]
    wire.end(reply)
    return True


async def perform(act: Act, reply: Reply, wire: Wire) -> bool:
    """Do one act; whether it ended the exchange for good."""
    if act.do is Do.WAIT:
        await asyncio.sleep(act.seconds)
    elif act.do is Do.RAW:
        wire.raw(act.data)
    elif act.do is Do.END:
        wire.end(reply)
    elif act.do is Do.SPEAK:
        await wire.drain()
        if wire.speak(act):
            await asyncio.sleep(FOREVER)  # until the peer leaves
    elif act.do is Do.DOOM:
        wire.doom()
    else:
        await wire.drain()
        await asyncio.sleep(_SETTLE)
        if act.do is Do.RESET:
            wire.reset()
        else:
            wire.close()
        return True
    return False


def _tokens(reply: Reply) -> int:
    items = reply.items
    if not isinstance(items, list):
        return 0
    return sum(item[1] for item in items if not isinstance(item, Act))
