"""How busy a self-hosted replica says it is."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.gauges import load_of

VLLM = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="moonshotai/Kimi-K2.5"} 12.0
vllm:num_requests_waiting{engine="0",model_name="moonshotai/Kimi-K2.5"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="moonshotai/Kimi-K2.5"} 0.25
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 99.0
"""
SGLANG = b"""\
sglang:num_running_reqs{model_name="kimi",engine_type="unified",tp_rank="0"} 4.0
sglang:num_queue_reqs{model_name="kimi",engine_type="unified",tp_rank="0"} 0.0
sglang:token_usage{model_name="kimi",engine_type="unified",tp_rank="0"} 0.5
"""


def test_a_queue_counts_more_than_anything() -> None:
    assert load_of(VLLM, "vllm") == pytest.approx(3.2512)
    assert load_of(SGLANG, "sglang") == pytest.approx(0.5004)


def test_engines_behind_one_page_are_one_replica() -> None:
    other = VLLM.replace(b'engine="0"', b'engine="1"').replace(b"0.25", b"0.75")
    assert load_of(VLLM + other, "vllm") == pytest.approx(6.7524)


def test_older_servers_name_their_cache_otherwise() -> None:
    older = VLLM.replace(b"kv_cache", b"gpu_cache")
    assert load_of(older, "vllm") == load_of(VLLM, "vllm")


@pytest.mark.parametrize(
    ("page", "load"),
    [
        (b"vllm:num_requests_waiting 2 1700000000000", 2.0),
        (b"vllm:num_requests_waiting 2\r\nvllm:kv_cache_usage_perc 7\r\n", 3.0),
        (b"vllm:num_requests_running 123456", 0.1),
        (b'vllm:num_requests_waiting{model_name="a b } c"} 5', 5.0),
    ],
)
def test_odd_but_readable_pages(page: bytes, load: float) -> None:
    assert load_of(page, "vllm") == pytest.approx(load)


@pytest.mark.parametrize(
    "page",
    [
        b"",
        SGLANG,
        b"<html>moon</html>",
        b"vllm:num_requests_waiting",
        b"vllm:num_requests_waiting nan",
        b"vllm:num_requests_waiting -1",
        b"vllm:num_requests_waiting +Inf",
        b"vllm:num_requests_waiting many",
        b"vllm:kv_cache_usage_perc 0.5",
    ],
)
def test_pages_that_do_not_say(page: bytes) -> None:
    assert load_of(page, "vllm") is None


def test_hosted_platforms_have_no_gauges() -> None:
    assert load_of(VLLM, "moonshot") is None


def page_of(waiting: int, use: float, running: int) -> bytes:
    return (
        f"vllm:num_requests_waiting {waiting}\nvllm:kv_cache_usage_perc {use}\nvllm:num_requests_running {running}"
    ).encode()


states = st.tuples(st.integers(0, 500), st.integers(0, 100).map(lambda n: n / 100), st.integers(0, 900))


@given(states, states)
def test_who_queues_less_and_is_less_full_is_less_busy(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    first, second = load_of(page_of(*one), "vllm"), load_of(page_of(*other), "vllm")
    assert first is not None
    assert second is not None
    if one[0] <= other[0] and one[1] <= other[1] and one[2] < other[2]:
        assert first < second
    if one[0] + 2 <= other[0]:
        assert first < second


@given(st.binary(max_size=400))
def test_no_page_is_too_odd(page: bytes) -> None:
    load = load_of(page, "sglang")
    assert load is None or load >= 0
    assert load_of(SGLANG + b"\n" + page, "sglang") is not None
