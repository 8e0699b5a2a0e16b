"""What a connection that cannot be had means."""

import errno
import ssl

import pytest

from moongate.core.faults import Fault
from moongate.upstream.dial import meaning


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (OSError(errno.EMFILE, "too many"), Fault.GATEWAY_OVERLOADED),
        (OSError(errno.EADDRNOTAVAIL, "no port left"), Fault.GATEWAY_OVERLOADED),
        (OSError(errno.ENETUNREACH, "no way"), Fault.KIMI_NETWORK_UNREACHABLE),
        (UnicodeError(), Fault.KIMI_NETWORK_UNREACHABLE),
        (ssl.SSLEOFError(), Fault.KIMI_NETWORK_UNREACHABLE),
        (ssl.SSLError(1, "[SSL] no shared cipher"), Fault.KIMI_TLS_REFUSED),
        (ZeroDivisionError(), Fault.GATEWAY_ERROR),
    ],
)
def test_what_a_failed_dial_means(error: Exception, fault: Fault) -> None:
    assert meaning(error)[0] is fault
