"""The three health paths, who sees what, and how Kimi is judged."""

import asyncio
import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.ops.health import PARTS, Trusted, all_off, healthz, livez, readyz
from moongate.ops.metrics import Row
from moongate.ops.upstreams import WINDOW_SECONDS, Attempts, Gauges, Upstreams, Watch
from moongate.upstream.probes import Look

DOWN = "kimi_network_unreachable"


def test_a_house_with_nothing_in_it_is_well() -> None:
    status, body = healthz(all_off(), detailed=True)
    assert status == 200
    assert body == (
        b'{"status":"ok","checks":{"nginx":"off","cache_proxy":"off","kimi_api":"off","redis":"off","gpu_memory":"off","ledger":"off"}}'
    )


@pytest.mark.parametrize(
    ("word", "status", "said"),
    [
        ("ok", 200, "ok"),
        ("18.2GB/24GB", 200, "ok"),
        ("unknown", 200, "degraded"),
        (f"degraded: {DOWN} at 1 of 2 targets", 200, "degraded"),
        (DOWN, 503, "failing"),
    ],
)
def test_the_worst_check_is_the_status(word: str, status: int, said: str) -> None:
    found, body = healthz(all_off() | {"kimi_api": word}, detailed=True)
    assert (found, json.loads(body)["status"], json.loads(body)["checks"]["kimi_api"]) == (status, said, word)


def test_strangers_see_the_status_only() -> None:
    assert healthz(all_off() | {"kimi_api": DOWN}, detailed=False) == (503, b'{"status":"failing"}')


@given(st.dictionaries(st.sampled_from(PARTS), st.sampled_from(["ok", "off", DOWN])))
def test_all_parts_are_always_shown_in_order(checks: dict[str, str]) -> None:
    assert list(json.loads(healthz(checks, detailed=True)[1])["checks"]) == list(PARTS)


def test_readiness_goes_before_life() -> None:
    assert livez()[0] == 200
    assert readyz(ready=True, draining=False) == (200, b'{"status":"ok"}')
    told = readyz(ready=True, draining=False, ledger="ledger_unavailable")
    assert told == (200, b'{"status":"ok","ledger":"ledger_unavailable"}'), "what costs nothing goes on"
    assert readyz(ready=True, draining=False, ledger="degraded: its view waits") == (200, b'{"status":"ok"}')
    assert readyz(ready=False, draining=False) == (503, b'{"status":"starting"}')
    assert readyz(ready=True, draining=True) == (503, b'{"status":"draining"}')


@pytest.mark.parametrize(
    ("peer", "sees"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.9", True),
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("11.1.2.3", False),
        ("2001:db8::1", False),
        ("unix", False),
        ("", False),
    ],
)
def test_details_are_for_loopback_and_trusted_networks(peer: str, sees: bool) -> None:
    assert Trusted(("10.0.0.0/8",)).may_see(peer) is sees


def test_unix_sockets_are_trusted_by_name() -> None:
    assert Trusted(("unix",)).may_see("unix")


def test_targets_are_unknown_until_looked_at() -> None:
    upstreams = Upstreams(("a",))
    assert upstreams.word(0.0) == "unknown"
    upstreams.looked("a", "ok", 0.0)
    assert upstreams.word(0.0) == "ok"
    assert Upstreams(()).word(0.0) == "off"


def test_one_ill_target_of_two_degrades_and_two_fail() -> None:
    upstreams = Upstreams(("a", "b"))
    upstreams.looked("a", "ok", 0.0)
    assert upstreams.word(0.0) == "unknown"
    upstreams.looked("b", DOWN, 0.0)
    assert upstreams.word(0.0) == f"degraded: {DOWN} at 1 of 2 targets"
    upstreams.looked("a", "kimi_auth_failed", 0.0)
    assert upstreams.word(0.0) == "kimi_auth_failed"


def test_calls_that_fail_outweigh_a_list_of_models_until_they_are_old() -> None:
    upstreams = Upstreams(("a",))
    upstreams.looked("a", "ok", 0.0)
    for at in (0.0, 1.0):
        upstreams.met("a", "kimi_server_error", at)
    assert upstreams.word(1.0) == "ok"
    upstreams.met("a", "kimi_server_error", 2.0)
    assert upstreams.word(2.0) == "kimi_server_error"
    assert upstreams.word(2.1 + WINDOW_SECONDS) == "ok"
    upstreams.met("a", "none", 3.0)
    assert upstreams.word(3.0) == "ok"


