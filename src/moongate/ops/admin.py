"""The admin listener: metrics, workers, settings and health, apart from the data plane.

It runs on the supervisor's own loop. Requests must name it by an IP address, `localhost` or the host it listens on:
a page elsewhere can make a browser ask for a name that resolves here (DNS rebinding), but not for these.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from moongate.ops.exposition import exposition
from moongate.ops.health import Trusted, healthz, plain_address
from moongate.ops.house import House

_PAGE = """moongate

/metrics       for Prometheus
/healthz       the checks, in JSON
/api/workers   worker processes and their slots
/api/parks     accounts that get no calls, and why
/api/config    the settings in force, secrets masked
"""


class Admin:
    """One uvicorn on a socket of the supervisor's; `start`, then `stop`."""

    def __init__(self, house: House, sock: socket.socket, trusted: Sequence[str], host: str) -> None:
        config = uvicorn.Config(
            _application(house, Trusted(trusted), host),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            http="h11",
            loop="none",
            timeout_graceful_shutdown=1,
            server_header=False,
        )
        self._server = _Server(config)
        self._sock = sock
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Answer from now on."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._sock.dup()]))
        answering = asyncio.create_task(self._server.answering.wait())
        await asyncio.wait((self._task, answering), return_when=asyncio.FIRST_COMPLETED)
        answering.cancel()

    async def stop(self) -> None:
        """Let answers under way finish, at most a second; the socket stays open for the next supervisor."""
        self._server.should_exit = True
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.answering = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.answering.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the supervisor's."""
        yield


class _HostCheck:
    """Refuses requests that name us by a name we do not know."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app = app
        self._names = {"localhost", host.lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_known(Request(scope).headers.get("host", "")):
            refusal = PlainTextResponse(
                "Ask by IP address, or as localhost.\n", status_code=HTTPStatus.MISDIRECTED_REQUEST
            )
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_known(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        bare = name.removeprefix("[").removesuffix("]").lower()
        return bare in self._names or plain_address(bare) is not None


def _application(house: House, trusted: Trusted, host: str) -> ASGIApp:
    async def metrics(request: Request) -> Response:
        body, content_type = exposition(await house.rows(), request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    async def workers(_: Request) -> Response:
        return _json(msgspec.json.encode({"workers": house.workers()}))

    async def parks(_: Request) -> Response:
        return _json(msgspec.json.encode({"parks": house.parks()}))

    async def config(_: Request) -> Response:
        return _json(house.config())

    async def health(request: Request) -> Response:
        peer = request.client.host if request.client else ""
        status, body = healthz(house.checks(), detailed=trusted.may_see(peer))
        return _json(body, status)

    async def page(_: Request) -> Response:
        return PlainTextResponse(_PAGE)

    handlers: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/": page,
        "/metrics": metrics,
        "/healthz": health,
        "/api/workers": workers,
        "/api/parks": parks,
        "/api/config": config,
    }
    routes = [Route(path, handler) for path, handler in handlers.items()]
    return _HostCheck(Starlette(routes=routes), host)


def _json(body: bytes, status: int = HTTPStatus.OK) -> Response:
    headers: dict[str, Any] = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    return Response(body, status, headers=headers, media_type="application/json")
