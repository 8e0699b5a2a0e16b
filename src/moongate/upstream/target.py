"""One target ready to be asked: transport, credential, dialect, and what a call becomes on its way there."""

from collections.abc import Callable
from importlib.util import find_spec

import msgspec

from moongate.core.body import RawBody
from moongate.core.call import Call
from moongate.core.faults import Failure
from moongate.core.resume import EDIT, Means, continued
from moongate.core.routing import Candidate
from moongate.core.settings import Settings
from moongate.core.settings import Target as TargetSettings
from moongate.core.surface import Answer
from moongate.upstream.dialects import DIALECTS
from moongate.upstream.dialects_errors import cached_tokens, classify, provider_ids
from moongate.upstream.dialects_requests import ask_for_usage, drop_pinned, outbound_headers, switch_thinking
from moongate.upstream.http1 import Http1
from moongate.upstream.names import Names, Place
from moongate.upstream.origin import Origin
from moongate.upstream.transport import Headers, Outbound, Timeouts, Transport
from moongate.world import World


class Prepared(msgspec.Struct):
    """A call as one target will get it.

    `edits` names every change to the client's body; `strip_usage`: we ask for the usage chunk, the client did not.
    """

    outbound: Outbound
    edits: list[str]
    strip_usage: bool


class Target:
    """One provider endpoint with its credential.

    `wall` gives seconds since 1970, for dates in its headers; `place` is where its host is, None where nobody dials.
    """

    def __init__(
        self,
        name: str,
        settings: TargetSettings,
        id_headers: tuple[str, ...],
        transport: Transport,
        wall: Callable[[], float],
        *,
        place: Place | None = None,
    ) -> None:
        self.name = name
        self.place = place
        self.currency = settings.currency
        self.transport = transport
        self._wall = wall
        self._dialect = DIALECTS[settings.dialect]
        self._path = f"{settings.url.path}/chat/completions".encode("ascii")
        self._key = "" if settings.key is None else settings.key.text
        self._id_headers = id_headers
        self._most = settings.connections

    @property
    def is_full(self) -> bool:
        """Whether one more exchange would have to wait for a connection."""
        return self.transport.in_use >= self._most

    @classmethod
    def build(cls, name: str, settings: Settings, world: World, names: Names) -> "Target":
        """Make the named target with a transport of its own; its CA file is read now. `names` stay the caller's."""
        made = settings.targets[name]
        url = made.url
        origin = Origin(
            url.host,
            url.port,
            url.secure,
            made.server_name or "",
            made.ca_file or "",
            made.connections,
            made.idle_connections,
            made.idle_seconds,
        )
        transport, place = _transport(made.protocol, origin, world.clock, names)
        headers = settings.request_id.upstream_headers
        return cls(name, made, headers, transport, world.wall, place=place)

    @property
    def alpn_fallbacks(self) -> int:
        """Exchanges that went over HTTP/1.1 because the peer did not choose HTTP/2; 0 where that was not asked for."""
        return int(getattr(self.transport, "alpn_fallbacks", 0))

    @property
    def resume(self) -> Means | None:
        """How it is asked to go on with an answer that broke off."""
        return self._dialect.resume

    def prepare(
        self, call: Call, candidate: Candidate, timeouts: Timeouts, so_far: Answer | None = None
    ) -> Prepared:
        """What goes out for this call: the client's very bytes unless one of the closed list of edits is due.

        `so_far`: an answer that broke off and has no obstacle; the rest of it is asked for.
        Raises FailedError for a member that cannot be read.
        """
        edits: list[str] = []
        body, strip_usage = call.body, False
        if candidate.model != call.model or not self._passes_as_it_is(call):
            body = call.body.copy()
            edits, strip_usage = self._edit(body, call, candidate.model)
        if so_far is not None and self._dialect.resume is not None:
            body = continued(body, so_far, self._dialect.resume)
            edits = [*edits, EDIT]
        headers = outbound_headers(self._dialect, self._key, call.request_id, self._id_headers)
        outbound = Outbound(b"POST", self._path, headers, body.data, timeouts, call.deadline)
        return Prepared(outbound, edits, strip_usage)

    def _passes_as_it_is(self, call: Call) -> bool:
        """Whether no member is there that this dialect would want otherwise; most calls to Kimi are such."""
        dialect, body = self._dialect, call.body
        if call.stream and not dialect.reports_usage:
            return False
        return body.lacks(dialect.members)

    def _edit(self, body: RawBody, call: Call, model: str) -> tuple[list[str], bool]:
        edits: list[str] = []
        if body.edit("model", msgspec.json.encode(model)):
            edits.append("model")
        edits += drop_pinned(self._dialect, model, body)
        if switch_thinking(self._dialect, body):
            edits.append("thinking")
        asked = call.stream and ask_for_usage(self._dialect, body)
        if asked:
            edits.append("stream_options.include_usage")
        return edits, asked

    def explain(self, status: int, headers: Headers, body: bytes) -> Failure:
        """What an answer means that is not a good 200."""
        return classify(self._dialect, status, headers, body, self._wall())

    def provider_ids(self, headers: Headers) -> tuple[str, str]:
        """The provider's request id and trace id, empty where it gave none."""
        return provider_ids(self._dialect, headers)

    def cached_tokens(self, headers: Headers) -> int:
        """Input tokens that the answer's head says were in the provider's prompt cache; 0 where it says nothing."""
        return cached_tokens(self._dialect, headers)


def _transport(
    protocol: str, origin: Origin, clock: Callable[[], float], names: Names
) -> tuple[Transport, Place]:
    """The transport for a target's `protocol`, and where its host is. Raises ImportError without the extra `http2`."""
    if protocol == "http2" or (protocol == "auto" and origin.tls and find_spec("pycurl") is not None):
        from moongate.upstream.http2 import Http2  # noqa: PLC0415 - only who asks for it needs its library

        http2 = Http2(origin, clock, names)
        return http2, http2.place
    http1 = Http1(origin, clock, names)
    return http1, http1.place
