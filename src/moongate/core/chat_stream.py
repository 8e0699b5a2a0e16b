"""What of a streamed chat completion may be passed on, and whether it is whole.

Source: KIMI.md section 4, with the deviations that were seen in the wild: usage in two places, a missing `[DONE]`,
an error inside a 200, chunks glued together, no space after `data:`.
"""

from typing import Final

from moongate.core import lenient, sse
from moongate.core.faults import Failure, Fault, Reach
from moongate.core.fold import CHUNK, Fold, error_in
from moongate.core.pattern import Pattern
from moongate.core.surface import Answer, Classify, Step

DONE: Final = b"data: [DONE]\n\n"


class ChatReader:
    """Reads one streamed answer; see `StreamReader`.

    Events of a known pattern go straight on; everything else is parsed before it is passed on.
    """

    __slots__ = (
        "_classify",
        "_done",
        "_failed",
        "_fold",
        "_framer",
        "_passed",
        "_pattern",
        "_strip_usage",
    )

    def __init__(self, *, strip_usage: bool, classify: Classify) -> None:
        self._strip_usage = strip_usage
        self._classify = classify
        self._framer = sse.Framer()
        self._fold = Fold()
        self._pattern = Pattern()
        self._passed = False
        self._failed = False
        self._done = False

    def feed(self, chunk: bytes) -> Step:
        """Take the next bytes of the body."""
        whole = self._framer.feed(chunk)
        if self._pattern.matches(whole):
            return Step(whole, 1)
        step = self._events(whole) if whole else Step(done=self._done)
        if self._framer.too_big and not (step.failure or self._failed or self._done):
            self._fail(step, Fault.KIMI_BAD_RESPONSE, "event_too_big")
        return step

    def finish(self) -> Step:
        """Upstream ended with clean framing: say whether the answer is whole; supply a missing end marker."""
        if self._done or self._failed:
            return Step(done=self._done)
        whole, rest = self._framer.finish()
        step = self._events(whole + _completed(rest))
        if step.done or step.failure:
            return step
        if self._fold.complete:
            step.out += DONE
            step.done = self._done = True
        else:
            self._fail(step, Fault.KIMI_STREAM_TRUNCATED, "no_finish_reason")
        return step

    def answer(self) -> Answer:
        """Everything folded so far, from the unfiltered answer."""
        answer = self._fold.answer()
        answer.pieces += self._pattern.pieces
        return answer

    def own(self) -> Answer:
        """The same: no part came before it."""
        return self.answer()

    def _events(self, whole: bytes) -> Step:
        step = Step()
        kept: list[bytes] = []
        for raw in sse.events(whole):
            if self._done or self._failed:
                break
            if self._pattern.matches(raw):
                step.beats += 1
                kept.append(raw)
            elif self._take(sse.parse(raw), step):
                kept.append(raw)
        step.out = b"".join(kept)
        step.done = self._done
        return step

    def _take(self, event: sse.Event, step: Step) -> bool:
        """Read one event; say whether it may be passed on."""
        if not event.data:
            return True
        step.beats += 1
        if event.data.strip() == b"[DONE]":
            return self._end(step)
        try:
            chunk = lenient.decode(CHUNK, event.data)
        except ValueError:
            kind = Fault.KIMI_SERVER_ERROR if event.kind == b"error" else Fault.KIMI_BAD_RESPONSE
            return self._fail(step, kind, "event_unreadable")
        fault = error_in(chunk, event.data, self._classify)
        if fault or event.kind == b"error":
            self._fold.meter(chunk)
            return self._fail(step, fault or Fault.KIMI_SERVER_ERROR, "error_in_200")
        if self._fold.is_foreign(chunk):
            return self._fail(step, Fault.KIMI_BAD_RESPONSE, "id_mismatch")
        self._fold.take(chunk)
        self._pattern.learn(event, chunk, self._fold)
        if self._strip_usage and chunk.usage and not chunk.choices:
            return False
        self._passed = True
        return True

    def _end(self, step: Step) -> bool:
        """Whether `[DONE]` may be believed: OpenRouter was seen to give usage, but no finish reason, before it."""
        if not self._fold.complete and self._fold.usage is None:
            return self._fail(step, Fault.KIMI_STREAM_TRUNCATED, "no_finish_reason")
        self._done = True
        self._pattern.forget()
        return True

    def _fail(self, step: Step, fault: Fault, detail: str) -> bool:
        self._failed = True
        self._pattern.forget()
        step.failure = Failure(fault, Reach.EVENTS if self._passed else Reach.HEAD, detail=detail)
        return False


def _completed(rest: bytes) -> bytes:
    """An event that lacks nothing but its last empty line, with that line; empty if it lacks more."""
    data = sse.parse(rest).data
    if data.strip() != b"[DONE]":
        try:
            lenient.decode(CHUNK, data)
        except ValueError:
            return b""
    ending = rest[-1:] if rest.endswith((b"\n", b"\r")) else b"\n\n"
    return rest + ending
