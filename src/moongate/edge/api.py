"""Turns a parsed HTTP request into a `Call`, or answers it where no call is needed.

Behind this file nobody touches headers or raw JSON again.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import msgspec

from moongate.core.body import RawBody
from moongate.core.call import Call, Principal
from moongate.core.faults import FailedError, Failure, Fault, refuse
from moongate.core.heads import RequestHead
from moongate.core.idempotency import is_key
from moongate.core.surface import Surface
from moongate.core.wire import error_lines
from moongate.flow.downstream import Downstream, Head
from moongate.flow.gateway import Gateway
from moongate.flow.reply import Reply
from moongate.ops.health import LEDGER, OK, healthz, readyz
from moongate.world import World

CHAT: Final = "/v1/chat/completions"
_NOT_YET: Final = (
    "/v1/files",
    "/v1/batches",
    "/v1/tokenizers/",
    "/v1/users/",
    "/v1/messages",
    "/anthropic/",
    "/v1/responses",
    "/v1/completions",
    "/v1/embeddings",
)
_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_JSON = b"Content-Type: application/json\r\nCache-Control: no-store\r\n"
_OFF: Final = (b"off", b"false", b"no", b"0")
_EMPTY: Final = RawBody(b"{}")

Keys = Mapping[str, Principal]
"""SHA-256 of a key, in hex -> whose it is."""


@dataclass(frozen=True, slots=True)
class Model:
    """One model name that clients may ask for: the route it leads to, and since when (seconds since 1970)."""

    name: str
    route: str
    created: int


@dataclass(frozen=True, slots=True)
class Screened:
    """What the end of the headers told: which handler, whose key (None where none is needed)."""

    answer: Callable[["Screened", RequestHead, bytes, Downstream], Awaitable[None]]
    principal: Principal | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """One key's principal, and what its requests are to the handlers: made once, not for every call."""

    principal: Principal
    chat: Screened
    models: Screened


