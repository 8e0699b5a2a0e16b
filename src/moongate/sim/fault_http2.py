"""Faults of HTTP/2: streams refused and reset, connections that go away, windows, floods, frames that may not be.

Over HTTP/1.1, which knows none of this, the answer comes as usual; what stands in for the model is a 503 there.
"""

from moongate.sim.book import Bill
from moongate.sim.fault_streams import then
from moongate.sim.faults import CATALOGUE, Case, fault
from moongate.sim.reply import Act, Do, Reply, Word


def said(word: Word, number: int = 0) -> Act:
    """One thing that only HTTP/2 can say."""
    return Act(Do.SPEAK, word=word, number=number)


def refused(reply: Reply, case: Case, act: Act) -> Reply:
    """The call is not executed: told by a frame, or by 503 where there are none."""
    reply = CATALOGUE["503"].change(reply, case)
    reply.before.append(act)
    return reply


@fault("h2_goaway", row=45, runs=False)
def _goaway(reply: Reply, case: Case) -> Reply:
    """GOAWAY with error `code`, 0 unless told, that names the stream before this one; streams up to it go on."""
    return refused(reply, case, said(Word.GOAWAY, case.whole("code", 0)))


@fault("h2_goaway_calm", row=46, runs=False)
def _calm(reply: Reply, case: Case) -> Reply:
    """The same with ENHANCE_YOUR_CALM."""
    return refused(reply, case, said(Word.GOAWAY, 11))


@fault("h2_refused", row=47, runs=False)
def _refused(reply: Reply, case: Case) -> Reply:
    """RST_STREAM with REFUSED_STREAM; the model does not run."""
    return refused(reply, case, said(Word.RST, 7))


@fault("h2_reset", row=47)
def _reset(reply: Reply, case: Case) -> Reply:
    """RST_STREAM with error `code`, 8 (CANCEL) unless told, after `after` events with tokens, 3 unless told."""
    return then(reply, case, said(Word.RST, case.whole("code", 8)))


@fault("h2_reset_before_head", row=47)
def _reset_before(reply: Reply, case: Case) -> Reply:
    """RST_STREAM with error `code`, 2 (INTERNAL_ERROR) unless told, before the head."""
    reply.before.append(said(Word.RST, case.whole("code", 2)))
    return reply


@fault("h2_no_window", row=48, breaks=False)
def _no_window(reply: Reply, case: Case) -> Reply:
    """A true answer; requests that come later on the connection get no more window than they have."""
    del case
    reply.before.append(said(Word.NO_WINDOW))
    return reply


@fault("h2_max_streams", row=49, breaks=False)
def _max_streams(reply: Reply, case: Case) -> Reply:
    """A true answer; from now on the connection takes `streams` at a time, none unless told."""
    reply.before.append(said(Word.MAX_STREAMS, case.whole("streams", 0)))
    return reply


@fault("h2_vanished", row=50)
def _vanished(reply: Reply, case: Case) -> Reply:
    """After `after` events the peer's packets are dropped by the kernel and nothing is said any more."""
    return then(reply, case, said(Word.VANISH))


@fault("h2_continuation_flood", row=51)
def _continuation(reply: Reply, case: Case) -> Reply:
    """A head that goes on for `count` CONTINUATION frames, 100,000 unless told, and never ends."""
    reply.before.append(said(Word.CONTINUATION, case.whole("count", 100_000)))
    return reply


@fault("h2_settings_flood", row=51)
def _settings(reply: Reply, case: Case) -> Reply:
    """`count` SETTINGS frames, 100,000 unless told, each of which wants to be acknowledged; then nothing."""
    reply.before.append(said(Word.SETTINGS, case.whole("count", 100_000)))
    return reply


@fault("h2_ping_flood", row=51)
def _pings(reply: Reply, case: Case) -> Reply:
    """`count` PING frames, 100,000 unless told, each of which wants an answer; then nothing."""
    reply.before.append(said(Word.PING, case.whole("count", 100_000)))
    return reply


@fault("h2_reset_flood", row=51)
def _resets(reply: Reply, case: Case) -> Reply:
    """`count` RST_STREAM frames for this stream, 100,000 unless told."""
    reply.before.append(said(Word.RESETS, case.whole("count", 100_000)))
    return reply


@fault("h2_hpack_bomb", row=51)
def _bomb(reply: Reply, case: Case) -> Reply:
    """A head that names one field of 4 KB `count` times, 12,000 unless told, in a byte each."""
    reply.before.append(said(Word.HPACK, case.whole("count", 12_000)))
    return reply


@fault("h2_bad_frame", row=52, bill=Bill.SENT)
def _bad_frame(reply: Reply, case: Case) -> Reply:
    """DATA on stream 0, before the head."""
    del case
    reply.before.append(said(Word.BAD_FRAME))
    return reply


@fault("h2_push", row=52)
def _push(reply: Reply, case: Case) -> Reply:
    """PUSH_PROMISE, which every client has forbidden."""
    del case
    reply.before.append(said(Word.PUSH))
    return reply


@fault("h2_last_stream", row=52)
def _last(reply: Reply, case: Case) -> Reply:
    """HEADERS on the highest stream there can be, which nobody opened."""
    del case
    reply.before.append(said(Word.LAST_STREAM))
    return reply
