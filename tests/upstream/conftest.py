"""The event loops that a transport must work on, and the authorities that vouch for the servers."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from tests.upstream.certificates import Authority
from tests.upstream.voice import Act, Http1Protocol, Http2Protocol, Play, Protocoled, Speech

Run = Callable[[Coroutine[object, object, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run one test on this loop; no task may be left, and nothing may have been reported to the loop."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def running(main: Coroutine[object, object, None]) -> None:
        complaints: list[dict[str, object]] = []

        async def checked() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
            await asyncio.wait_for(main, 20)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(checked())
        assert not complaints

    return running


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority that clients of these tests trust."""
    return Authority(tmp_path_factory.mktemp("trusted"), "moongate-test")


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """One that nobody told them of."""
    return Authority(tmp_path_factory.mktemp("untrusted"), "stranger")


@pytest.fixture(params=[Http1Protocol(), Http2Protocol()], ids=["http1", "http2"])
def protocol(request: pytest.FixtureRequest) -> Protocoled:
    """Each protocol in turn."""
    given: Protocoled = request.param
    return given


@pytest.fixture
def play(run: Run, protocol: Protocoled) -> Play:
    """Run `act` against a server that serves each exchange with `speech`."""

    def played(speech: Speech, act: Act, **settings: Any) -> None:
        async def main() -> None:
            async with protocol.server(speech) as port, protocol.transport(port, **settings) as transport:
                await act(transport)

        run(main())

    return played
