"""Keys, limits, money and the prefix cache."""

import asyncio
from typing import Any

import pytest

from moongate.sim.accounts import PrefixCache, Window
from moongate.sim.clients import Client, Response, chat_bytes
from moongate.sim.config import Config, HostConfig, accounts_from
from moongate.sim.host import key_name
from tests.sim.world import World, run

PACED = {"retry-after": "1", "x-retry-after": "1", "msh-cooldown-seconds": "1"}
WHO = f"org-a<{key_name('sk-a')}>"


def with_tier(tier: Any, **more: Any) -> Config:
    return Config(accounts=accounts_from([{"id": "org-a", "keys": ["sk-a", "sk-a2"], "tier": tier, **more}]))


def limited(response: Response, message: str) -> None:
    error = response.json()["error"]
    assert response.status == 429
    assert error == {"message": message, "type": "rate_limit_reached_error"}
    assert {name: response.head.get(name) for name in PACED} == PACED


def test_concurrency_is_shared_by_all_keys_and_freed_at_the_end() -> None:
    async def story(world: World) -> None:
        async with Client(world.running.port) as client:
            slow = {"stream": True, "sim": {"tokens_per_second": 50, "output_tokens": 20}}
            await client.send(chat_bytes(slow, "sk-a2"))
            await client.until(b"data: ")
            message = f"Your account {WHO} request reached organization max concurrency: 1"
            limited(await world.chat(key="sk-a"), f"{message}, please try again after 1 seconds")
            await client.until(b"[DONE]")
        assert (await world.chat(key="sk-a")).status == 200

    run(story, with_tier({"concurrency": 1}))


def test_a_slot_comes_back_when_the_client_leaves() -> None:
    async def story(world: World) -> None:
        async with Client(world.running.port) as client:
            await client.send(chat_bytes({"stream": True, "sim": {"first_token": 60}}, "sk-a"))
            await client.until(b"\r\n\r\n")
        for _ in range(100):
            if (await world.chat(key="sk-a")).status == 200:
                return
            await asyncio.sleep(0.01)
        pytest.fail("the slot is still held")

    run(story, with_tier({"concurrency": 1}))


def test_requests_a_minute() -> None:
    async def story(world: World) -> None:
        for _ in range(3):
            assert (await world.chat(key="sk-a")).status == 200
        message = f"Your account {WHO} request reached organization max RPM: 3"
        limited(await world.chat(key="sk-a"), f"{message}, please try again after 1 seconds")
        assert (await world.totals())["executions"] == 3

    run(story, with_tier("0", hosts=[]))


def test_tokens_a_minute_count_the_prompt_and_the_cap_not_the_answer() -> None:
    async def story(world: World) -> None:
        assert (await world.chat(key="sk-a", max_tokens=500)).status == 200
        refused = await world.chat(key="sk-a", max_tokens=500)
        limited(
            refused,
            f"Your account {WHO} request reached organization TPM rate limit, current:1012, limit:1000",
        )
        assert (await world.chat(key="sk-a", max_tokens=480)).status == 200

    run(story, with_tier({"tpm": 1000}))


def test_the_default_cap_counts_where_none_is_asked() -> None:
    async def story(world: World) -> None:
        message = (
            f"Your account {WHO} request reached organization TPM rate limit, current:32774, limit:32773"
        )
        limited(await world.chat(key="sk-a"), message)

    run(story, with_tier({"tpm": 32_773}))


def test_tokens_a_day() -> None:
    async def story(world: World) -> None:
        message = f"Your account {WHO} request reached organization TPD rate limit, current:106, limit:100"
        limited(await world.chat(key="sk-a", max_tokens=100), message)

    run(story, with_tier({"tpd": 100}))


def test_a_refusal_charges_nothing() -> None:
    async def story(world: World) -> None:
        for _ in range(5):
            assert (await world.chat(key="sk-a", max_tokens=2000)).status == 429
        assert (await world.chat(key="sk-a", max_tokens=900)).status == 200

    run(story, with_tier({"tpm": 1000, "rpm": 1}))


