"""What one worker counts, how workers are added up, and how it is shown."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from moongate.core.faults import Fault
from moongate.core.record import AttemptRecord, CallRecord
from moongate.ops.exposition import exposition, reference
from moongate.ops.metrics import FAMILIES, CallMetrics, Kind, Row
from moongate.ops.totals import Totals
from tests.source import ROOT


def record(**said: Any) -> CallRecord:
    usual: dict[str, Any] = {
        "route": "kimi-k2.5",
        "outcome": "completed",
        "source": "upstream",
        "duration": 1.5,
        "first_event": 0.25,
        "input": 9,
        "output": 42,
        "cached": 4,
        "attempts": [AttemptRecord("id-1", target="kimi", reach="events")],
    }
    return CallRecord("id", **(usual | said))


def values(metrics: CallMetrics, family: str) -> dict[tuple[str, ...], float]:
    return {row.labels: row.value for row in metrics.snapshot() if row.family == family}


def measured() -> CallMetrics:
    return CallMetrics(("kimi-k2.5",), ("kimi", "spare"), ("model",))


def test_one_record_is_counted_in_every_family_once() -> None:
    metrics = measured()
    metrics.observe(record())
    assert values(metrics, "moongate_calls_total") == {("kimi-k2.5", "completed", "none"): 1}
    assert values(metrics, "moongate_attempts_total") == {("kimi", "none", "events"): 1}
    assert values(metrics, "moongate_tokens_total") == {
        ("kimi-k2.5", "input", "upstream"): 9,
        ("kimi-k2.5", "output", "upstream"): 42,
        ("kimi-k2.5", "cached", "upstream"): 4,
        ("kimi-k2.5", "reasoning", "upstream"): 0,
        ("kimi-k2.5", "cache_write", "upstream"): 0,
    }
    assert values(metrics, "moongate_duration_seconds") == {("kimi-k2.5", "completed"): 1.5}
    assert values(metrics, "moongate_time_to_first_token_seconds") == {("kimi-k2.5",): 0.25}


def test_a_refused_call_has_no_tokens_no_attempts_and_no_first_event() -> None:
    metrics = measured()
    refused = record(
        outcome="refused", code="user_rate_limited", first_event=-1.0, input=0, output=0, attempts=[]
    )
    metrics.observe(refused)
    assert values(metrics, "moongate_calls_total") == {("kimi-k2.5", "refused", "user_rate_limited"): 1}
    families = {row.family for row in metrics.snapshot() if row.value or any(row.counts)}
    assert families == {"moongate_calls_total", "moongate_duration_seconds"}


def test_every_attempt_counts_under_its_own_fault() -> None:
    metrics = measured()
    failed = AttemptRecord("id-1", target="kimi", reach="head", code="kimi_unavailable")
    metrics.observe(record(attempts=[failed, failed, AttemptRecord("id-3", target="spare", reach="events")]))
    assert values(metrics, "moongate_attempts_total") == {
        ("kimi", "kimi_unavailable", "head"): 2,
        ("spare", "none", "events"): 1,
    }


def test_answers_that_were_charged_by_our_own_count_are_counted_by_why() -> None:
    metrics = measured()
    for target, detail in (
        ("kimi", "usage_missing"),
        ("kimi", "usage_suspect"),
        ("x", "usage_missing"),
        ("kimi", "-"),
    ):
        metrics.observe(record(attempts=[AttemptRecord("id-1", target=target, detail=detail)]))
    assert values(metrics, "moongate_usage_suspect_total") == {
        ("kimi", "usage_missing"): 1,
        ("kimi", "usage_suspect"): 1,
        ("other", "usage_missing"): 1,
    }


def test_callers_cannot_make_series_grow() -> None:
    metrics = measured()
    for number in range(50):
        made_up = f"made-up-{number}"
        attempt = AttemptRecord("id-1", target=made_up, reach=made_up, code=made_up)
        metrics.observe(
            record(
                route=made_up,
                outcome=made_up,
                code=made_up,
                source=made_up,
                edits=[made_up],
                attempts=[attempt],
            )
        )
        metrics.unauthenticated(made_up)
    assert values(metrics, "moongate_calls_total") == {("other", "other", "other"): 50}
    assert values(metrics, "moongate_attempts_total") == {("other", "other", "other"): 50}
    assert values(metrics, "moongate_unauthenticated_total") == {("other",): 50}
    assert values(metrics, "moongate_edits_total") == {("model",): 0, ("other",): 50}
    assert len(metrics._calls) + len(metrics._attempts) + len(metrics._tokens) + len(metrics._first) == 0


def test_every_edit_is_counted_by_name() -> None:
    metrics = measured()
    metrics.observe(record(edits=["model"]))
    assert values(metrics, "moongate_edits_total") == {("model",): 1, ("other",): 0}


def test_unauthenticated_requests_count_by_public_code() -> None:
    metrics = measured()
    metrics.unauthenticated(Fault.METHOD_NOT_ALLOWED.value)
    metrics.unauthenticated("unauthenticated")
    assert values(metrics, "moongate_unauthenticated_total") == {
        ("invalid_request",): 1,
        ("unauthenticated",): 1,
    }


def test_a_value_on_a_bound_belongs_below_it() -> None:
    metrics = measured()
    for seconds in (0.05, 0.0500001, 1e9):
        metrics.observe(record(first_event=seconds))
    (row,) = [row for row in metrics.snapshot() if row.family == "moongate_time_to_first_token_seconds"]
    assert (row.counts[0], row.counts[1], row.counts[-1], sum(row.counts)) == (1, 1, 1, 3)


def test_snapshots_survive_the_channel() -> None:
    metrics = measured()
    metrics.observe(record())
    rows = metrics.snapshot()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(rows), type=list[Row]) == rows


def total(rows: list[Row], family: str) -> float:
    return sum(row.value for row in rows if row.family == family)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.booleans()), max_size=40))
def test_totals_are_the_counts_of_all_workers_that_ever_lived(steps: list[tuple[int, int, bool]]) -> None:
    totals = Totals()
    lives = [0] * 4
    workers: dict[int, CallMetrics] = {}
    counted = 0
    for slot, calls, dies in steps:
        worker = workers.setdefault(slot, measured())
        for _ in range(calls):
            worker.observe(record())
        counted += calls
        worker.in_flight.set(calls)
        totals.update(f"{slot}.{lives[slot]}", worker.snapshot())
        if dies:
            totals.retire(f"{slot}.{lives[slot]}")
            lives[slot] += 1
            del workers[slot]
    merged = totals.merged()
    assert total(merged, "moongate_calls_total") == counted
    assert sum(sum(row.counts) for row in merged if row.family == "moongate_duration_seconds") == counted
    assert total(merged, "moongate_in_flight") == sum(worker.in_flight.value for worker in workers.values())
    assert total(Totals(totals.retired).merged(), "moongate_calls_total") == counted - sum(
        total(worker.snapshot(), "moongate_calls_total") for worker in workers.values()
    )


def test_gauges_that_are_no_sum_are_the_greatest() -> None:
    totals = Totals()
    for worker in ("a", "b"):
        totals.update(worker, [Row("moongate_build_info", ("1", "3.11"), 1.0)])
    assert total(totals.merged(), "moongate_build_info") == 1.0


def test_rows_of_an_unknown_family_are_left_out() -> None:
    totals = Totals()
    totals.update("a", [Row("moongate_of_tomorrow", (), 1.0)])
    totals.retire("a")
    assert totals.merged([Row("moongate_of_yesterday", (), 1.0)]) == []


def test_prometheus_reads_what_we_write() -> None:
    metrics = measured()
    metrics.observe(record())
    body, content_type = exposition(metrics.snapshot(), "text/plain")
    assert content_type.startswith("text/plain")
    samples = {
        (sample.name, sample.labels.get("le")): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
        if sample.name.startswith("moongate_duration")
    }
    assert samples["moongate_duration_seconds_bucket", "1.0"] == 0
    assert samples["moongate_duration_seconds_bucket", "1.5"] == 1
    assert samples["moongate_duration_seconds_bucket", "+Inf"] == 1
    assert samples["moongate_duration_seconds_count", None] == 1
    assert samples["moongate_duration_seconds_sum", None] == 1.5


def test_openmetrics_is_written_for_who_asks() -> None:
    body, content_type = exposition(measured().snapshot(), "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_families_are_named_as_the_house_names_them() -> None:
    for family in FAMILIES:
        assert family.name.startswith("moongate_")
        assert family.name.endswith("_total") == (family.kind is Kind.COUNTER)
        assert bool(family.bounds) == (family.kind is Kind.HISTOGRAM)
        assert list(family.bounds) == sorted(set(family.bounds))
        assert family.kind is not Kind.HISTOGRAM or family.name.endswith("_seconds")


def test_the_reference_page_is_what_the_code_says() -> None:
    assert (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8") == reference()
