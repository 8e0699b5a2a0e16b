"""Prompts made of blocks: two prompts begin with the same bytes exactly as far as their block ids are the same.

Four bytes of text count as one token and a message as four, as the simulated Kimi counts; Kimi's own tokeniser comes
to about a quarter more or less (docs/reference/simulator.md). All text is ASCII that JSON takes as it is.
"""

import hashlib
from dataclasses import dataclass
from typing import Final

import msgspec

from moongate.replay.trace import BLOCK_TOKENS, Arrival

TOKEN_BYTES: Final = 4
MESSAGE_TOKENS: Final = 4
BLOCK_BYTES: Final = BLOCK_TOKENS * TOKEN_BYTES

_WORD_LIST: Final = """
account agent answer area book branch budget case change class client code column company contract copy course customer
data date delay design detail device draft effect email error event example figure file floor form function group guide
history hour idea image index input issue item key language letter level limit line list machine market meeting member
message method minute model module month name network node note number object office option order output page panel part
path pattern period phase plan point policy price process product project query question range rate reason record region
report request result review role room rule sample scale schema screen section series service session set shape sheet
signal size source stage state step store stream style subject summary supply system table target task team term test
text time title tool topic track trade train type unit update user value version view volume week word work year zone
"""
_WORDS: Final = tuple(_WORD_LIST.split())
_SPAN: Final = 1 << 16


def _book() -> bytes:
    """Words without an end in sight; a block is a piece of it."""
    words, at, length = [], 1, 0
    while length < _SPAN + BLOCK_BYTES:
        at = (at * 1_103_515_245 + 12_345) % (1 << 31)  # a fixed walk through the words
        words.append(_WORDS[(at >> 16) % len(_WORDS)])
        length += len(words[-1]) + 1
    return " ".join(words).encode()


_BOOK: Final = _book()


def block(number: int, size: int = BLOCK_BYTES, mark: str = "") -> bytes:
    """The first `size` bytes of a block's text. It begins with its number, so that no two begin alike."""
    head = b"%b%d " % (mark.encode(), number)
    if size <= len(head):
        return head[:size]
    start = number * 40_503 % _SPAN
    text = head + _BOOK[start : start + min(size, BLOCK_BYTES) - len(head)]
    while len(text) < size:  # only where a trace names fewer blocks than its prompt has
        text += _BOOK[: size - len(text)]
    return text


@dataclass(frozen=True, slots=True)
class Script:
    """How arrivals become requests.

    `simulated`: tell a simulated Kimi to answer with exactly as many tokens; any other server is only told the most it
    may take. `seed`: another one gives other words, so that no server knows the prompts of an earlier replay.
    """

    model: str
    simulated: bool = False
    seed: str = ""

    def prompt(self, arrival: Arrival) -> bytes:
        """The text of the one message, at least a byte."""
        left = max((arrival.input - MESSAGE_TOKENS) * TOKEN_BYTES, 1)
        mark = hashlib.sha256(self.seed.encode()).hexdigest()[:8] + "-" if self.seed else ""
        parts = []
        for number in arrival.blocks[:-1]:
            parts.append(block(number, min(left, BLOCK_BYTES), mark))
            left -= len(parts[-1])
            if not left:
                return b"".join(parts)
        parts.append(block(arrival.blocks[-1], left, mark))
        return b"".join(parts)

    def body(self, arrival: Arrival) -> bytes:
        """The whole request as JSON."""
        output = max(arrival.output, 1)
        steer = b' "sim": {"output_tokens": %d},' % output if self.simulated else b""
        return b"".join(
            (
                b'{"model": %b, "stream": true, "stream_options": {"include_usage": true}, "max_tokens": %d,%b '
                b'"messages": [{"role": "user", "content": "'
                % (msgspec.json.encode(self.model), output, steer),
                self.prompt(arrival),
                b'"}]}',
            )
        )
