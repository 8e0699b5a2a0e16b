"""One target ready to be asked: its transport, its credential, its dialect, and what a call becomes on its way there."""

from dataclasses import dataclass

from moongate.core.call import Call
from moongate.core.faults import Failure, Fault, Reach
from moongate.core.routing import Candidate
from moongate.core.settings import Settings
from moongate.core.settings import Target as TargetSettings
from moongate.upstream.http1 import Http1
from moongate.upstream.origin import Origin
from moongate.upstream.transport import Headers, Outbound, Timeouts, Transport
from moongate.world import World


@dataclass(slots=True)
class Prepared:
    """A call as it will be sent to one target. `strip_usage`: we ask for the usage chunk, the client did not."""

    outbound: Outbound
    edits: list[str]
    strip_usage: bool


class Target:
    """One provider endpoint with its credential."""

    def __init__(self, name: str, settings: TargetSettings, id_headers: tuple[str, ...], transport: Transport) -> None:
        self.name = name
        self.account = settings.account or name
        self.currency = "CNY" if settings.url.host.endswith(".cn") else "USD"
        self.transport = transport
        self._path = f"{settings.url.path}/chat/completions".encode("ascii")
        self._key = b"" if settings.key is None else settings.key.text.encode()
        self._ids = id_headers

    @classmethod
    def build(cls, name: str, settings: TargetSettings, all_settings: Settings, world: World) -> "Target":
        url = settings.url
        origin = Origin(url.host, url.port, url.secure, settings.server_name or "", settings.ca_file or "", settings.connections, settings.idle_connections, settings.idle_seconds)
        return cls(name, settings, all_settings.request_id.upstream_headers, Http1(origin, world.clock))

    def prepare(self, call: Call, candidate: Candidate, timeouts: Timeouts) -> Prepared:
        edits: list[str] = []
        data = call.body.data
        headers = b"Authorization: Bearer %b\r\nContent-Type: application/json\r\nAccept-Encoding: identity\r\n" % self._key
        for name in self._ids:
            headers += f"{name}: {call.request_id}\r\n".encode()
        return Prepared(Outbound(b"POST", self._path, headers, data, timeouts, call.deadline), edits, False)

    def explain(self, status: int, headers: Headers, body: bytes) -> Failure:
        return Failure(Fault.KIMI_SERVER_ERROR, Reach.HEAD, detail=f"{status} {body[:200]!r}")

    def provider_ids(self, headers: Headers) -> tuple[str, str]:
        return "", ""
