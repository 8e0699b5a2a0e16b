"""The chat completions format, in which OpenAI's SDKs and Kimi speak (KIMI.md section 4)."""

from typing import Final

import msgspec

from moongate.core import lenient
from moongate.core.chat_stream import ChatReader
from moongate.core.faults import Failure, Fault, Reach
from moongate.core.fold import CHUNK, Fold, error_in
from moongate.core.plain import plain_answer
from moongate.core.surface import Answer, Classify


class ChatCompletions:
    """The chat completions surface; see `Surface`."""

    name = "chat"

    def stream_reader(self, *, strip_usage: bool, classify: Classify) -> ChatReader:
        """Make a reader for one streamed answer; `strip_usage`: the client did not ask for usage."""
        return ChatReader(strip_usage=strip_usage, classify=classify)

    def read_plain(self, body: bytes, classify: Classify) -> Answer | Failure:
        """Read a whole plain answer with status 200, or say why it is none."""
        usual = plain_answer(body)
        if usual is not None:
            return usual
        if not body.strip():
            return Failure(Fault.KIMI_BAD_RESPONSE, Reach.HEAD, detail="empty_200")
        try:
            answer = lenient.decode(CHUNK, body)
        except ValueError:
            return Failure(Fault.KIMI_BAD_RESPONSE, Reach.HEAD, detail="json_bad")
        fault = error_in(answer, body, classify)
        if fault:
            return Failure(fault, Reach.HEAD, detail="error_in_200")
        if not answer.choices:
            return Failure(Fault.KIMI_BAD_RESPONSE, Reach.HEAD, detail="no_choices")
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
