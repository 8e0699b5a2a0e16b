"""Every fault of the catalogue, by what a client sees of it."""

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moongate.sim import serve
from moongate.sim.clients import Client, Response, chat_bytes, request_bytes
from moongate.sim.faults import CATALOGUE
from tests.sim.events import data_of
from tests.sim.world import World, run

assert serve.CATALOGUES
ASK = [{"role": "user", "content": "你好"}]
SHORT = {"output_tokens": 12}
_LIMIT = "rate_limit_reached_error"
_QUOTA = "exceeded_current_quota_error"
_BUSY = "engine_overloaded_error"

STATUSES: dict[str, tuple[int, str, str]] = {
    "rate_limit_rpm": (429, _LIMIT, "max RPM: 3, please try again after 1 seconds"),
    "rate_limit_concurrency": (429, _LIMIT, "organization max concurrency: 3"),
    "rate_limit_concurrency_2025": (429, _LIMIT, "max organization concurrency: 3"),
    "rate_limit_tpm": (429, _LIMIT, "organization TPM rate limit, current:9, limit:3"),
    "rate_limit_tpd": (429, _LIMIT, "organization TPD rate limit, current:9, limit:3"),
    "rate_limit_project_tpm": (429, _LIMIT, "project TPM rate limit, current: 9, limit: 3"),
    "rate_limit_organization": (
        429,
        _LIMIT,
        "Organization Rate limit exceeded, please try again after 1 seconds",
    ),
    "429_with_retry_after": (429, _LIMIT, "max RPM"),
    "429_without": (429, _LIMIT, "max RPM"),
    "retry_after": (429, _LIMIT, "Rate limit exceeded"),
    "ratelimit_headers": (429, _LIMIT, "Rate limit exceeded"),
    "engine_overloaded": (429, _BUSY, "The engine is currently overloaded, please try again later"),
    "coding_overloaded": (429, "rate_limit_error", "The engine is currently overloaded"),
    "quota_exhausted": (429, _QUOTA, "is suspended due to insufficient balance"),
    "quota_credit": (429, _QUOTA, "You exceeded your current token quota: <org-sim>"),
    "quota_403": (403, _QUOTA, "exceeded current quota"),
    "400": (400, "invalid_request_error", "Invalid request"),
    "content_filter": (400, "content_filter", "considered high risk"),
    "auth_401": (401, "invalid_authentication_error", "Invalid Authentication"),
    "wrong_key_401": (401, "incorrect_api_key_error", "Incorrect API key provided"),
    "forbidden_403": (403, "permission_denied_error", "The API you are accessing is not open"),
    "ip_403": (403, "permission_denied_error", "Your IP is not allowed"),
    "model_404": (404, "resource_not_found_error", "Model not found"),
    "client_closed_499": (499, "client_closed_request", ""),
    "500": (500, "server_error", "invalid state transition"),
    "unexpected_output_500": (500, "unexpected_output", ""),
    "502": (502, "server_error", ""),
    "503": (503, "server_unavailable", ""),
    "503_overloaded": (503, _BUSY, ""),
    "504": (504, "server_error", ""),
    "529": (529, "overloaded_error", ""),
    "status": (500, "server_error", ""),
    "error_in_200": (200, _BUSY, "The engine is currently overloaded"),
}


@pytest.mark.parametrize("name", STATUSES)
def test_a_status_instead_of_an_answer(name: str) -> None:
    status, kind, words = STATUSES[name]

    async def story(world: World) -> None:
        response = await world.chat(headers={"X_Sim_Fault": name})
        assert response.status == status
        assert response.json()["error"]["type"] == kind
        assert words in response.json()["error"]["message"]
        assert response.head.get("msh-request-id")
        assert await world.book() == []
        assert (await world.totals())["refused"] == {name: 1}

    run(story)


def test_only_rate_limits_tell_a_wait() -> None:
    async def story(world: World) -> None:
        for name in ("rate_limit_rpm", "rate_limit_tpm"):
            head = (await world.chat(headers={"X_Sim_Fault": name})).head
            assert (
                head.get("retry-after")
                == head.get("x-retry-after")
                == head.get("msh-cooldown-seconds")
                == "1"
            )
        for name in ("engine_overloaded", "quota_exhausted", "429_without", "503"):
            assert (await world.chat(headers={"X_Sim_Fault": name})).head.get("retry-after") == ""
        assert (await world.chat(headers={"X_Sim_Fault": "retry_after;value=1e9"})).head.get(
            "retry-after"
        ) == "1e9"
        assert "GMT" in (await world.chat(headers={"X_Sim_Fault": "retry_after;value=date"})).head.get(
            "retry-after"
        )
        paced = await world.chat(headers={"X_Sim_Fault": "429_with_retry_after;seconds=7"})
        assert paced.head.get("retry-after") == "7"
        rated = await world.chat(headers={"X_Sim_Fault": "ratelimit_headers;reset=9"})
        assert (rated.head.get("x-ratelimit-remaining"), rated.head.get("x-ratelimit-reset")) == ("0", "9")
        free = await world.chat(headers={"X_Sim_Fault": "status;code=418;message=tea;retry_after=3"})
        assert (free.status, free.head.get("retry-after"), free.json()["error"]["message"]) == (
            418,
            "3",
            "tea",
        )

    run(story)


