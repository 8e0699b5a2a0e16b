"""Faults that let the model run and spoil the head or the body of its answer."""

import gzip
import zlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from moongate.sim.book import Bill
from moongate.sim.faults import Case, fault
from moongate.sim.reply import Act, Content, Do, Framing, Item, Reply

_encode: Final = msgspec.json.encode
_decode: Final = msgspec.json.decode


def contents(reply: Reply) -> list[Content]:
    """The content of a reply, without its acts. A stream that was to be made bit by bit is made at once."""
    reply.items = list(reply.items)
    return [item for item in reply.items if not isinstance(item, Act)]


def put(reply: Reply, items: list[Item]) -> Reply:
    """The reply with other items, its true length told where a length is told."""
    reply.items = items
    reply.length = sum(len(item[0]) for item in items if not isinstance(item, Act))
    return reply


def rewrite(reply: Reply, edit: Callable[[dict[str, Any]], None]) -> Reply:
    """Apply an edit to every JSON object of an answer, whether body or event."""
    items: list[Item] = []
    for data, tokens in contents(reply):
        if not reply.sse:
            parsed = _decode(data)
            edit(parsed)
            items.append((_encode(parsed), tokens))
        elif data.startswith(b"data: {"):
            parsed = _decode(data[6:])
            edit(parsed)
            items.append((b"data: " + _encode(parsed) + b"\n\n", tokens))
        else:
            items.append((data, tokens))
    return put(reply, items)


def splice(reply: Reply, inside: bytes) -> Reply:
    """Write raw bytes as a further member of the body, or of the first event that carries tokens."""
    items: list[Item] = list(contents(reply))
    for index, item in enumerate(items):
        if not isinstance(item, Act) and (item[1] or not reply.sse):
            at = item[0].index(b"{") + 1
            items[index] = (item[0][:at] + inside + b"," + item[0][at:], item[1])
            break
    return put(reply, items)


def whole_body(reply: Reply, change: Callable[[bytes], bytes]) -> Reply:
    """Change the bytes of the body as one."""
    parts = contents(reply)
    body = change(b"".join(data for data, _ in parts))
    return put(reply, [(body, sum(tokens for _, tokens in parts))])


@fault("empty_200", "200_then_empty", row=20, bill=Bill.FULL)
def _empty(reply: Reply, _: Case) -> Reply:
    """Status 200 and no body at all."""
    return put(reply, [])


