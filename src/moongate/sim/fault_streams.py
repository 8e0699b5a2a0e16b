"""Faults of time and of framing: stalls, drips, cuts, resets."""

from moongate.sim.book import Bill
from moongate.sim.fault_bodies import contents, put
from moongate.sim.faults import Case, fault
from moongate.sim.reply import FOREVER, Act, Content, Do, Framing, Item, Reply


def position(items: list[Content], after: int) -> int:
    """Where the event after `after` events with tokens begins; the opening event always stays."""
    seen = 0
    for index, (_, tokens) in enumerate(items):
        if seen >= after and index:
            return index
        seen += tokens > 0
    return len(items)


def then(reply: Reply, case: Case, *acts: Item, default: int = 3) -> Reply:
    """Keep the events up to `after` (half of a whole body), then do something else."""
    items = contents(reply)
    if not reply.sse:
        half = case.whole("bytes", reply.length // 2)
        body, length = items[0][0], reply.length
        put(reply, [(body[:half], items[0][1]), *acts])
        reply.length = length
        return reply
    return put(reply, [*items[: position(items, case.whole("after", default))], *acts])


def sliced(reply: Reply, size: int) -> Reply:
    """The reply with its content in pieces of `size` bytes."""
    items: list[Item] = []
    for data, tokens in contents(reply):
        items += [(data[at : at + size], 0 if at else tokens) for at in range(0, len(data), size)]
    return put(reply, items)


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
    sliced(reply, max(case.whole("bytes", 1), 1))
    reply.gap = case.number("seconds", 1)
    return reply


@fault("bandwidth", row=39, breaks=False)
def _bandwidth(reply: Reply, case: Case) -> Reply:
    """At most `bytes_per_second`, 1,000 unless told."""
    rate = max(case.number("bytes_per_second", 1000), 1)
    size = max(int(rate / 20), 1)
    sliced(reply, size)
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
    return then(reply, case, Act(Do.RESET))


@fault("reset_mid_event", row=34)
def _reset_mid_event(reply: Reply, case: Case) -> Reply:
    """`after` events with tokens, `bytes` of the next one (half unless told), then a reset."""
    items = contents(reply)
    at = min(position(items, case.whole("after", 3)), len(items) - 1)
    event = items[at][0]
    return put(reply, [*items[:at], (event[: case.whole("bytes", len(event) // 2)], 0), Act(Do.RESET)])


def split_point(event: bytes) -> int:
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
    return put(reply, [*items[:at], (event[: split_point(event)], 0), Act(Do.RESET)])


@fault("chunk_truncated", row=35)
def _no_last_chunk(reply: Reply, case: Case) -> Reply:
    """The connection is closed after `after` events with tokens, without the last chunk."""
    return then(reply, case, Act(Do.CLOSE))


@fault("chunk_cut", row=35)
def _cut_chunk(reply: Reply, case: Case) -> Reply:
    """The connection is closed inside a chunk."""
    return then(reply, case, Act(Do.RAW, data=b"40\r\ndata: {"), Act(Do.CLOSE))


@fault("chunk_size_bad", row=35)
def _bad_chunk_size(reply: Reply, case: Case) -> Reply:
    """A chunk whose size is no number."""
    return then(reply, case, Act(Do.RAW, data=b"zz\r\ndata: {}\r\n"), Act(Do.CLOSE))


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
    return then(reply, case)


@fault("done_without_finish", row=36)
def _early_done(reply: Reply, case: Case) -> Reply:
    """[DONE] after `after` events with tokens, no finish reason."""
    return then(reply, case, (b"data: [DONE]\n\n", 0))


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
