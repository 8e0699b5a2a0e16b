"""What moongate says of itself, as JSON lines on standard error. The access log is another thing: a view of records."""

import logging
import sys
from typing import Final, TextIO

import msgspec

ROOT: Final = "moongate"


class JsonLines(logging.Formatter):
    """One line an event: `time` in seconds since 1970, `level`, `logger`, `message`, and `error` with a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """As in `logging.Formatter`."""
        line: dict[str, object] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def set_up(stream: TextIO | None = None) -> None:
    """Send what moongate logs to this stream (standard error), unless whoever embeds it has set that up already."""
    logger = logging.getLogger(ROOT)
    if logger.handlers:
        return
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
