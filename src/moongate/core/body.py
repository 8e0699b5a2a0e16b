"""A JSON request body that is kept byte for byte, with its top-level members as raw slices.

The body is read once, one level deep: values stay raw bytes until somebody must read them, numbers keep their
digits, and a body that is not edited goes on as the very bytes that came.
"""

import re
from collections.abc import Iterator
from typing import Final, TypeVar, cast

import msgspec

from moongate.core.faults import FailedError, Fault, refuse

DECIDING: Final = frozenset(
    {
        "model",
        "messages",
        "stream",
        "stream_options",
        "tools",
        "tool_choice",
        "n",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "stop",
        "logprobs",
        "response_format",
        "thinking",
        "reasoning_effort",
        "user",
        "prompt_cache_key",
    }
)
"""Members that moongate decides by. Given twice, it and the provider might read different ones: refused."""

_SHORTEST_REPEAT: Final = len(b',"":1')

T = TypeVar("T")
Members = dict[str, msgspec.Raw | bytes]
# its values are Raw; Members says that edits may put bytes beside them
_MEMBERS: Final = cast("msgspec.json.Decoder[Members]", msgspec.json.Decoder(dict[str, msgspec.Raw]))
_TEXT: Final = msgspec.json.Decoder(str | None)
_WHOLE: Final = msgspec.json.Decoder(int | None)
_FLAG: Final = msgspec.json.Decoder(bool | None)
_NAME: Final = re.compile(rb'[ \t\r\n,]*+"((?:[^"\\]++|\\.)*+)"[ \t\r\n]*+:[ \t\r\n]*+', re.DOTALL)
_AFTER_VALUE: Final = frozenset(b",} \t\r\n")
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[{\]}]|[^\[\]{}":, \t\r\n]++')
_DEPTH: Final = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}
_ESCAPE: Final = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_encode: Final = msgspec.json.encode


class RawBody:
    """A JSON object whose members can be read, replaced, added and removed without touching any other.

    Raises `FailedError` (`invalid_request`) for whatever is not one JSON object in UTF-8, for the escape of a
    lone surrogate (no text holds one, so no model could read it) and for a repeated member of `DECIDING`,
    however it is spelled. Other repeated members travel on as they are; reading one gives the last (RFC
    8259 section 4 leaves it open; the common parsers do so).
    """

    __slots__ = ("_data", "_earlier", "_members", "_within")

    def __init__(self, data: bytes, within: str = "") -> None:
        self._data: bytes | None = data
        self._within = within
        self._members = _parsed(data)
        self._earlier: list[tuple[str, bytes]] = []
        if not _surely_unique(data, self._members):
            self._earlier = _repeated(data, self._members)

    @property
    def data(self) -> bytes:
        """The body as it is to be sent: the client's very bytes unless something was edited."""
        if self._data is None:
            pairs = [b"%b:%b" % (_encode(name), value) for name, value in self.items()]
            self._data = b"{" + b",".join(pairs) + b"}"
        return self._data

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def lacks(self, names: frozenset[str]) -> bool:
        """Whether none of these members is there."""
        return names.isdisjoint(self._members)

    def items(self) -> Iterator[tuple[str, bytes]]:
        """Every member with its raw value, in the order they would be sent."""
        yield from self._earlier
        for name, raw in self._members.items():
            yield name, bytes(raw)

    def size(self, name: str) -> int:
        """Bytes of the raw value, 0 if there is no such member. Costs no copy."""
        raw = self._members.get(name)
        return 0 if raw is None else len(raw)

    def get(self, name: str) -> bytes | None:
        """The raw value, None if there is no such member."""
        raw = self._members.get(name)
        return None if raw is None else bytes(raw)

    def text(self, name: str) -> str | None:
        """A string member; None if it is absent or null. Raises `FailedError` for anything else."""
        return self._typed(name, _TEXT, "a string")

    def flag(self, name: str) -> bool | None:
        """True or false; None if it is absent or null. Raises `FailedError` for anything else."""
        return self._typed(name, _FLAG, "true or false")

    def whole(self, name: str) -> int | None:
        """A whole number; None if it is absent or null. Raises `FailedError` for anything else."""
        return self._typed(name, _WHOLE, "a whole number")

    def part(self, name: str) -> "RawBody | None":
        """An object member, to be read the same way; None if it is absent or null. Edits to it stay in it."""
        raw = self.get(name)
        if raw is None or raw == b"null":
            return None
        if not raw.startswith(b"{"):
            raise self._wrong(name, "an object")
        return RawBody(raw, f"{self._within}{name}.")

    def edit(self, name: str, raw: bytes | None) -> bool:
        """Replace or add a member (raw JSON text), or remove it (None). Says whether anything changed."""
        if self.get(name) == raw:
            return False
        if raw is None:
            del self._members[name]
        else:
            self._members[name] = raw
        self._earlier = [pair for pair in self._earlier if pair[0] != name]
        self._data = None
        return True

    def copy(self) -> "RawBody":
        """The same body, to be edited apart from this one. Nothing is parsed again."""
        other = object.__new__(RawBody)
        other._data, other._within = self._data, self._within
        other._members, other._earlier = dict(self._members), list(self._earlier)
        return other

    def _typed(self, name: str, decoder: "msgspec.json.Decoder[T]", what: str) -> T | None:
        raw = self._members.get(name)
        if raw is None:
            return None
        try:
            return decoder.decode(raw)
        except msgspec.DecodeError:
            raise self._wrong(name, what) from None

    def _wrong(self, name: str, what: str) -> FailedError:
        full = self._within + name
        return refuse(Fault.INVALID_REQUEST, f"`{full}` must be {what}.", param=full)


