"""The HTTP/2 transport: streams over as few connections to one origin as the peer allows, by libcurl.

An exchange is in one of three places: waiting for a seat (there are `max_connections` of them), seated and waiting
for a link that is being opened, or on a link. One sweeper looks after all timers. What HTTP/2 is spoken with is found
out by a handshake of our own before the first connection: a peer that does not choose it is spoken to by `Http1`.
"""

import asyncio
import logging
import socket
import ssl
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from moongate.core.faults import Fault, Reach
from moongate.upstream.dial import is_tls_refusal, tls_context, tls_reason
from moongate.upstream.dial import meaning as dial_meaning
from moongate.upstream.exchange import Exchange
from moongate.upstream.http1 import SWEEP_SECONDS, Http1
from moongate.upstream.http2_link import MOST_STREAMS, Link
from moongate.upstream.http2_meaning import OF_ONE_STREAM, TLS_CODES, meaning
from moongate.upstream.http2_stream import Stream
from moongate.upstream.names import Names
from moongate.upstream.origin import Origin
from moongate.upstream.tcp import connect
from moongate.upstream.transport import Ended, Outbound, Phase, Sink

ASK_AGAIN_SECONDS: Final = 600.0
"""How long a peer's choice of a protocol is believed."""
SILENT_SECONDS: Final = 12.0
"""A peer whose kernel acknowledges nothing for so long is gone (FAULTS row 50: 15 s)."""
MOST_TRIES: Final = 5
_MOST_SPARE: Final = 256
_log: Final = logging.getLogger("moongate.http2")


