"""FAULTS rows 8 to 10: name servers that fail, hosts that move, and one dead address of two.

They run at the socket border: the simulator's name server answers real questions over UDP, but it is the test's own
resolver that asks (`resolver.py`), for the system's cannot be pointed elsewhere without a mount namespace.
"""

import asyncio
import gc
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from moongate.core.faults import Fault, Reach
from moongate.core.names import PAUSE, Address
from moongate.sim.dns import NameServer, serve_names
from moongate.upstream.http1 import Http1
from moongate.upstream.names import Names, system_lookup
from moongate.upstream.origin import Origin
from moongate.upstream.transport import Phase
from tests.upstream.client import Kept, failed, outbound, send, until
from tests.upstream.conftest import Run
from tests.upstream.raw import Peer, RawServer, serving
from tests.upstream.resolver import resolver

HOST = "api.kimi.test"
FIRST, SECOND = "127.0.0.1", "127.0.0.2"


class Net:
    """A name server, what asks it, and a pool that dials what it says.

    `ahead` moves the clock of `names` alone; a lookup goes on when `held` is done.
    """

    def __init__(self, server: NameServer, port: int, ttl: float, idle: int) -> None:
        self.server = server
        self.looked_up: list[str] = []
        self.ahead = 0.0
        self.held: asyncio.Future[None] | None = None
        self._ask = resolver(server.port)
        self.names = Names(lambda: time.monotonic() + self.ahead, ttl, 3600.0, self._lookup)
        origin = Origin(HOST, port, tls=False, max_idle=idle)
        self.pool = Http1(origin, time.monotonic, self.names)

    async def _lookup(self, host: str) -> list[Address]:
        self.looked_up.append(host)
        if self.held is not None:
            await self.held
        return await self._ask(host)

    def declare(self, *addresses: str, mode: str = "answer") -> None:
        self.server.declare({HOST: {"addresses": list(addresses), "mode": mode}})

    async def answered(self) -> None:
        """A call on a connection of its own goes well."""
        ended, _ = await send(self.pool)
        assert ended.fault is None, ended


@asynccontextmanager
async def net(port: int, *addresses: str, ttl: float = 30.0, idle: int = 0) -> AsyncIterator[Net]:
    """A host of these addresses. `idle` connections are kept for the next call: else each call dials."""
    server = await serve_names("127.0.0.1", 0, {HOST: list(addresses)})
    world = Net(server, port, ttl, idle)
    try:
        yield world
        assert world.pool.in_use == world.pool.waiting == 0
    finally:
        await world.pool.close()
        await world.names.close()
        server.close()


@contextmanager
def deaf(host: str, port: int = 0) -> Iterator[int]:
    """A port that drops every SYN: its backlog is full."""
    with socket.socket() as listening:
        listening.bind((host, port))
        listening.listen(0)
        port = listening.getsockname()[1]
        waiting = [socket.socket() for _ in range(3)]
        try:
            for each in waiting:
                each.setblocking(False)
                each.connect_ex((host, port))
            yield port
        finally:
            for each in waiting:
                each.close()


# row 8


@pytest.mark.parametrize("mode", ["nxdomain", "servfail", "refused", "silent"])
def test_the_last_good_address_is_used_for_an_hour(run: Run, mode: str) -> None:
    async def main() -> None:
        async with RawServer(serving) as server, net(server.port, FIRST) as world:
            await world.answered()
            world.declare(mode=mode)
            world.ahead = 31.0
            await world.answered()
            assert (world.pool.place.stale, len(world.looked_up)) == (1, 2)
            await until(lambda: not world.names.is_asking)
            await world.answered()  # nobody waits for a server that has just failed
            assert (world.pool.place.stale, len(world.looked_up)) == (2, 2)
            world.ahead = 30.0 + 3600.0 + 1
            ended, _ = await send(world.pool)
            failed(ended, Fault.KIMI_NETWORK_UNREACHABLE)
            assert (ended.reach, ended.detail[:4]) == (Reach.NOTHING_SENT, "dns:")
            world.declare(FIRST)
            world.ahead += PAUSE
            await world.answered()

    run(main())


def test_a_lookup_that_hangs_costs_less_than_the_time_to_connect(run: Run) -> None:
    async def main() -> None:
        async with RawServer(serving) as server, net(server.port, FIRST) as world:
            await world.answered()
            world.held = asyncio.get_running_loop().create_future()
            world.ahead = 31.0
            await world.answered()
            assert (world.pool.place.stale, len(world.looked_up)) == (1, 2)
            world.held.set_result(None)

    run(main())


