"""The bench's own arithmetic: a judge that cannot find fault is none."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.source import ROOT

sys.path.insert(0, str(ROOT / "bench"))

import machine
import report

WORK = "import sys; sum(range(9_000_000)); print(1); input()"
BUSY = f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{WORK}'])"
CHAT = "plain 2 KB, 64 in flight"


@pytest.fixture
def parent_of_a_busy_child() -> Iterator[int]:
    """A process whose child has just worked for a while and now waits."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_the_work_of_a_process_that_was_started_by_the_measured_one_counts(
    parent_of_a_busy_child: int,
) -> None:
    parent = parent_of_a_busy_child
    used = machine.cpu_by_process(parent)
    (child,) = machine.family(parent) - {parent}
    assert used[child] > 0.05
    assert machine.cpu_seconds(parent) >= used[child]
    assert machine.resident_bytes(parent) > machine.resident_bytes(child) > 1_000_000


def test_readings_show_what_others_took() -> None:
    before = machine.Reading(busy=10, steal=1, total=100, waiting=5, ours=4)
    after = machine.Reading(busy=60, steal=2, total=200, waiting=10, ours=24)
    weather = machine.Weather.between(before, after)
    assert weather.others == pytest.approx(0.3)
    assert weather.steal == pytest.approx(0.01)
    assert not weather.quiet
    assert machine.Reading.now().total > 0


def figures(us: float) -> dict[str, float]:
    return {"us_a_call": us}


def test_ratios_are_taken_within_a_repetition() -> None:
    runs = {
        CHAT: {
            "nginx": [figures(10), figures(100), figures(20)],
            "moongate": [figures(30), figures(300), figures(80)],
        }
    }
    assert report.summary(runs)[CHAT]["moongate"] == {"us_a_call": 80, "us_a_call_ratio": 3}


def test_a_broken_promise_is_named() -> None:
    kept = {CHAT: {"moongate": {"us_a_call_ratio": 4.5}}}
    lost = {"2,000 live streams": {"moongate": {"lost": 1.0, "kb_a_stream": 9.0}}}
    broken = {CHAT: {"moongate": {"us_a_call_ratio": 4.6}}} | lost
    assert report.missed(kept, quiet=True) == []
    assert [sentence.partition(":")[0] for sentence in report.missed(broken, quiet=True)] == [
        CHAT,
        "2,000 live streams",
    ]


@pytest.mark.parametrize(("us", "missed"), [(150.0, 0), (151.0, 1)])
def test_http_2_is_held_against_http_1(us: float, missed: int) -> None:
    seen = {report.AGAINST_HTTP1[0]: {"moongate": figures(100.0), "moongate http2": figures(us)}}
    assert len(report.missed(seen, quiet=False)) == missed


@pytest.mark.parametrize(("quiet", "missed"), [(True, 1), (False, 0)])
def test_latency_is_judged_on_a_quiet_machine_only(quiet: bool, missed: int) -> None:
    slow = {report.LATENCY[0]: {"moongate": {"over_nginx_p99_ms": 30.0}}}
    assert len(report.missed(slow, quiet=quiet)) == missed


def test_the_history_compares_like_with_like(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    assert report.last_ratios(history, "A") == {}
    rows = [
        '{"processor":"A","ratios":{"x":1}}',
        '{"processor":"A","ratios":{"x":2}}',
        '{"processor":"B","ratios":{"x":3}}',
    ]
    history.write_text("\n".join(rows) + "\n")
    assert report.last_ratios(history, "A") == {"x": 2}


def test_figures_carry_their_units() -> None:
    assert report.cell("us_a_call_ratio", 2.5) == "2.50 x"
    assert report.cell("p99_ms", 12.0) == "12.0 ms p99"
    assert report.cell("us_a_call", 123.4) == "123 us a call"
