"""More clients than there may be, and more than there are descriptors for."""

import asyncio
import os
import resource
import socket
from contextlib import suppress
from pathlib import Path

from moongate.core.faults import Fault
from tests.edge.test_server import GET, LOOPS
from tests.edge.toy import run, serving, settle, statuses


@LOOPS
def test_too_many_connections_are_answered_503_and_closed(loop: str) -> None:
    async def main() -> None:
        async with serving(connections=2) as stage:
            first, second = await stage.client(), await stage.client()
            await settle(lambda: stage.server.connections == 2)
            third = await stage.client()
            assert statuses(await third.rest()) == [503]
            assert b"gateway_overloaded" in third.got
            assert stage.server.refused == {Fault.GATEWAY_OVERLOADED: 1}
            for client in (first, second):
                await client.send(GET)
                await client.until(b"GET /a")
            first.leave()
            await settle(lambda: stage.server.connections == 1)
            await (fourth := await stage.client()).send(GET)
            await fourth.until(b"GET /a")

    run(main(), loop)


@LOOPS
def test_without_descriptors_new_clients_are_told_and_nothing_spins(loop: str) -> None:
    highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())

    async def main() -> None:
        async with serving() as stage:
            await (old := await stage.client()).send(GET)
            await old.until(b"GET /a")
            sock = socket.socket()
            sock.setblocking(False)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            eaten = []
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 100, hard))
            try:
                with suppress(OSError):
                    while True:
                        eaten.append(os.open(os.devnull, os.O_RDONLY))
                await asyncio.get_running_loop().sock_connect(sock, stage.listener.getsockname())
                answer = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sock, 65536), 5)
                assert statuses(answer) == [503]
                await old.send(GET)
                await old.until(b"GET /a", 2)
            finally:
                for descriptor in eaten:
                    os.close(descriptor)
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                sock.close()
            await (new := await stage.client()).send(GET)
            await new.until(b"GET /a")

    run(main(), loop)
