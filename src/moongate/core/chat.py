"""The chat completions format: what of a streamed answer may be passed on, and what a whole one says.

Source: OpenAI's chat completions API as Kimi speaks it (KIMI.md section 4), with the deviations that were
seen in the wild: usage in two places, a missing `[DONE]`, an error inside a 200, chunks glued together, no
space after `data:`.
"""

import re
from typing import Final

import msgspec

from moongate.core import lenient, sse
from moongate.core.faults import Failure, Fault, Reach
from moongate.core.fold import Chunk, Delta, Fold, escaped
from moongate.core.surface import Answer, Classify, Step

DONE: Final = b"data: [DONE]\n\n"

_CHUNK: Final = msgspec.json.Decoder(Chunk)
_STRING_INSIDE: Final = re.compile(rb'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+')
_MOST_VAIN_LESSONS: Final = 8
_TEXT_FIELDS: Final = ("content", "reasoning_content", "reasoning")


class ChatReader:
    """Reads one streamed answer; see `StreamReader`.

    Most events of a stream differ from the one before in one string only: a piece of text, of reasoning or
    of a tool call's arguments. So each event that was parsed and found harmless becomes a pattern: an event
    that has the same bytes before and behind that string, and between them the inside of a JSON string, is
    proved to be as harmless, without parsing it. Everything else is parsed before it is passed on.
    """

    __slots__ = (
        "_classify",
        "_done",
        "_failed",
        "_fold",
        "_foot",
        "_framer",
        "_head",
        "_passed",
        "_sink",
        "_strip_usage",
        "_vain",
    )

    def __init__(self, *, strip_usage: bool, classify: Classify) -> None:
        self._strip_usage = strip_usage
        self._classify = classify
        self._framer = sse.Framer()
        self._fold = Fold()
        self._head = b""
        self._foot = b""
        self._sink = bytearray()
        self._vain = 0
        self._passed = False
        self._failed = False
        self._done = False

    def feed(self, chunk: bytes) -> Step:
        """Take the next bytes of the body."""
        whole = self._framer.feed(chunk)
        if self._head and self._matches(whole):
            return Step(whole, 1)
        step = self._events(whole) if whole else Step(done=self._done)
        if self._framer.too_big and not (step.failure or self._failed or self._done):
            self._fail(step, Fault.KIMI_BAD_RESPONSE, "event_too_big")
        return step

    def finish(self) -> Step:
        """Upstream ended with clean framing: say whether the answer is whole; supply a missing end marker."""
        whole, rest = self._framer.finish()
        step = self._events(whole + _completed(rest))
        if self._done or self._failed:
            return step
        if self._fold.complete:
            step.out += DONE
            step.done = self._done = True
        else:
            self._fail(step, Fault.KIMI_STREAM_TRUNCATED, "no_finish_reason")
        return step

    def answer(self) -> Answer:
        """Everything folded so far, from the unfiltered answer."""
        return self._fold.answer()

    def _matches(self, raw: bytes) -> bool:
        """Whether this is one event of the known pattern; if so, its string is folded."""
        if not (raw.startswith(self._head) and raw.endswith(self._foot)):
            return False
        found = _STRING_INSIDE.fullmatch(raw, len(self._head), len(raw) - len(self._foot))
        if found is None:
            return False
        self._sink += found[0]
        self._vain = 0
        return True

    def _events(self, whole: bytes) -> Step:
        step = Step()
        kept: list[bytes] = []
        for raw in sse.events(whole):
            if self._done or self._failed:
                break
            if self._head and self._matches(raw):
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
            chunk = lenient.decode(_CHUNK, event.data)
        except ValueError:
            kind = Fault.KIMI_SERVER_ERROR if event.kind == b"error" else Fault.KIMI_BAD_RESPONSE
            return self._fail(step, kind, "event_unreadable")
        if chunk.error or event.kind == b"error":
            self._fold.meter(chunk)
            known = self._classify(200, event.data) if chunk.error else Fault.KIMI_SERVER_ERROR
            return self._fail(step, known, "error_in_200")
        if self._fold.id and chunk.id and chunk.id != self._fold.id:
            return self._fail(step, Fault.KIMI_BAD_RESPONSE, "id_mismatch")
        if any(choice.finish_reason == "error" for choice in chunk.choices or ()):
            self._fold.meter(chunk)
            return self._fail(step, Fault.KIMI_SERVER_ERROR, "finish_reason_error")
        self._fold.take(chunk)
        self._learn(event, chunk)
        if self._strip_usage and chunk.usage and not chunk.choices:
            return False
        self._passed = True
        return True

    def _end(self, step: Step) -> bool:
        """Whether `[DONE]` may be believed: OpenRouter was seen to give usage, but no finish reason, before it."""
        if not self._fold.complete and self._fold.usage is None:
            return self._fail(step, Fault.KIMI_STREAM_TRUNCATED, "no_finish_reason")
        self._done = True
        self._head = b""
        return True

    def _fail(self, step: Step, fault: Fault, detail: str) -> bool:
        self._failed = True
        self._head = b""
        step.failure = Failure(fault, Reach.EVENTS if self._passed else Reach.HEAD, detail=detail)
        return False

    def _learn(self, event: sse.Event, chunk: Chunk) -> None:
        """Make a pattern of this event, if all it carries is one piece of one string."""
        self._head = b""
        if self._vain >= _MOST_VAIN_LESSONS or len(event.data) + 8 != len(event.raw) or chunk.usage:
            return
        if not chunk.choices or len(chunk.choices) > 1:
            return
        choice = chunk.choices[0]
        if choice.index or choice.finish_reason or choice.usage or choice.delta is None:
            return
        name, value, sink = self._only_string(choice.delta)
        key = b'"%b":"' % name.encode()
        at = event.raw.find(key) + len(key)
        end = at + len(value)
        head, foot = event.raw[:at], event.raw[end:]
        spelled_once = event.raw.count(key[:-2]) == 1 and event.raw[at:end] == value
        if value and spelled_once and foot.startswith(b'"') and b"\\" not in head and b"\\" not in foot:
            self._head, self._foot, self._sink = head, foot, sink
            self._vain += 1

    def _only_string(self, delta: Delta) -> tuple[str, bytes, bytearray]:
        """The one string this delta adds to: its name, the inside of its JSON string, where it is folded."""
        texts = [(name, escaped(getattr(delta, name))) for name in _TEXT_FIELDS]
        texts = [(name, value) for name, value in texts if value]
        calls = delta.tool_calls or ()
        if len(texts) == 1 and not calls:
            name, value = texts[0]
            return name, value, self._fold.text if name == "content" else self._fold.reasoning
        if (
            len(calls) == 1
            and not texts
            and calls[0].function
            and not (calls[0].id or calls[0].function.name)
        ):
            tool = self._fold.tool(calls[0].index, "")
            return "arguments", escaped(calls[0].function.arguments), tool.arguments
        return "", b"", bytearray()