@fault("json_truncated", row=21, bill=Bill.FULL)
def _cut_json(reply: Reply, case: Case) -> Reply:
    """The JSON stops at `bytes`, half of it unless told; Content-Length is right."""
    return whole_body(reply, lambda body: body[: case.whole("bytes", len(body) // 2)])


@fault("short_body", "limit_data", row=22, bill=Bill.FULL)
def _short(reply: Reply, case: Case) -> Reply:
    """The connection is closed after `bytes` of the body, half of it unless told; Content-Length says all."""
    parts = contents(reply)
    body = b"".join(data for data, _ in parts)
    kept = body[: case.whole("bytes", len(body) // 2)]
    put(reply, [(kept, sum(tokens for _, tokens in parts)), Act(Do.CLOSE)])
    reply.length = len(body)
    return reply


@fault("lying_content_length", row=22, bill=Bill.FULL)
def _lying(reply: Reply, case: Case) -> Reply:
    """Content-Length says `short` bytes less than are sent, 10 unless told; the rest comes behind."""
    whole_body(reply, lambda body: body)
    reply.framing = Framing.LENGTH
    reply.length -= case.whole("short", 10)
    return reply


@fault("wrong_content_type", row=23, breaks=False)
def _wrong_type(reply: Reply, case: Case) -> Reply:
    """The true answer under Content-Type `value`, text/html unless told."""
    value = case.word("value", "text/html").encode()
    reply.headers = [(name, value if name == b"Content-Type" else old) for name, old in reply.headers]
    return reply


def _coded(reply: Reply, coding: bytes, change: Callable[[bytes], bytes]) -> Reply:
    reply.headers.append((b"Content-Encoding", coding))
    return whole_body(reply, change)


@fault("gzip", row=24, breaks=False)
def _gzip(reply: Reply, _: Case) -> Reply:
    """The true answer, gzip-encoded, asked or not."""
    return _coded(reply, b"gzip", lambda body: gzip.compress(body, mtime=0))


@fault("deflate", row=24, breaks=False)
def _deflate(reply: Reply, _: Case) -> Reply:
    """The true answer, deflate-encoded, asked or not."""
    return _coded(reply, b"deflate", zlib.compress)


@fault("gzip_broken", row=24, bill=Bill.FULL)
def _gzip_broken(reply: Reply, _: Case) -> Reply:
    """A gzip body with its middle damaged."""

    def damage(body: bytes) -> bytes:
        packed = gzip.compress(body, mtime=0)
        middle = len(packed) // 2
        return packed[:middle] + b"\xff\x00\xff\x00" + packed[middle + 4 :]

    return _coded(reply, b"gzip", damage)


@fault("gzip_bomb", row=24, bill=Bill.FULL)
def _bomb(reply: Reply, case: Case) -> Reply:
    """A gzip body that unpacks to `megabytes`, 1,000 unless told, of blanks inside one JSON text."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = b" " * 1_048_576
    parts = [packer.compress(b'{"id":"')]
    parts += [packer.compress(block) for _ in range(case.whole("megabytes", 1000))]
    parts += [packer.compress(b'"}'), packer.flush()]
    return _coded(reply, b"gzip", lambda _: b"".join(parts))


@fault("br_unasked", row=25, bill=Bill.FULL)
def _brotli(reply: Reply, _: Case) -> Reply:
    """A body that says it is br."""
    return _coded(reply, b"br", lambda body: b"\x0b\x02\x80" + body + b"\x03")


@fault("zstd_unasked", row=25, bill=Bill.FULL)
def _zstd(reply: Reply, _: Case) -> Reply:
    """A body that says it is zstd."""
    return _coded(reply, b"zstd", lambda body: b"\x28\xb5\x2f\xfd" + body)


@fault("invalid_utf8", row=26, breaks=False)
def _bad_utf8(reply: Reply, _: Case) -> Reply:
    """A byte sequence that is no UTF-8 inside a string of the answer."""
    return splice(reply, b'"x":"\xff\xfe\xe4\xbd"')


@fault("lone_surrogate", row=26, breaks=False)
def _surrogate(reply: Reply, _: Case) -> Reply:
    r"""The escape \ud800 without its other half inside a string of the answer."""
    return splice(reply, rb'"x":"\ud800"')


@fault("json_deep", row=27, breaks=False)
def _deep(reply: Reply, case: Case) -> Reply:
    """A member nested `depth` arrays deep, 100,000 unless told."""
    depth = case.whole("depth", 100_000)
    return splice(reply, b'"x":' + b"[" * depth + b"]" * depth)


@fault("json_nan", row=27, breaks=False)
def _nan(reply: Reply, _: Case) -> Reply:
    """NaN and -Infinity as values, which JSON does not have."""
    return splice(reply, b'"x":NaN,"y":-Infinity')


@fault("json_huge_number", row=27, breaks=False)
def _huge(reply: Reply, _: Case) -> Reply:
    """1e999 and an integer of 5,000 digits."""
    return splice(reply, b'"x":1e999,"y":' + b"9" * 5000)


@fault("json_duplicate_keys", row=27, breaks=False)
def _duplicate_keys(reply: Reply, _: Case) -> Reply:
    """The members `id` and `choices` twice, wrong the first time."""
    return splice(reply, b'"id":"first","choices":[]')


def _each_usage(answer: dict[str, Any], edit: Callable[[dict[str, Any]], None]) -> None:
    holders = [answer, *answer.get("choices", [])]
    for holder in holders:
        if isinstance(holder.get("usage"), dict):
            edit(holder)


@fault("usage_missing", row=28, breaks=False)
def _no_usage(reply: Reply, _: Case) -> Reply:
    """Usage is nowhere."""
    return rewrite(reply, lambda answer: _each_usage(answer, lambda holder: holder.pop("usage")))


@fault("usage_negative", row=28, breaks=False)
def _negative_usage(reply: Reply, _: Case) -> Reply:
    """completion_tokens is -1."""
    return rewrite(
        reply, lambda answer: _each_usage(answer, lambda holder: holder["usage"].update(completion_tokens=-1))
    )


@fault("usage_inconsistent", row=28, breaks=False)
def _odd_usage(reply: Reply, _: Case) -> Reply:
    """total_tokens is not the sum, and more is cached than was read."""

    def spoil(holder: dict[str, Any]) -> None:
        usage = holder["usage"]
        usage["total_tokens"] = usage["prompt_tokens"] + 1_000_000
        usage["cached_tokens"] = usage["prompt_tokens"] + 1

    return rewrite(reply, lambda answer: _each_usage(answer, spoil))


@fault("unknown_finish_reason", row=29, breaks=False)
def _odd_finish(reply: Reply, case: Case) -> Reply:
    """finish_reason is `value`, `moonset` unless told."""
    value = case.word("value", "moonset")

    def edit(answer: dict[str, Any]) -> None:
        for choice in answer.get("choices", []):
            if choice.get("finish_reason"):
                choice["finish_reason"] = value

    return rewrite(reply, edit)


@fault("unknown_fields", row=29, breaks=False)
def _extra_fields(reply: Reply, _: Case) -> Reply:
    """Members nobody knows, at the top and in each choice, one with 9007199254740993."""

    def edit(answer: dict[str, Any]) -> None:
        answer["x_new"] = {"big": 9_007_199_254_740_993, "list": [1, None]}
        for choice in answer.get("choices", []):
            choice["x_new"] = "moon"

    return rewrite(reply, edit)


@fault("unknown_model", row=29, breaks=False)
def _other_model(reply: Reply, case: Case) -> Reply:
    """The answer says it comes from model `value`, `kimi-k9` unless told."""
    return rewrite(reply, lambda answer: answer.update(model=case.word("value", "kimi-k9")))


@fault("1xx_flood", row=31, breaks=False)
def _flood(reply: Reply, case: Case) -> Reply:
    """`count` answers 103 Early Hints before the true one, 1,000 unless told."""
    hint = b"HTTP/1.1 103 Early Hints\r\nLink: </x>; rel=preload\r\n\r\n"
    reply.before.append(Act(Do.RAW, data=hint * case.whole("count", 1000)))
    return reply


@fault("103_hints", row=31, breaks=False)
def _hints(reply: Reply, _: Case) -> Reply:
    """One 100 Continue and one 103 Early Hints before the true answer."""
    hint = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>; rel=preload\r\n\r\n"
    reply.before.append(Act(Do.RAW, data=hint))
    return reply


@fault("big_headers", row=42, breaks=False)
def _big_headers(reply: Reply, case: Case) -> Reply:
    """`bytes` of headers beside the true ones, 6,200 unless told, in values of at most 4,000."""
    left, at = case.whole("bytes", 6200), 0
    while left > 0:
        reply.headers.append((b"X-Sim-Pad-%d" % at, b"p" * min(left, 4000)))
        left, at = left - 4000, at + 1
    return reply


@fault("one_big_header", row=42, breaks=False)
def _one_big_header(reply: Reply, case: Case) -> Reply:
    """One header of `bytes`, 64,000 unless told."""
    reply.headers.append((b"X-Sim-Pad", b"p" * case.whole("bytes", 64_000)))
    return reply


@fault("many_headers", row=42, breaks=False)
def _many_headers(reply: Reply, case: Case) -> Reply:
    """`count` small headers beside the true ones, 1,000 unless told."""
    reply.headers += [(b"X-Sim-%d" % at, b"p") for at in range(case.whole("count", 1000))]
    return reply


@fault("header_obs_fold", row=43, breaks=False)
def _fold(reply: Reply, _: Case) -> Reply:
    """A header value that goes on in the next line, as HTTP no longer allows."""
    reply.headers.append((b"X-Sim-Folded", b"one\r\n two"))
    return reply


@fault("header_nul", row=43, breaks=False)
def _nul(reply: Reply, _: Case) -> Reply:
    """A header value with a NUL in it."""
    reply.headers.append((b"X-Sim-Nul", b"one\x00two"))
    return reply


@fault("header_bare_cr", row=43, breaks=False)
def _bare_cr(reply: Reply, _: Case) -> Reply:
    """A header value with a carriage return in it."""
    reply.headers.append((b"X-Sim-Cr", b"one\rX-Evil: two"))
    return reply


@fault("header_bare_lf", row=43, breaks=False)
def _bare_lf(reply: Reply, _: Case) -> Reply:
    """A header whose line ends in LF alone."""
    reply.headers.append((b"X-Sim-Lf", b"one\nX-Evil: two"))
    return reply


@fault("two_lengths", row=43, breaks=False)
def _two_lengths(reply: Reply, _: Case) -> Reply:
    """A second Content-Length that says something else."""
    reply.headers.append((b"Content-Length", b"7"))
    return reply
