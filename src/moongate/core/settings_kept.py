"""The settings of what is kept in files: ledger, answers for retries, log."""

from dataclasses import dataclass
from typing import Annotated

from moongate.core.kinds import Bytes, Note, Share, Switch, Whole
from moongate.core.secret import Referred, Secret
from moongate.core.section import PATH, Section


@dataclass(frozen=True, slots=True)
class Ledger(Section):
    """Journals and the table folded from them."""

    fsync: Annotated[
        bool, Switch(), Note("Whether records reach the disk, not only the kernel, before a call is sent.")
    ] = False
    segment_bytes: Annotated[int, Bytes(65536), Note("Size at which a journal begins a new segment.")] = (
        64 * 1024**2
    )
    segment_days: Annotated[int, Whole(1), Note("Days that a folded segment is kept.")] = 7
    row_days: Annotated[int, Whole(1), Note("Days that a row of the ledger is kept.")] = 400
    write_off_days: Annotated[
        int, Whole(1), Note("Days after which an attempt in doubt without proof is written off.")
    ] = 14


@dataclass(frozen=True, slots=True)
class Idempotency(Section):
    """Answers kept for retries."""

    answer_bytes: Annotated[int, Bytes(1024), Note("Longest answer that is kept.")] = 1024**2
    kept_bytes: Annotated[
        int, Bytes(65536), Note("All answers that are kept; the oldest go first. In memory at most 64MB.")
    ] = 256 * 1024**2
    secret: Annotated[
        Secret | None,
        Referred(),
        Note("What kept answers are encrypted with. Default: a key file made in the state directory."),
    ] = None


@dataclass(frozen=True, slots=True)
class Log(Section):
    """The access log: JSON lines, a view of the ledger's records."""

    access: Annotated[str, PATH, Note("`-`: standard output; `off`: none; else the path of a file.")] = "-"
    sample: Annotated[
        float, Share(), Note("Share of the successes that are logged, by call id; failures always are.")
    ] = 0.1
