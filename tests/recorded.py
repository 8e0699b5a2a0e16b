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
from typing import NamedTuple

import pytest
import yaml

from tests.source import ROOT

DATA = Path(os.environ.get("MOONGATE_DATA") or ROOT.parent / "shared" / "data")
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason="not here: the recorded traffic; see tests/recorded.py"
)


class Exchange(NamedTuple):
    """One recorded answer: where it stands, its status and its body as it came."""

    name: str
    status: int
    body: bytes


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


def _cassettes() -> Iterator[Exchange]:
    for path in sorted((DATA / "api").glob("*/*.yaml")):
        text = path.read_text(encoding="utf-8").replace("\n      SCRUBBED\n", "\n")  # credentials left a hole
        for at, one in enumerate(yaml.safe_load(text)["interactions"]):
            if not one["request"]["uri"].endswith("/chat/completions"):
                continue
            answer = one["response"]
            body = answer["parsed_body"] if "parsed_body" in answer else answer["body"]["string"]
            yield Exchange(f"{path.stem}#{at}", answer["status"]["code"], _bytes(body))


def _bytes(body: object) -> bytes:
    if isinstance(body, bytes):
        return gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body
    return (body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)).encode()


def _fixtures() -> Iterator[Exchange]:
    for path in sorted((DATA / "api" / "vercel_ai").iterdir()):
        body = path.read_bytes()
        if path.suffix == ".txt":
            events = [b"data: %b\n\n" % line for line in body.splitlines() if line.strip()]
            yield Exchange(path.name, 200, b"".join(events) + b"data: [DONE]\n\n")
        elif path.suffix in {".sse", ".json"}:
            yield Exchange(path.name, 200, body)
