"""A client that leaves just after a whole answer may not have got it: the API is told, once, and for no longer."""

import pytest

from moongate.core.heads import RequestHead
from moongate.flow.downstream import Downstream
from tests.edge.test_server import CLOSE, GET, LOOPS, post
from tests.edge.toy import Stage, echo, run, serving, settle


async def doubted(head: RequestHead, body: bytes, down: Downstream) -> None:
    await echo(head, body, down)
    down.answered = head.path


async def asked(stage: Stage, request: bytes = GET) -> None:
    """One answer that its client has, and then leaves."""
    client = await stage.client()
    await client.send(request)
    await client.until(b"HTTP/1.1 200")
    client.leave()
    await settle(lambda: not stage.server.connections)


@LOOPS
def test_whoever_leaves_at_once_may_lack_something(loop: str) -> None:
    async def main() -> None:
        async with serving(doubted) as stage:
            await asked(stage)
            assert stage.api.forsook == ["/a"]

    run(main(), loop)


@LOOPS
def test_whoever_asks_again_has_it(loop: str) -> None:
    async def main() -> None:
        async with serving(doubted) as stage:
            client = await stage.client()
            for number in range(1, 4):
                await client.send(GET)
                await client.until(b"HTTP/1.1 200", number)
            assert stage.api.forsook == []
            client.leave()
            await settle(lambda: not stage.server.connections)
            assert stage.api.forsook == ["/a"]

    run(main(), loop)


@LOOPS
@pytest.mark.parametrize(("seconds", "told"), [(0.4, True), (3.0, False)])
def test_whoever_stays_a_while_has_it(loop: str, seconds: float, told: bool) -> None:
    async def main() -> None:
        async with serving(doubted) as stage:
            client = await stage.client()
            await client.send(GET)
            await client.until(b"HTTP/1.1 200")
            await settle(lambda: stage.server._shared.active == 0)
            stage.pass_time(seconds)
            client.leave()
            await settle(lambda: not stage.server.connections)
            assert bool(stage.api.forsook) is told

    run(main(), loop)


@LOOPS
def test_nobody_is_told_of_what_is_nobodys_loss(loop: str) -> None:
    """An end that was agreed on, a request too large to hold on to, an answer that nobody marked."""

    async def main() -> None:
        async with serving(doubted) as stage:
            await stage.ask(GET[:-2] + CLOSE)
            await asked(stage, post(b"x" * (1024 * 1024 + 1)))
            stage.api.answer = echo
            await asked(stage)
            assert stage.api.forsook == []

    run(main(), loop)
