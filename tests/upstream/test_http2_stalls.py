"""How HTTP/2 fares with peers and readers that stall, refuse to take more, or vanish (FAULTS rows 48 to 50)."""

import asyncio
import ctypes
import socket
import struct
import subprocess
import sys
import time

from moongate.core.faults import Fault, Reach
from moongate.upstream.transport import Phase
from tests.upstream.client import Kept, failed, outbound, pool2, send, until
from tests.upstream.conftest import Run
from tests.upstream.raw2 import RawServer2, Stream, answering

SO_ATTACH_FILTER = 26  # <asm/socket.h>


def test_an_upload_that_stalls_harms_no_other(run: Run) -> None:
    """FAULTS row 48: a peer that gives no window."""

    async def script(stream: Stream) -> None:
        if any(value == b"5" for name, value in stream.headers if name == b"content-length"):
            await answering(stream)
        else:
            await stream.left()

    async def main() -> None:
        async with RawServer2(script, window=65_535, gives=False) as server, pool2(server.port) as transport:
            task = asyncio.create_task(send(transport, outbound(b"x" * 500_000, phases={"write": 0.5})))
            await asyncio.sleep(0.1)
            assert (await send(transport, outbound(b"small")))[0].fault is None
            ended, _ = await task
            failed(ended, Fault.KIMI_NETWORK_TIMEOUT)
            assert (ended.phase, ended.reach, server.opened) == (Phase.WRITE, Reach.PARTLY_SENT, 1)

    run(main())


def test_a_download_that_stalls_harms_no_other(run: Run) -> None:
    async def script(stream: Stream) -> None:
        what = await stream.request()
        await stream.head()
        await stream.piece(b"x" * (3_000_000 if what == b"much" else 10))
        if what == b"silent":
            await stream.left()
        else:
            await stream.end()

    async def main() -> None:
        async with RawServer2(script) as server, pool2(server.port) as transport:
            paused = Kept(lambda sink, _: sink.held.pause())
            slow = asyncio.create_task(transport.exchange(outbound(b"much"), paused))
            silent = asyncio.create_task(
                send(
                    transport,
                    outbound(b"silent", phases={"idle": 0.3}),
                    Kept(lambda sink, _: sink.held.beat()),
                )
            )
            await until(lambda: bool(paused.pieces))
            for _ in range(10):
                ended, sink = await send(transport, outbound(b"little"))
                assert (ended.fault, sink.body) == (None, b"x" * 10)
            failed((await silent)[0], Fault.KIMI_NETWORK_TIMEOUT)
            paused.on_data = None
            paused.held.resume()
            assert (await slow).fault is None
            assert (len(paused.body), server.opened) == (3_000_000, 1)

    run(main())


def test_more_exchanges_than_the_peer_takes_at_once(run: Run) -> None:
    """FAULTS row 49."""

    async def script(stream: Stream) -> None:
        await stream.request()
        await stream.head()
        await asyncio.sleep(0.01)
        await stream.end()

    async def main() -> None:
        async with RawServer2(script, streams=1) as server, pool2(server.port) as transport:
            await send(transport)
            results = await asyncio.gather(*(send(transport) for _ in range(8)))
            assert [ended.fault for ended, _ in results] == [None] * 8
            assert server.opened <= 8

    run(main())


def test_a_peer_that_has_vanished(run: Run) -> None:
    """FAULTS row 50: from now on the peer's kernel drops whatever comes, and says nothing."""
    drop_all = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0), 8)  # BPF: keep 0 bytes of it

    async def script(stream: Stream) -> None:
        await stream.request()
        await stream.head()
        await stream.piece(b"x")
        await asyncio.sleep(0.05)
        program = struct.pack("@HP", 1, ctypes.addressof(drop_all))
        stream.link.sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
        await stream.left()

    async def main() -> None:
        async with RawServer2(script) as server, pool2(server.port, silent_seconds=2) as transport:
            began = time.monotonic()
            ended, _ = await send(transport)
            failed(ended, Fault.KIMI_STREAM_TRUNCATED)
            assert 1 < time.monotonic() - began < 8

    run(main())


PAUSED_READERS = """
import asyncio, resource, sys, time
from tests.upstream.client import Kept, outbound, pool2

async def main():
    async with pool2(int(sys.argv[1])) as transport:
        await transport.exchange(outbound(b"little"), Kept())
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        sinks = [Kept(lambda sink, _: sink.held.pause()) for _ in range(50)]
        tasks = [asyncio.create_task(transport.exchange(outbound(b"much", seconds=60), sink)) for sink in sinks]
        await asyncio.sleep(4)
        assert all(sink.pieces for sink in sinks)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

asyncio.run(main())
"""


def test_fifty_paused_readers_hold_little(run: Run) -> None:
    """In a process of its own, so that the server's memory does not count."""
    grown = 0

    async def script(stream: Stream) -> None:
        if await stream.request() == b"little":
            await stream.head()
            await stream.end()
            return
        await stream.head()
        for _ in range(1000):
            await stream.piece(b"x" * 65_536)

    async def main() -> None:
        nonlocal grown
        async with RawServer2(script) as server:
            reader = await asyncio.create_subprocess_exec(
                sys.executable, "-c", PAUSED_READERS, str(server.port), stdout=subprocess.PIPE
            )
            out, _ = await reader.communicate()
            assert reader.returncode == 0
            grown = int(out)

    run(main())
    assert grown <= 64 * 1024  # KB