class Http2:
    """A `Transport` over HTTP/2, made like `Http1`. Over plain TCP it is spoken unasked (prior knowledge).

    `max_connections` of the origin bounds the exchanges at one time. `alpn_fallbacks` counts exchanges that were
    carried by HTTP/1.1 because the peer did not choose HTTP/2.
    """

    def __init__(
        self,
        origin: Origin,
        clock: Callable[[], float],
        names: Names | None = None,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        self.origin = origin
        self._clock = clock
        self._names = names or Names(clock)
        self._own_names = self._names if names is None else None
        self.place = self._names.place(origin.host)
        self._silent = silent_seconds
        self._context = tls_context(origin)
        if self._context is not None:
            self._context.set_alpn_protocols(["h2", "http/1.1"])
        self._exchanges: set[Exchange] = set()
        self._waiting: OrderedDict[Exchange, None] = OrderedDict()
        self._seated: set[Exchange] = set()
        self._standing: OrderedDict[Exchange, None] = OrderedDict()  # seated, without a link
        self._tries: dict[Exchange, int] = {}
        self._most = MOST_STREAMS  # that the next link is expected to carry
        self._links: list[Link] = []
        self._opening: Link | None = None
        self._dial: asyncio.Task[None] | None = None
        self._spare: list[Stream] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._http1: Http1 | None = None
        self._diverted: set[Exchange] = set()
        self._chosen_until = 0.0
        self._is_diverting = False
        self._is_closed = False
        self.alpn_fallbacks = 0

    @property
    def in_use(self) -> int:
        """Exchanges that have a stream or wait for the connection of one."""
        return len(self._seated) + (self._http1.in_use if self._http1 is not None else 0)

    @property
    def idle(self) -> int:
        """Connections kept open without an exchange."""
        kept = sum(not link.streams for link in self._links)
        return kept + (self._http1.idle if self._http1 is not None else 0)

    @property
    def waiting(self) -> int:
        """Exchanges that wait for a seat."""
        return len(self._waiting) + (self._http1.waiting if self._http1 is not None else 0)

    async def exchange(self, outbound: Outbound, sink: Sink) -> Ended:
        """Carry one request; see `Transport`."""
        now = self._clock()
        if self._is_closed:
            return Ended(Reach.NOTHING_SENT, Fault.GATEWAY_DRAINING, Phase.CONNECT, ended_at=now)
        if now >= outbound.deadline:
            return Ended(Reach.NOTHING_SENT, Fault.DEADLINE_EXCEEDED, Phase.CONNECT, ended_at=now)
        if self._is_diverting and now < self._chosen_until:
            return await self._by_http1(outbound, sink)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Ended] = loop.create_future()
        exchange = Exchange(outbound, sink, future, self._clock, now)
        self._exchanges.add(exchange)
        if self._sweeper is None:
            self._sweeper = loop.call_later(SWEEP_SECONDS, self._sweep)
        try:
            self._place(exchange)
            ended = await future
        finally:
            self._leave(exchange)
        if exchange in self._diverted:
            self._diverted.discard(exchange)
            return await self._by_http1(outbound, sink)
        return ended

    def _leave(self, exchange: Exchange) -> None:
        self._exchanges.discard(exchange)
        self._waiting.pop(exchange, None)
        self._standing.pop(exchange, None)
        self._tries.pop(exchange, None)
        if not exchange.is_over:
            exchange.fail(None, "cancelled")
        if exchange in self._seated:
            self._seated.discard(exchange)
            self._admit()
        if self._dial is not None and not self._standing:
            self._dial.cancel()

    async def _by_http1(self, outbound: Outbound, sink: Sink) -> Ended:
        self.alpn_fallbacks += 1
        if self._http1 is None:
            self._http1 = Http1(self.origin, self._clock, self._names)
        return await self._http1.exchange(outbound, sink)

    async def close(self) -> None:
        """Close every connection; see `Transport`."""
        self._is_closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self._waiting.clear()
        self._standing.clear()
        for exchange in list(self._exchanges):
            exchange.fail(Fault.GATEWAY_DRAINING)
        if self._dial is not None:
            self._dial.cancel()
            await asyncio.wait((self._dial,))
        for link in list(self._links):
            self._discard(link)
        self._spare.clear()
        if self._http1 is not None:
            await self._http1.close()
        if self._own_names is not None:
            await self._own_names.close()

    # -- seats and links --

    def _place(self, exchange: Exchange) -> None:
        """Give the exchange a seat, or let it wait for one."""
        if len(self._seated) >= self.origin.max_connections:
            self._waiting[exchange] = None
            return
        self._seated.add(exchange)
        self._board(exchange)

    def _admit(self) -> None:
        while self._waiting and not self._is_closed and len(self._seated) < self.origin.max_connections:
            exchange, _ = self._waiting.popitem(last=False)
            if exchange.is_wanted:
                self._place(exchange)

    def _board(self, exchange: Exchange) -> None:
        """Begin a stream for it, or see that a link is opened."""
        for link in self._links:
            if link.has_room:
                self._begin(link, exchange)
                return
        exchange.enter(Phase.TLS if self._opening is not None else Phase.CONNECT)
        self._standing[exchange] = None
        if self._dial is None and self._opening is None:
            self._dial = asyncio.get_running_loop().create_task(self._open())
            self._dial.add_done_callback(self._dialed)

    def _begin(self, link: Link, exchange: Exchange) -> None:
        stream = self._spare.pop() if self._spare else Stream(self.origin, self._clock)
        link.begin(stream, exchange)

    def _discard(self, link: Link) -> None:
        if link in self._links:
            self._links.remove(link)
        if self._opening is link:
            self._opening = None
        link.close()

    # -- opening --

    async def _open(self) -> None:
        """Dial, find out what is spoken there, and begin the first stream."""
        sock = await connect(self.place, self.origin.port)
        if self._context is not None and not (self._chosen_until > self._clock() and not self._is_diverting):
            self._enter_tls()
            chosen = await self._choice(sock, self._context)
            self._chosen_until = self._clock() + ASK_AGAIN_SECONDS
            if chosen != "h2":
                self._divert(chosen)
                return
            self._is_diverting = False
            sock = await connect(self.place, self.origin.port)
        for exchange in list(self._standing):
            if exchange.is_wanted:
                self._open_with(sock, exchange)
                del self._standing[exchange]
                return
        sock.close()

    def _open_with(self, sock: socket.socket, exchange: Exchange) -> None:
        notice_silence(sock, self._silent)
        link = Link(self, sock, self._clock)
        link.most = self._most
        self._links.append(link)
        self._opening = link
        self._enter_tls()
        try:
            self._begin(link, exchange)
        except BaseException:
            self._discard(link)
            raise

    def _enter_tls(self) -> None:
        if self.origin.tls:
            for exchange in self._standing:
                exchange.enter(Phase.TLS)

    async def _choice(self, sock: socket.socket, context: ssl.SSLContext) -> str | None:
        """The protocol that the peer chooses. Raises what `dial.meaning` reads."""
        try:
            _, writer = await asyncio.open_connection(
                sock=sock, ssl=context, server_hostname=self.origin.server_name or self.origin.host
            )
        except BaseException as error:
            sock.close()
            if isinstance(error, ssl.SSLError) and is_tls_refusal(error):
                self.place.refused[tls_reason(error)] += 1
            raise
        chosen: str | None = writer.get_extra_info("ssl_object").selected_alpn_protocol()
        writer.transport.abort()
        return chosen

    def _divert(self, chosen: str | None) -> None:
        """Have everything carried by HTTP/1.1 for a while."""
        self._is_diverting = True
        _log.warning("alpn_fallback: %s speaks %s, not h2", self.origin.authority, chosen or "HTTP/1.1")
        for exchange in [*self._standing, *self._waiting]:
            self._diverted.add(exchange)
            exchange.end(None, "diverted")
        self._standing.clear()
        self._waiting.clear()

    def _dialed(self, task: "asyncio.Task[None]") -> None:
        self._dial = None
        if task.cancelled() or (error := task.exception()) is None:
            if self._standing and self._opening is None and not self._is_closed:
                self._board(self._standing.popitem(last=False)[0])
            return
        standing = list(self._standing)
        self._standing.clear()
        for exchange in standing:
            exchange.end(*dial_meaning(error))

    # -- what links tell --

    def opened(self, link: Link) -> None:
        """Let those that stand have it, once libcurl is through with its turn."""
        if self._opening is link:
            self._opening = None
        asyncio.get_running_loop().call_soon(self._seat_the_standing)

    def _seat_the_standing(self) -> None:
        standing = list(self._standing)
        self._standing.clear()
        for exchange in standing:
            if exchange.is_wanted:
                self._board(exchange)
        if not self._standing:
            self._most = MOST_STREAMS

    def returned(self, link: Link, stream: Stream, code: int, text: str) -> None:
        """End the exchange of a stream that is out of libcurl's hands, or place it anew."""
        exchange = stream.exchange
        if exchange is not None and not exchange.is_over:
            self._conclude(link, stream, exchange, code, text)
        if link.is_open:
            if link.is_retired and not link.streams:
                self._discard(link)
            elif self._standing and link.has_room:
                self._begin(link, self._standing.popitem(last=False)[0])
        elif not self._is_closed:
            self._discard(link)
            if self._dial is None:
                self._seat_the_standing()
        if stream.exchange is None and len(self._spare) < _MOST_SPARE:
            self._spare.append(stream)

    def _conclude(self, link: Link, stream: Stream, exchange: Exchange, code: int, text: str) -> None:
        if code == 0:
            stream.finish_whole()
            return
        stream.exchange = None
        exchange.carrier = None
        if exchange.cut_by is not None:
            exchange.fail(*exchange.cut_by)
        elif not stream.is_open and (stream.is_refused or code in TLS_CODES):
            self._place_anew(link, stream, exchange, code, text)
        else:
            fault, why, exchange.reach = meaning(code, text, exchange.reach, is_alive=not link.is_lost)
            link.is_retired = link.is_retired or code not in OF_ONE_STREAM
            exchange.end(fault, why)

    def _place_anew(self, link: Link, stream: Stream, exchange: Exchange, code: int, text: str) -> None:
        """Find another link for what could not be begun on this one."""
        if stream.is_refused:
            self._most = link.learn_most() or MOST_STREAMS
        else:
            self._chosen_until = 0.0  # our own handshake will say what is wrong
            self._discard(link)
        tries = self._tries[exchange] = self._tries.get(exchange, 0) + 1
        if tries > MOST_TRIES:
            exchange.end(*meaning(code, text, Reach.NOTHING_SENT, is_alive=False)[:2])
        else:
            self._board(exchange)

    # -- time --

    def _sweep(self) -> None:
        now = self._clock()
        late = [exchange for exchange in self._exchanges if exchange.sweep(now)]
        for exchange in late:  # first, so that the end of one does not place another anew
            self._standing.pop(exchange, None)
        for exchange in late:
            if exchange in self._waiting:
                del self._waiting[exchange]
                exchange.end(Fault.GATEWAY_OVERLOADED, "no stream became free in time")
            else:
                exchange.expire(now)
        for link in [link for link in self._links if link.streams]:
            link.poke()
        oldest = now - self.origin.idle_seconds
        for link in [link for link in self._links if link.is_open and not link.streams]:
            if link.is_retired or link.idle_since < oldest or link.is_lost:
                self._discard(link)
        if self.place.tend():
            for link in self._links:
                link.is_retired = link.is_retired or not self.place.is_current(link.peer)
        if self._exchanges or self._links:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)
        else:
            self._sweeper = None


def notice_silence(sock: socket.socket, seconds: float) -> None:
    """Have the kernel give up a peer that acknowledges neither data nor probes for so long (tcp(7))."""
    often = max(1, round(seconds / 4))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, often)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, often)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(seconds * 1000))
