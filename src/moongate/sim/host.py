"""One simulated provider: what it knows, and what it answers to a request.

A `Sim` is the process: seed, date, accounts, book, and what was received. A `Host` is one listener of it with
its face. `begin` decides everything about an answer before a byte of it is sent; `finish` settles the book.
"""

import asyncio
import hashlib
import time
from collections import deque
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Protocol

import msgspec

from moongate.sim.accounts import Account, Accounts
from moongate.sim.ask import Ask, Body, decode
from moongate.sim.book import Bill, Book, Execution
from moongate.sim.chat import Answer, compose
from moongate.sim.config import Config, HostConfig
from moongate.sim.dns import NameServer
from moongate.sim.faces import FACES, Face, Label, completion, error_body, events, usage_of
from moongate.sim.faults import Case, Spec, from_member, parse
from moongate.sim.headers import Ids, platform_headers
from moongate.sim.models import OPEN_WEIGHTS, Model, live, price
from moongate.sim.reply import Framing, Refusal, Reply, Request, json_reply
from moongate.sim.rules import judge
from moongate.sim.script import CHAT, Facts, Script
from moongate.sim.selfhosted import Gauges, judge_self_hosted

_encode: Final = msgspec.json.encode
_KEEP_REQUESTS: Final = 1000
_KEEP_BYTES: Final = 32 * 1024 * 1024
_UNAVAILABLE: Final = Refusal(503, "server_unavailable", "The server is overloaded")
_OVERLOAD: Final = Refusal(
    429, "engine_overloaded_error", "The engine is currently overloaded, please try again later"
)


class Listener(Protocol):
    """The socket of a host, as the control endpoint may work it."""

    port: int

    def down(self) -> None:
        """Stop accepting and reset every connection."""

    def up(self) -> None:
        """Accept again on the same port."""


