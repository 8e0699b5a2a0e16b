"""Every slot has its own sockets; the admin listener adds its workers up."""

import json
import os
import stat
from functools import partial
from http import HTTPStatus
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.processes.house import Gateway, Load, eventually, is_alive


def test_two_workers_share_a_port_and_have_a_socket_each(tmp_path: Path) -> None:
    with Gateway(tmp_path, workers=2) as gateway:
        first, second = gateway.serving_pid(0), gateway.serving_pid(1)
        assert first != second
        with Load(gateway) as load:
            eventually(lambda: {first, second} <= set(load.answers))
        assert not load.failures
        assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o750
        assert stat.S_IMODE((tmp_path / "run/worker-0.sock").stat().st_mode) == 0o660
        assert stat.S_IMODE((tmp_path / "run/supervisor.sock").stat().st_mode) == 0o600


def test_metrics_are_those_of_all_workers_at_this_moment(tmp_path: Path) -> None:
    with Gateway(tmp_path, workers=2) as gateway:
        for slot in (0, 1, 1):
            gateway.get("/", slot)
        calls = gateway.metric("moongate_calls_total")
        assert calls == {'{fault="none",outcome="completed",route="toy"}': 3.0}
        assert gateway.metric("moongate_workers") == {'{state="ready"}': 2.0}
        assert sum(gateway.metric("moongate_build_info").values()) == 1.0
        text = gateway.admin("/metrics")[1].decode()
        families = {family.name for family in text_string_to_metric_families(text)}
        assert {"moongate_calls", "moongate_loop_stall_seconds", "moongate_duration_seconds"} <= families


def test_what_a_dead_worker_counted_stays_in_the_totals(tmp_path: Path) -> None:
    with Gateway(tmp_path, workers=2) as gateway:
        for _ in range(5):
            gateway.get("/", 0)
        pid = gateway.serving_pid(0)
        eventually(lambda: sum(gateway.metric("moongate_calls_total").values()) == 6)
        os.kill(pid, 9)
        eventually(lambda: gateway.serving_pid(0) != pid)
        assert sum(gateway.metric("moongate_calls_total").values()) >= 7
        assert gateway.metric("moongate_worker_restarts_total") == {'{slot="0"}': 1.0, '{slot="1"}': 0.0}


def test_a_worker_that_leaves_in_order_takes_no_count_with_it(tmp_path: Path) -> None:
    with Gateway(tmp_path) as gateway:
        for _ in range(2):
            pid = gateway.serving_pid()
            gateway.get()
            os.kill(pid, 15)
            eventually(lambda: not is_alive(pid))  # noqa: B023 - called before the next pid
        eventually(lambda: sum(gateway.metric("moongate_calls_total").values()) == 4)


def test_a_worker_that_does_not_answer_costs_a_scrape_300_ms(tmp_path: Path) -> None:
    with Gateway(tmp_path, workers=2) as gateway:
        gateway.get("/", 0)
        eventually(lambda: sum(gateway.metric("moongate_calls_total").values()) == 1)
        stalled = gateway.serving_pid(0)
        eventually(lambda: sum(gateway.metric("moongate_calls_total").values()) == 2)
        os.kill(stalled, 19)
        assert sum(gateway.metric("moongate_calls_total").values()) == 2
        os.kill(stalled, 18)


def test_a_stall_of_the_loop_is_measured(tmp_path: Path) -> None:
    with Gateway(tmp_path) as gateway:
        gateway.get("/stall/0.4")
        buckets = gateway.metric("moongate_loop_stall_seconds_bucket")
        assert buckets['{le="0.2"}'] < buckets['{le="+Inf"}']


def test_the_admin_listener_shows_workers_and_settings_but_no_secret(tmp_path: Path) -> None:
    with Gateway(tmp_path, workers=2, upstream=1) as gateway:
        assert [w["slot"] for w in gateway.workers()] == [0, 1]
        config = gateway.admin("/api/config")[1]
        assert json.loads(config)["targets"]["kimi"]["key"] == "***"
        assert b"planted-secret" not in config
        assert gateway.admin("/")[0] == HTTPStatus.OK
        assert "planted-secret" not in gateway.log


def test_the_admin_listener_answers_only_to_names_of_its_own(tmp_path: Path) -> None:
    with Gateway(tmp_path) as gateway:
        assert gateway.admin("/metrics", host="rebound.example:8081")[0] == HTTPStatus.MISDIRECTED_REQUEST
        for own in ("localhost", f"127.0.0.1:{gateway.admin_port}", "[::1]:8081"):
            assert gateway.admin("/metrics", host=own)[0] == HTTPStatus.OK


def has_a_version(gateway: Gateway, slot: int) -> bool:
    return b"version" in gateway.get("/", slot)[1]


def test_a_changed_control_document_reaches_every_worker(tmp_path: Path) -> None:
    with Gateway(tmp_path, workers=2) as gateway:
        (tmp_path / "control.json").write_text('{"version": 1}')
        for slot in (0, 1):
            eventually(partial(has_a_version, gateway, slot))


def test_workers_may_open_as_many_files_as_the_hard_limit_allows(tmp_path: Path) -> None:
    with Gateway(tmp_path) as gateway:
        limits = Path(f"/proc/{gateway.serving_pid()}/limits").read_text()
        soft, hard = next(line for line in limits.splitlines() if line.startswith("Max open files")).split()[
            3:5
        ]
        assert soft == hard
