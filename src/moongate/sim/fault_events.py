"""Faults of events: line ends, comments, glued, doubled, foreign and oversized ones, errors in a stream."""

from collections.abc import Callable
from typing import Final

import msgspec

from moongate.sim.fault_bodies import contents, put
from moongate.sim.fault_streams import position, sliced, split_point, then
from moongate.sim.faults import Case, fault
from moongate.sim.reply import Act, Do, Item, Reply

_encode: Final = msgspec.json.encode
_ERROR: Final = {
    "message": "The engine is currently overloaded, please try again later",
    "type": "server_error",
}


def _each(reply: Reply, change: Callable[[bytes], bytes]) -> Reply:
    return put(reply, [(change(data), tokens) for data, tokens in contents(reply)])


@fault("error_event", "error_event_mid_stream", row=36)
def _error_event(reply: Reply, case: Case) -> Reply:
    """An error object as an event after `after` events with tokens, then a clean end without [DONE]."""
    error = {"message": case.word("message", _ERROR["message"]), "type": case.word("type", _ERROR["type"])}
    return then(reply, case, (b"data: " + _encode({"error": error}) + b"\n\n", 0))


@fault("error_event_named", row=36)
def _error_named(reply: Reply, case: Case) -> Reply:
    """The same under `event: error`, as the hosted agents' streams document it."""
    return then(reply, case, (b"event: error\ndata: " + _encode({"error": _ERROR}) + b"\n\n", 0))


@fault("one_byte_chunks", row=40, breaks=False)
def _one_byte(reply: Reply, _: Case) -> Reply:
    """Every byte in a chunk of its own."""
    return sliced(reply, 1)


@fault("event_split_inside_utf8", row=40, breaks=False)
def _split_utf8(reply: Reply, _: Case) -> Reply:
    """Every event in two chunks, cut within a character where it has one of several bytes; ask in Chinese."""
    items: list[Item] = []
    for data, tokens in contents(reply):
        at = split_point(data)
        items += [(data[:at], tokens), Act(Do.WAIT, 0.001), (data[at:], 0)]
    return put(reply, items)


@fault("crlf", row=40, breaks=False)
def _crlf(reply: Reply, _: Case) -> Reply:
    """Lines end in CR LF."""
    return _each(reply, lambda data: data.replace(b"\n", b"\r\n"))


@fault("cr", row=40, breaks=False)
def _cr(reply: Reply, _: Case) -> Reply:
    """Lines end in CR."""
    return _each(reply, lambda data: data.replace(b"\n", b"\r"))


@fault("mixed_newlines", row=40, breaks=False)
def _mixed(reply: Reply, _: Case) -> Reply:
    """Lines end in LF, CR LF and CR by turns."""
    ends = (b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n")
    items = contents(reply)
    return put(reply, [(data[:-2] + ends[at % 4], tokens) for at, (data, tokens) in enumerate(items)])


@fault("bom", row=40, breaks=False)
def _bom(reply: Reply, _: Case) -> Reply:
    """A byte order mark before the first event."""
    return put(reply, [(b"\xef\xbb\xbf", 0), *contents(reply)])


@fault("comments", row=40, breaks=False)
def _comments(reply: Reply, _: Case) -> Reply:
    """A comment before every event, `: hb` and an empty one by turns."""
    items: list[Item] = []
    for at, item in enumerate(contents(reply)):
        items += [(b": hb\n\n" if at % 2 else b":\n\n", 0), item]
    return put(reply, items)


@fault("multi_line_data", row=40, breaks=False)
def _multi_line(reply: Reply, _: Case) -> Reply:
    """The JSON of each event over two `data:` lines."""
    return _each(reply, lambda data: data.replace(b',"object"', b',\ndata: "object"', 1))


@fault("no_space", row=40, breaks=False)
def _no_space(reply: Reply, _: Case) -> Reply:
    """`data:` without the space."""
    return _each(reply, lambda data: data.replace(b"data: ", b"data:", 1))


@fault("other_fields", row=40, breaks=False)
def _other_fields(reply: Reply, _: Case) -> Reply:
    """`id:`, `retry:`, `event: message` and an unknown field beside each `data:`."""
    return _each(reply, lambda data: b"event: message\nid: 7\nretry: 10\nmoon: full\n" + data)


@fault("glued_chunk", row=40, breaks=False)
def _glued(reply: Reply, case: Case) -> Reply:
    """The beginning of an event glued to the next whole one in the same line, as seen in the wild."""
    items = contents(reply)
    at = position(items, case.whole("after", 3))
    if at < len(items):
        items[at] = (b'data: {"id":"chatcmpl-jQugN' + items[at][0], items[at][1])
    return put(reply, [*items])


@fault("duplicate_chunk", row=29, breaks=False)
def _duplicate(reply: Reply, case: Case) -> Reply:
    """The event after `after` others comes twice."""
    items = contents(reply)
    at = position(items, case.whole("after", 3))
    return put(reply, [*items[:at], *((data, 0) for data, _ in items[at : at + 1]), *items[at:]])


@fault("usage_twice", row=28, breaks=False)
def _usage_twice(reply: Reply, _: Case) -> Reply:
    """The event that finishes, with its usage, and the usage chunk if one was asked for, come twice."""
    items: list[Item] = []
    for data, tokens in contents(reply):
        items.append((data, tokens))
        if reply.sse and b'"usage":' in data:
            items.append((data, 0))
    return put(reply, items)


def _event_like(reply: Reply, content: bytes) -> bytes:
    model = contents(reply)[0][0]
    return model.replace(b'"content":""', b'"content":"' + content + b'"', 1)


@fault("big_event", "oversized_event", row=41, breaks=False)
def _big_event(reply: Reply, case: Case) -> Reply:
    """One further event of `bytes`, 1,000,000 unless told, after `after` others."""
    items = contents(reply)
    at = position(items, case.whole("after", 3))
    filler = b"m" * max(case.whole("bytes", 1_000_000) - len(items[0][0]), 0)
    return put(reply, [*items[:at], (_event_like(reply, filler), 0), *items[at:]])


@fault("endless_line", row=41)
def _endless(reply: Reply, case: Case) -> Reply:
    """`bytes`, 10,000,000 unless told, without a line end, after `after` events."""
    size = case.whole("bytes", 10_000_000)
    block = (b"m" * 65_536, 0)
    return then(reply, case, (b"data: ", 0), *[block] * (size // 65_536 + 1))


@fault("cross_talk", row=44)
def _cross_talk(reply: Reply, case: Case) -> Reply:
    """Two events of another answer's id after `after` events, then on as before."""
    items = contents(reply)
    at = position(items, case.whole("after", 3))
    ours = items[0][0].partition(b'"id":"')[2].partition(b'"')[0]
    strange = _event_like(reply, b"not yours").replace(ours, b"chatcmpl-" + b"f" * 24)
    return put(reply, [*items[:at], (strange, 0), (strange, 0), *items[at:]])


@fault("content_null", row=40, breaks=False)
def _content_null(reply: Reply, _: Case) -> Reply:
    """Deltas of thinking carry `content: null`, too."""
    return _each(
        reply, lambda data: data.replace(b'"delta":{"reasoning', b'"delta":{"content":null,"reasoning', 1)
    )


@fault("tool_index_missing", row=40, breaks=False)
def _no_index(reply: Reply, _: Case) -> Reply:
    """Deltas of tool calls carry no index."""
    return _each(reply, lambda data: data.replace(b'"tool_calls":[{"index":0,', b'"tool_calls":[{', 1))
