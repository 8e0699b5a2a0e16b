"""The answer to one call, on its way into its downstream: which head, how much was delivered, how it ended."""

from collections.abc import Sequence

from moongate.core.call import Call
from moongate.core.faults import Failure
from moongate.core.surface import Surface
from moongate.core.wire import error_lines
from moongate.flow.downstream import Downstream, Head

_STREAM = (
    b"Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-store\r\nX-Accel-Buffering: no\r\n"
)
_JSON = b"Content-Type: application/json\r\n"


class Told:
    """What the headers of an answer tell of the way it took."""

    __slots__ = ("attempts", "edits", "model")

    def __init__(self) -> None:
        self.attempts = 0
        self.model = ""
        self.edits: Sequence[str] = ()


_REPLAYED = b"Idempotent-Replayed: true\r\n"


class Reply:
    """One call's answer. After `start` or `respond` there is no other; a failure then ends the stream in-band.

    `delivered` counts body bytes handed over, `status` is what the client was told (0: nothing yet), `failure` is
    set where the client was told of one, `ended` says that the client has all it will get, and `reached` that it was
    still there to take the end. `told` and `body` are there for a while after a whole plain answer to an SDK.
    """

    # fmt: off
    __slots__ = (
        "_surface", "body", "call", "delivered", "down", "ended", "failure", "reached", "status", "told",
    )
    # fmt: on

    def __init__(self, call: Call, surface: Surface, down: Downstream) -> None:
        self.call = call
        self.down = down
        self._surface = surface
        self.delivered = 0
        self.status = 0
        self.failure: Failure | None = None
        self.ended = False
        self.reached = False

    def start(self, told: Told) -> None:
        """Begin a stream; its head leaves with the first bytes."""
        self.status = 200
        self.down.start(Head(200, _STREAM + self._lines(told), stream=True))

    def write(self, data: bytes) -> None:
        """Pass on whole events."""
        self.delivered += len(data)
        self.down.write(data)

    def end(self) -> None:
        """End a stream cleanly; a second end does nothing."""
        if not self.ended:
            self._finish()
            self.down.end()

    def respond(self, told: Told, body: bytes) -> None:
        """Give a whole plain answer."""
        self.status = 200
        self._finish()
        self.delivered = len(body)
        if self.call.retry_count >= 0:  # an SDK, that comes back for what it did not get
            self.told, self.body = told, body
            self.down.answered = self
        self.down.respond(Head(200, _JSON + self._lines(told)), body)

    def fail(self, failure: Failure, told: Told | None = None) -> None:
        """Tell the client: as status and JSON if nothing was delivered, else as the stream's last event."""
        if self.ended:
            return
        self._finish()
        self.failure = failure
        if self.status:
            self.down.write(self._surface.error_event(failure, self.call.request_id))
            self.down.end()
            return
        self.status = failure.rule.facts.status
        lines = _JSON + self._lines(told or Told()) + error_lines(failure)
        self.down.respond(Head(self.status, lines), self._surface.error_body(failure, self.call.request_id))

    def _finish(self) -> None:
        self.ended = True
        self.reached = self.down.gone is None

    def _lines(self, told: Told) -> bytes:
        call = self.call
        lines = (
            f"X-Request-Id: {call.request_id}\r\nX-Moongate-Call-Id: {call.call_id}\r\n"
            f"X-Moongate-Conversation-Id: {call.session or call.call_id}\r\nX-Moongate-Attempts: {told.attempts}\r\n"
        )
        if told.model:
            lines += f"X-Moongate-Model: {told.model}\r\n"
        if told.edits:
            lines += f"X-Moongate-Edits: {', '.join(told.edits)}\r\n"
        return lines.encode("ascii")


class Repeating(Reply):
    """The answer to a call that may have been made before. `repeats`: it is another call's answer."""

    __slots__ = ("repeats",)

    def __init__(self, call: Call, surface: Surface, down: Downstream) -> None:
        super().__init__(call, surface, down)
        self.repeats = False

    def _lines(self, told: Told) -> bytes:
        lines = super()._lines(told)
        return lines + _REPLAYED if self.repeats else lines
