"""Every fault of streams, of time and of connections, by what a client sees of it."""

import asyncio
import contextlib
import json
import time
from itertools import pairwise
from typing import Any

import pytest

from moongate.sim.clients import Client, CutError, Response, chat_bytes
from moongate.sim.faults import CATALOGUE
from tests.sim.events import data_of, text_of
from tests.sim.world import World, run

pytestmark = pytest.mark.usefixtures("both_loops")

ASK = [{"role": "user", "content": "你好"}]
SHORT = {"output_tokens": 12}


async def streamed(world: World, fault: Any = None, **steer: Any) -> Response:
    sim = {**SHORT, **steer} if fault is None else {**SHORT, "fault": fault, **steer}
    return await world.chat(messages=ASK, stream=True, sim=sim)


FRAMED_OTHERWISE = (
    (
        "crlf cr mixed_newlines bom comments multi_line_data no_space other_fields one_byte_chunks "
        "event_split_inside_utf8 content_null usage_twice no_done cut_before_done no_done_close "
        "usage_missing usage_negative usage_inconsistent unknown_fields unknown_model unknown_finish_reason "
        "close_after_reply close_on_next_request tool_index_missing"
    )
    .replace("after_close ", "")
    .split()
)
MARKS: dict[str, bytes] = {
    "crlf": b"\r\n\r\ndata: [DONE]\r\n\r\n",
    "cr": b"\r\rdata: [DONE]\r\r",
    "bom": b"\xef\xbb\xbfdata: ",
    "comments": b": hb\n\n",
    "multi_line_data": b',\ndata: "object"',
    "no_space": b'\n\ndata:{"id"',
    "other_fields": b"event: message\nid: 7\nretry: 10\nmoon: full\ndata: ",
    "content_null": b'"content":null',
}


@pytest.mark.parametrize("name", FRAMED_OTHERWISE)
def test_a_stream_framed_otherwise_says_the_same(name: str) -> None:
    async def story(world: World) -> None:
        expected = text_of((await streamed(world)).body)
        response = await streamed(world, name)
        assert text_of(response.body) == expected
        assert MARKS.get(name, b"") in response.body
        done = [data for data in data_of(response.body) if data == "[DONE]"]
        assert len(done) == (0 if "no_done" in name or "before_done" in name else 1)
        assert (await world.settled())[-1]["how"] == "completed"

    run(story)


CUTS: dict[str, tuple[bool, bool]] = {
    # name: by reset, the head has come
    "reset_before_head": (True, False),
    "close_before_head": (False, False),
    "reset_after_head": (True, True),
    "reset_mid_stream": (True, True),
    "reset_mid_event": (True, True),
    "reset_mid_utf8": (True, True),
    "chunk_truncated": (False, True),
    "chunk_cut": (False, True),
    "keep_alive_close": (False, False),
    "down": (True, False),
    "reset_peer": (True, False),
}


@pytest.mark.parametrize("name", CUTS)
def test_a_stream_that_is_cut(name: str) -> None:
    by_reset, with_head = CUTS[name]

    async def story(world: World) -> None:
        with pytest.raises(CutError) as caught:
            await streamed(world, name)
        cut = caught.value
        assert cut.reset is by_reset
        assert (cut.head is not None) is with_head
        rows = await world.settled()
        assert [row["how"] for row in rows] == ([name] if CATALOGUE[name].runs else [])
        if name in {"reset_mid_stream", "chunk_truncated"}:
            assert rows[0]["output_tokens"] == rows[0]["tokens_emitted"] == 3
            assert len(data_of(cut.body)) == 4
        if name == "reset_mid_utf8":
            with pytest.raises(UnicodeDecodeError):
                cut.body.decode()

    run(story)


@pytest.mark.parametrize(
    "name", ["reset_mid_stream", "chunk_truncated", "short_body", "limit_data", "reset_before_head"]
)
def test_a_whole_answer_that_is_cut(name: str) -> None:
    async def story(world: World) -> None:
        with pytest.raises(CutError) as caught:
            await world.chat(sim={"fault": name})
        if name != "reset_before_head":
            head = caught.value.head
            assert head is not None
            assert int(head.get("content-length")) > len(caught.value.body) > 0

    run(story)


def test_a_length_that_lies_leaves_bytes_behind_the_answer() -> None:
    async def story(world: World) -> None:
        async with Client(world.running.port) as client:
            response = await client.request(chat_bytes({"sim": {"fault": "lying_content_length"}}))
            with pytest.raises(json.JSONDecodeError):
                response.json()
            assert len(await client.receive()) == 10
            assert (await world.settled())[0]["how"] == "lying_content_length"

    run(story)


def _events(response: Response) -> list[str]:
    return data_of(response.body)


def test_ends_that_are_none() -> None:
    async def story(world: World) -> None:
        cut = _events(await streamed(world, "close_mid_stream;after=2"))
        assert len(cut) == 3
        assert "[DONE]" not in cut
        early = _events(await streamed(world, "done_without_finish;after=2"))
        assert early[-1] == "[DONE]"
        assert all('"finish_reason":null' in data for data in early[:-1])
        late = _events(await streamed(world, "after_done"))
        assert late.index("[DONE]") == len(late) - 4
        assert (await streamed(world, "no_stream")).body == b""
        thought = await streamed(world, "thinking_only")
        assert thought.text("reasoning_content")
        assert not thought.text()
        assert thought.events()[-1] == "[DONE]"

    run(story)


