"""A quick HTTP/1.1 client that asks one server for event streams and looks at no more of them than it must."""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import cast

import httptools

from moongate.core.addresses import Url
from moongate.replay.ending import (
    CONNECTION_LOST,
    NOT_CONNECTED,
    NOT_HTTP,
    TAIL_BYTES,
    TIMEOUT,
    Answer,
    of_refusal,
    of_stream,
)

_IDLE_SECONDS = 15.0  # well below what servers keep a connection for


class Client:
    """Calls to `base`, each on a connection of its own; a connection that is left in order is used again.

    Without a `key` no credential is sent. `clock` gives monotonic seconds. Nothing is raised: whatever goes
    wrong is the outcome of a call.
    """

    def __init__(self, base: Url, key: str, clock: Callable[[], float]) -> None:
        self._base = base
        self._clock = clock
        self._idle: list[_Connection] = []
        self._tls = ssl.create_default_context() if base.secure else None
        bearer = f"Authorization: Bearer {key}\r\n" if key else ""
        self._head = (
            f"POST {base.path}/chat/completions HTTP/1.1\r\nHost: {base.authority}\r\n"
            f"{bearer}Content-Type: application/json\r\nAccept: text/event-stream\r\n"
            "User-Agent: moongate-replay\r\nContent-Length: "
        ).encode()

    async def ask(self, body: bytes, timeout: float) -> Answer:  # noqa: ASYNC109 - it becomes an outcome
        """Send one request and read its answer, in at most `timeout` seconds."""
        began = self._clock()
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(timeout):
                connection = self._reused() or await self._connected()
                connection.send(b"%b%d\r\n\r\n" % (self._head, len(body)), body)
                del body  # prompts are large and answers take long
                await connection.ended
        except TimeoutError:
            outcome = TIMEOUT
        except OSError:
            outcome = NOT_CONNECTED if connection is None else CONNECTION_LOST
        except httptools.HttpParserError:
            outcome = NOT_HTTP
        else:
            return self._answer(connection, began)
        finally:
            if connection is not None and not connection.reusable:
                connection.close()
        first = -1.0 if connection is None or connection.first < 0 else connection.first - began
        return Answer(outcome, first, self._clock() - began)

    def close(self) -> None:
        """Close the connections that are kept."""
        while self._idle:
            self._idle.pop().close()

    def _answer(self, connection: "_Connection", began: float) -> Answer:
        total = self._clock() - began
        tail = b"".join(connection.tail)
        if connection.streams:
            first = connection.first - began if connection.first >= 0 else -1.0
            answer = of_stream(tail, first, total)
        else:
            answer = of_refusal(connection.status, tail, total)
        if connection.reusable:
            connection.free_since = self._clock()
            self._idle.append(connection)
        return answer

    def _reused(self) -> "_Connection | None":
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and self._clock() - connection.free_since < _IDLE_SECONDS:
                return connection
            connection.close()
        return None

    async def _connected(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: _Connection(self._clock), self._base.host, self._base.port, ssl=self._tls
        )
        return connection


class _Connection(asyncio.Protocol):
    """One connection and the answer that is on it; only the end of an answer is kept."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0
        self.streams = False
        self.first = -1.0
        self.tail: deque[bytes] = deque()
        self.reusable = False
        self.free_since = 0.0
        self._clock = clock
        self._size = 0
        self._transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)

    def send(self, head: bytes, body: bytes) -> None:
        """Begin an exchange; `ended` tells its end."""
        self.ended = asyncio.get_running_loop().create_future()
        self.streams = self.reusable = False
        self.first = -1.0
        self.tail.clear()
        self._size = 0
        self._transport.writelines((head, body))

    def close(self) -> None:
        self.reusable = False
        self._transport.abort()

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        self._fail(exc if isinstance(exc, OSError) else ConnectionResetError("closed"))

    def _fail(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)
            self.ended.exception()  # looked at, even where nobody waits any more

    # what httptools calls

    def on_message_begin(self) -> None:
        self.status = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self.streams = value.startswith(b"text/event-stream")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if self.first < 0 and b"data:" in data:
            self.first = self._clock()
        tail = self.tail
        tail.append(data)
        self._size += len(data)
        while self._size - len(tail[0]) >= TAIL_BYTES:
            self._size -= len(tail.popleft())

    def on_message_complete(self) -> None:
        self.reusable = self._parser.should_keep_alive() and not self._transport.is_closing()
        if not self.ended.done():
            self.ended.set_result(None)
