"""The simulator's own endpoints: what came in, who is connected, scripts and switches."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

from moongate.sim.clients import Client, CutError, chat_bytes, request_bytes
from moongate.sim.config import Config, HostConfig
from moongate.sim.script import ScriptError, load, rules_from
from tests.sim.world import World, run

CONTROLLED = Config(hosts=(HostConfig(), HostConfig(name="control", kind="control")))


def test_requests_are_kept_byte_for_byte() -> None:
    async def story(world: World) -> None:
        body = '{"model" : "kimi-k2.5","messages":[{"role":"user","content":"\\u4f60好"}], "big":9007199254740993}'
        head = {"Authorization": "Bearer sk-sim", "X-Odd-CASE": "  v w  ", "x-twice": "1", "X-Twice": "2"}
        async with Client(world.running.port) as client:
            await client.request(request_bytes("POST", "/v1/chat/completions?a=b", body.encode(), head))
        seen = (await world.call("GET", "/_sim/requests")).json()
        assert seen["seen"] == 1
        (kept,) = seen["requests"]
        assert base64.b64decode(kept["body_base64"]) == body.encode()
        assert (kept["method"], kept["target"], kept["host"]) == ("POST", "/v1/chat/completions?a=b", "kimi")
        assert ["X-Odd-CASE", "v w"] in [[name, value.strip()] for name, value in kept["headers"]]
        assert [value for name, value in kept["headers"] if name.lower() == "x-twice"] == ["1", "2"]
        await world.call("DELETE", "/_sim/requests")
        assert (await world.call("GET", "/_sim/requests")).json()["requests"] == []

    run(story)


def test_chunked_bodies_and_expectations_are_read() -> None:
    async def story(world: World) -> None:
        raw = chat_bytes()
        head, _, body = raw.partition(b"\r\n\r\n")
        chunked = head.replace(b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked")
        async with Client(world.running.port) as client:
            sent = (
                chunked
                + b"\r\n\r\n"
                + b"".join(b"1\r\n%c\r\n" % byte for byte in body)
                + b"0\r\nX-Trailer: t\r\n\r\n"
            )
            assert (await client.request(sent)).status == 200
            await client.send(head + b"\r\nExpect: 100-continue\r\n\r\n")
            assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            assert (await client.request(body)).status == 200
        kept = (await world.call("GET", "/_sim/requests")).json()["requests"]
        assert base64.b64decode(kept[0]["body_base64"]) == body
        assert "X-Trailer" not in [name for name, _ in kept[0]["headers"]]

    run(story)


def test_bytes_that_are_no_http_are_refused() -> None:
    async def story(world: World) -> None:
        async with Client(world.running.port) as client:
            await client.send(b"\x16\x03\x01 hello\r\n\r\n")
            assert (await client.receive()).startswith(b"HTTP/1.1 400")
            assert await client.at_end()

    run(story)


def test_connection_close_and_http_1_0_are_obeyed() -> None:
    async def story(world: World) -> None:
        async with Client(world.running.port) as client:
            response = await client.request(chat_bytes(Connection="close"))
            assert response.head.get("connection") == "close"
            assert await client.at_end()
        async with Client(world.running.port) as client:
            old = chat_bytes({"stream": True}).replace(b"HTTP/1.1", b"HTTP/1.0")
            response = await client.request(old)
            assert response.head.get("transfer-encoding") == ""
            assert response.events()[-1] == "[DONE]"

    run(story)


def test_connections_are_counted() -> None:
    async def story(world: World) -> None:
        async with Client(world.running.port), Client(world.running.port) as client:
            seen = (await client.request(request_bytes("GET", "/_sim/connections"))).json()
            assert (seen["open"], seen["ever"]) == (2, 2)
            await client.request(chat_bytes())
            seen = (await client.request(request_bytes("GET", "/_sim/connections"))).json()
            assert seen["hosts"]["kimi"]["requests"] == 1

    run(story)


async def switch(world: World, port: int = 0, **members: Any) -> None:
    assert (await world.call("POST", "/_sim/switch", members, port=port)).status == 200


def test_down_refuses_and_resets_and_up_answers_on_the_same_port() -> None:
    async def story(world: World) -> None:
        control = world.running.ports["control"]
        async with Client(world.running.port) as client:
            await client.send(chat_bytes({"stream": True, "sim": {"tokens_per_second": 20}}))
            await client.until(b"data: ")
            await switch(world, control, down=True)
            with pytest.raises((CutError, ConnectionResetError)):
                await client.until(b"[DONE]")
        with pytest.raises(ConnectionRefusedError):
            await world.chat()
        rows = (await world.call("GET", "/_sim/book", port=control)).json()["executions"]
        assert [row["how"] for row in rows] == ["aborted"]
        await switch(world, control, down=False)
        await asyncio.sleep(0.1)
        assert (await world.chat()).status == 200

    run(story, CONTROLLED)


def test_down_for_a_while_comes_back_by_itself() -> None:
    async def story(world: World) -> None:
        await switch(world, down=True, seconds=0.2)
        await asyncio.sleep(0.08)
        with pytest.raises(ConnectionRefusedError):
            await world.chat()
        await asyncio.sleep(0.4)
        assert (await world.chat()).status == 200

    run(story)


def test_overload_can_be_switched_on_for_a_while() -> None:
    async def story(world: World) -> None:
        await switch(world, overload=True)
        busy = await world.chat()
        assert (busy.status, busy.json()["error"]["type"]) == (429, "engine_overloaded_error")
        assert busy.head.get("retry-after") == ""
        assert (await world.call("GET", "/v1/models", Authorization="Bearer sk-sim")).status == 200
        await switch(world, overload=False)
        assert (await world.chat()).status == 200
        await switch(world, overload=True, seconds=0.05)
        assert (await world.chat()).status == 429
        await asyncio.sleep(0.06)
        assert (await world.chat()).status == 200

    run(story)


async def balance(world: World) -> float:
    answer = await world.call("GET", "/v1/users/me/balance", Authorization="Bearer sk-sim")
    available: float = answer.json()["data"]["available_balance"]
    return available


def test_an_account_can_be_suspended_and_its_prefixes_forgotten() -> None:
    async def story(world: World) -> None:
        await switch(world, suspended=True, account="org-sim")
        assert (await world.chat()).json()["error"]["type"] == "exceeded_current_quota_error"
        assert (await balance(world)) == 0
        await switch(world, suspended=False)
        assert (await balance(world)) == 12.5
        long = [{"role": "user", "content": "moon " * 1000}]
        await world.chat(messages=long)
        await switch(world, forget_prefixes=True)
        assert "cached_tokens" not in (await world.chat(messages=long)).json()["usage"]
        people = (await world.call("GET", "/_sim/accounts")).json()["accounts"]
        assert people[0]["id"] == "org-sim"

    run(story)


async def script(world: World, *rules: Any) -> None:
    response = await world.call("POST", "/_sim/script", {"rules": list(rules)})
    assert response.status == 200, response.body


async def statuses(world: World, many: int, **members: Any) -> list[int]:
    return [(await world.chat(**members)).status for _ in range(many)]


def test_a_rule_can_wait_repeat_and_run_out() -> None:
    async def story(world: World) -> None:
        await script(world, {"fault": "503", "skip": 1, "times": 2})
        assert await statuses(world, 5) == [200, 503, 503, 200, 200]
        await script(world, {"fault": "503", "every": 3})
        assert await statuses(world, 6) == [503, 200, 200, 503, 200, 200]
        await script(world, {"fault": "503", "probability": 0.5})
        seen = await statuses(world, 60)
        assert 10 < seen.count(503) < 50
        shown = (await world.call("GET", "/_sim/script")).json()["rules"]
        assert (shown[0]["matched"], shown[0]["applied"]) == (60, seen.count(503))
        await world.call("DELETE", "/_sim/script")
        assert await statuses(world, 3) == [200] * 3

    run(story)


def test_a_rule_can_choose_its_requests() -> None:
    async def story(world: World) -> None:
        await script(
            world,
            {"fault": "500", "match": {"key": "sk-a"}},
            {"fault": "502", "match": {"model": "kimi-k2.6"}},
            {"fault": "503", "match": {"text": "magic"}},
            {"fault": "504", "match": {"stream": True}},
            {"fault": "529", "match": {"path": "/v1/models"}},
            {"fault": "400", "match": {"host": "elsewhere"}},
        )
        assert await statuses(world, 1, key="sk-a") == [500]
        assert await statuses(world, 1, model="kimi-k2.6") == [502]
        assert await statuses(world, 1, messages=[{"role": "user", "content": "magic"}]) == [503]
        assert await statuses(world, 1, stream=True) == [504]
        assert (await world.call("GET", "/v1/models", Authorization="Bearer sk-sim")).status == 529
        assert await statuses(world, 1) == [200]

    run(story)


def test_a_rule_without_a_path_leaves_probes_alone() -> None:
    async def story(world: World) -> None:
        await script(world, {"fault": "503", "times": 1})
        assert (await world.call("GET", "/v1/models", Authorization="Bearer sk-sim")).status == 200
        assert await statuses(world, 2) == [503, 200]

    run(story)


def test_an_outage_has_a_beginning_and_an_end_and_bursts_come_back() -> None:
    async def story(world: World) -> None:
        await script(world, {"fault": "503", "from": 0.1, "until": 0.3})
        assert await statuses(world, 1) == [200]
        await asyncio.sleep(0.15)
        assert await statuses(world, 1) == [503]
        await asyncio.sleep(0.3)
        assert await statuses(world, 1) == [200]
        await script(world, {"fault": "engine_overloaded", "period": 0.4, "until": 0.2})
        seen = []
        for _ in range(8):
            seen += await statuses(world, 1)
            await asyncio.sleep(0.1)
        assert seen[0] == 429
        assert {200, 429} == set(seen)
        assert seen.index(200) < len(seen) - 1 - seen[::-1].index(429)

    run(story)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"rules": {}}, "a script is a list of rules"),
        ([{"match": {}}], "rule 0: an object with a member fault"),
        ([{"fault": "503"}, {"fault": "no_such"}], "rule 1: no fault is called 'no_such'"),
        ([{"fault": "503", "tims": 1}], "rule 0: unknown member tims"),
        ([{"fault": "503", "match": {"modle": "x"}}], "rule 0: unknown member modle"),
        ([{"fault": "503", "times": "many"}], "rule 0: invalid literal"),
    ],
)
def test_a_wrong_script_says_where(document: Any, words: str) -> None:
    with pytest.raises(ScriptError, match=words):
        rules_from(document)

    async def story(world: World) -> None:
        response = await world.call("POST", "/_sim/script", document)
        assert response.status == 400
        assert words in response.json()["error"]

    run(story)


def test_scripts_are_read_from_json_and_yaml(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"rules": [{"fault": "503"}]}')
    (tmp_path / "b.yaml").write_text("rules:\n- fault: 503_overloaded\n  times: 2\n")
    (tmp_path / "c.json").write_text("{")
    assert load(tmp_path / "a.json") == {"rules": [{"fault": "503"}]}
    assert load(tmp_path / "b.yaml") == {"rules": [{"fault": "503_overloaded", "times": 2}]}
    with pytest.raises(ScriptError):
        load(tmp_path / "c.json")


def test_the_index_and_the_catalogue() -> None:
    async def story(world: World) -> None:
        about = (await world.call("GET", "/_sim")).json()
        assert about["as_of"] == "2026-06-01"
        assert "kimi-k2.5" in about["hosts"][0]["models"]
        assert about["hosts"][0]["port"] == world.running.port
        faults = (await world.call("GET", "/_sim/faults")).json()["faults"]
        assert {"name", "row", "runs", "breaks", "bill", "about"} == set(faults[0])
        assert (await world.call("GET", "/_sim/none")).status == 404
        assert (await world.call("POST", "/_sim/switch")).status == 400

    run(story)


def test_control_requests_are_not_traffic() -> None:
    async def story(world: World) -> None:
        await world.call("GET", "/_sim/book")
        assert (await world.call("GET", "/_sim/requests")).json()["seen"] == 0
        control = world.running.ports["control"]
        assert json.loads((await world.call("GET", "/_sim", port=control)).body)["seed"] == "moon"
        assert (await world.chat(port=control)).status == 404

    run(story, CONTROLLED)
