"""Faults of time and of streams: stalls, cuts, strange framing of events."""

from collections.abc import Callable
from typing import Final

import msgspec

from moongate.sim.book import Bill
from moongate.sim.fault_bodies import contents, put
from moongate.sim.faults import Case, fault
from moongate.sim.reply import FOREVER, Act, Content, Do, Framing, Item, Reply

_encode: Final = msgspec.json.encode
_ERROR: Final = {
    "message": "The engine is currently overloaded, please try again later",
    "type": "server_error",
}


def position(items: list[Content], after: int) -> int:
    """Where the event after `after` events with tokens begins; the opening event always stays."""
    seen = 0
    for index, (_, tokens) in enumerate(items):
        if seen >= after and index:
            return index
        seen += tokens > 0
    return len(items)


def _then(reply: Reply, case: Case, *acts: Item, default: int = 3) -> Reply:
    """Keep the events up to `after`, then do something else."""
    items = contents(reply)
    if not reply.sse:
        half = case.whole("bytes", reply.length // 2)
        body, length = items[0][0], reply.length
        put(reply, [(body[:half], items[0][1]), *acts])
        reply.length = length
        return reply
    return put(reply, [*items[: position(items, case.whole("after", default))], *acts])


def _each(reply: Reply, change: Callable[[bytes], bytes]) -> Reply:
    return put(reply, [(change(data), tokens) for data, tokens in contents(reply)])


# time


@fault("latency", row=38, breaks=False)
def _latency(reply: Reply, case: Case) -> Reply:
    """Everything `seconds` later, 1 unless told."""
    reply.before.append(Act(Do.WAIT, case.number("seconds", 1)))
    return reply


@fault("stall_before_head", row=38)
def _stall_head(reply: Reply, case: Case) -> Reply:
    """Nothing at all for `seconds`; for ever unless told."""
    reply.before.append(Act(Do.WAIT, case.number("seconds", FOREVER)))
    return reply


@fault("stall_first_token", row=38)
def _stall_first(reply: Reply, case: Case) -> Reply:
    """The head at once, then nothing for `seconds`."""
    wait = Act(Do.WAIT, case.number("seconds", FOREVER))
    if reply.whole:
        reply.items = [Act(Do.HEAD), wait, *contents(reply)]
    else:
        reply.items = [wait, *reply.items]
    return reply


@fault("slow_first_token", row=38, breaks=False)
def _slow_first(reply: Reply, case: Case) -> Reply:
    """The first token `seconds` later, 5 unless told."""
    reply.first += case.number("seconds", 5)
    return reply


@fault("stall_mid_stream", row=38)
def _stall_mid(reply: Reply, case: Case) -> Reply:
    """Nothing for `seconds` after `after` events with tokens; half of a body where there are no events."""
    items = contents(reply)
    wait = Act(Do.WAIT, case.number("seconds", FOREVER))
    if not reply.sse:
        body, tokens = items[0]
        half = len(body) // 2
        return put(reply, [(body[:half], tokens), wait, (body[half:], 0)])
    at = position(items, case.whole("after", 3))
    return put(reply, [*items[:at], wait, *items[at:]])


@fault("drip", "slicer", row=39, breaks=False)
def _drip(reply: Reply, case: Case) -> Reply:
    """`bytes` at a time, 1 unless told, `seconds` apart, 1 unless told."""
    _sliced(reply, max(case.whole("bytes", 1), 1))
    reply.gap = case.number("seconds", 1)
    return reply


@fault("bandwidth", row=39, breaks=False)
def _bandwidth(reply: Reply, case: Case) -> Reply:
    """At most `bytes_per_second`, 1,000 unless told."""
    rate = max(case.number("bytes_per_second", 1000), 1)
    size = max(int(rate / 20), 1)
    _sliced(reply, size)
    reply.gap = size / rate
    return reply


@fault("slow_close", breaks=False)
def _slow_close(reply: Reply, case: Case) -> Reply:
    """The whole body, then `seconds`, 5 unless told, before its end; the connection is closed after it."""
    reply.close = True
    return put(reply, [*contents(reply), Act(Do.WAIT, case.number("seconds", 5))])


@fault("close_after_reply", row=32, breaks=False)
def _close_after(reply: Reply, _: Case) -> Reply:
    """A true answer that promises keep-alive, and a close right behind it."""
    return put(reply, [*contents(reply), Act(Do.END), Act(Do.CLOSE)])


@fault("close_on_next_request", row=32, breaks=False)
def _doom(reply: Reply, _: Case) -> Reply:
    """A true answer; the connection is closed when the next request arrives on it."""
    return put(reply, [*contents(reply), Act(Do.DOOM)])


# cuts


@fault("reset_before_head", row=32)
def _reset_before_head(reply: Reply, _: Case) -> Reply:
    """The model has read the prompt; the connection is reset before the head."""
    reply.before.append(Act(Do.RESET))
    return reply


@fault("close_before_head", row=32)
def _close_before_head(reply: Reply, _: Case) -> Reply:
    """The same with a clean close."""
    reply.before.append(Act(Do.CLOSE))
    return reply


@fault("reset_after_head", row=33)
def _reset_after_head(reply: Reply, _: Case) -> Reply:
    """The head, then a reset before the first event."""
    reply.items = [Act(Do.HEAD), Act(Do.RESET)] if reply.whole else [Act(Do.RESET)]
    return reply


@fault("reset_mid_stream", row=34)
def _reset_mid(reply: Reply, case: Case) -> Reply:
    """A reset after `after` events with tokens, 3 unless told; a body is cut at `bytes`."""
    return _then(reply, case, Act(Do.RESET))


@fault("reset_mid_event", row=34)
def _reset_mid_event(reply: Reply, case: Case) -> Reply:
    """`after` events with tokens, `bytes` of the next one (half unless told), then a reset."""
    items = contents(reply)
    at = min(position(items, case.whole("after", 3)), len(items) - 1)
    event = items[at][0]
    return put(reply, [*items[:at], (event[: case.whole("bytes", len(event) // 2)], 0), Act(Do.RESET)])


def _split_point(event: bytes) -> int:
    """Just behind the first byte of the first character that has several; the middle where there is none."""
    return next((at + 1 for at, byte in enumerate(event) if byte >= 0xC0), len(event) // 2)


@fault("reset_mid_utf8", row=34)
def _reset_mid_utf8(reply: Reply, case: Case) -> Reply:
    """A reset within a character of several bytes, after `after` events with tokens; ask in Chinese."""
    items = contents(reply)
    at = min(position(items, case.whole("after", 3)), len(items) - 1)
    while at < len(items) - 1 and items[at][0].isascii():
        at += 1
    event = items[at][0]
    return put(reply, [*items[:at], (event[: _split_point(event)], 0), Act(Do.RESET)])


@fault("chunk_truncated", row=35)
def _no_last_chunk(reply: Reply, case: Case) -> Reply:
    """The connection is closed after `after` events with tokens, without the last chunk."""
    return _then(reply, case, Act(Do.CLOSE))


@fault("chunk_cut", row=35)
def _cut_chunk(reply: Reply, case: Case) -> Reply:
    """The connection is closed inside a chunk."""
    return _then(reply, case, Act(Do.RAW, data=b"40\r\ndata: {"), Act(Do.CLOSE))


@fault("chunk_size_bad", row=35)
def _bad_chunk_size(reply: Reply, case: Case) -> Reply:
    """A chunk whose size is no number."""
    return _then(reply, case, Act(Do.RAW, data=b"zz\r\ndata: {}\r\n"), Act(Do.CLOSE))


@fault("no_done", "cut_before_done", row=36, breaks=False)
def _no_done(reply: Reply, _: Case) -> Reply:
    """Finish reason and usage, a clean end, no [DONE]."""
    return put(reply, [item for item in contents(reply) if not item[0].startswith(b"data: [DONE]")])


@fault("no_done_close", row=36, breaks=False)
def _no_done_close(reply: Reply, _: Case) -> Reply:
    """The same on a stream whose end is the connection's end."""
    reply.framing = Framing.CLOSE
    return put(reply, [item for item in contents(reply) if not item[0].startswith(b"data: [DONE]")])


@fault("close_mid_stream", row=36)
def _clean_cut(reply: Reply, case: Case) -> Reply:
    """A clean end after `after` events with tokens: no finish reason, no [DONE]."""
    return _then(reply, case)


@fault("done_without_finish", row=36)
def _early_done(reply: Reply, case: Case) -> Reply:
    """[DONE] after `after` events with tokens, no finish reason."""
    return _then(reply, case, (b"data: [DONE]\n\n", 0))


@fault("after_done", row=37, breaks=False)
def _after_done(reply: Reply, _: Case) -> Reply:
    """More events behind [DONE]."""
    items = contents(reply)
    more: list[Item] = [item for item in items if item[1]]
    return put(reply, [*items, *more[:3]])


@fault("no_stream", row=36)
def _no_stream(reply: Reply, _: Case) -> Reply:
    """An event stream that ends before its first event."""
    return put(reply, [])


@fault("thinking_only", row=36, bill=Bill.SENT)
def _thinking_only(reply: Reply, _: Case) -> Reply:
    """Only thinking, then a finish reason and [DONE]; no content."""
    return put(reply, [item for item in contents(reply) if b'"delta":{"content"' not in item[0]])


# events


@fault("error_event", "error_event_mid_stream", row=36)
def _error_event(reply: Reply, case: Case) -> Reply:
    """An error object as an event after `after` events with tokens, then a clean end without [DONE]."""
    error = {"message": case.word("message", _ERROR["message"]), "type": case.word("type", _ERROR["type"])}
    return _then(reply, case, (b"data: " + _encode({"error": error}) + b"\n\n", 0))


@fault("error_event_named", row=36)
def _error_named(reply: Reply, case: Case) -> Reply:
    """The same under `event: error`, as the hosted agents' streams document it."""
    return _then(reply, case, (b"event: error\ndata: " + _encode({"error": _ERROR}) + b"\n\n", 0))


def _sliced(reply: Reply, size: int) -> Reply:
    items: list[Item] = []
    for data, tokens in contents(reply):
        items += [(data[at : at + size], 0 if at else tokens) for at in range(0, len(data), size)]
    return put(reply, items)


@fault("one_byte_chunks", row=40, breaks=False)
def _one_byte(reply: Reply, _: Case) -> Reply:
    """Every byte in a chunk of its own."""
    return _sliced(reply, 1)


@fault("event_split_inside_utf8", row=40, breaks=False)
def _split_utf8(reply: Reply, _: Case) -> Reply:
    """Every event in two chunks, cut within a character where it has one of several bytes; ask in Chinese."""
    items: list[Item] = []
    for data, tokens in contents(reply):
        at = _split_point(data)
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
    return _then(reply, case, (b"data: ", 0), *[block] * (size // 65_536 + 1))


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
