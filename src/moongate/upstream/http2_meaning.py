"""What libcurl's result of an exchange means, told by its code and by how far the exchange had come."""

import re
from typing import Final

import pycurl

from moongate.core.faults import Fault, Reach

TLS_CODES: Final = frozenset(
    (
        pycurl.E_SSL_CONNECT_ERROR,
        pycurl.E_PEER_FAILED_VERIFICATION,
        pycurl.E_SSL_CACERT_BADFILE,
        pycurl.E_SSL_ISSUER_ERROR,
        pycurl.E_SSL_CIPHER,
    )
)
"""Failures of a handshake; what exactly failed our own handshake finds out."""
_STREAM_RESET: Final = 92
"""CURLE_HTTP2_STREAM, which pycurl has no name for."""
OF_ONE_STREAM: Final = frozenset((_STREAM_RESET, pycurl.E_PARTIAL_FILE))
"""Failures after which libcurl uses the connection again."""
_REWIND: Final = pycurl.E_SEND_FAIL_REWIND
_MALFORMED: Final = frozenset((8, 100))
"""CURLE_WEIRD_SERVER_REPLY, CURLE_TOO_LARGE."""
_OF_FRAMES: Final = frozenset((16, pycurl.E_RECV_ERROR))
"""CURLE_HTTP2 and CURLE_RECV_ERROR: of a connection that stands, nghttp2 has given it up as malformed."""
_RESET: Final = re.compile(r"stream \d+ reset by (server|curl) \(error 0x([0-9a-f]+)")
_CALM: Final = 11
"""ENHANCE_YOUR_CALM of RFC 9113, section 7."""


def meaning(code: int, text: str, reach: Reach, *, is_alive: bool) -> tuple[Fault, str, Reach]:
    """The fault, why, and the reach that it proves. `is_alive`: the connection still stands.

    libcurl says that a request would have to be written again (and cannot be) in two cases: the peer refused the
    stream, by RST_STREAM or by a GOAWAY below it, or the connection broke before a byte of the answer. Only the
    first proves that nothing ran, and only while the connection stands is it told from the second. A stream above
    the last one that a GOAWAY names is refused as well; where that GOAWAY asks for calm, libcurl resets it so itself.
    """
    why = f"libcurl {code}: {text}"
    if reach is Reach.NOTHING_SENT:
        return Fault.KIMI_NETWORK_UNREACHABLE, why, reach
    if code == _REWIND and is_alive:
        return Fault.KIMI_STREAM_REFUSED, "the peer refused the stream", Reach.NOTHING_SENT
    if code == _STREAM_RESET:
        found = _RESET.search(text)
        if found is None:
            return Fault.KIMI_BAD_RESPONSE, why, reach
        if found[1] == "curl" and int(found[2], 16) == _CALM and reach < Reach.HEAD:
            return Fault.KIMI_STREAM_REFUSED, "the peer asked for calm", Reach.NOTHING_SENT
        why = f"the stream was reset, error {int(found[2], 16)}"
    elif code in _MALFORMED or (code in _OF_FRAMES and is_alive):
        return Fault.KIMI_BAD_RESPONSE, why, reach
    if reach >= Reach.HEAD:
        return Fault.KIMI_STREAM_TRUNCATED, f"{why} within the body", reach
    return Fault.KIMI_NETWORK_UNREACHABLE, f"{why} before an answer", reach
