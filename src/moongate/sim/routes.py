"""Everything a host answers besides chat: the provider's small endpoints, and `/_sim`, its own."""

import base64
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

import msgspec

from moongate.sim.accounts import Account
from moongate.sim.ask import decode, read
from moongate.sim.faults import CATALOGUE
from moongate.sim.models import Model, Thinking
from moongate.sim.reply import Refusal, Reply, Request, json_reply, text_reply
from moongate.sim.script import ScriptError, rules_from
from moongate.sim.selfhosted import metrics

if TYPE_CHECKING:
    from moongate.sim.host import Host

_encode: Final = msgspec.json.encode
_METRICS: Final = b"text/plain; version=0.0.4; charset=utf-8"
Authenticate = Callable[[Request], tuple[Account, str]]


class Routes:
    """The small endpoints of one host."""

    def __init__(self, host: "Host") -> None:
        self._host = host
        self._control: dict[tuple[str, str], Callable[[Request, dict[str, str]], Any]] = {
            ("GET", "/_sim"): self._about,
            ("GET", "/_sim/book"): self._book,
            ("DELETE", "/_sim/book"): self._clear_book,
            ("GET", "/_sim/book/totals"): self._totals,
            ("GET", "/_sim/requests"): self._requests,
            ("DELETE", "/_sim/requests"): self._forget,
            ("GET", "/_sim/connections"): self._connections,
            ("GET", "/_sim/script"): self._show_script,
            ("POST", "/_sim/script"): self._set_script,
            ("DELETE", "/_sim/script"): self._drop_script,
            ("GET", "/_sim/faults"): self._catalogue,
            ("POST", "/_sim/switch"): self._switch,
            ("GET", "/_sim/accounts"): self._accounts,
            ("GET", "/_sim/dns"): self._names,
            ("POST", "/_sim/dns"): self._set_names,
        }

    # the provider's

    def answer(self, request: Request, authenticate: Authenticate) -> Reply:
        """The answer to anything but chat, or a `Refusal`."""
        host, path = self._host, request.path
        if not host.face.hosted:
            found = self._self_hosted(request, path)
            if found is not None:
                return found
        if path == "/v1/models" or path.startswith("/v1/models/"):
            account, _ = authenticate(request)
            return self._models(request, account, path.removeprefix("/v1/models").strip("/"))
        if host.face.hosted and path == "/v1/users/me/balance":
            account, _ = authenticate(request)
            return json_reply(200, _encode(_balance(account)), host.headers(account, request))
        if host.face.hosted and path == "/v1/tokenizers/estimate-token-count":
            account, _ = authenticate(request)
            body = decode(request.body)
            if body.model not in host.models:
                raise Refusal(404, "resource_not_found_error", f"Not found the model {body.model}")
            total = {"data": {"total_tokens": read(body).tokens}}
            return json_reply(200, _encode(total), host.headers(account, request))
        authenticate(request)
        raise Refusal(404, "resource_not_found_error", "The requested resource was not found")

    def _self_hosted(self, request: Request, path: str) -> Reply | None:
        host = self._host
        if path in {"/health", "/health_generate"}:
            return text_reply(503 if time.monotonic() < host.overloaded_until else 200, b"", b"text/plain")
        if path == "/metrics":
            return text_reply(200, metrics(host.face.name, host.gauges, next(iter(host.models))), _METRICS)
        if path == "/tokenize":
            total = read(decode(request.body)).tokens
            body = {"count": total, "max_model_len": 262_144, "tokens": list(range(total))}
            return json_reply(200, _encode(body))
        return None

    def _models(self, request: Request, account: Account, wanted: str) -> Reply:
        host = self._host
        headers = host.headers(account, request)
        allowed = [
            model for model in host.models.values() if not account.models or model.id in account.models
        ]
        if wanted:
            for model in allowed:
                if model.id == wanted:
                    return json_reply(200, _encode(self._model(model)), headers)
            raise Refusal(
                404, "resource_not_found_error", f"Not found the model {wanted} or Permission denied"
            )
        listed = {"object": "list", "data": [self._model(model) for model in allowed]}
        return json_reply(200, _encode(listed), headers)

    def _model(self, model: Model) -> dict[str, Any]:
        if not self._host.face.hosted:
            return {
                "id": model.id,
                "object": "model",
                "created": 1_750_000_000,
                "owned_by": self._host.face.owner,
                "root": model.id,
                "parent": None,
                "max_model_len": model.context,
            }
        sees = model.pinned or "vision" in model.id
        return {
            "id": model.id,
            "object": "model",
            "created": 1_750_000_000,
            "owned_by": "moonshot",
            "permission": [],
            "root": "",
            "parent": "",
            "context_length": model.context,
            "supports_image_in": sees,
            "supports_video_in": model.pinned,
            "supports_reasoning": model.thinking is not Thinking.NEVER,
            "supports_dynamic_tools": False,
        }

    # the simulator's own

    def control(self, request: Request) -> Reply:
        """The answer to a request under `/_sim`. It is never scripted, remembered or counted."""
        path, _, query = request.target.partition("?")
        act = self._control.get((request.method, path.rstrip("/")))
        if act is None:
            return json_reply(404, _encode({"error": f"no control endpoint {request.method} {path}"}))
        try:
            return json_reply(200, _encode(act(request, dict(parse_qsl(query)))))
        except (ScriptError, ValueError, KeyError, TypeError) as error:
            return json_reply(400, _encode({"error": str(error)}))

    def _about(self, _: Request, __: dict[str, str]) -> Any:
        sim = self._host.sim
        return {
            "seed": sim.config.seed,
            "as_of": sim.config.as_of.isoformat(),
            "hosts": [
                {
                    "name": host.config.name,
                    "kind": host.config.kind,
                    "face": host.config.face,
                    "tls": host.config.tls,
                    "port": host.listener.port if host.listener else 0,
                    "models": list(host.models),
                }
                for host in sim.hosts
            ],
            "endpoints": sorted(f"{method} {path}" for method, path in self._control),
        }

    def _book(self, _: Request, query: dict[str, str]) -> Any:
        limit = int(query.pop("limit", "1000"))
        return {"executions": self._host.sim.book.rows(query, limit)}

    def _clear_book(self, _: Request, __: dict[str, str]) -> Any:
        self._host.sim.book.clear()
        return {"cleared": True}

    def _totals(self, _: Request, __: dict[str, str]) -> Any:
        return self._host.sim.book.totals()

    def _requests(self, _: Request, query: dict[str, str]) -> Any:
        limit = int(query.get("limit", "100"))
        kept = [
            {
                "number": number,
                "host": host,
                "received": request.received,
                "method": request.method,
                "target": request.target,
                "headers": [
                    [name.decode("latin-1"), value.decode("latin-1")] for name, value in request.headers
                ],
                "body_base64": base64.b64encode(request.body).decode(),
            }
            for number, host, request in list(self._host.sim.requests)[-limit:]
        ]
        return {"seen": self._host.sim.seen, "requests": kept}

    def _forget(self, _: Request, __: dict[str, str]) -> Any:
        self._host.sim.forget()
        return {"cleared": True}

    def _connections(self, _: Request, __: dict[str, str]) -> Any:
        hosts = {
            host.config.name: {
                "open": len(host.connections),
                "ever": host.connected_ever,
                "requests": host.requests,
                "running": host.gauges.running,
            }
            for host in self._host.sim.hosts
        }
        own = hosts.get(self._host.config.name, {})
        return {"open": own.get("open", 0), "ever": own.get("ever", 0), "hosts": hosts}

    def _show_script(self, _: Request, __: dict[str, str]) -> Any:
        return {"rules": self._host.sim.script.show()}

    def _set_script(self, request: Request, __: dict[str, str]) -> Any:
        script = self._host.sim.script
        script.rules = rules_from(json.loads(request.body))
        script.began = time.monotonic()
        return {"rules": script.show()}

    def _drop_script(self, _: Request, __: dict[str, str]) -> Any:
        self._host.sim.script.rules = []
        return {"rules": []}

    def _catalogue(self, _: Request, __: dict[str, str]) -> Any:
        return {
            "faults": [
                {
                    "name": one.name,
                    "row": one.row,
                    "runs": one.runs,
                    "breaks": one.breaks,
                    "bill": one.bill.value,
                    "about": one.about,
                }
                for one in CATALOGUE.values()
            ]
        }

    def _accounts(self, _: Request, __: dict[str, str]) -> Any:
        return {
            "accounts": [
                {
                    "id": account.id,
                    "tier": account.tier_name,
                    "running": account.running,
                    "currency": account.currency,
                    "balance_micro": account.balance_micro,
                    "suspended": account.suspended,
                }
                for account in self._host.sim.accounts.everyone()
            ]
        }

    def _names(self, _: Request, __: dict[str, str]) -> Any:
        server = self._host.sim.names
        if server is None:
            return {"port": None, "names": {}}
        return {"port": server.port, "names": {name: asdict(entry) for name, entry in server.names.items()}}

    def _set_names(self, request: Request, query: dict[str, str]) -> Any:
        server = self._host.sim.names
        if server is None:
            raise ValueError("no name server runs; start with --dns PORT or a member dns")
        server.declare(json.loads(request.body))
        return self._names(request, query)

    def _switch(self, request: Request, __: dict[str, str]) -> Any:
        """Members: `down`, `overload`, `suspended`, `forget_prefixes`; for `host`, `account`, `seconds`."""
        wanted = json.loads(request.body)
        sim, seconds = self._host.sim, wanted.get("seconds")
        hosts = [host for host in sim.hosts if wanted.get("host", host.config.name) == host.config.name]
        people = [
            account for account in sim.accounts.everyone() if wanted.get("account", account.id) == account.id
        ]
        for host in hosts:
            if "down" in wanted and host.listener and host.config.kind == "api":
                host.switch_down(down=bool(wanted["down"]), seconds=seconds)
            if "overload" in wanted:
                span = float("inf") if seconds is None else float(seconds)
                host.overloaded_until = time.monotonic() + span if wanted["overload"] else 0.0
        for account in people:
            if "suspended" in wanted:
                account.suspended = bool(wanted["suspended"])
            if wanted.get("forget_prefixes"):
                account.cache.clear()
        return {"hosts": [host.config.name for host in hosts], "accounts": [account.id for account in people]}


def _balance(account: Account) -> dict[str, Any]:
    voucher = 0.0 if account.prepaid else 2.5
    available = 0.0 if account.suspended else account.balance_micro / 1_000_000
    money = {
        "available_balance": available,
        "voucher_balance": voucher,
        "cash_balance": available - voucher,
    }
    return {"code": 0, "data": money, "scode": "0x0", "status": True}