class Sim:
    """What all hosts of a process share."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.book = Book(config.keep_executions)
        self.accounts = Accounts(config.accounts)
        self.script = Script()
        self.requests: deque[tuple[int, str, Request]] = deque()
        self.hosts: list[Host] = []
        self.names: NameServer | None = None
        self.ids = Ids(config.seed)
        self.seen = 0
        self._bytes = 0

    def remember(self, host: str, request: Request) -> None:
        """Keep a request as it arrived, the oldest going first when there are too many or too much."""
        self.seen += 1
        self.requests.append((self.seen, host, request))
        self._bytes += len(request.body)
        while len(self.requests) > _KEEP_REQUESTS or self._bytes > _KEEP_BYTES:
            self._bytes -= len(self.requests.popleft()[2].body)

    def forget(self) -> None:
        """Drop the kept requests."""
        self.requests.clear()
        self._bytes = 0


@dataclass(slots=True, eq=False)
class Exchange:
    """One request and the answer it gets; the tally of its tokens. `turn`: what it waits for before it may run."""

    reply: Reply
    emitted: int = 0
    execution: Execution | None = None
    account: Account | None = None
    breaks: str = ""
    turn: "asyncio.Future[None] | None" = None


class Host:
    """One listener: a face, a set of models, connections."""

    def __init__(self, sim: Sim, config: HostConfig) -> None:
        self.sim = sim
        self.config = config
        self.face: Face = FACES[config.face]
        self.overloaded_until = 0.0
        self.connections: set[Any] = set()
        self.connected_ever = 0
        self.requests = 0
        self.gauges = Gauges(config.slots or 64)
        self._waiting: deque[Exchange] = deque()
        self.local = Account(id=f"self-hosted-{config.name}")
        self.listener: Listener | None = None
        if self.face.hosted:
            self.models: dict[str, Model] = live(sim.config.as_of)
        else:
            self.models = {name: _served(name) for name in config.models or (OPEN_WEIGHTS.id,)}
        from moongate.sim.routes import Routes  # noqa: PLC0415 - routes know hosts

        self._routes = Routes(self)

    # connections

    def connected(self, protocol: Any) -> None:
        """Count a connection."""
        self.connections.add(protocol)
        self.connected_ever += 1

    def disconnected(self, protocol: Any) -> None:
        """Uncount it."""
        self.connections.discard(protocol)

    def switch_down(self, *, down: bool, seconds: float | None) -> None:
        """Take the listener down or up, after the answer to whoever asked for it has left."""
        listener, loop = self.listener, asyncio.get_running_loop()
        if listener is None:
            return
        if not down:
            listener.up()
            return
        loop.call_later(0.02, listener.down)
        if seconds is not None:
            loop.call_later(0.02 + float(seconds), listener.up)

    # requests

    def begin(self, request: Request) -> Exchange:
        """Decide the answer to a request."""
        path = request.path
        if path.startswith("/_sim") or self.config.kind == "control":
            return Exchange(self._routes.control(request))
        self.requests += 1
        self.sim.remember(self.config.name, request)
        try:
            if path == CHAT and request.method == "POST":
                return self._chat(request)
            return self._other(request)
        except Refusal as refusal:
            return Exchange(self._refused(refusal, request))
        except ValueError as error:  # a fault that nobody knows, or a parameter it cannot take
            return Exchange(json_reply(400, _encode({"error": {"message": str(error), "type": "sim_error"}})))

    def finish(self, exchange: Exchange, *, complete: bool | None) -> None:
        """Settle an exchange: `complete` is None where the client left first."""
        account, execution = exchange.account, exchange.execution
        if account is None or execution is None:
            return
        exchange.account = None
        account.leave()
        self._leave(exchange)
        execution.emitted = exchange.emitted
        how = "aborted" if complete is None else exchange.breaks or ("completed" if complete else "aborted")
        if how == "aborted":
            execution.bill = Bill.SENT
        self.sim.book.close(execution, how, time.time())
        account.balance_micro -= execution.cost_micro
        self.gauges.ended[how] += 1

    def _refused(self, refusal: Refusal, request: Request) -> Reply:
        self.sim.book.refuse(refusal.kind)
        body = error_body(self.face, refusal.status, refusal.kind, refusal.message)
        return json_reply(refusal.status, body, [*refusal.headers, *self.headers(None, request)])

    def headers(self, account: Account | None, request: Request, saved: int = 0) -> list[tuple[bytes, bytes]]:
        """The headers that the face sends with every answer."""
        if not self.face.hosted:
            wanted = request.header(b"x-request-id")
            return [(b"X-Request-Id", wanted.encode("latin-1"))] if wanted else []
        return platform_headers(self.sim.ids, account, saved)

    def _authenticate(self, request: Request) -> tuple[Account, str]:
        given = request.header(b"authorization")
        if not self.face.hosted:
            if self.config.api_key and given != f"Bearer {self.config.api_key}":
                raise Refusal(401, "UnauthorizedError", "Unauthorized")
            return self.local, "none"
        return self.sim.accounts.find(given, self.config.name)

    def _faults(self, request: Request, body: Body | None, key: str) -> list[Spec]:
        header = request.header(b"x-sim-fault")
        if header:
            return parse(header)
        member = body.sim if body is not None else None
        if isinstance(member, dict) and member.get("fault"):
            return from_member(member["fault"], member)
        if not self.sim.script.rules:
            return []
        stream = bool(body and body.stream)
        model = body.model if body else ""
        facts = Facts(request.path, self.config.name, key, request.body, model, stream)
        return self.sim.script.pick(facts, time.monotonic())

    def _other(self, request: Request) -> Exchange:
        key = request.header(b"authorization").removeprefix("Bearer ")
        specs = self._faults(request, None, key)
        if any(not one.fault.runs for one in specs):
            return self._stand_in(specs, key, stream=False)
        reply = self._routes.answer(request, self._authenticate)
        for one in specs:
            reply = one.fault.change(reply, Case(one.params))
        if request.method == "HEAD":
            reply.items = []
        return Exchange(reply)

    def _chat(self, request: Request) -> Exchange:
        key = request.header(b"authorization").removeprefix("Bearer ")
        body: Body | None = None
        broken: Refusal | None = None
        try:
            body = decode(request.body)
        except Refusal as refusal:
            broken = refusal
        specs = self._faults(request, body, key)
        if any(not (one.fault.runs or "bill" in one.params) for one in specs):
            return self._stand_in(specs, key, stream=bool(body and body.stream))
        account, key = self._authenticate(request)
        if broken is not None:
            raise broken
        assert body is not None
        if time.monotonic() < self.overloaded_until:
            raise _OVERLOAD if self.face.hosted else _UNAVAILABLE
        ask = self._judge(body, account)
        key_id = key_name(key)
        account.admit(key_id, ask.input_tokens + ask.cap, time.monotonic())
        exchange = self._run(request, ask, account, key_id)
        try:
            self._bend(exchange, specs, Case({}, ask.stream, f"{account.id}<{key_id}>"))
        except BaseException:
            self.finish(exchange, complete=None)
            raise
        return exchange

    def _bend(self, exchange: Exchange, specs: list[Spec], case: Case) -> None:
        for one in specs:
            exchange.reply = one.fault.change(exchange.reply, replace(case, params=one.params))
            if exchange.execution is not None:
                exchange.execution.fault = one.fault.name
                if one.fault.breaks:
                    exchange.breaks = one.fault.name
                    exchange.execution.bill = one.bill

    def _stand_in(self, specs: list[Spec], key: str, *, stream: bool) -> Exchange:
        reply = json_reply(200, b"{}")
        for one in specs:
            reply = one.fault.change(reply, Case(one.params, stream, f"org-sim<{key_name(key)}>"))
        self.sim.book.refuse(specs[0].fault.name)
        if self.face.hosted:
            reply.headers += platform_headers(self.sim.ids, None, 0)
        return Exchange(reply)

    def _judge(self, body: Body, account: Account) -> Ask:
        model = self.models.get(body.model)
        if model is None or (account.models and body.model not in account.models):
            raise missing_model(body.model, self.sim.config, self.face)
        return judge(body, model) if self.face.hosted else judge_self_hosted(body, model)

    def _run(self, request: Request, ask: Ask, account: Account, key_id: str) -> Exchange:
        config, sim = self.config, self.sim
        number = sim.ids.next()
        sampling = config.sampling if ask.steer.sampling is None else ask.steer.sampling
        answer = compose(
            ask,
            config.seed or sim.config.seed,
            str(number) if sampling else "",
            canonical_ids=not self.face.hosted,
        )
        cached = min(account.cache.read(ask.model.id, ask.prompt.raw, time.monotonic()), ask.input_tokens)
        label = Label(
            sim.ids.chat_id(number, self.face.hosted),
            int(request.received),
            ask.model.id,
            sim.ids.fingerprint,
        )
        usage = usage_of(answer, ask.input_tokens, cached, self.face)
        reply = self._dress(ask, answer, label, usage)
        reply.headers += self.headers(account, request, cached)
        self._pace(reply, ask)
        execution = Execution(
            label.id,
            config.name,
            account.id,
            key_id,
            ask.model.id,
            account.currency,
            price(ask.model.id, account.currency),
            time.time(),
            ask.input_tokens,
            cached,
            answer.output_tokens,
            answer.reasoning_tokens,
            ask.stream,
            request.header(b"x-request-id"),
            hashlib.sha256(request.body).hexdigest(),
            partial=ask.prefix is not None,
        )
        sim.book.open(execution)
        self.gauges.started(ask.input_tokens, cached)
        exchange = Exchange(reply, execution=execution, account=account)
        self._enter(exchange)
        return exchange

    def _enter(self, exchange: Exchange) -> None:
        """Run it, or have it wait for its turn where all slots are taken."""
        if self.config.slots and self.gauges.running >= self.config.slots:
            exchange.turn = asyncio.get_running_loop().create_future()
            self._waiting.append(exchange)
            self.gauges.waiting += 1
        else:
            self.gauges.running += 1

    def _leave(self, exchange: Exchange) -> None:
        """Give its slot to the next, or its place in the queue up."""
        if exchange in self._waiting:
            self._waiting.remove(exchange)
            self.gauges.waiting -= 1
            return
        self.gauges.running -= 1
        if self._waiting:
            then = self._waiting.popleft()
            self.gauges.waiting -= 1
            self.gauges.running += 1
            assert then.turn is not None
            if not then.turn.done():
                then.turn.set_result(None)

    def _dress(self, ask: Ask, answer: Answer, label: Label, usage: dict[str, Any]) -> Reply:
        """The answer as the face writes it, whole or as events."""
        if ask.stream:
            asked, chunks = ask.include_usage, ask.steer.chunks
            items = events(answer, label, usage, self.face, include_usage=asked, chunks=chunks)
            head = [(b"Content-Type", b"text/event-stream"), (b"Cache-Control", b"no-cache")]
            return Reply(200, head, items, Framing.CHUNKED, whole=False, sse=True)
        body = completion(answer, label, usage, self.face)
        reply = json_reply(200, body)
        reply.items = [(body, answer.output_tokens)]
        return reply

    def _pace(self, reply: Reply, ask: Ask) -> None:
        first, rate = ask.steer.first_token, ask.steer.tokens_per_second
        reply.first = self.config.first_token if first is None else first
        speed = self.config.tokens_per_second if rate is None else rate
        reply.per_token = 1.0 / speed if speed > 0 else 0.0


def _served(name: str) -> Model:
    base = OPEN_WEIGHTS
    return Model(name, base.family, base.context, base.thinking, base.default_max, base.since)


@lru_cache(maxsize=4096)
def key_name(key: str) -> str:
    """The public id of a key, as error messages and the book show it."""
    return "ak-" + hashlib.sha256(key.encode()).hexdigest()[:20]


def missing_model(name: str, config: Config, face: Face) -> Refusal:
    """The 404 for a model that is not served; the platform changed its words in 2026-08."""
    if not face.hosted:
        return Refusal(404, "NotFoundError", f"The model `{name}` does not exist.")
    if (config.as_of.year, config.as_of.month) < (2026, 8):
        return Refusal(404, "resource_not_found_error", f"Not found the model {name} or Permission denied")
    return Refusal(
        404,
        "resource_not_found_error",
        "Model not found, or this account does not have permission to access it",
    )
