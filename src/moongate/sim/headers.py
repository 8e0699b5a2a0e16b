"""Ids, and the headers that come with them (KIMI.md section 5).

All ids count up from the seed: the same requests in the same order get the same ids.
"""

from hashlib import blake2b
from typing import Final

from moongate.sim.accounts import Account
from moongate.sim.reply import Header

_EDGE: Final[tuple[Header, ...]] = (
    (b"Server", b"cloudflare"),
    (b"cf-cache-status", b"DYNAMIC"),
    (b"Vary", b"Origin"),
    (b"Strict-Transport-Security", b"max-age=31536000; includeSubDomains; preload"),
    (b"Server-Timing", b'cfCacheStatus;desc="DYNAMIC"'),
    (b"Msh-Trace-Mode", b"on"),
)


class Ids:
    """Every id of one process."""

    def __init__(self, seed: str) -> None:
        digest = blake2b(seed.encode(), digest_size=16).hexdigest()
        self._front = digest[:12]
        self._node = digest[12:24]
        self._numbers = 0
        self.fingerprint = "fpv0_" + digest[24:32]

    def next(self) -> int:
        """The next number."""
        self._numbers += 1
        return self._numbers

    def chat_id(self, number: int, hosted: bool = True) -> str:
        """The id of an answer: 24 hex digits on the platform, 32 elsewhere."""
        middle = "" if hosted else self._node[:8]
        return f"chatcmpl-{self._front}{middle}{number:012x}"

    def request_id(self, number: int) -> bytes:
        """A request id in the form of a UUID of version 1."""
        return b"%08x-%04x-11f0-8000-%b" % (number & 0xFFFFFFFF, number >> 32 & 0xFFFF, self._node.encode())

    def trace_id(self, number: int) -> bytes:
        """A trace id: 32 hex digits."""
        return b"%b%020x" % (self._front.encode(), number)


def platform_headers(ids: Ids, account: Account | None, saved: int) -> list[Header]:
    """What the hosted platform sends: ids, its edge's headers, and once a key is known the account's names.

    `saved` are the prompt tokens read from the cache; the header that tells them is there only on a hit.
    """
    number = ids.next()
    headers = [
        (b"Msh-Request-Id", ids.request_id(number)),
        (b"X-Msh-Trace-Id", ids.trace_id(number)),
        (b"CF-RAY", b"%016x-SIM" % number),
        (b"set-cookie", b"__cf_bm=%016x; path=/; HttpOnly; Secure" % number),
        *_EDGE,
    ]
    if account is not None:
        name = account.id.encode()
        headers += [
            (b"Msh-Org-Id", name),
            (b"Msh-Project-Id", b"proj-" + name),
            (b"Msh-Uid", b"uid-" + name),
            (b"Msh-Gid", account.tier_name.encode()),
        ]
    if saved:
        headers.append((b"Msh-Context-Cache-Token-Saved", b"%d" % saved))
    return headers
