"""One target: where it is, how it speaks, with which key; and what a call becomes on its way there."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from moongate.core.call import Call
from moongate.core.faults import Failure
from moongate.core.routing import Candidate
from moongate.core.settings import Settings
from moongate.core.settings import Target as TargetSettings
from moongate.upstream.dialects import DIALECTS, Dialect
from moongate.upstream.dialects_errors import classify, provider_ids
from moongate.upstream.dialects_requests import ask_for_usage, drop_pinned, outbound_headers
from moongate.upstream.http1 import Http1
from moongate.upstream.origin import Origin
from moongate.upstream.transport import Headers, Outbound, Timeouts, Transport
from moongate.world import World


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call made ready for one target. `edits`: what was changed in it; `strip_usage`: we asked, the client did not."""

    outbound: Outbound
    edits: list[str]
    strip_usage: bool
