"""A patient reader of server-sent events, after the HTML standard: any line end, comments, several data lines."""

import json
import re
from typing import Any


def data_of(body: bytes) -> list[str]:
    """The data of each event."""
    text = body.decode("utf-8", "replace").removeprefix("\ufeff")
    events: list[str] = []
    data: list[str] = []
    for line in re.split(r"\r\n|\n|\r", text):
        if not line:
            if data:
                events.append("\n".join(data))
            data = []
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
    return events


def text_of(body: bytes) -> str:
    """Thinking and content of a stream, in order, events of other forms left out."""
    said = ""
    for data in data_of(body):
        if data.startswith("{"):
            for choice in json.loads(data).get("choices", []):
                delta: dict[str, Any] = choice["delta"]
                said += (delta.get("reasoning_content") or "") + (delta.get("content") or "")
    return said
