"""A record survives its encoding, and the encoding survives new versions of the record."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.call import Usage
from moongate.core.ledger import State
from moongate.core.record import (
    FORMAT,
    NEVER,
    AttemptRecord,
    CallRecord,
    Correction,
    Outcome,
    OwnerRecord,
    RecordError,
    Source,
    TokensSource,
    attempt_id,
    call_id_of,
    decode,
    decode_owner,
    encode,
)

# the order of version 1; a field may be added behind the last, and no line here may ever change
CALL_FIELDS = [
    "call_id",
    "request_id",
    "tenant",
    "key_id",
    "user",
    "session",
    "route",
    "model_asked",
    "model",
    "stream",
    "created",
    "deadline",
    "duration",
    "first_event",
    "outcome",
    "source",
    "code",
    "cause",
    "status",
    "phase",
    "retry_after",
    "edits",
    "attempts",
    "input",
    "output",
    "cached",
    "reasoning",
    "cache_write",
    "billed_micro",
    "currency",
    "delivered_bytes",
    "retry_of",
    "collapsed_with",
    "peer",
    "slot",
    "owner",
    "detail",
    "corrections",
    "idempotency_key",
    "fingerprint",
]
ATTEMPT_FIELDS = [
    "attempt_id",
    "target",
    "account",
    "model",
    "started",
    "state",
    "reach",
    "cause",
    "code",
    "phase",
    "detail",
    "status",
    "input",
    "output",
    "cached",
    "reasoning",
    "cache_write",
    "tokens_source",
    "price_row",
    "cost_micro",
    "currency",
    "provider_request_id",
    "provider_trace_id",
    "connected",
    "sent",
    "head",
    "first_event",
    "ended",
    "request_bytes",
    "response_bytes",
    "reused",
    "answer_id",
]
CORRECTION_FIELDS = [
    "attempt_id",
    "at",
    "who",
    "why",
    "before",
    "after",
    "billed_before",
    "billed_after",
]

WHOLE = st.integers(0, 2**62)
SECONDS = st.floats(allow_nan=False, allow_infinity=False)
STRATEGIES: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(st.characters(codec="utf-8"), max_size=20),
    int: WHOLE,
    float: SECONDS,
    bool: st.booleans(),
    int | None: st.none() | WHOLE,
}


def of(kind: type[Any], **more: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Records with every field drawn by its type."""
    fields = {f.name: STRATEGIES[f.type] for f in msgspec.structs.fields(kind) if f.name not in more}
    return st.builds(kind, **fields, **more)


ATTEMPTS = st.lists(of(AttemptRecord), max_size=3)
CORRECTIONS = st.lists(of(Correction), max_size=2).map(tuple)
CALLS = of(
    CallRecord, edits=st.lists(STRATEGIES[str], max_size=3), attempts=ATTEMPTS, corrections=CORRECTIONS
)


@given(CALLS)
def test_what_is_written_is_read(record: CallRecord) -> None:
    assert decode(encode(record)) == record


def test_the_order_of_fields_never_changes() -> None:
    assert CallRecord.__struct_fields__[: len(CALL_FIELDS)] == tuple(CALL_FIELDS)
    assert AttemptRecord.__struct_fields__[: len(ATTEMPT_FIELDS)] == tuple(ATTEMPT_FIELDS)
    assert Correction.__struct_fields__[: len(CORRECTION_FIELDS)] == tuple(CORRECTION_FIELDS)
    assert OwnerRecord.__struct_fields__[:5] == ("format", "owner", "slot", "pid", "started")


def test_a_reader_passes_over_fields_of_a_later_version() -> None:
    attempt = [*msgspec.structs.astuple(AttemptRecord("c-1", target="t")), "new", 7]
    call = list(msgspec.structs.astuple(CallRecord("c", outcome=Outcome.COMPLETED)))
    call[CALL_FIELDS.index("attempts")] = [attempt]
    record = decode(msgspec.msgpack.encode([*call, {"more": 1}]))
    assert (record.call_id, record.outcome, record.attempts[0].target) == ("c", Outcome.COMPLETED, "t")


def test_a_reader_fills_in_what_an_older_version_did_not_write() -> None:
    record = decode(msgspec.msgpack.encode(["c", "r", "acme"]))
    assert record == CallRecord("c", "r", "acme")
    assert record.duration == NEVER
    assert record.billed_micro is None


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", b"\x91", encode(CallRecord("c"))[:-3], b"\x91\x07", b"\x91\xa1\xff"]
)
def test_other_bytes_are_no_record(payload: bytes) -> None:
    with pytest.raises(RecordError):
        decode(payload)
    with pytest.raises(RecordError):
        decode_owner(payload)


def test_odd_values_never_cost_the_record() -> None:
    attempt = AttemptRecord("c-1", input=10**30, detail="lone \ud800", output=-(10**30), started=1.5)
    later = (Correction("c-1", 2.5, why="\ud800", billed_after=10**30),)
    written = CallRecord(
        "c", user="\udfff", edits=["\ud800"], attempts=[attempt], stream=True, corrections=later
    )
    record = decode(encode(written))
    assert record.corrections == (Correction("c-1", 2.5, why="?", billed_after=2**63 - 1),)
    assert (record.user, record.edits, record.stream) == ("?", ["?"], True)
    assert record.attempts[0].input == 2**63 - 1
    assert record.attempts[0].output == -(2**63 - 1)
    assert record.attempts[0].detail == "lone ?"
    assert record.attempts[0].started == 1.5
    assert record.billed_micro is None


def test_a_header_is_read_back() -> None:
    header = OwnerRecord(FORMAT, "owner", 3, 4242, 1764500000.5)
    assert decode_owner(encode(header)) == header


def test_names_are_plain_text_on_the_wire() -> None:
    record = CallRecord("c", outcome=Outcome.ABANDONED, source=Source.CACHE)
    record.attempts = [AttemptRecord("c-1", state=State.SETTLED_EST)]
    read = decode(encode(record))
    assert type(read.outcome) is str
    assert (read.outcome, read.source, read.attempts[0].state) == ("abandoned", "cache", "settled_est")


def test_records_do_not_share_their_lists() -> None:
    CallRecord("a").edits.append("model")
    CallRecord("a").attempts.append(AttemptRecord("a-1"))
    assert CallRecord("b").edits == []
    assert CallRecord("b").attempts == []


def test_tokens_go_in_and_come_out_by_kind() -> None:
    usage = Usage(100, 50, 20, 30, 10)
    attempt, call = AttemptRecord("c-1"), CallRecord("c")
    attempt.count(usage, TokensSource.COUNTED)
    call.count(usage)
    assert attempt.usage == usage
    assert call.usage == usage
    assert attempt.tokens_source == "counted"
    assert (attempt.input, attempt.cached, attempt.reasoning, attempt.cache_write) == (100, 20, 30, 10)


@given(STRATEGIES[str], st.integers(1, 1000))
def test_an_attempt_knows_its_call(call_id: str, number: int) -> None:
    assert call_id_of(attempt_id(call_id, number)) == call_id
    assert attempt_id("c", 2) == "c-2"
