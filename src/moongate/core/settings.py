"""The settings tree: a frozen snapshot of everything an operator may set, complete without any file.

Only reading a file (`core/reading`) needs pydantic and YAML. A worker gets the checked snapshot as JSON
from the supervisor and decodes it here. What is named neither here nor in `core/later` does not exist: it
is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

import msgspec

from moongate.core.addresses import Address, Base, Listening, Network, Url
from moongate.core.kinds import Bytes, Note, OneOf, Seconds, Switch, Text, Whole
from moongate.core.models import NEVER_RETIRED
from moongate.core.secret import Referred, Secret
from moongate.core.section import CURRENCY, NAME, PATH, Price, Section
from moongate.core.settings_kept import Idempotency, Ledger, Log

_HEADER = Text(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", "write a header name such as X-Request-Id", "header name")
_DATA: Final = Address("127.0.0.1", 8080)
_ADMIN: Final = Address("127.0.0.1", 8081)


@dataclass(frozen=True, slots=True)
class Admin(Section):
    """The admin listener: metrics and, later, the console. Not part of the data plane."""

    listen: Annotated[Address, Listening(), Note("Where `/metrics` and the admin API answer.")] = _ADMIN


@dataclass(frozen=True, slots=True)
class Edge(Section):
    """What the data plane takes from callers, and how long it waits for them."""

    header_field_bytes: Annotated[
        int, Bytes(256), Note("Longest single header line; beyond it 431 `header_too_large`.")
    ] = 16384
    header_bytes: Annotated[
        int, Bytes(1024), Note("All header lines together; more is 431 `header_too_large`.")
    ] = 65536
    body_bytes: Annotated[
        int,
        Bytes(1024),
        Note("Longest body, counted while reading and again after gzip; more is 413 `payload_too_large`."),
    ] = 32 * 1024**2
    held_bytes: Annotated[
        int,
        Bytes(1024),
        Note(
            "Request bodies and whole answers held by a worker; past it calls get 503 `gateway_overloaded`."
        ),
    ] = 256 * 1024**2
    header_seconds: Annotated[float, Seconds(), Note("Time for a request's headers to arrive, else 408.")] = (
        10.0
    )
    body_seconds: Annotated[
        float, Seconds(), Note("Longest pause while a body arrives, else 408 `slow_request`.")
    ] = 60.0
    keep_alive_seconds: Annotated[float, Seconds(), Note("How long an idle connection is kept open.")] = 75.0
    slow_client_seconds: Annotated[
        float,
        Seconds(),
        Note("A caller that takes no byte for so long while data waits is ended as `slow_client`."),
    ] = 30.0
    high_water_bytes: Annotated[
        int,
        Bytes(1024),
        Note("Bytes waiting for one caller above which the upstream is no longer read for its sake."),
    ] = 65536
    connections: Annotated[
        int, Whole(1), Note("Open connections in one worker; more are closed at once.")
    ] = 20000
    trusted: Annotated[
        tuple[Annotated[str, Network()], ...],
        Note("Peers whose `X-Real-IP` and `X-User-Id` count: networks, or `unix` for Unix sockets."),
    ] = ()


@dataclass(frozen=True, slots=True)
class Drain(Section):
    """How the gateway stops."""

    grace_seconds: Annotated[
        float,
        Seconds(zero=True),
        Note("After SIGTERM, how long live calls may go on before they are ended honestly."),
    ] = 30.0


@dataclass(frozen=True, slots=True)
class Target(Section):
    """One provider endpoint with its credential."""

    url: Annotated[
        Url,
        Base(),
        Note("Base of the OpenAI-compatible API, version included; `/chat/completions` follows it."),
    ]
    key: Annotated[
        Secret | None,
        Referred(),
        Note("The credential sent as `Authorization: Bearer`; without one none is sent."),
    ] = None
    dialect: Annotated[
        Literal["moonshot", "vllm", "sglang", "generic"],
        OneOf(("moonshot", "vllm", "sglang", "generic")),
        Note(
            "How it deviates from the OpenAI format. Default: `moonshot` on Moonshot's hosts, else `generic`."
        ),
    ] = "generic"
    account: Annotated[
        str,
        NAME,
        Note("Whose limits and balance it uses; one organisation, one name. Default: the target's name."),
    ] = ""
    currency: Annotated[
        str,
        CURRENCY,
        Note("What its account is charged in. Default: CNY where the host ends in `.cn`, else USD."),
    ] = "USD"
    prices: Annotated[
        tuple[Price, ...], Note("Prices of this target. Where there are any, no others hold for it.")
    ] = ()
    prices_file: Annotated[
        str | None, PATH, Note("A YAML file whose `prices` go before those written here.")
    ] = None
    model: Annotated[
        str | None,
        NAME,
        Note("The model id this target knows, whatever the route asks for; null: the route's."),
    ] = None
    ca_file: Annotated[
        str | None, PATH, Note("PEM file of the authorities to trust instead of the system's; https only.")
    ] = None
    server_name: Annotated[
        str | None, NAME, Note("Name for SNI and certificate instead of the URL's host; https only.")
    ] = None
    connections: Annotated[
        int, Whole(1), Note("Open connections to this target in one worker; with HTTP/2: exchanges.")
    ] = 1024
    idle_connections: Annotated[int, Whole(0), Note("Of these, how many are kept open without a call.")] = 256
    idle_seconds: Annotated[float, Seconds(), Note("How long a connection is kept open without a call.")] = (
        60.0
    )
    protocol: Annotated[
        Literal["http1", "http2", "auto"],
        OneOf(("http1", "http2", "auto")),
        Note(
            "`http2` needs the extra `http2` and falls back where a peer does not choose it; over plain http it is"
            " spoken unasked. `auto`: `http2` over https where the extra is installed, else `http1`."
        ),
    ] = "http1"


@dataclass(frozen=True, slots=True)
class RouteTarget(Section):
    """One place a route may go. A target's bare name in the file means `{target: NAME}`."""

    target: Annotated[str, NAME, Note("Name of an entry of `targets`.")]
    model: Annotated[
        str,
        NAME,
        Note("Model id to ask this target for. Default: the target's own `model`, else the route's."),
    ] = ""
    weight: Annotated[
        int, Whole(1, 1_000_000), Note("Share of the traffic, relative to the route's other targets.")
    ] = 1


