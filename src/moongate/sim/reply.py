"""What an answer is before any transport writes it.

A `Reply` is a head and a list of items; an item is bytes that carry tokens, or an `Act` such as a pause or a
reset. Faults are functions from one reply to another, so HTTP/1.1 and HTTP/2 misbehave alike.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

Header = tuple[bytes, bytes]


class Do(Enum):
    """What an act does to the exchange or its connection."""

    WAIT = "wait"  # for `seconds`
    RAW = "raw"  # write `data` outside of any framing (HTTP/1.1 only)
    HEAD = "head"  # send the head now
    END = "end"  # end the message as the framing asks; the connection lives on
    CLOSE = "close"  # close the connection without ending the message
    RESET = "reset"  # the same with a TCP reset
    SPEAK = "speak"  # say `word` with `number` (HTTP/2 only)
    DOOM = "doom"  # close the connection when the next request arrives on it, unanswered


class Word(Enum):
    """What only HTTP/2 can say. Those before `NO_WINDOW` are the last that the stream says."""

    GOAWAY = "goaway"
    RST = "rst"
    RESETS = "resets"
    CONTINUATION = "continuation"
    SETTINGS = "settings"
    PING = "ping"
    HPACK = "hpack"
    BAD_FRAME = "bad_frame"
    PUSH = "push"
    LAST_STREAM = "last_stream"
    VANISH = "vanish"
    NO_WINDOW = "no_window"
    MAX_STREAMS = "max_streams"


@dataclass(frozen=True, slots=True)
class Act:
    """One step that is not content."""

    do: Do
    seconds: float = 0.0
    data: bytes = b""
    word: Word | None = None
    number: int = 0


Content = tuple[bytes, int]
"""Bytes to send as one chunk, and the output tokens in them."""

Item = Content | Act
FOREVER: Final = 86_400.0


class Framing(Enum):
    """How the end of the body is told."""

    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"


@dataclass(slots=True)
class Reply:
    """An answer on its way.

    `length` is what `Content-Length` will say, true or not. `first` and `per_token` are seconds: content that
    carries tokens waits until the model would have made them. `whole` answers wait for all their tokens at
    once and send their head with the body; others send the head at once. `gap` seconds pass before every
    further item.
    """

    status: int
    headers: list[Header]
    items: Iterable[Item]
    framing: Framing = Framing.LENGTH
    length: int = 0
    before: list[Act] = field(default_factory=list)
    first: float = 0.0
    per_token: float = 0.0
    gap: float = 0.0
    whole: bool = True
    close: bool = False
    sse: bool = False


def json_reply(status: int, body: bytes, headers: Iterable[Header] = ()) -> Reply:
    """A whole JSON answer."""
    head = [(b"Content-Type", b"application/json; charset=utf-8"), *headers]
    return Reply(status, head, [(body, 0)], length=len(body))


def text_reply(status: int, body: bytes, content_type: bytes, headers: Iterable[Header] = ()) -> Reply:
    """A whole answer of another type."""
    return Reply(status, [(b"Content-Type", content_type), *headers], [(body, 0)], length=len(body))


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it arrived: names and values of headers are untouched, in order."""

    method: str
    target: str
    headers: list[Header]
    body: bytes
    received: float
    version: str = "1.1"

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    def header(self, name: bytes) -> str:
        """The first header of that lower-case name, or an empty text."""
        for key, value in self.headers:
            if len(key) == len(name) and key.lower() == name:
                return value.decode("latin-1")
        return ""


class Refusal(Exception):  # noqa: N818 - it is the provider's answer, not an error of ours
    """The provider refuses: status, error type, message and extra headers as KIMI.md section 6 has them."""

    def __init__(self, status: int, kind: str, message: str, headers: Iterable[Header] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.headers = list(headers)


def invalid(message: str) -> Refusal:
    """The 400 that most rules end in."""
    return Refusal(400, "invalid_request_error", message)
