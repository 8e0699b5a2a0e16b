"""How others read the same bytes: h11, and nginx with a recording upstream behind it."""

import os
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import h11

ROOT = Path(__file__).parent.parent.parent
TOOLS = ROOT / ".tools"

Request = tuple[str, bytes, bytes]
"""Method, target in origin form, body."""


@dataclass
class Opinion:
    """The requests somebody read from a connection's bytes, and what became of the connection after them.

    `refused`: with an error; `closed`: on purpose, in either way. Else more bytes would have been read on.
    """

    requests: list[Request] = field(default_factory=list)
    refused: bool = False
    closed: bool = False


def origin_form(target: bytes) -> bytes:
    """The target without scheme and authority."""
    path = re.sub(rb"(?i)^https?://[^/?#]*", b"", target) if not target.startswith(b"/") else target
    return path if path[:1] in (b"/", b"*") else b"/" + path


def of_h11(data: bytes) -> Opinion:
    """What h11 reads, which answers each request and goes on."""
    opinion = Opinion()
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                method, target, body = event.method.decode(), origin_form(event.target), b""
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                opinion.requests.append((method, target, body))
                connection.send(h11.Response(status_code=404, headers=[("Content-Length", "0")]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is h11.MUST_CLOSE:
                    return opinion
                connection.start_next_cycle()
            else:
                return opinion
    except h11.RemoteProtocolError:
        opinion.refused = True
        return opinion


CONFIG = """
daemon off; master_process off; pid {dir}/pid; error_log {dir}/error.log crit;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy;
    fastcgi_temp_path {dir}/fastcgi; uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;
    client_header_timeout 2s; client_body_timeout 2s; lingering_close off;
    server {{
        listen unix:{dir}/front;
        location / {{
            proxy_pass http://unix:{dir}/behind:;
            proxy_http_version 1.1; proxy_set_header Connection ""; proxy_ignore_client_abort on;
        }}
    }}
}}
"""


class Nginx:
    """A running nginx and the recorder behind it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._requests: list[Request] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "behind"))
        self._listener.listen()
        threading.Thread(target=self._record, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _record(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with sock, sock.makefile("rb") as stream:
                method, target, _ = stream.readline().split(b" ", 2)
                size = 0
                while (line := stream.readline()) not in (b"\r\n", b""):
                    name, _, value = line.partition(b":")
                    if name.lower() == b"content-length":
                        size = int(value)
                    assert name.lower() != b"transfer-encoding"
                self._requests.append((method.decode(), target, stream.read(size)))
                sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    def read(self, data: bytes) -> Opinion:
        """What nginx hands to the upstream for these bytes, which are all that its client sends."""
        self._requests.clear()
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(10)
            sock.connect(str(self._folder / "front"))
            answer = b""
            try:
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
                while part := sock.recv(65_536):
                    answer += part
            except (ConnectionResetError, BrokenPipeError):
                pass
        statuses = re.findall(rb"HTTP/1\.1 (\d+)", answer)
        return Opinion(list(self._requests), refused=bool(statuses) and statuses[-1] != b"200")


@contextmanager
def nginx(folder: Path) -> Iterator[Nginx]:
    """Run nginx; fails with a sentence where there is none."""
    places = [Path(os.environ.get("MOONGATE_NGINX", TOOLS / "bin/nginx")), TOOLS / "root/usr/sbin/nginx"]
    binary = next((place for place in places if place.is_file()), places[0])
    assert binary.is_file(), (
        f"There is no nginx at {binary}: run `make test`, which unpacks one, or set MOONGATE_NGINX to its path."
    )
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(dir=folder), encoding="utf-8")
    behind = Nginx(folder)
    process = subprocess.Popen([binary, "-p", folder, "-c", config, "-e", folder / "start.log"])
    try:
        for _ in range(200):
            if (folder / "front").exists():
                break
            with_poll = process.poll()
            assert with_poll is None, (folder / "start.log").read_text(encoding="utf-8")
            threading.Event().wait(0.02)
        yield behind
    finally:
        process.terminate()
        process.wait(10)
        behind.close()