@dataclass(frozen=True, slots=True)
class Timeouts(Section):
    """Seconds allowed in each phase of an attempt. The head of a plain call may take the total."""

    preset: Annotated[
        Literal["default", "interactive"],
        OneOf(("default", "interactive")),
        Note("For what is not written: `interactive` is connect and tls 10, write 15, all reads 120."),
    ] = "default"
    connect: Annotated[float, Seconds(), Note("DNS and TCP.")] = 2.0
    tls: Annotated[float, Seconds(), Note("TLS handshake.")] = 3.0
    write: Annotated[float, Seconds(), Note("Longest pause while the request is sent.")] = 30.0
    head: Annotated[float, Seconds(), Note("From the request's last byte to the response's head.")] = 30.0
    first_event: Annotated[float, Seconds(), Note("From the head to the first data event of a stream.")] = (
        60.0
    )
    idle: Annotated[float, Seconds(), Note("Between two data events of a stream; comments do not count.")] = (
        30.0
    )
    total: Annotated[float, Seconds(), Note("The whole call, all attempts together.")] = 600.0


PRESETS: Final[Mapping[str, Mapping[str, float]]] = {
    "default": {},
    "interactive": {
        "connect": 10.0,
        "tls": 10.0,
        "write": 15.0,
        "head": 120.0,
        "first_event": 120.0,
        "idle": 120.0,
    },
}
"""What a preset writes into `Timeouts` where the file says nothing (DESIGN section 6)."""


@dataclass(frozen=True, slots=True)
class Route(Section):
    """A model name callers may ask for, and where such calls may go."""

    targets: Annotated[
        tuple[RouteTarget, ...],
        Note("Where calls may go, in order: target names, or mappings with `target`."),
    ]
    aliases: Annotated[tuple[Annotated[str, NAME], ...], Note("Other names for this route.")] = ()
    model: Annotated[str, NAME, Note("Model id asked for upstream. Default: the route's name.")] = ""
    successors: Annotated[
        tuple[Annotated[str, NAME], ...],
        Note("Model ids to ask for, in order, when upstream says the model is gone."),
    ] = ()
    timeouts: Timeouts = field(default_factory=Timeouts)
    may_pay_twice: Annotated[
        bool, Switch(), Note("Whether an attempt that may already have been executed may be made again.")
    ] = False
    tries: Annotated[int, Whole(1, 10), Note("Attempts of one call, the first included.")] = 3
    resumes: Annotated[
        int,
        Whole(0, 20),
        Note("How often a stream that breaks after its first event is continued; 0: it ends with an error."),
    ] = 0
    on_abandon: Annotated[
        Literal["cancel", "drain", "auto"],
        OneOf(("cancel", "drain", "auto")),
        Note(
            "When every caller has left: `cancel` the exchange, `drain` it for a retry, or `auto`: drain plain calls"
            " and those with an Idempotency-Key."
        ),
    ] = "auto"


