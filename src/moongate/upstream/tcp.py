"""A TCP connection to a host: its addresses race (RFC 8305), so that a dead one costs a quarter of a second."""

import asyncio
import socket

from moongate.core.names import Address
from moongate.core.race import Race
from moongate.upstream.names import Place


async def connect(place: Place, port: int) -> socket.socket:
    """A TCP connection to whichever of a place's addresses answers first; the others are closed.

    Raises what the lookup raised, or the last address's OSError when all failed.
    """
    addresses = await place.addresses()
    if len(addresses) > 1:
        return await _race(place, addresses, port)
    return await _connect(addresses[0], port)


async def _race(place: Place, addresses: list[Address], port: int) -> socket.socket:
    race = Race(len(addresses))
    running: dict[asyncio.Task[socket.socket], int] = {}
    ended: set[asyncio.Task[socket.socket]] = set()
    winner: asyncio.Task[socket.socket] | None = None
    try:
        while winner is None:
            if (joins := race.due(place.clock())) is not None:
                task = asyncio.get_running_loop().create_task(_connect(addresses[joins], port))
                running[task] = joins
            ended, _ = await asyncio.wait(
                running, timeout=race.wait(place.clock()), return_when=asyncio.FIRST_COMPLETED
            )
            for task in sorted(ended, key=running.__getitem__):
                if task.exception() is None:
                    winner = winner or task
                    continue
                place.met(addresses[running.pop(task)], well=False)
                race.failed()
                if race.is_lost:
                    task.result()
        _judge(place, addresses, running[winner])
        return winner.result()
    finally:
        for task in running:
            if task is not winner:
                task.add_done_callback(_close_late)
                task.cancel()


def _judge(place: Place, addresses: list[Address], won: int) -> None:
    """Remember who was overtaken, so that the next dial does not wait for it again."""
    place.met(addresses[won], well=True)
    for overtaken in addresses[:won]:
        place.met(overtaken, well=False)
    place.races += won > 0


def _close_late(loser: "asyncio.Task[socket.socket]") -> None:
    """Close what got through in the same moment as the winner, or as the whole race was cancelled."""
    if not loser.cancelled() and loser.exception() is None:
        loser.result().close()


async def _connect(address: Address, port: int) -> socket.socket:
    family = socket.AF_INET6 if address.is_six else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _keep_alive(sock)
        at = (address.text, port, 0, address.scope) if address.is_six else (address.text, port)
        await asyncio.get_running_loop().sock_connect(sock, at)
    except BaseException:
        sock.close()
        raise
    return sock


def _keep_alive(sock: socket.socket) -> None:
    """Notice a peer that vanished within about a minute, even when nothing is to be sent."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        number = getattr(socket, option, None)
        if number is not None:
            sock.setsockopt(socket.IPPROTO_TCP, number, value)
