"""What the tests of retries share: asking a house in memory, an upstream that is told when to go on, what came."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from moongate.core.faults import Fault, Reach
from moongate.core.sse import split
from moongate.upstream.transport import Ended, Phase
from tests.flow.client import Client
from tests.flow.house import (
    DONE,
    JSON,
    SSE,
    USAGE,
    Act,
    House,
    Play,
    answers,
    chunk,
    played,
)

STREAM = (chunk("hel"), chunk("lo"), chunk("", "stop", USAGE), DONE)
OVERLOADED = answers(
    b'{"error":{"message":"The engine is currently overloaded, please try again later",'
    b'"type":"engine_overloaded_error"}}',
    429,
)


def code_of(client: Client) -> str:
    error: dict[str, Any] = msgspec.json.decode(client.body)["error"]
    code: str = error["code"]
    return code


def header(client: Client, line: bytes) -> bool:
    assert client.head is not None
    return line + b"\r\n" in client.head.headers


def replayed(client: Client) -> bool:
    return header(client, b"Idempotent-Replayed: true")


def data_of(body: bytes) -> list[bytes]:
    """What the events say, `id:` lines left out."""
    return [event.data for event in split(body) if event.data]


SAID = data_of(b"".join(STREAM))


class Gate:
    """An act that goes on piece by piece, when it is told to."""

    def __init__(self, *pieces: bytes, plain: bool = False, fault: Fault | None = None) -> None:
        self.pieces = pieces
        self.plain = plain
        self.fault = fault
        self.go = asyncio.Semaphore(0)

    async def __call__(self, play: Play) -> Ended:
        play.sink.open(play)
        play.sink.head(200, JSON if self.plain else SSE)
        cut = asyncio.create_task(play.until_cut())
        for piece in self.pieces:
            step = asyncio.create_task(self.go.acquire())
            await asyncio.wait((cut, step), return_when=asyncio.FIRST_COMPLETED)
            if cut.done():
                step.cancel()
                return cut.result()
            play.sink.data(piece)
        cut.cancel()
        return Ended(Reach.HEAD, self.fault, Phase.IDLE)

    async def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.go.release()
            await asyncio.sleep(0.001)


async def ask(house: House, client: Client | None = None, **asked: Any) -> Client:
    client = client or Client()
    await house.gateway.handle(house.call(**asked), client)
    return client


def story(folder: Path, acts: list[Act], told: Callable[[House], Any], **more: Any) -> None:
    """Play a story in a house with one upstream; at rest when it ends."""

    async def whole() -> None:
        house = House(folder, {"alpha": acts}, **more)
        await told(house)
        house.at_rest()

    played(whole)


def plays(house: House) -> int:
    return len(house.upstreams["alpha"].plays)
