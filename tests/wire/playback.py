"""Recorded answers served over raw sockets, and clients that take them through the gateway, all in one thread.

The request says what is to be played: its member `play` travels on untouched, as unknown members do.
"""

import asyncio
import json
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from tests.recorded import PLANTED, Exchange
from tests.wire.answer import Answer

T = TypeVar("T")
PAUSE = 0.01
"""Seconds between the two pieces: with so few connections the gateway has nearly always read the first by then."""

FRAMINGS = ("two chunks", "one chunk", "length")
REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    429: "Slow",
}
ACCOUNT = "".join(
    f"{name}: {PLANTED}\r\n"
    for name in ("Msh-Org-Id", "Msh-Project-Id", "Msh-Uid", "Openai-Organization", "X-Account")
)
CONNECTIONS = 12


class Ask(NamedTuple):
    """One call: which answer upstream plays for it, how, and how it is asked for."""

    name: str
    cut: int
    framing: str
    route: str
    stream: bool
    asks_usage: bool = False

    def body(self) -> bytes:
        asked: dict[str, Any] = {
            "model": self.route,
            "messages": [{"role": "user", "content": "What was recorded?"}],
            "stream": self.stream,
            "play": [self.name, self.cut, self.framing],
        }
        if self.asks_usage:
            asked["stream_options"] = {"include_usage": True}
        return json.dumps(asked).encode()


class Stage:
    """An upstream that plays what was recorded, on a port of the kernel's choice; its loop has a thread of its own."""

    def __init__(self, exchanges: Iterable[Exchange]) -> None:
        self.exchanges = {each.name: each for each in exchanges}
        self.port = 0
        self._failures: list[Exception] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stage")

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._met, "127.0.0.1", 0, limit=1 << 20))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        assert not self._failures

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    def hang_up(self) -> None:
        """Close every connection that the gateway keeps."""
        self._run(self._hang_up())

    async def _hang_up(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _close(self) -> None:
        self._server.close()
        await self._hang_up()
        await self._server.wait_closed()

    # -- the upstream ------------------------------------------------------------------------------------------

    def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET "):  # the gateway's look at our health
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                    continue
                asked = await reader.readexactly(int(_named(head)["content-length"]))
                await self._play(writer, *json.loads(asked)["play"])
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except Exception as error:  # noqa: BLE001 - shown when the stage is left
            self._failures.append(error)
        finally:
            writer.close()

    async def _play(self, writer: asyncio.StreamWriter, name: str, cut: int, framing: str) -> None:
        exchange = self.exchanges[name]
        pieces = [exchange.sent[:cut], exchange.sent[cut:]]
        head = f"HTTP/1.1 {exchange.status} {REASONS[exchange.status]}\r\n{ACCOUNT}" + "".join(
            f"{key}: {value}\r\n" for key, value in exchange.headers
        )
        framed = _framed(pieces, framing)
        head += (
            f"Content-Length: {len(exchange.sent)}" if framing == "length" else "Transfer-Encoding: chunked"
        )
        writer.write(head.encode() + b"\r\n\r\n" + framed[0])
        if cut:
            await asyncio.sleep(PAUSE)
        writer.write(framed[1])
        await writer.drain()

    # -- the clients -------------------------------------------------------------------------------------------

    def perform(self, port: int, key: str, asks: Sequence[Ask]) -> list[Answer]:
        """Make these calls through the gateway at `port`, over several kept connections; answers in their order."""
        return self._run(self._perform(port, key, asks))

    async def _perform(self, port: int, key: str, asks: Sequence[Ask]) -> list[Answer]:
        answers: dict[int, Answer] = {}
        waiting = iter(enumerate(asks))

        async def client() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
            for at, ask in waiting:
                body = ask.body()
                writer.write(
                    b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
                    b"Authorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b"
                    % (key.encode(), len(body), body)
                )
                answers[at] = await _answer(reader)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

        async with asyncio.TaskGroup() as clients:
            for _ in range(min(CONNECTIONS, len(asks))):
                clients.create_task(client())
        return [answers[at] for at in range(len(asks))]


def _framed(pieces: Sequence[bytes], framing: str) -> tuple[bytes, bytes]:
    """The two writes: each piece a chunk, or one chunk cut in its middle, or no transfer coding at all."""
    first, second = pieces
    if framing == "two chunks":
        return _chunk(first), _chunk(second) + b"0\r\n\r\n"
    if framing == "one chunk":
        return b"%x\r\n%b" % (len(first) + len(second), first), second + b"\r\n0\r\n\r\n"
    return first, second


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


async def _answer(reader: asyncio.StreamReader) -> Answer:
    head = await reader.readuntil(b"\r\n\r\n")
    headers = _named(head)
    if "transfer-encoding" in headers:
        body = b"".join([chunk async for chunk in _chunks(reader)])
    else:
        body = await reader.readexactly(int(headers["content-length"]))
    return Answer(int(head.split(maxsplit=2)[1]), dict(headers), body)


async def _chunks(reader: asyncio.StreamReader) -> Any:
    while True:
        size = int(await reader.readuntil(b"\r\n"), 16)
        chunk = await reader.readexactly(size + 2)
        assert chunk.endswith(b"\r\n")
        if not size:
            return
        yield chunk[:-2]


def _named(head: bytes) -> Mapping[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:-2]
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