def test_an_answer_ends_the_need(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with RawServer(serving) as server, net(server.port, FIRST) as world:
            await world.answered()
            world.declare(mode="servfail")
            world.ahead = 31.0
            await world.answered()
            world.declare(FIRST)
            world.ahead += PAUSE
            await world.answered()  # does not wait, but asks
            await until(lambda: not world.names.is_asking)
            await world.answered()
            assert (world.pool.place.stale, len(world.looked_up)) == (2, 3)

    with caplog.at_level("INFO", "moongate.names"):
        run(main())
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert HOST in caplog.text


def test_a_name_server_that_is_silent_from_the_start_costs_the_connect_time(run: Run) -> None:
    async def main() -> None:
        async with net(9, FIRST) as world:
            world.declare(mode="silent")
            ended, _ = await send(world.pool, outbound(phases={"connect": 0.1}))
            failed(ended, Fault.KIMI_NETWORK_TIMEOUT)
            assert (ended.phase, ended.reach) == (Phase.CONNECT, Reach.NOTHING_SENT)

    run(main())


def test_a_crowd_asks_once_and_warm_connections_never(run: Run) -> None:
    async def main() -> None:
        async with RawServer(serving) as server, net(server.port, FIRST, idle=50) as world:
            await asyncio.gather(*(world.answered() for _ in range(20)))
            for _ in range(20):
                await world.answered()
            assert world.looked_up == [HOST]

    run(main())


def test_whoever_stops_waiting_leaves_the_lookup_to_the_others(run: Run) -> None:
    async def main() -> None:
        async with RawServer(serving) as server, net(server.port, FIRST) as world:
            world.held = asyncio.get_running_loop().create_future()
            impatient = asyncio.create_task(send(world.pool))
            patient = asyncio.create_task(world.answered())
            await until(lambda: bool(world.looked_up))
            impatient.cancel()
            with pytest.raises(asyncio.CancelledError):
                await impatient
            world.held.set_result(None)
            await patient
            assert world.looked_up == [HOST]

    run(main())


# row 9


async def _whole_or_held(peer: Peer) -> None:
    """Answer at once, but a body that says `slow` only when it is told to."""
    while True:
        _, body = await peer.request()
        if body == b"slow":
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfi")
            await RELEASE[-1].wait()
            await peer.send(b"ne")
        else:
            await peer.answer()


RELEASE: list[asyncio.Event] = []


def test_new_connections_follow_and_old_ones_drain(run: Run) -> None:
    async def main() -> None:
        RELEASE.append(asyncio.Event())
        async with (
            RawServer(_whole_or_held) as old,
            RawServer(_whole_or_held, host=SECOND, port=old.port) as new,
            net(old.port, FIRST, ttl=0.2, idle=8) as world,
        ):
            under_way = Kept()
            slow = asyncio.create_task(send(world.pool, outbound(b"slow"), under_way))
            await until(lambda: under_way.status == 200)
            await world.answered()
            assert (old.opened, world.pool.idle) == (2, 1)
            world.declare(SECOND)
            await until(lambda: world.pool.idle == 0)  # by itself: nobody dials meanwhile
            await world.answered()
            assert (old.opened, new.opened, world.pool.idle) == (2, 1, 1)
            RELEASE[-1].set()
            ended, kept = await slow
            assert (ended.fault, kept.body) == (None, b"fine")
            assert world.pool.idle == 1
            await world.answered()
            assert (old.opened, new.opened) == (2, 1)
            assert world.pool.place.changes == 1

    run(main())


# row 10


def test_a_dead_address_costs_a_quarter_of_a_second_and_only_once(run: Run) -> None:
    async def main() -> None:
        async with RawServer(serving, host=SECOND) as server, net(server.port, FIRST, SECOND) as world:
            with deaf(FIRST, server.port):
                began = time.monotonic()
                await world.answered()
                assert time.monotonic() - began > 0.24
                assert world.pool.place.races == 1
                await world.answered()
                assert world.pool.place.races == 1  # the one that answered is tried first from now on
        gc.collect()  # an open socket would warn, and warnings are errors

    run(main())


def test_an_address_that_refuses_is_passed_over(run: Run) -> None:
    async def main() -> None:
        async with RawServer(serving, host=SECOND) as server, net(server.port, FIRST, SECOND) as world:
            await world.answered()
            assert world.pool.place.races == 1

    run(main())


def test_when_all_addresses_fail_the_last_word_counts(run: Run) -> None:
    async def main() -> None:
        async with RawServer(serving) as server:
            port = server.port
        async with net(port, FIRST, SECOND) as world:
            ended, _ = await send(world.pool)
            failed(ended, Fault.KIMI_NETWORK_UNREACHABLE)
            assert SECOND in ended.detail

    run(main())


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_cancelling_a_race_closes_every_runner(run: Run) -> None:
    async def main() -> None:
        with deaf(FIRST) as port, deaf(SECOND, port):
            async with net(port, FIRST, SECOND) as world:
                await world.pool.place.addresses()
                before = descriptors()
                for seconds in (0.0, 0.1, 0.4):
                    task = asyncio.create_task(world.pool.exchange(outbound(), Kept()))
                    await asyncio.sleep(seconds)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                    await until(lambda: world.pool.in_use == 0)
                    await until(lambda: descriptors() == before)

    run(main())


# the system's own resolver


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_ip_address_is_never_looked_up(host: str) -> None:
    async def never(host: str) -> list[Address]:
        raise AssertionError(host)

    async def main() -> None:
        names = Names(time.monotonic, lookup=never)
        place = names.place(host)
        assert await place.addresses() == [Address(host)]
        assert not place.tend()
        assert place.is_current(host)
        await names.close()

    asyncio.run(main())


def test_the_systems_resolver_knows_this_machine(run: Run) -> None:
    async def main() -> None:
        assert {one.text for one in await system_lookup("localhost")} <= {"127.0.0.1", "::1"}

    run(main())


def test_a_lookup_that_nobody_waits_for_any_more_ends_with_the_rest(run: Run) -> None:
    async def main() -> None:
        hung = asyncio.Event()

        async def silence(_: str) -> list[Address]:
            await hung.wait()
            return []

        names = Names(time.monotonic, lookup=silence)
        waiting: asyncio.Task[list[Address]] = asyncio.create_task(names.place(HOST).addresses())
        await until(lambda: names.is_asking)
        await names.close()
        with pytest.raises(OSError, match="given up"):
            await waiting

    run(main())