def _html(status: int) -> Callable[[Response], None]:
    def check(response: Response) -> None:
        assert (response.status, response.head.get("content-type")) == (status, "text/html")
        assert b"<html>" in response.body

    return check


def _raw(marks: bytes) -> Callable[[Response], None]:
    def check(response: Response) -> None:
        assert marks in response.body, response.body[:500]

    return check


def _coded(coding: str, unpack: Callable[[bytes], bytes] | None) -> Callable[[Response], None]:
    def check(response: Response) -> None:
        assert response.head.get("content-encoding") == coding
        if unpack is not None:
            assert json.loads(unpack(response.body))["choices"]

    return check


def _broken_gzip(response: Response) -> None:
    with pytest.raises((zlib.error, OSError, EOFError)):
        gzip.decompress(response.body)


def _truncated(response: Response) -> None:
    with pytest.raises(json.JSONDecodeError):
        response.json()


def _usage(**expected: Any) -> Callable[[Response], None]:
    def check(response: Response) -> None:
        usage = response.json()["usage"]
        assert {name: usage[name] for name in expected} == expected

    return check


def _no_usage(response: Response) -> None:
    assert "usage" not in response.json()


def _inconsistent(response: Response) -> None:
    usage = response.json()["usage"]
    assert usage["total_tokens"] != usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["cached_tokens"] > usage["prompt_tokens"]


def _redirect(status: int) -> Callable[[Response], None]:
    def check(response: Response) -> None:
        assert response.status == status
        assert response.head.get("location").startswith("http://")

    return check


def _header(name: str, value: str) -> Callable[[Response], None]:
    def check(response: Response) -> None:
        assert response.head.get(name) == value
        assert response.json()["choices"]

    return check


def _many(response: Response) -> None:
    assert len(response.head.headers) > 1000


def _padded(size: int) -> Callable[[Response], None]:
    def check(response: Response) -> None:
        assert (
            sum(len(value) for name, value in response.head.headers if name.startswith("x-sim-pad")) == size
        )

    return check


PLAIN: dict[str, Callable[[Response], None]] = {
    "html_504": _html(504),
    "html_error_page": _html(502),
    "html_200": _html(200),
    "empty_200": lambda r: _eq((r.status, r.body), (200, b"")),
    "200_then_empty": lambda r: _eq((r.status, r.body), (200, b"")),
    "json_truncated": _truncated,
    "wrong_content_type": _header("content-type", "text/html"),
    "gzip": _coded("gzip", gzip.decompress),
    "deflate": _coded("deflate", zlib.decompress),
    "gzip_broken": _broken_gzip,
    "br_unasked": _coded("br", None),
    "zstd_unasked": _coded("zstd", None),
    "invalid_utf8": _raw(b"\xff\xfe"),
    "lone_surrogate": _raw(rb"\ud800"),
    "json_deep": _raw(b"[" * 100_000),
    "json_nan": _raw(b"NaN"),
    "json_huge_number": _raw(b"1e999"),
    "json_duplicate_keys": _raw(b'{"id":"first","choices":[],"id":"chatcmpl-'),
    "usage_missing": _no_usage,
    "usage_negative": _usage(completion_tokens=-1),
    "usage_inconsistent": _inconsistent,
    "unknown_finish_reason": lambda r: _eq(r.json()["choices"][0]["finish_reason"], "moonset"),
    "unknown_fields": _raw(b"9007199254740993"),
    "unknown_model": lambda r: _eq(r.json()["model"], "kimi-k9"),
    "redirect_302": _redirect(302),
    "redirect_307": _redirect(307),
    "redirect_308": _redirect(308),
    "1xx_flood": lambda r: _eq((len(r.interim), r.status), (1000, 200)),
    "103_hints": lambda r: _eq((r.interim, r.status), ([100, 103], 200)),
    "big_headers": _padded(6200),
    "one_big_header": _padded(64_000),
    "many_headers": _many,
    "header_obs_fold": _header("x-sim-folded", "one"),
    "header_nul": _header("x-sim-nul", "one\x00two"),
    "header_bare_cr": _header("x-sim-cr", "one\rX-Evil: two"),
    "header_bare_lf": _header("x-sim-lf", "one\nX-Evil: two"),
}