class Api:
    """The data plane's paths. `screen` runs at the end of the headers, `handle` once the body is there.

    `deadlines`: route -> seconds a call may take. `trusts`: whether a peer's word on
    users and addresses counts. `may_see`: whether a peer may see the details of `/healthz`. `on_loopback`: whether the
    TCP listener is reached from this machine alone.
    `refused`: told of every request that was nobody's call (no valid key, no valid HTTP, an unknown path); those are
    counted, never recorded one by one.
    """

    def __init__(
        self,
        *,
        world: World,
        gateway: Gateway,
        surface: Surface,
        models: Mapping[str, Model],
        deadlines: Mapping[str, float],
        trusts: Callable[[str], bool],
        may_see: Callable[[str], bool],
        on_loopback: bool,
        refused: Callable[[Fault], None],
    ) -> None:
        self._world = world
        self._gateway = gateway
        self._surface = surface
        self._models = models
        self._deadlines = deadlines
        self._trusts = trusts
        self._may_see = may_see
        self._on_loopback = on_loopback
        self._refused = refused
        self._callers: Mapping[str, Caller] = {}
        self.checks: Mapping[str, str] = {}
        self.ready = False
        self._open = {
            "/livez": Screened(self._livez),
            "/readyz": Screened(self._readyz),
            "/healthz": Screened(self._healthz),
        }

    def let_in(self, keys: Keys) -> None:
        """Open the door to these keys and no others, from now on."""
        self._callers = {
            digest: Caller(principal, Screened(self._chat, principal), Screened(self._list_models, principal))
            for digest, principal in keys.items()
        }

    def screen(self, head: RequestHead) -> Screened:
        """Find who asks for what. Raises FailedError for an unknown path or method and for a key that does not hold."""
        open_to_all = self._open.get(head.path)
        if open_to_all is not None:
            self._must_be(head, "GET", "HEAD")
            return open_to_all
        caller = self._caller(head)
        if head.path == CHAT:
            if head.method != "POST":
                self._must_be(head, "POST")
            return caller.chat
        if head.path == "/v1/models" or head.path.startswith("/v1/models/"):
            self._must_be(head, "GET", "HEAD")
            return caller.models
        known = head.path.startswith(_NOT_YET)
        text = "is not enabled on this gateway yet." if known else "is not a path of this gateway."
        raise refuse(Fault.NOT_ENABLED, f"{head.path[:200]} {text} It serves POST {CHAT} and GET /v1/models.")

    async def handle(self, head: RequestHead, screened: object, body: bytes, down: Downstream) -> None:
        """Answer a request whose headers passed; `screened` is what `screen` said."""
        assert isinstance(screened, Screened)
        await screened.answer(screened, head, body, down)

    def refuse(self, failure: Failure, head: RequestHead | None, screened: object, down: Downstream) -> None:
        """Answer for a request that the server ended; one whose key held has its record like any other call."""
        is_call = (
            isinstance(screened, Screened)
            and screened.principal is not None
            and screened.answer == self._chat
        )
        if is_call and isinstance(screened, Screened) and head is not None:
            self._gateway.refuse(self._call(screened, head), down, failure)
        else:
            self._refused(failure.fault)
            down.respond(*self.render(failure, head))

    def forsaken(self, answered: object) -> None:
        """Keep the answer for the retry of a client that may not have got it."""
        if isinstance(answered, Reply):
            self._gateway.idempotency.forsaken(answered)

    def render(self, failure: Failure, head: RequestHead | None) -> tuple[Head, bytes]:
        """Write the JSON answer for a request that ends before it became a call."""
        request_id = self._request_id(head)
        lines = _JSON + f"X-Request-Id: {request_id}\r\n".encode() + error_lines(failure)
        return Head(failure.rule.facts.status, lines), self._surface.error_body(failure, request_id)

    def _must_be(self, head: RequestHead, *methods: str) -> None:
        if head.method not in methods:
            raise refuse(Fault.METHOD_NOT_ALLOWED, f"{head.path[:200]} takes {' or '.join(methods)}.")

    def _caller(self, head: RequestHead) -> Caller:
        kind, _, token = head.headers.get(b"authorization", b"").partition(b" ")
        token = token.strip()
        if kind.lower() != b"bearer" or not token:
            raise refuse(Fault.UNAUTHENTICATED)
        caller = self._callers.get(sha256(token).hexdigest())
        if caller is None or (caller.principal.loopback_only and not self._is_local(head)):
            raise refuse(Fault.UNAUTHENTICATED, "This key is not known here, or was revoked.")
        return caller

    def _is_local(self, head: RequestHead) -> bool:
        """Whether nobody but this machine can be asking: behind a proxy on it, anybody may."""
        proxied = (
            self._trusts(head.peer) or b"x-forwarded-for" in head.headers or b"x-real-ip" in head.headers
        )
        return self._on_loopback and not proxied and (head.peer.startswith("127.") or head.peer == "::1")

    def _request_id(self, head: RequestHead | None, otherwise: str = "") -> str:
        given = head.headers.get(b"x-request-id", b"") if head is not None else b""
        return given.decode("ascii") if given and _ID.fullmatch(given) else otherwise or self._world.new_id()

    async def _chat(self, screened: Screened, head: RequestHead, body: bytes, down: Downstream) -> None:
        call = self._call(screened, head)
        try:
            if b"idempotency-key" in head.headers:
                _read_key(call, head.headers)
            if b"x-moongate-resume" in head.headers:
                call.may_resume = head.headers[b"x-moongate-resume"].lower() not in _OFF
            self._read(call, body)
        except FailedError as error:
            self._gateway.refuse(call, down, error.failure)
        else:
            await self._gateway.handle(call, down)

    def _call(self, screened: Screened, head: RequestHead) -> Call:
        assert screened.principal is not None
        headers = head.headers
        now = self._world.clock()
        call_id = self._world.new_id()
        call = Call(
            call_id,
            self._request_id(head, call_id),
            screened.principal,
            "",
            _id(headers, b"x-moongate-conversation-id") or _id(headers, b"x-session-id"),
            "",
            "",
            _EMPTY,
            stream=False,
            include_usage=False,
            arrived=now,
            created=self._world.wall(),
            deadline=now,
            peer=head.peer,
        )
        count = headers.get(b"x-stainless-retry-count")
        if count is not None:
            call.retry_count = 0 if count == b"0" else _count(count)
        if self._trusts(head.peer):
            call.user = _id(headers, b"x-user-id")
            call.peer = _id(headers, b"x-real-ip") or head.peer
        return call

    def _read(self, call: Call, data: bytes) -> None:
        """Read what decides from the body; raises FailedError that names the member."""
        body = call.body = RawBody(data)
        name = body.text("model")
        if not name:
            raise refuse(
                Fault.INVALID_REQUEST,
                "`model` is missing; GET /v1/models lists those you may use.",
                param="model",
            )
        call.model = name[:200]
        if "messages" not in body:
            raise refuse(Fault.INVALID_REQUEST, "`messages` is missing.", param="messages")
        if "stream" in body:
            call.stream = body.flag("stream") or False
        if "stream_options" in body:
            options = body.part("stream_options")
            call.include_usage = options is not None and (options.flag("include_usage") or False)
        if not call.session and "prompt_cache_key" in body:
            key = (body.text("prompt_cache_key") or "").encode()
            call.session = key.decode() if _ID.fullmatch(key) else ""
        model = self._models.get(name)
        if model is None:
            raise refuse(
                Fault.MODEL_NOT_FOUND,
                f"There is no model `{call.model}` here; GET /v1/models lists those you may use.",
                param="model",
            )
        allowed = call.principal.routes
        if allowed is not None and model.route not in allowed:
            raise refuse(
                Fault.FORBIDDEN,
                f"This key may not use the model `{call.model}`; ask the gateway's operator.",
                param="model",
            )
        call.route = model.route
        call.deadline = call.arrived + self._deadlines[model.route]

    async def _list_models(
        self, screened: Screened, head: RequestHead, _body: bytes, down: Downstream
    ) -> None:
        assert screened.principal is not None
        allowed = screened.principal.routes
        shown = [model for model in self._models.values() if allowed is None or model.route in allowed]
        name = head.path.removeprefix("/v1/models").removeprefix("/")
        if not name:
            listing = {"object": "list", "data": [_shown(model) for model in shown]}
            self._give(down, head, 200, msgspec.json.encode(listing))
            return
        found = next((model for model in shown if model.name == name), None)
        if found is None:
            failure = Failure(
                Fault.MODEL_NOT_FOUND, message=f"There is no model `{name[:200]}` here.", param="model"
            )
            down.respond(*self.render(failure, head))
            return
        self._give(down, head, 200, msgspec.json.encode(_shown(found)))

    async def _livez(self, _screened: Screened, head: RequestHead, _body: bytes, down: Downstream) -> None:
        self._give(down, head, 200, b'{"status":"ok"}')

    async def _readyz(self, _screened: Screened, head: RequestHead, _body: bytes, down: Downstream) -> None:
        ledger = self.checks.get(LEDGER, OK)
        self._give(down, head, *readyz(ready=self.ready, draining=not self.ready, ledger=ledger))

    async def _healthz(self, _screened: Screened, head: RequestHead, _body: bytes, down: Downstream) -> None:
        self._give(down, head, *healthz(self.checks, detailed=self._may_see(head.peer)))

    def _give(self, down: Downstream, head: RequestHead, status: int, body: bytes) -> None:
        lines = _JSON + f"X-Request-Id: {self._request_id(head)}\r\n".encode()
        down.respond(Head(status, lines), body)


def _id(headers: Mapping[bytes, bytes], name: bytes) -> str:
    given = headers.get(name, b"")
    return given.decode("ascii") if given and _ID.fullmatch(given) else ""


def _count(given: bytes) -> int:
    """How many tries went before, by an SDK's word; 0 where it is no word of one."""
    return int(given) if given.isdigit() and len(given) < 4 else 0


def _read_key(call: Call, headers: Mapping[bytes, bytes]) -> None:
    """Take the call's key, and what its client has of the answer already."""
    key = headers[b"idempotency-key"]
    if not is_key(key):
        raise refuse(
            Fault.INVALID_REQUEST,
            "The Idempotency-Key must be 1 to 255 printable ASCII characters.",
        )
    call.idempotency_key = key.decode("ascii")
    call.last_event_id = headers.get(b"last-event-id", b"").decode("latin-1")


def _shown(model: Model) -> dict[str, object]:
    return {"id": model.name, "object": "model", "created": model.created, "owned_by": "moonshot"}
