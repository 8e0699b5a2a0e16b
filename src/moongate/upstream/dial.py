"""Open a connection: names, TCP, TLS; and what each failure of these means."""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Final

from moongate.core.faults import Fault
from moongate.upstream.connection import Connection
from moongate.upstream.names import Place
from moongate.upstream.origin import Origin
from moongate.upstream.tcp import connect

_OUT_OF_OWN_MEANS: Final = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM)
)
_VERIFY_CODES: Final = {  # X509_V_ERR_* of OpenSSL's x509_vfy.h
    **dict.fromkeys((9, 10), "expired"),  # not yet, or no more, valid
    **dict.fromkeys((62, 64), "wrong_name"),  # of a host, or an IP address
    **dict.fromkeys((2, 18, 19, 20, 21), "unknown_ca"),
}
TLS_REASONS: Final = frozenset((*_VERIFY_CODES.values(), "version", "other"))
_HANDSHAKE_CEILING: Final = 3600.0  # the exchange's own timer is the shorter one


def tls_context(origin: Origin) -> ssl.SSLContext | None:
    """Make the context that checks certificate and name, TLS 1.2 or newer; None for a plain origin.

    Raises `OSError` when the CA file cannot be read or holds no certificate.
    """
    if not origin.tls:
        return None
    context = ssl.create_default_context(cafile=origin.ca_file or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def is_tls_refusal(error: BaseException) -> bool:
    """Whether one side will not trust or understand the other, rather than that it hung up."""
    return isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)


def tls_reason(error: ssl.SSLError) -> str:
    """Why TLS was refused, as one of `TLS_REASONS`; by numbers of OpenSSL, for its words change."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _VERIFY_CODES.get(error.verify_code, "other")
    return "version" if "PROTOCOL" in str(error.reason) else "other"


def meaning(error: BaseException) -> tuple[Fault, str]:
    """What a failure to connect means. Nothing was sent in any of these cases."""
    if isinstance(error, ssl.SSLError) and is_tls_refusal(error):
        return Fault.KIMI_TLS_REFUSED, f"tls: {_tls_words(error)}"
    if isinstance(error, socket.gaierror):
        return Fault.KIMI_NETWORK_UNREACHABLE, f"dns: {error.strerror}"
    if isinstance(error, OSError):
        if error.errno in _OUT_OF_OWN_MEANS:
            return Fault.GATEWAY_OVERLOADED, f"no more sockets: {error.strerror}"
        return Fault.KIMI_NETWORK_UNREACHABLE, f"connect: {error.strerror or type(error).__name__}"
    if isinstance(error, UnicodeError):
        return Fault.KIMI_NETWORK_UNREACHABLE, "dns: no valid host name"
    return Fault.GATEWAY_ERROR, f"connect: {error!r}"


def _tls_words(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    return getattr(error, "reason", None) or type(error).__name__


async def dial(
    origin: Origin,
    place: Place,
    context: ssl.SSLContext | None,
    make: Callable[[socket.socket], Connection],
    on_tls: Callable[[], None],
) -> Connection:
    """Open a connection; `on_tls` is told when TCP stands and the handshake begins.

    Raises what `meaning` reads. When cancelled, everything it opened is closed.
    """
    loop = asyncio.get_running_loop()
    sock = await connect(place, origin.port)
    try:
        transport, connection = await loop.create_connection(lambda: make(sock), sock=sock)
    except BaseException:
        sock.close()
        raise
    if context is None:
        return connection
    on_tls()
    try:
        secure = await loop.start_tls(
            transport,
            connection,
            context,
            server_hostname=origin.server_name or origin.host,
            ssl_handshake_timeout=_HANDSHAKE_CEILING,
        )
    except BaseException as error:
        transport.abort()
        if isinstance(error, ssl.SSLError) and is_tls_refusal(error):
            place.refused[tls_reason(error)] += 1
        raise
    if secure is None:
        raise ConnectionResetError(errno.ECONNRESET, "closed in the handshake")
    connection.secure(secure)
    return connection
