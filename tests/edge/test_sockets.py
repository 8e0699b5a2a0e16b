"""What the kernel tells about one socket."""

import asyncio

from moongate.edge.sockets import untaken
from tests.edge.test_server import GET, LOOPS
from tests.edge.toy import run, serving, settle


@LOOPS
def test_bytes_that_the_peer_has_not_taken_are_seen(loop: str) -> None:
    async def main() -> None:
        async with serving() as stage:
            client = await stage.client(SO_RCVBUF=8192)
            await client.send(GET)
            await client.until(b"GET /a")
            transport = stage.connection._transport
            await settle(lambda: untaken(transport) == 0)
            transport.write(bytes(200_000))
            await settle(lambda: untaken(transport) > 0)
            await asyncio.sleep(0.05)
            before = untaken(transport) + transport.get_write_buffer_size()
            await client.more(100_000)
            await settle(lambda: untaken(transport) + transport.get_write_buffer_size() < before)
            await client.more(99_990)
            await settle(lambda: untaken(transport) == 0)

    run(main(), loop)
