"""The addresses behind host names: looked up off the path of calls, kept, and used on when no name server answers.

`core/names` decides; here is who asks. One lookup runs for a name at a time, whoever waits for it. It is the system's
own resolver that is asked (getaddrinfo(3): hosts file, search domains and all), which does not tell a TTL, so an
answer counts for as long as the settings say. See docs/decisions/014.
"""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address
from typing import Final

from moongate.core.names import Address, Known, Name

LOOKUP_SECONDS: Final = 1.0
"""How long a dial waits for a lookup when it could fall back on the last good addresses: half its own time-out."""

Lookup = Callable[[str], Awaitable[Sequence[Address]]]
"""The addresses of a host, at least one. Raises OSError or UnicodeError."""

_log: Final = logging.getLogger("moongate.names")


async def system_lookup(host: str) -> list[Address]:
    """Ask the system's resolver, in a thread of the loop's."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [Address(str(at[0]), int(at[3]) if len(at) > 3 else 0) for *_, at in found]


class Names:
    """All names that one process dials. `clock` gives monotonic seconds."""

    def __init__(
        self,
        clock: Callable[[], float],
        ttl: float = 30.0,
        stale: float = 3600.0,
        lookup: Lookup = system_lookup,
    ) -> None:
        self._clock = clock
        self._ttl = ttl
        self._stale = stale
        self._lookup = lookup
        self._names: dict[str, Name] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    def place(self, host: str) -> "Place":
        """A host as one target sees it. An IP address is its own answer for ever."""
        name = self._names.get(host)
        if name is None:
            name = self._names[host] = Name(float("inf") if _is_numeric(host) else self._ttl, self._stale)
            if _is_numeric(host):
                name.answered([Address(host)], self._clock())
        return Place(host, name, self._clock, self._ask)

    @property
    def is_asking(self) -> bool:
        """Whether a lookup runs."""
        return bool(self._asking)

    async def close(self) -> None:
        """Wait for no answer any more."""
        for task in self._asking.values():
            task.cancel()
        if self._asking:
            await asyncio.wait(list(self._asking.values()))

    def _ask(self, host: str) -> asyncio.Task[None] | None:
        """The lookup of this name that runs, or a new one; None while the last failure is too fresh."""
        task = self._asking.get(host)
        if task is None and self._names[host].is_due(self._clock()):
            task = self._asking[host] = asyncio.get_running_loop().create_task(self._look_up(host))
            task.add_done_callback(lambda _: self._asking.pop(host))
        return task

    async def _look_up(self, host: str) -> None:
        name = self._names[host]
        try:
            addresses = await self._lookup(host)
        except (OSError, UnicodeError) as error:
            if name.error is None and name.addresses:
                _log.warning("dns: no answer for %s (%s); going on with the last good one", host, error)
            name.failed(error, self._clock())
            return
        was_ill = name.error is not None and name.addresses
        if name.answered(addresses, self._clock()):
            found = ", ".join(one.text for one in name.addresses)
            _log.info("dns: %s is now at %s", host, found)
        elif was_ill:
            _log.info("dns: %s is answered for again", host)


class Place:
    """One host as one target sees it.

    For metrics: `stale` dials, which fell back on the last good answer, `races` that the first address lost, and
    `refused` handshakes by their reason.
    """

    def __init__(
        self,
        host: str,
        name: Name,
        clock: Callable[[], float],
        ask: Callable[[str], "asyncio.Task[None] | None"],
    ) -> None:
        self.host = host
        self._name = name
        self.clock = clock
        self._ask = ask
        self._seen = name.current
        self.stale = 0
        self.races = 0
        self.refused: Counter[str] = Counter()

    async def addresses(self) -> list[Address]:
        """The addresses to dial now, in order. Raises what the lookup raised when there is nothing to fall back on."""
        name = self._name
        known = name.known(self.clock())
        if known is not Known.FRESH:
            await self._refresh(known)
            if name.known(self.clock()) is not Known.FRESH:
                self._fall_back()
        return name.order(self.clock())

    async def _refresh(self, known: Known) -> None:
        asking = self._ask(self.host)
        if asking is None or known is Known.STALE:
            return
        # a lookup is everybody's: whoever stops waiting for it leaves it running
        patience = LOOKUP_SECONDS if self._name.has_last_good(self.clock()) else None
        await asyncio.wait((asking,), timeout=patience)

    def _fall_back(self) -> None:
        if self._name.has_last_good(self.clock()):
            self.stale += 1
        else:
            raise (self._name.error or OSError("the lookup was given up")).with_traceback(None)

    def met(self, address: Address, *, well: bool) -> None:
        """Take how a connection attempt to an address went."""
        self._name.met(address, self.clock(), well=well)

    @property
    def changes(self) -> int:
        """How often the host was found at other addresses."""
        return self._name.changes

    def tend(self) -> bool:
        """Look up again in time, so that even who never dials learns of a change; True if `is_current` changed.

        Called every few dozen milliseconds while there are connections.
        """
        if self._name.is_due(self.clock()):
            self._ask(self.host)
        if self._name.current is self._seen:
            return False
        self._seen = self._name.current
        return True

    def is_current(self, text: str) -> bool:
        """Whether connections to this address may be kept."""
        return text in self._seen


def _is_numeric(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
