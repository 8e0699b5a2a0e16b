"""`/healthz` follows the upstream: never a constant."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.processes.house import Gateway, eventually


class Models(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def upstream(port: int = 0) -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", port), Models) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def shows(ask: Callable[[], tuple[int, bytes]], expected: tuple[int, str]) -> bool:
    status, body = ask()
    return (status, json.loads(body)["checks"]["kimi_api"]) == expected


def test_the_end_of_the_upstream_shows_within_5_s_on_both_listeners(tmp_path: Path) -> None:
    with upstream() as port:
        pass
    down = (503, "kimi_network_unreachable")
    with Gateway(tmp_path, workers=2, upstream=port) as gateway:
        asks = (
            lambda: gateway.get("/healthz", 0),
            lambda: gateway.get("/healthz", 1),
            lambda: gateway.admin("/healthz"),
        )
        with upstream(port):
            for ask in asks:
                eventually(partial(shows, ask, (200, "ok")), 5)
            assert gateway.metric("moongate_upstream_up") == {'{target="kimi"}': 1.0}
        for ask in asks:
            eventually(partial(shows, ask, down), 5)
        assert gateway.metric("moongate_upstream_up") == {'{target="kimi"}': 0.0}