class ChatCompletions:
    """The chat completions surface; see `Surface`."""

    name = "chat"

    def stream_reader(self, *, strip_usage: bool, classify: Classify) -> ChatReader:
        """Make a reader for one streamed answer; `strip_usage`: the client did not ask for usage."""
        return ChatReader(strip_usage=strip_usage, classify=classify)

    def read_plain(self, body: bytes, classify: Classify) -> Answer | Failure:
        """Read a whole plain answer with status 200, or say why it is none."""
        if not body.strip():
            return Failure(Fault.KIMI_BAD_RESPONSE, Reach.HEAD, detail="empty_200")
        try:
            answer = lenient.decode(_CHUNK, body)
        except ValueError:
            return Failure(Fault.KIMI_BAD_RESPONSE, Reach.HEAD, detail="json_bad")
        if answer.error:
            return Failure(classify(200, body), Reach.HEAD, detail="error_in_200")
        if not answer.choices:
            return Failure(Fault.KIMI_BAD_RESPONSE, Reach.HEAD, detail="no_choices")
        if any(choice.finish_reason == "error" for choice in answer.choices):
            return Failure(Fault.KIMI_SERVER_ERROR, Reach.HEAD, detail="finish_reason_error")
        fold = Fold()
        fold.take(answer)
        return fold.answer()

    def error_body(self, failure: Failure, request_id: str) -> bytes:
        """Write the failure as a JSON body of this format."""
        facts = failure.rule.facts
        error: dict[str, object] = {
            "message": failure.message or facts.message,
            "type": facts.kind,
            "code": facts.code,
            "param": failure.param,
            "request_id": request_id,
        }
        if failure.fault is Fault.KIMI_NETWORK_TIMEOUT:
            error |= {"upstream_timeout_ms": failure.timeout_ms, "phase": failure.phase}
        return msgspec.json.encode({"error": error})

    def error_event(self, failure: Failure, request_id: str) -> bytes:
        """Write the failure as one stream event, its terminator included."""
        return b"data: %b\n\n" % self.error_body(failure, request_id)


CHAT: Final = ChatCompletions()


def _completed(rest: bytes) -> bytes:
    """An event that lacks nothing but its last empty line, with that line; empty if it lacks more."""
    data = sse.parse(rest).data
    if data.strip() != b"[DONE]":
        try:
            lenient.decode(_CHUNK, data)
        except ValueError:
            return b""
    return rest + (b"\n" if rest.endswith((b"\n", b"\r")) else b"\n\n")