def test_a_look_that_failed_outweighs_the_calls_before_it() -> None:
    upstreams = Upstreams(("a",))
    upstreams.looked("a", "ok", 0.0)
    upstreams.met("a", "none", 1.0)
    upstreams.looked("a", DOWN, 2.0)
    assert upstreams.word(2.0) == DOWN
    upstreams.met("a", "none", 3.0)
    assert upstreams.word(3.0) == "ok"


def test_faults_of_callers_and_limits_say_nothing_of_a_target() -> None:
    upstreams = Upstreams(("a",))
    upstreams.looked("a", "ok", 0.0)
    for code in ("client_closed", "invalid_request", "kimi_rate_limit_burst", "slow_client"):
        for _ in range(5):
            upstreams.met("a", code, 1.0)
    assert upstreams.word(1.0) == "ok"
    upstreams.met("nowhere", "none", 1.0)


def test_a_call_that_succeeded_spares_the_look() -> None:
    upstreams = Upstreams(("a",))
    assert upstreams.needs_look("a", 5.0, 2.0)
    upstreams.met("a", "none", 4.0)
    assert not upstreams.needs_look("a", 5.0, 2.0)
    upstreams.met("a", DOWN, 5.0)
    assert upstreams.needs_look("a", 6.5, 2.0)


def attempts(**counts: float) -> list[Row]:
    return [Row("moongate_attempts_total", ("a", code, "head"), count) for code, count in counts.items()]


def test_only_what_is_new_in_a_snapshot_counts() -> None:
    seen = Attempts()
    assert seen.newly("w", attempts(none=2)) == [("a", "none")] * 2
    assert seen.newly("w", attempts(none=2)) == []
    assert seen.newly("w", attempts(none=3, kimi_unavailable=1)) == [("a", "kimi_unavailable"), ("a", "none")]
    seen.forget("w")
    assert seen.newly("w", attempts(none=1)) == [("a", "none")]
    assert len(seen.newly("w", attempts(none=1_000_000))) <= 3


class Jumping:
    """A World whose sleeps take no time but move its clock; it ends the test when its time is up."""

    def __init__(self, until: float) -> None:
        self.now = 0.0
        self.until = until
        self.over = asyncio.Event()

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self.until:
            self.over.set()
            await asyncio.Event().wait()


def test_every_target_is_looked_at_as_often_as_set() -> None:
    looked: list[tuple[str, float]] = []

    async def main() -> dict[str, str]:
        world = Jumping(6.0)

        async def look_at(look: Look, seconds: float) -> str:
            looked.append((look.target, seconds))
            return DOWN if world.now >= 4.0 else "ok"

        watch = Watch([Look("a", "127.0.0.1", 1, "/", "a")], 2.0, world, look_at)  # type: ignore[arg-type]
        task = asyncio.create_task(watch.run())
        await world.over.wait()
        task.cancel()
        return dict(watch.checks)

    assert asyncio.run(main()) == {"kimi_api": DOWN}
    assert looked == [("a", 2.0)] * 3


def test_gauges_are_read_as_often_as_set_and_forgotten_when_they_are_silent() -> None:
    told: list[Mapping[str, float]] = []

    async def main() -> None:
        world = Jumping(10.0)
        says: dict[float, float | None] = {0.0: 1.0, 2.0: 1.0, 4.0: 2.5, 6.0: None, 8.0: 0.0}

        async def load_at(look: Look, dialect: str, seconds: float) -> float | None:
            assert (look.target, dialect, seconds) == ("a", "vllm", 2.0)
            if not told or told[-1] is not gauges.load:
                told.append(gauges.load)
            return says[world.now]

        gauges = Gauges([(Look("a", "127.0.0.1", 1, "/metrics", "a"), "vllm")], 2.0, world, load_at)  # type: ignore[arg-type]
        task = asyncio.create_task(gauges.run())
        await world.over.wait()
        told.append(gauges.load)
        task.cancel()

    asyncio.run(main())
    assert told == [{}, {"a": 1.0}, {"a": 2.5}, {}, {"a": 0.0}]
