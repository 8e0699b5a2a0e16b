"""What a client's connection is doing."""

from enum import Enum
from typing import Final


class Phase(Enum):
    """One at a time."""

    HEAD = "head"  # between requests, or in the middle of a head
    BODY = "body"
    ANSWER = "answer"
    LINGER = "linger"  # the last answer is on its way; what still comes is dropped
    CLOSING = "closing"


DOUBT: Final = 1.0
"""Seconds after a whole answer in which a client that leaves is taken not to have it all."""

HELD_IN_DOUBT: Final = 1024 * 1024
"""Bytes of the largest request that is held on to so long."""

HEAD: Final = Phase.HEAD
BODY: Final = Phase.BODY
ANSWER: Final = Phase.ANSWER
