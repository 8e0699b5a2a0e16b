"""The HTTP/1.1 transport: one pool of connections to one origin.

Every exchange lives in one set, one sweeper looks after all timers, and a connection belongs to exactly one of:
being dialed, carrying an exchange, idle. A slot is counted from the dial on and given back once, when the dial
failed or the connection is gone.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from moongate.core.faults import Fault, Reach
from moongate.upstream.connection import Connection
from moongate.upstream.dial import dial, meaning, tls_context
from moongate.upstream.exchange import Exchange
from moongate.upstream.names import Names
from moongate.upstream.origin import Origin
from moongate.upstream.transport import Ended, Outbound, Phase, Sink

SWEEP_SECONDS: Final = 0.05
_BODILESS: Final = (b"GET", b"HEAD")


class Http1:
    """A `Transport` over HTTP/1.1. `clock` gives the monotonic seconds in which deadlines are told.

    `names` is shared by those that may share lookups, and theirs to close; None: names of its own.
    Must be made where a CA file may be read; used within one event loop, uvloop's or asyncio's own.
    """

    def __init__(self, origin: Origin, clock: Callable[[], float], names: Names | None = None) -> None:
        self.origin = origin
        self._clock = clock
        self._own_names = Names(clock) if names is None else None
        self.place = (self._own_names or names or Names(clock)).place(origin.host)
        self._last_calls = _LastCalls(self)
        self._context = tls_context(origin)
        self._host = f" HTTP/1.1\r\nHost: {origin.authority}\r\n".encode("ascii")
        self._exchanges: set[Exchange] = set()
        self._waiting: OrderedDict[Exchange, None] = OrderedDict()
        self._idle: deque[Connection] = deque()
        self._connections: set[Connection] = set()
        self._dials: set[asyncio.Task[Connection]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._closing: set[Connection] = set()
        self._all_closed: asyncio.Future[None] | None = None
        self._is_closed = False

    @property
    def in_use(self) -> int:
        """Connections that carry an exchange or are being dialed for one."""
        dialing = sum(not dial.cancelling() for dial in self._dials)
        return dialing + len(self._connections) - len(self._idle)

    @property
    def idle(self) -> int:
        """Connections kept open for the next exchange."""
        return len(self._idle)

    @property
    def waiting(self) -> int:
        """Exchanges that wait for a connection."""
        return len(self._waiting)

    async def exchange(self, outbound: Outbound, sink: Sink) -> Ended:
        """Carry one request; see `Transport`."""
        now = self._clock()
        if self._is_closed:
            return Ended(Reach.NOTHING_SENT, Fault.GATEWAY_DRAINING, Phase.CONNECT, ended_at=now)
        if now >= outbound.deadline:
            return Ended(Reach.NOTHING_SENT, Fault.DEADLINE_EXCEEDED, Phase.CONNECT, ended_at=now)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Ended] = loop.create_future()
        exchange = Exchange(outbound, sink, future, self._clock, now)
        self._exchanges.add(exchange)
        if self._sweeper is None:
            self._sweeper = loop.call_later(SWEEP_SECONDS, self._sweep)
        try:
            self._place(exchange, now)
            return await future
        finally:
            self._exchanges.discard(exchange)
            if not exchange.is_over:
                self._waiting.pop(exchange, None)
                exchange.fail(None, "cancelled")

    async def close(self) -> None:
        """Close every connection; see `Transport`. Returns when the sockets are closed."""
        self._is_closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self._waiting.clear()
        for exchange in list(self._exchanges):
            exchange.fail(Fault.GATEWAY_DRAINING)
        for connection in list(self._connections):
            connection.close()
        if self._own_names is not None:
            await self._own_names.close()
        if self._dials:
            await asyncio.wait(list(self._dials))
        if self._closing:
            self._all_closed = asyncio.get_running_loop().create_future()
            await self._all_closed

    # -- slots --

    def _place(self, exchange: Exchange, now: float) -> None:
        """Give the exchange a connection, begin to dial one, or let it wait."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable(now):
                self._begin(connection, exchange, now)
                return
            connection.close()
        if len(self._connections) + len(self._dials) < self.origin.max_connections:
            self._dial(exchange)
        else:
            self._waiting[exchange] = None

    def _begin(self, connection: Connection, exchange: Exchange, now: float) -> None:
        outbound = exchange.outbound
        body = outbound.body
        length = b"" if not body and outbound.method in _BODILESS else b"Content-Length: %d\r\n" % len(body)
        head = b"%b %b%b%b%b\r\n" % (outbound.method, outbound.path, self._host, outbound.headers, length)
        connection.begin(exchange, head, now)

    def _dial(self, exchange: Exchange) -> None:
        exchange.enter(Phase.CONNECT)
        task = asyncio.get_running_loop().create_task(
            dial(
                self.origin,
                self.place,
                self._context,
                lambda sock: Connection(self, sock),
                lambda: exchange.enter(Phase.TLS),
            )
        )
        self._dials.add(task)
        exchange.dialing = task
        # a callback, not a `finally` in the task: a task that is cancelled before its first step never runs it
        task.add_done_callback(lambda done: self._dialed(exchange, done))

    def _dialed(self, exchange: Exchange, task: "asyncio.Task[Connection]") -> None:
        self._dials.discard(task)
        exchange.dialing = None
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            if error is not None:
                exchange.end(*meaning(error))
            self._admit()
            return
        connection = task.result()
        if connection.is_gone:
            exchange.end(Fault.KIMI_NETWORK_UNREACHABLE, "closed by upstream before the request")
            self._admit()
            return
        self._connections.add(connection)
        if self._is_closed:
            connection.close()
        elif exchange.is_wanted:
            self._begin(connection, exchange, self._clock())
        else:
            connection.idle_since = self._clock()
            self.take_back(connection)

    def _admit(self) -> None:
        """Let waiting exchanges have what became free."""
        while self._waiting and not self._is_closed:
            if not self._idle and len(self._connections) + len(self._dials) >= self.origin.max_connections:
                return
            exchange, _ = self._waiting.popitem(last=False)
            if exchange.is_wanted:
                self._place(exchange, self._clock())

    def take_back(self, connection: Connection) -> None:
        """Keep a free connection, for whoever waits first."""
        self._idle.append(connection)
        if self._waiting:
            self._admit()
        if len(self._idle) > self.origin.max_idle:
            self._idle[0].close()

    def forget(self, connection: Connection) -> None:
        """Give back the slot of a connection that is gone."""
        self._connections.discard(connection)
        with suppress(ValueError):
            self._idle.remove(connection)
        self._closing.add(connection)
        self._admit()

    def bury(self, connection: Connection) -> None:
        """Let `close` go on once the last socket is closed."""
        self._closing.discard(connection)
        if not self._closing and self._all_closed is not None and not self._all_closed.done():
            self._all_closed.set_result(None)

    # -- time --

    def _sweep(self) -> None:
        now = self._clock()
        late = [exchange for exchange in self._exchanges if exchange.sweep(now)]
        for exchange in late:
            if exchange in self._waiting:
                del self._waiting[exchange]
                exchange.end(Fault.GATEWAY_OVERLOADED, "no connection became free in time")
            else:
                exchange.expire(now)
        oldest = now - self.origin.idle_seconds
        while self._idle and self._idle[0].idle_since < oldest:
            self._idle[0].close()
        if self.place.tend():
            self._let_move()
        if self._exchanges or self._idle:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)
        else:
            self._sweeper = None

    def _let_move(self) -> None:
        """Keep no connection to an address that the host has left: what is under way there ends as it may."""
        for connection in list(self._connections):
            if self.place.is_current(connection.peer):
                continue
            if connection in self._idle:
                connection.close()
            else:
                connection.retire(self._last_calls)


class _LastCalls:
    """The `Keeper` of connections that carry their last exchange."""

    def __init__(self, pool: Http1) -> None:
        self.forget = pool.forget
        self.bury = pool.bury

    def take_back(self, connection: Connection) -> None:
        """Close it."""
        connection.close()