def test_errors_inside_a_stream() -> None:
    async def story(world: World) -> None:
        for name in ("error_event", "error_event_mid_stream"):
            events = _events(await streamed(world, f"{name};after=2;message=out;type=server_error"))
            assert json.loads(events[-1]) == {"error": {"message": "out", "type": "server_error"}}
            assert len(events) == 4
        named = await streamed(world, "error_event_named")
        assert b"\n\nevent: error\ndata: {" in named.body
        alone = await streamed(world, "error_in_200")
        assert alone.head.get("content-type") == "text/event-stream"
        assert "error" in json.loads(_events(alone)[0])

    run(story)


def test_events_that_are_wrong() -> None:
    async def story(world: World) -> None:
        whole = _events(await streamed(world))
        glued = _events(await streamed(world, "glued_chunk"))
        assert sum('data: {"id"' in data for data in glued) == 1
        doubled = _events(await streamed(world, "duplicate_chunk"))
        assert len(doubled) == len(whole) + 1
        assert any(one == other for one, other in pairwise(doubled))
        twice = _events(await streamed(world, "usage_twice"))
        assert sum('"usage"' in data for data in twice) == 2
        for name in ("big_event", "oversized_event"):
            big = _events(await streamed(world, name))
            assert max(map(len, big)) > 999_000
        foreign = _events(await streamed(world, "cross_talk"))
        assert len({json.loads(data)["id"] for data in foreign if data.startswith("{")}) == 2
        endless = await streamed(world, {"name": "endless_line", "bytes": 3_000_000})
        assert len(endless.body.rsplit(b"\n", 1)[1]) > 3_000_000

    run(story)


def test_a_tool_call_without_an_index() -> None:
    async def story(world: World) -> None:
        tool = {
            "type": "function",
            "function": {"name": "f_x", "parameters": {"type": "object", "properties": {}}},
        }
        members: dict[str, Any] = {
            "messages": [{"role": "user", "content": "use f_x"}],
            "tools": [tool],
            "stream": True,
        }
        body = (await world.chat(**members, sim={"fault": "tool_index_missing"})).body
        assert b'"tool_calls":[{"id"' in body
        assert b'"tool_calls":[{"index"' not in body

    run(story)


def test_a_bad_chunk_size() -> None:
    async def story(world: World) -> None:
        with pytest.raises(ValueError, match="invalid literal"):
            await streamed(world, "chunk_size_bad")

    run(story)


async def time_of(world: World, fault: str, *, stream: bool = True) -> float:
    began = time.monotonic()
    await world.chat(messages=ASK, stream=stream, sim={**SHORT, "fault": fault})
    return time.monotonic() - began


@pytest.mark.parametrize(
    "fault",
    [
        "latency;seconds=0.2",
        "stall_before_head;seconds=0.2",
        "stall_first_token;seconds=0.2",
        "slow_first_token;seconds=0.2",
        "stall_mid_stream;seconds=0.2",
        "drip;bytes=30;seconds=0.02",
        "slicer;bytes=30;seconds=0.02",
        "bandwidth;bytes_per_second=2000",
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_faults_of_time_take_their_time(fault: str, stream: bool) -> None:
    async def story(world: World) -> None:
        slow = await time_of(world, fault, stream=stream)
        assert slow >= 0.19, slow

    run(story)


def test_a_slow_close_keeps_the_end_back() -> None:
    async def story(world: World) -> None:
        assert await time_of(world, "slow_close;seconds=0.2") >= 0.19
        async with Client(world.running.port) as client:
            await client.request(chat_bytes({"sim": {"fault": "slow_close;seconds=0.2"}}))
            assert not await client.at_end(0.1)
            assert await client.at_end()

    run(story)


@pytest.mark.parametrize("name", ["stall_before_head", "stall_first_token", "stall_mid_stream", "timeout"])
def test_a_stall_lasts_until_the_client_gives_up(name: str) -> None:
    async def story(world: World) -> None:
        async with Client(world.running.port) as client:
            await client.send(chat_bytes({"stream": True, "sim": {**SHORT, "fault": name}}))
            came = b""
            with contextlib.suppress(TimeoutError):
                while more := await asyncio.wait_for(client.receive(), 0.2):
                    came += more
            assert came.startswith(b"HTTP/1.1 200") is (name in {"stall_first_token", "stall_mid_stream"})
            assert came.count(b"data: ") == (4 if name == "stall_mid_stream" else 0)
        rows = await world.settled()
        assert [row["how"] for row in rows] == ([] if name == "timeout" else ["aborted"])

    run(story)


def test_a_timeout_closes_in_the_end() -> None:
    async def story(world: World) -> None:
        with pytest.raises(CutError):
            await world.chat(sim={"fault": "timeout;seconds=0.1"})

    run(story)


def test_keep_alive_that_ends_at_the_wrong_time() -> None:
    async def story(world: World) -> None:
        async with Client(world.running.port) as client:
            response = await client.request(chat_bytes({"sim": {"fault": "close_on_next_request"}}))
            assert response.status == 200
            assert response.head.get("connection") == ""
            assert not await client.at_end(0.1)
            with pytest.raises(CutError):
                await client.request(chat_bytes())
        async with Client(world.running.port) as client:
            response = await client.request(chat_bytes({"sim": {"fault": "close_after_reply"}}))
            assert response.head.get("connection") == ""
            assert await client.at_end()
        assert len(await world.book()) == 2

    run(story)


def test_something_that_is_not_http() -> None:
    async def story(world: World) -> None:
        async with Client(world.running.port) as client:
            await client.send(chat_bytes({"sim": {"fault": "not_http"}}))
            assert (await client.receive()).startswith(b"SSH-2.0")

    run(story)
