"""What a client got."""

import json
import re
from collections.abc import Iterator
from typing import Any


def payloads(stream: bytes) -> Iterator[str]:
    """The data of each event as the standard reads it (WHATWG HTML, section 9.2)."""
    data: list[str] = []
    for line in re.split("\r\n|\n|\r", stream.decode("utf-8-sig", "replace")):
        name, _, value = line.partition(":")
        if not line and data:
            yield "\n".join(data)
            data = []
        elif name == "data":
            data.append(value.removeprefix(" "))


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
        return [each if each == "[DONE]" else json.loads(each) for each in payloads(self.body)]

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
