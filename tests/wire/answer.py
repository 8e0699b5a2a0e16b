"""What a client got."""

import json
from typing import Any


class Answer:
    """A whole answer."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error of a JSON body, or of the last event of a stream."""
        stream = self.headers["content-type"].startswith("text/event-stream")
        error: dict[str, Any] = (self.events[-1] if stream else self.json)["error"]
        return error

    @property
    def events(self) -> list[Any]:
        """The data of each event of a stream; `[DONE]` as that text."""
        payloads = [
            line.removeprefix("data:").strip()
            for line in self.body.decode().splitlines()
            if line.startswith("data:")
        ]
        return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]

    @property
    def text(self) -> str:
        """The content of a stream's deltas, or of a plain answer."""
        if not self.headers["content-type"].startswith("text/event-stream"):
            content: str = self.json["choices"][0]["message"]["content"]
            return content
        return "".join(
            event["choices"][0]["delta"].get("content") or ""
            for event in self.events
            if event != "[DONE]" and event.get("choices")
        )

    @property
    def call_id(self) -> str:
        return self.headers["x-moongate-call-id"]
