"""Nothing that we take is seen otherwise by nginx or by h11: each request is refused, or framed alike."""

import asyncio
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from moongate.edge.server import RequestHead
from moongate.flow.downstream import Downstream
from tests.core.requests import BAD, GOOD
from tests.edge.opinions import ROOT, Nginx, Opinion, Request, nginx, of_h11
from tests.edge.toy import Stage, echo, run, serving, statuses, turns

DATA = (
    Path(os.environ.get("MOONGATE_DATA", ROOT.parent / "shared/data"))
    / "conformance/llhttp_http_vectors.json"
)
FIRST_LINE = re.compile(rb"(?m)^([A-Z-]+ [^\r\n]+ HTTP/1\.[01]\r\n)(?!Host:)")
ESCAPES = {"r": "\r", "n": "\n", "t": "\t", "f": "\f", '"': '"', "\\": "\\"}


def unescaped(text: str) -> bytes:
    """The bytes that a vector's text stands for: LF is CRLF, escapes are single characters, `\\LF` is nothing."""
    text = text.replace("\\\n", "").replace("\n", "\r\n")

    def character(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] in ESCAPES:
            return ESCAPES[code[0]]
        return chr(int(code[1:], 16) if code[0] == "x" else int(code, 8))

    return re.sub(r'\\(x[0-9a-f]{2}|[0-7]{1,3}|[rntf"\\])', character, text).encode("latin-1", "replace")


def corpus() -> Iterator[tuple[str, bytes]]:
    """Every request vector as it is and, since most of them lack it, with a Host."""
    for vector in json.loads(DATA.read_text(encoding="utf-8")):
        if vector["kind"] != "request":
            continue
        name = f"{vector['file']} {vector['case']}"
        data = unescaped(vector["text"])
        yield name, data
        with_host = FIRST_LINE.sub(rb"\1Host: a\r\n", data)
        if with_host != data:
            yield f"{name} with Host", with_host
    yield from GOOD.items()
    yield from BAD.items()


CORPUS = dict(corpus())
# what we take and somebody refuses: empty lines before a request line (RFC 9112 section 2.2: ignore them) to h11;
# `OPTIONS *` (RFC 9112 section 3.2.4) to nginx
ALONE = {
    "h11: blank lines first",
    "h11: pipelined",
    "h11: pipelining.md 105 with Host",
    "h11: sample.md 114 with Host",
    "h11: sample.md 120 with Host",
    "nginx: options",
}
AFTER = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    with nginx(tmp_path_factory.mktemp("nginx")) as running:
        yield running


async def ours(stage: Stage, data: bytes) -> Opinion:
    """What we take from these bytes; a connection that is not answered to the end of them times out."""
    stage.api.seen.clear()
    client = await stage.client()
    await client.send(data)
    await turns(60)
    stage.pass_time(200)
    answer = await client.rest()
    client.leave()
    got: list[Request] = []
    for head, body in stage.api.seen:
        target = head.path.encode() + (b"?" + head.query if head.query else b"")
        got.append((head.method, target, body))
    codes = statuses(answer)
    refused = bool(codes) and codes[-1] in (400, 413, 431)
    return Opinion(got, refused, closed=b"Connection: close" in answer and codes[-1] != 408)


def plain(requests: list[Request]) -> list[Request]:
    """Without what is known to be written in two ways: a query that is empty."""
    return [(method, target.removesuffix(b"?"), body) for method, target, body in requests]


def differs(we: Opinion, other: Opinion) -> bool:
    """Whether somebody sees another request where we see one.

    Of what both read, all must be equal; and where the other reads on after our last request, we must have refused or
    closed, where we read on, it must have refused.
    """
    mine, theirs = plain(we.requests), plain(other.requests)
    both = min(len(mine), len(theirs))
    if mine[:both] != theirs[:both]:
        return True
    return (len(mine) > both and not other.refused) or (len(theirs) > both and not we.closed)


def test_nothing_is_framed_in_two_ways(second: Nginx) -> None:
    different: list[str] = []
    alone: set[str] = set()
    taken = 0

    async def main() -> None:
        nonlocal taken
        async with serving(echo) as stage:
            for name, vector in CORPUS.items():
                for data in (vector, vector + AFTER):
                    we = await ours(stage, data)
                    taken += len(we.requests)
                    for who, other in (
                        ("h11", of_h11(data)),
                        ("nginx", await asyncio.to_thread(second.read, data)),
                    ):
                        if differs(we, other):
                            different.append(f"{name}: we {we}, {who} {other}")
                        elif len(we.requests) > len(other.requests):
                            alone.add(f"{who}: {name}")

    run(main())
    assert not different, "\n".join(different)
    assert taken > 200
    assert alone == ALONE


def test_a_refused_vector_closes_and_hands_nothing_on() -> None:
    async def nothing(_head: RequestHead, _body: bytes, _down: Downstream) -> None:
        raise AssertionError

    async def main() -> None:
        async with serving(nothing) as stage:
            for name, data in BAD.items():
                we = await ours(stage, data + AFTER)
                assert we.refused, name
                assert not we.requests, name

    run(main())
