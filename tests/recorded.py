"""Traffic and vectors that others recorded or published; where they are not, their tests are left out.

They lie beside the checkout, in `../shared/data`, or where MOONGATE_DATA says; they are no part of the project.
"""

import functools
import gzip
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.source import ROOT

DATA = Path(os.environ.get("MOONGATE_DATA") or ROOT.parent / "shared" / "data")
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason="not here: the recorded traffic; see tests/recorded.py"
)


class Exchange(NamedTuple):
    """One recorded answer: where it stands, its status, its body, and what it was on the wire.

    `file` is its path below `api`; `headers` are those recorded that say nothing of the connection; `sent` is the
    body as it was sent, which may be packed.
    """

    name: str
    status: int
    body: bytes
    file: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    sent: bytes = b""


PLANTED = "cq5x7mlnl53d9zztva60"
"""Stands where a recording had its credentials and ids scrubbed, so that a leak would be seen."""

_JSON = (("content-type", "application/json"),)
_STREAM = (("content-type", "text/event-stream"),)
_OF_CONNECTION = {
    "connection",
    "content-encoding",
    "content-length",
    "date",
    "keep-alive",
    "transfer-encoding",
}


@functools.cache
def json_suite() -> dict[str, bytes]:
    """JSONTestSuite by file name: y_ must parse, n_ must not, i_ may do either."""
    if not DATA.is_dir():
        return {}
    with tarfile.open(DATA / "conformance" / "JSONTestSuite_test_parsing.tar.gz") as archive:
        files = [(Path(member.name).name, archive.extractfile(member)) for member in archive]
        return {name: file.read() for name, file in files if file is not None}


@functools.cache
def exchanges() -> tuple[Exchange, ...]:
    """Every recorded answer of a chat completions API, plain and streamed."""
    if not DATA.is_dir():
        return ()
    return tuple(_cassettes()) + tuple(_fixtures())


def streams() -> list[Exchange]:
    """The streamed ones."""
    return [found for found in exchanges() if b"data:" in found.body[:2000]]


def plain() -> list[Exchange]:
    """The ones that came in one piece."""
    return [found for found in exchanges() if found not in streams()]


@functools.cache
def kimi_errors() -> tuple[Exchange, ...]:
    """Kimi's own errors as its users quoted them, with planted ids where theirs were."""
    path = DATA / "api" / "kimi_real_errors.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if DATA.is_dir() else []
    return tuple(_quoted(path.name, at, json.loads(line)) for at, line in enumerate(lines))


def _quoted(file: str, at: int, said: dict[str, Any]) -> Exchange:
    is_text = "body_text" in said
    body = _bytes(said["body_text"] if is_text else said["body"]).replace(b"SCRUBBED", PLANTED.encode())
    headers = (("content-type", "text/plain"),) if is_text else _JSON
    return Exchange(f"{file}#{at}", said["status"], body, file, headers, body)


def files() -> list[str]:
    """Every file of the folder with recorded traffic, by its path there."""
    there = DATA / "api"
    return sorted(str(path.relative_to(there)) for path in there.rglob("*") if path.is_file())


def elsewhere() -> list[str]:
    """The recorded answers of other interfaces, by name."""
    return [name for _, name, one in _interactions() if not _is_chat(one)]


def _interactions() -> Iterator[tuple[Path, str, dict[str, Any]]]:
    for path in sorted((DATA / "api").glob("*/*.yaml")):
        text = path.read_text(encoding="utf-8").replace("\n      SCRUBBED\n", "\n")  # credentials left a hole
        for at, one in enumerate(yaml.safe_load(text)["interactions"]):
            yield path, f"{path.stem}#{at}", one


def _is_chat(one: dict[str, Any]) -> bool:
    uri: str = one["request"]["uri"]
    return uri.endswith("/chat/completions")


def _cassettes() -> Iterator[Exchange]:
    for path, name, one in _interactions():
        if not _is_chat(one):
            continue
        answer = one["response"]
        sent = answer["parsed_body"] if "parsed_body" in answer else answer["body"]["string"]
        body, sent = _bytes(sent), sent if isinstance(sent, bytes) else _bytes(sent)
        headers = [
            (key.lower(), str(value))
            for key, values in answer["headers"].items()
            for value in values or [PLANTED]
            if key.lower() not in _OF_CONNECTION
        ]
        if sent != body:
            headers.append(("content-encoding", "gzip"))
        file = f"{path.parent.name}/{path.name}"
        yield Exchange(name, answer["status"]["code"], body, file, tuple(headers), sent)


def _bytes(body: object) -> bytes:
    if isinstance(body, bytes):
        return gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body
    return (body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)).encode()


def _fixtures() -> Iterator[Exchange]:
    for path in sorted((DATA / "api" / "vercel_ai").iterdir()):
        body, file = path.read_bytes(), f"{path.parent.name}/{path.name}"
        if path.suffix == ".txt":
            events = [b"data: %b\n\n" % line for line in body.splitlines() if line.strip()]
            body = b"".join(events) + b"data: [DONE]\n\n"
        if path.suffix in {".sse", ".json", ".txt"}:
            yield Exchange(path.name, 200, body, file, _JSON if path.suffix == ".json" else _STREAM, body)
