"""The rest of a streamed answer that broke off, read and passed on as if it were one with the part before.

The client goes on with the chunk id, model and time that it knows; the usage it is shown covers all parts; the chunks
that end the answer say how often it was resumed. The provider's own bytes stay but for these members.
"""

from typing import Final

import msgspec

from moongate.core import sse
from moongate.core.body import RawBody
from moongate.core.call import Usage
from moongate.core.faults import FailedError
from moongate.core.surface import Answer, Step, StreamReader

_encode: Final = msgspec.json.encode
_CHOICES: Final = msgspec.json.Decoder(list[msgspec.Raw])
_NO_DELTA: Final = (b"{}", b'{"content":""}')


class ResumedReader:
    """A `StreamReader` for the answer to a resumed call.

    `reader` reads the new stream by itself; `before` is what all earlier parts made together, `used` the tokens they
    are counted with, `times` how often the answer has been resumed, this time included.
    """

    __slots__ = ("_before", "_mark", "_reader", "_used")

    def __init__(self, reader: StreamReader, before: Answer, used: Usage, times: int) -> None:
        self._reader = reader
        self._before = before
        self._used = used
        self._mark = b'{"resumed":%d}' % times

    def feed(self, chunk: bytes) -> Step:
        """Take the next bytes of the new body."""
        return self._mended(self._reader.feed(chunk))

    def finish(self) -> Step:
        """Upstream ended with clean framing: say whether the answer is whole."""
        return self._mended(self._reader.finish())

    def own(self) -> Answer:
        """What this part alone made: what its attempt is charged by."""
        return self._reader.answer()

    def answer(self) -> Answer:
        """All parts together, as the client has them."""
        part, before = self._reader.answer(), self._before
        return msgspec.structs.replace(
            part,
            id=before.id or part.id,
            model=before.model or part.model,
            created=before.created or part.created,
            fingerprint=before.fingerprint or part.fingerprint,
            text=before.text + part.text,
            reasoning=before.reasoning + part.reasoning,
            usage=None
            if part.usage is None
            else self._used.plus(Usage(output=part.usage.output, reasoning=part.usage.reasoning)),
            choices=max(before.choices, part.choices),
            pieces=before.pieces + part.pieces,
        )

    def _mended(self, step: Step) -> Step:
        if step.out:
            step.out = b"".join(map(self._event, sse.events(step.out)))
        return step

    def _event(self, raw: bytes) -> bytes:
        """One event as the client may see it; empty for one that only opens an answer again."""
        event = sse.parse(raw)
        if not event.data or event.data.strip() == b"[DONE]":
            return raw
        try:
            chunk = RawBody(event.data)
            if not self._choices(chunk):
                return b""
            self._names(chunk)
            if self._usage(chunk):
                chunk.edit("moongate", self._mark)
        except (FailedError, msgspec.DecodeError):
            return raw  # it was read leniently: the client gets it as it came rather than not at all
        return b"data: %b\n\n" % chunk.data

    def _names(self, chunk: RawBody) -> None:
        before = self._before
        for name, known in (("id", before.id), ("model", before.model), ("created", before.created)):
            if known and name in chunk:
                chunk.edit(name, _encode(known))

    def _choices(self, chunk: RawBody) -> bool:
        """Mend what stands in the choices; False if nothing is left that a client would miss."""
        raw = chunk.get("choices")
        if raw is None:
            return True
        choices = [RawBody(bytes(one)) for one in _CHOICES.decode(raw)]
        for choice in choices:
            delta = choice.part("delta")
            if delta is not None and delta.edit("role", None):
                choice.edit("delta", delta.data)
                if delta.data in _NO_DELTA and choice.get("finish_reason") in (None, b"null"):
                    return False
            if self._usage(choice) or choice.get("finish_reason") not in (None, b"null"):
                chunk.edit("moongate", self._mark)
        chunk.edit("choices", b"[%b]" % b",".join(choice.data for choice in choices))
        return True

    def _usage(self, holder: RawBody) -> bool:
        """Show the tokens of all parts where this one shows its own."""
        usage = holder.part("usage")
        output = usage.whole("completion_tokens") if usage is not None else None
        if usage is None or output is None:
            return False
        used = self._used
        output += used.output
        usage.edit("prompt_tokens", b"%d" % used.input)
        usage.edit("completion_tokens", b"%d" % output)
        usage.edit("total_tokens", b"%d" % (used.input + output))
        self._details(usage)
        holder.edit("usage", usage.data)
        return True

    def _details(self, usage: RawBody) -> None:
        """The kinds of tokens: cached ones of the first part, reasoning of all."""
        used = self._used
        if "cached_tokens" in usage:
            usage.edit("cached_tokens", b"%d" % used.cached if used.cached else None)
        prompt = usage.part("prompt_tokens_details")
        if prompt is not None and prompt.edit("cached_tokens", b"%d" % used.cached):
            usage.edit("prompt_tokens_details", prompt.data)
        output = usage.part("completion_tokens_details")
        reasoning = used.reasoning + ((output.whole("reasoning_tokens") or 0) if output is not None else 0)
        if reasoning:
            output = output or RawBody(b"{}")
            output.edit("reasoning_tokens", b"%d" % reasoning)
            usage.edit("completion_tokens_details", output.data)
