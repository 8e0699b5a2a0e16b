"""One parsed request in our hands, and the plain values that travel with it."""

from dataclasses import dataclass

import msgspec

from moongate.core.body import RawBody


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens of one exchange. `input` includes `cached`; `output` includes `reasoning` (KIMI.md section 4)."""

    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0
    cache_write: int = 0

    def plus(self, other: "Usage") -> "Usage":
        """Both together, kind by kind."""
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cached + other.cached,
            self.reasoning + other.reasoning,
            self.cache_write + other.cache_write,
        )


@dataclass(frozen=True, slots=True)
class Principal:
    """Whose credential it is: the key's id (never the key), the tenant who pays, the routes it may use.

    `loopback_only`: a demo key, which opens the door to callers on this machine alone.
    """

    key_id: str
    tenant: str
    routes: frozenset[str] | None = None  # None: every route
    loopback_only: bool = False


class Call(msgspec.Struct, gc=False):
    """One authenticated request after `edge/api`: nobody behind it touches headers or raw JSON again.

    `deadline` and `arrived` are monotonic seconds; `created` is wall-clock seconds.
    `retry_count` is how many tries went before by an SDK's word, -1 where the client says nothing of it.
    `session` is the client's conversation id, empty if it gave none; `user` likewise.
    """

    call_id: str
    request_id: str
    principal: Principal
    user: str
    session: str
    route: str
    model: str
    body: RawBody
    stream: bool
    include_usage: bool
    arrived: float
    created: float
    deadline: float
    idempotency_key: str = ""
    retry_count: int = -1
    last_event_id: str = ""
    may_resume: bool = True
    peer: str = ""