def test_an_account_without_a_balance_is_suspended() -> None:
    async def story(world: World) -> None:
        await world.chat(key="sk-a", sim={"output_tokens": 400})
        refused = await world.chat(key="sk-a")
        assert refused.status == 429
        assert refused.json()["error"]["type"] == "exceeded_current_quota_error"
        text = refused.json()["error"]["message"]
        assert text.startswith(
            f"Your account {WHO} is suspended due to insufficient balance, please recharge"
        )
        assert refused.head.get("retry-after") == ""
        balance = (await world.call("GET", "/v1/users/me/balance", Authorization="Bearer sk-a")).json()
        assert balance["data"]["available_balance"] < 0

    run(story, with_tier("5", balance=0.0001))


def test_the_balance_falls_by_what_the_book_says() -> None:
    async def story(world: World) -> None:
        await world.chat(key="sk-a")
        spent = (await world.book())[0]["cost_micro"]
        balance = (await world.call("GET", "/v1/users/me/balance", Authorization="Bearer sk-a")).json()
        assert balance["code"] == 0
        assert balance["status"] is True
        assert balance["data"]["available_balance"] == pytest.approx(10 - spent / 1e6)

    run(story, with_tier("1", balance=10))


def test_keys_are_those_declared_and_each_belongs_to_its_hosts() -> None:
    config = Config(
        hosts=(HostConfig(name="cn"), HostConfig(name="ai")),
        accounts=accounts_from(
            [
                {"id": "org-cn", "keys": ["sk-cn"], "hosts": ["cn"], "currency": "CNY"},
                {"id": "org-ai", "keys": ["sk-ai"], "hosts": ["ai"]},
            ]
        ),
    )

    async def story(world: World) -> None:
        cn, ai = world.running.ports["cn"], world.running.ports["ai"]
        assert (await world.chat(port=cn, key="sk-cn")).status == 200
        assert (await world.chat(port=ai, key="sk-ai")).status == 200
        wrong = await world.chat(port=ai, key="sk-cn")
        assert (wrong.status, wrong.json()["error"]["type"]) == (401, "invalid_authentication_error")
        unknown = await world.chat(port=ai, key="sk-x")
        assert (unknown.status, unknown.json()["error"]["type"]) == (401, "incorrect_api_key_error")
        rows = await world.book()
        assert [(row["host"], row["account"], row["currency"]) for row in rows] == [
            ("cn", "org-cn", "CNY"),
            ("ai", "org-ai", "USD"),
        ]

    run(story, config)


def test_account_headers_name_the_account_and_rates_are_not_in_any() -> None:
    async def story(world: World) -> None:
        head = (await world.chat(key="sk-a")).head
        assert head.get("msh-org-id") == "org-a"
        assert head.get("msh-gid") == "enterprise-tier-3"
        assert head.get("msh-uid")
        assert head.get("msh-project-id")
        assert len(head.get("x-msh-trace-id")) == 32
        assert head.get("msh-request-id").count("-") == 4
        assert head.get("msh-trace-mode") == "on"
        assert head.get("server") == "cloudflare"
        assert "__cf_bm" in head.get("set-cookie")
        assert not [name for name, _ in head.headers if name.startswith("x-ratelimit")]

    run(story, with_tier("3"))


def long(tail: str = "") -> list[dict[str, str]]:
    return [{"role": "system", "content": "moon " * 1000}, {"role": "user", "content": f"hello{tail}"}]