@dataclass(frozen=True, slots=True)
class HealthChecks(Section):
    """Active checks, behind `/healthz` and for parked accounts; none of them costs anything."""

    kimi_seconds: Annotated[float, Seconds(), Note("Time between two checks of each target.")] = 2.0
    balance_seconds: Annotated[
        float,
        Seconds(),
        Note(
            "Time between two looks at the balance of an account of Moonshot's that is parked for want of it."
        ),
    ] = 60.0


@dataclass(frozen=True, slots=True)
class Dns(Section):
    """How the addresses of targets are kept; it is the system's resolver that is asked."""

    ttl_seconds: Annotated[
        float, Seconds(), Note("How long an answer counts; connections follow a changed one within it.")
    ] = 30.0
    stale_seconds: Annotated[
        float,
        Seconds(zero=True),
        Note("How much longer the last good answer is used when no name server gives another."),
    ] = 3600.0


@dataclass(frozen=True, slots=True)
class RequestId(Section):
    """How the request id travels."""

    upstream_headers: Annotated[
        tuple[Annotated[str, _HEADER], ...], Note("Headers that carry the request id to the upstream.")
    ] = ("X-Request-Id", "x-kimi-request-id")


def _targets() -> dict[str, Target]:
    return {"kimi": Target(Url("https", "api.moonshot.ai", 443, "/v1"), dialect="moonshot", account="kimi")}


def _routes() -> dict[str, Route]:
    return {
        name: Route(
            (RouteTarget("kimi", name),), tuple(written["aliases"]), name, tuple(written["successors"])
        )
        for name, written in model_routes().items()
    }


def model_routes() -> dict[str, dict[str, list[str]]]:
    """Routes as a file could write them, without targets: K2.5 and the models that Moonshot serves."""
    k25 = {"aliases": ["kimi-2.5", "kimi_2.5"], "successors": ["kimi-k2.6"]}
    return {"kimi-k2.5": k25} | {name: {"aliases": [], "successors": []} for name in NEVER_RETIRED}


@dataclass(frozen=True, slots=True)
class Settings(Section):
    """The whole snapshot. `Settings()` is what runs without a file, but for the key in the environment."""

    listen: Annotated[Address, Listening(), Note("Where the data plane answers.")] = _DATA
    workers: Annotated[int, Whole(1, 64), Note("Worker processes; fixed while the supervisor lives.")] = 1
    state: Annotated[
        str, PATH, Note("Directory of journals, databases and secrets; made with mode 0700.")
    ] = "./.moongate"
    run: Annotated[str, PATH, Note("Directory of Unix sockets. Default: `run` in the state directory.")] = (
        "./.moongate/run"
    )
    admin: Admin = field(default_factory=Admin)
    edge: Edge = field(default_factory=Edge)
    drain: Drain = field(default_factory=Drain)
    max_concurrent_requests: Annotated[
        int | None,
        Whole(1),
        Note("Calls in the gateway at one time; more get 503 `gateway_overloaded`. null: no limit."),
    ] = None
    targets: Annotated[
        Mapping[Annotated[str, NAME], Target],
        Note("Provider endpoints by name. Default: `kimi`, Moonshot's platform, key in MOONSHOT_API_KEY."),
    ] = field(default_factory=_targets)
    routes: Annotated[
        Mapping[Annotated[str, NAME], Route],
        Note("Model names callers may ask for. Default: Moonshot's models, each on every target as written."),
    ] = field(default_factory=_routes)
    prices: Annotated[
        tuple[Price, ...],
        Note(
            "Prices of models, over those that come with the program. Each names its `model` and `currency`."
        ),
    ] = ()
    prices_file: Annotated[
        str | None, PATH, Note("A YAML file whose `prices` go before those written here.")
    ] = None
    ledger: Ledger = field(default_factory=Ledger)
    idempotency: Idempotency = field(default_factory=Idempotency)
    log: Log = field(default_factory=Log)
    health: HealthChecks = field(default_factory=HealthChecks)
    dns: Dns = field(default_factory=Dns)
    request_id: RequestId = field(default_factory=RequestId)

    def to_json(self) -> bytes:
        """The snapshot for a worker, secrets included: for a private socket only."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_json(document: bytes) -> "Settings":
        """The snapshot that `to_json` wrote; it was checked there and is not checked again."""
        return msgspec.json.decode(document, type=Settings)