def _eq(left: object, right: object) -> None:
    assert left == right


@pytest.mark.parametrize("name", PLAIN)
def test_a_spoiled_whole_answer(name: str) -> None:
    async def story(world: World) -> None:
        PLAIN[name](await world.chat(sim={"fault": name}))
        (row,) = (await world.settled()) if CATALOGUE[name].runs else ({"how": name},)
        assert row["how"] == (name if CATALOGUE[name].breaks else "completed")

    run(story)


def test_two_lengths_that_differ() -> None:
    async def story(world: World) -> None:
        async with Client(world.running.port) as client:
            await client.send(chat_bytes({"sim": {"fault": "two_lengths"}}))
            head = (await client.until(b"\r\n\r\n")).lower()
            assert head.count(b"content-length:") == 2

    run(story)


def test_a_gzip_bomb_is_small_on_the_wire() -> None:
    async def story(world: World) -> None:
        response = await world.chat(sim={"fault": "gzip_bomb", "megabytes": 50})
        assert len(response.body) < 200_000
        unpacked = gzip.decompress(response.body)
        assert len(unpacked) > 50_000_000

    run(story)


def test_any_answer_verbatim_cut_where_it_is_wanted() -> None:
    async def story(world: World) -> None:
        fault = {
            "name": "verbatim",
            "status": 207,
            "headers": {"Content-Type": "text/event-stream", "X-Odd": "1"},
            "body": "data: 月\n\n",
            "framing": "chunked",
            "slices": [0, 7, 7],
        }
        response = await world.chat(sim={"fault": fault})
        assert (response.status, response.head.get("x-odd")) == (207, "1")
        assert response.body.decode() == "data: 月\n\n"
        encoded = {"name": "verbatim", "body_base64": "AAE="}
        assert (await world.chat(sim={"fault": encoded})).body == b"\x00\x01"

    run(story)


def test_faults_can_be_combined_and_asked_for_in_three_ways() -> None:
    async def story(world: World) -> None:
        wanted = ["comments", {"name": "no_done"}]
        both = await world.chat(stream=True, sim={"fault": wanted})
        assert b": hb" in both.body
        assert "[DONE]" not in data_of(both.body)
        header = await world.chat(stream=True, headers={"X_Sim_Fault": "comments, no_done"})
        assert b": hb" in header.body
        assert "[DONE]" not in header.body.decode()
        await world.call("POST", "/_sim/script", {"rules": [{"fault": "503", "match": {"stream": True}}]})
        assert (await world.chat(stream=True)).status == 503
        assert (await world.chat()).status == 200

    run(story)


def test_an_unknown_fault_or_parameter_is_said_so() -> None:
    async def story(world: World) -> None:
        response = await world.chat(sim={"fault": "no_such"})
        assert (response.status, response.json()["error"]["type"]) == (400, "sim_error")
        bad = await world.chat(sim={"fault": {"name": "verbatim", "framing": "pigeon"}})
        assert bad.json()["error"]["type"] == "sim_error"
        assert (await world.totals())["open"] == 0

    run(story)


def test_a_fault_that_stands_in_can_be_made_to_cost() -> None:
    async def story(world: World) -> None:
        response = await world.chat(sim={"fault": "500", "bill": "full"})
        assert response.status == 500
        (row,) = await world.book()
        assert (row["how"], row["bill"]) == ("500", "full")
        assert row["output_tokens"] > 0
        await world.chat(sim={"fault": "500;bill=prompt"})
        row = (await world.book())[-1]
        assert (row["input_tokens"] > 0, row["output_tokens"]) == (True, 0)

    run(story)


def test_faults_reach_the_other_endpoints() -> None:
    async def story(world: World) -> None:
        head: dict[str, Any] = {"Authorization": "Bearer sk-sim", "X_Sim_Fault": "503"}
        assert (await world.call("GET", "/v1/models", **head)).status == 503
        assert (
            await world.call("GET", "/v1/models", **{**head, "X_Sim_Fault": "wrong_content_type"})
        ).status == 200
        async with Client(world.running.port) as client:
            raw = request_bytes("HEAD", "/v1/models", headers={"Authorization": "Bearer sk-sim"})
            await client.send(raw)
            assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")

    run(story)


def test_every_fault_of_the_catalogue_is_tried() -> None:
    source = "".join(path.read_text("utf-8") for path in Path(__file__).parent.glob("test_fault*.py"))
    assert [name for name in CATALOGUE if f'"{name}' not in source and f" {name} " not in source] == []
    assert len(CATALOGUE) > 100


def test_every_row_that_an_upstream_can_make_has_a_fault() -> None:
    rows = {one.row for one in CATALOGUE.values()}
    assert set(range(11, 45)) - {17} <= rows  # 17 is a script: 503 until it is not