def _parsed(data: bytes) -> Members:
    """Read one level and check all of it; msgspec does not look into the bytes of values it leaves raw."""
    try:
        members: Members = _MEMBERS.decode(data)
        if not data.isascii():
            data.decode()
    except msgspec.ValidationError:
        raise refuse(Fault.INVALID_REQUEST, "The body must be a JSON object.") from None
    except RecursionError:
        raise refuse(Fault.INVALID_REQUEST, "The body is nested too deeply.") from None
    except UnicodeDecodeError as error:
        raise refuse(Fault.INVALID_REQUEST, f"The body is not valid UTF-8 (byte {error.start}).") from None
    except msgspec.DecodeError as error:
        raise refuse(Fault.INVALID_REQUEST, _what_is_wrong(data, str(error))) from None
    return members


def _what_is_wrong(data: bytes, told: str) -> str:
    if not data.strip():
        return "The body is empty; send a JSON object."
    if data.startswith(b"\xef\xbb\xbf"):
        return "The body starts with a byte order mark; send plain UTF-8."
    at = _lone_surrogate(data)
    if at >= 0:
        return (
            f"The body holds the escape of a lone surrogate, {data[at : at + 6].decode()}, at byte {at}; "
            "it stands for no character. Send both halves of the pair, or the character itself."
        )
    return f"The body is not valid JSON: {told.removeprefix('JSON is malformed: ')}."


def _lone_surrogate(data: bytes) -> int:
    """Where the first escaped surrogate without its other half stands, -1 if there is none."""
    high = -1
    for found in _ESCAPE.finditer(data):
        unit = int(found[1] or b"0", 16)
        if 0xDC00 <= unit < 0xE000:
            if high < 0 or high + 6 != found.start():
                return found.start() if high < 0 else high
            high = -1
            continue
        if high >= 0:
            return high
        high = found.start() if 0xD800 <= unit < 0xDC00 else -1
    return high


def _surely_unique(data: bytes, members: Members) -> bool:
    """Whether `data` has no room for a second member of any name; cheap, and never wrong when it says yes.

    Each name needs at least its own length, quotes and colon: a body written without spaces has no byte to
    spare. One written with a space behind each colon and comma is compared whole.
    """
    least = 1 + 4 * len(members) + sum(map(len, members)) + sum(map(len, members.values()))
    if len(data) - least < _SHORTEST_REPEAT:
        return True
    pieces: list[msgspec.Raw | bytes] = []
    for name, raw in members.items():
        pieces += (f', "{name}": '.encode(), raw)
    return b"{%b}" % b"".join(pieces)[2:] == data


def _repeated(data: bytes, members: Members) -> list[tuple[str, bytes]]:
    """Earlier values of members given more than once; raises for those of `DECIDING`.

    Exact and without a parser of its own: `data` is known to be valid and `members` holds the last value of
    each name, so a name that is followed by any other value, or is met twice, is a repeat.
    """
    earlier: list[tuple[str, bytes]] = []
    met: set[str] = set()
    at = data.index(b"{") + 1
    while (found := _NAME.match(data, at)) is not None:
        spelled = found[1]
        name: str = _TEXT.decode(b'"%b"' % spelled) or "" if b"\\" in spelled else spelled.decode()
        value, at = bytes(members[name]), found.end()
        if name in met or not (data.startswith(value, at) and data[at + len(value)] in _AFTER_VALUE):
            if name in DECIDING:
                raise refuse(Fault.INVALID_REQUEST, f"`{name}` is given more than once.", param=name)
            value = _value_at(data, at)
            earlier.append((name, value))
        else:
            met.add(name)
        at += len(value)
    return earlier


def _value_at(data: bytes, at: int) -> bytes:
    """The value that starts here, in text known to be valid."""
    depth = 0
    tokens = _TOKEN.finditer(data, at)
    return data[at : next(token.end() for token in tokens if not (depth := depth + _DEPTH.get(token[0], 0)))]