def test_the_prefix_cache_hits_in_steps_of_256_tokens_and_is_silent_on_a_miss() -> None:
    async def story(world: World) -> None:
        first = await world.chat(messages=long(), key="sk-a")
        assert "cached_tokens" not in first.json()["usage"]
        assert first.head.get("msh-context-cache-token-saved") == ""
        second = await world.chat(messages=long(" again"), key="sk-a2")
        usage = second.json()["usage"]
        assert usage["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"] == 1024
        assert usage["prompt_tokens"] > 1024
        assert second.head.get("msh-context-cache-token-saved") == "1024"
        rows = await world.book()
        assert [row["cached_tokens"] for row in rows] == [0, 1024]
        changed = [{"role": "system", "content": "sun " * 1000}, {"role": "user", "content": "hello"}]
        assert "cached_tokens" not in (await world.chat(messages=changed, key="sk-a")).json()["usage"]

    run(story, with_tier("5"))


def test_accounts_share_no_prefixes() -> None:
    config = Config(accounts=accounts_from([{"id": "a", "keys": ["sk-a"]}, {"id": "b", "keys": ["sk-b"]}]))

    async def story(world: World) -> None:
        await world.chat(messages=long(), key="sk-a")
        assert "cached_tokens" not in (await world.chat(messages=long(), key="sk-b")).json()["usage"]
        assert "cached_tokens" in (await world.chat(messages=long(), key="sk-b")).json()["usage"]

    run(story, config)


def test_a_short_prompt_is_never_cached() -> None:
    async def story(world: World) -> None:
        for _ in range(2):
            assert "cached_tokens" not in (await world.chat()).json()["usage"]

    run(story)


def test_prefixes_are_forgotten_in_time_and_when_there_are_too_many() -> None:
    cache = PrefixCache(capacity=4, ttl=10)
    prompt = b"m" * 2048
    assert cache.read("k", prompt, 0.0) == 0
    assert cache.read("k", prompt, 10.0) == 512
    assert cache.read("other", prompt, 10.0) == 0
    assert cache.read("k", prompt, 20.1) == 0
    cache.read("k", b"n" * 4096, 20.2)
    assert cache.read("k", prompt, 20.3) == 0


def test_what_follows_a_forgotten_beginning_is_no_hit() -> None:
    cache = PrefixCache(capacity=4)
    cache.read("k", b"m" * 4096, 0.0)
    cache.read("k", b"n" * 1024, 0.0)  # the oldest step, the beginning of the first prompt, makes room
    assert cache.read("k", b"m" * 4096, 1.0) == 0


def test_a_window_slides() -> None:
    window = Window(60)
    window.add(0, 2)
    window.add(30, 3)
    assert window.total(59.9) == 5
    assert window.total(60) == 3
    assert window.total(90) == 0


def test_models_can_be_kept_from_an_account() -> None:
    async def story(world: World) -> None:
        listed = (await world.call("GET", "/v1/models", Authorization="Bearer sk-a")).json()
        assert [one["id"] for one in listed["data"]] == ["kimi-k2.6"]
        assert (await world.chat(key="sk-a")).status == 404
        assert (await world.chat(key="sk-a", model="kimi-k2.6")).status == 200

    run(story, with_tier("5", models=["kimi-k2.6"]))


def test_the_small_endpoints() -> None:
    async def story(world: World) -> None:
        key: dict[str, Any] = {"Authorization": "Bearer sk-sim"}
        model = (await world.call("GET", "/v1/models/kimi-k2.5", **key)).json()
        assert model["context_length"] == 262_144
        assert model["supports_reasoning"] is True
        assert (await world.call("GET", "/v1/models/none", **key)).status == 404
        body = {"model": "kimi-k2.5", "messages": [{"role": "user", "content": "hello"}]}
        estimate = (await world.call("POST", "/v1/tokenizers/estimate-token-count", body, **key)).json()
        usage = (await world.chat()).json()["usage"]
        assert estimate == {"data": {"total_tokens": usage["prompt_tokens"]}}
        assert (await world.call("POST", "/v1/embeddings", body, **key)).status == 404
        assert (await world.call("GET", "/v1/models")).status == 401

    run(story)
