"""The control document: what operators change while the gateway runs. Frozen; a change makes a new one.

`store/control` keeps it, the supervisor tells it to the workers as JSON, and the edge asks it whose key came in.
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import Final

import msgspec

KEY_PREFIX: Final = "mg_"
DEMO_PREFIX: Final = "mg_demo-"
"""What a demo key begins with, so that nobody takes it for a real one."""


def digest_of(key: str) -> str:
    """The SHA-256 of a key in hex: all that is kept of it. A key has 256 random bits, so no salt is needed."""
    return sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


class KeyEntry(msgspec.Struct, frozen=True):
    """What is known of one key. Times are seconds since 1970; `routes` None: every route.

    A `demo` key opens the door to callers on this machine's loopback only.
    """

    id: str
    tenant: str
    label: str
    routes: tuple[str, ...] | None
    created: float
    revoked: float | None = None
    demo: bool = False


class Parked(msgspec.Struct, frozen=True):
    """Why and since when (seconds since 1970) something is set aside until an operator looks."""

    since: float
    reason: str


class Control(msgspec.Struct, frozen=True):
    """The whole document. `version` grows by one with every change; 0 is the empty one.

    `keys` by the hex SHA-256 of the key; `parked` by account, or by `account/model`; `switches` by name.
    """

    version: int = 0
    keys: Mapping[str, KeyEntry] = {}
    parked: Mapping[str, Parked] = {}
    switches: Mapping[str, str] = {}

    def find(self, key: str, *, loopback: bool) -> KeyEntry | None:
        """Whose key this is; None if it is unknown, revoked, or a demo key used from elsewhere.

        `loopback`: listener and peer are both on this machine's loopback.
        """
        entry = self.keys.get(digest_of(key))
        if entry is None or entry.revoked is not None or (entry.demo and not loopback):
            return None
        return entry

    def to_json(self) -> bytes:
        """The document for a worker; it holds digests, never keys."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_json(document: bytes) -> "Control":
        """The document that `to_json` wrote."""
        return msgspec.json.decode(document, type=Control)
