"""The HTTP/2 listener, from a client on the same framing library."""

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import Any, Self

import h2.config
import h2.connection
import h2.events
import pytest

from moongate.sim.config import Config, HostConfig
from tests.sim.world import World, run

HELLO = [{"role": "user", "content": "hello"}]


@dataclass
class Answer:
    """What came on one stream."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False
    reset: Any = None


class H2Client:
    """Streams on one cleartext connection, by prior knowledge."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.answers: dict[int, Answer] = {}
        self.gone = False
        self.connection = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        )

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self.connection.initiate_connection()
        self.flush()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def flush(self) -> None:
        self._writer.write(self.connection.data_to_send())

    def ask(self, **members: Any) -> int:
        body = json.dumps({"model": "kimi-k2.5", "messages": HELLO, **members}).encode()
        number = self.connection.get_next_available_stream_id()
        head = [
            (":method", "POST"),
            (":path", "/v1/chat/completions"),
            (":scheme", "http"),
            (":authority", "kimi.test"),
            ("authorization", "Bearer sk-sim"),
            ("x-request-id", f"r{number}"),
        ]
        self.connection.send_headers(number, head)
        self.connection.send_data(number, body, end_stream=True)
        self.answers[number] = Answer()
        self.flush()
        return number

    async def read(self, *, take: bool = True) -> bool:
        data = await asyncio.wait_for(self._reader.read(65_536), 5)
        if not data:
            self.gone = True
            return False
        for event in self.connection.receive_data(data):
            answer = self.answers.get(getattr(event, "stream_id", 0) or 0, Answer())
            if isinstance(event, h2.events.ResponseReceived):
                answer.headers = {str(name): str(value) for name, value in event.headers or []}
                answer.status = int(answer.headers[":status"])
            elif isinstance(event, h2.events.DataReceived):
                answer.body += event.data or b""
                if take:
                    self.connection.acknowledge_received_data(
                        event.flow_controlled_length or 0, event.stream_id or 0
                    )
            elif isinstance(event, h2.events.StreamEnded):
                answer.ended = True
            elif isinstance(event, h2.events.StreamReset):
                answer.reset = event.error_code
        self.flush()
        return True

    async def finish(self, number: int) -> Answer:
        answer = self.answers[number]
        while not answer.ended and answer.reset is None and await self.read():
            pass
        return answer


def test_whole_and_streamed_answers_are_those_of_http_1() -> None:
    async def story(world: World) -> None:
        plain = await world.chat()
        async with H2Client(world.running.port) as client:
            whole, stream = client.ask(), client.ask(stream=True)
            answer = await client.finish(whole)
            assert answer.status == 200
            assert json.loads(answer.body)["choices"] == plain.json()["choices"]
            assert int(answer.headers["content-length"]) == len(answer.body)
            streamed = await client.finish(stream)
            assert streamed.body.endswith(b"data: [DONE]\n\n")
            assert "transfer-encoding" not in streamed.headers
        assert [row["request_id"] for row in (await world.book())[1:]] == ["r1", "r3"]

    run(story)


def test_many_streams_share_a_connection_and_a_large_one_respects_the_window() -> None:
    async def story(world: World) -> None:
        async with H2Client(world.running.port) as client:
            numbers = [client.ask(stream=True, sim={"output_tokens": 2000}) for _ in range(5)]
            for number in numbers:
                assert (await client.finish(number)).body.endswith(b"data: [DONE]\n\n")
        assert (await world.totals())["ended"] == {"completed": 5}

    run(story)


def test_a_reader_that_gives_no_window_holds_the_answer_and_leaves_an_aborted_row() -> None:
    async def story(world: World) -> None:
        async with H2Client(world.running.port) as client:
            number = client.ask(stream=True, sim={"output_tokens": 5000})
            while len(client.answers[number].body) < 65_535:
                await client.read(take=False)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.read(take=False), 0.2)
            assert [row["how"] for row in await world.book()] == ["running"]
        (row,) = await world.settled()
        assert row["how"] == "aborted"
        assert row["output_tokens"] < 5000

    run(story)


def test_a_cancelled_stream_is_noticed_and_the_others_go_on() -> None:
    async def story(world: World) -> None:
        async with H2Client(world.running.port) as client:
            slow = client.ask(stream=True, sim={"tokens_per_second": 50, "output_tokens": 500})
            other = client.ask(stream=True, sim={"tokens_per_second": 100, "output_tokens": 30})
            while b"content" not in client.answers[slow].body:
                await client.read()
            client.connection.reset_stream(slow, 8)
            client.flush()
            assert (await client.finish(other)).ended
            rows = await world.settled()
            assert [row["how"] for row in rows] == ["aborted", "completed"]
            assert 0 < rows[0]["output_tokens"] < 500

    run(story)


def test_a_stream_cancelled_while_nothing_is_sent_ends_at_once() -> None:
    async def story(world: World) -> None:
        async with H2Client(world.running.port) as client:
            silent = client.ask(stream=True, sim={"first_token": 60})
            while not client.answers[silent].status:
                await client.read()
            client.connection.reset_stream(silent, 8)
            client.flush()
            (row,) = await world.settled()
            assert (row["how"], row["output_tokens"]) == ("aborted", 0)

    run(story)


def test_faults_speak_http_2() -> None:
    async def story(world: World) -> None:
        async with H2Client(world.running.port) as client:
            reset = await client.finish(client.ask(stream=True, sim={"fault": "reset_mid_stream"}))
            assert reset.reset == 2
            assert reset.body.count(b"data: ") == 4
            refused = await client.finish(client.ask(sim={"fault": "503"}))
            assert refused.status == 503
            hinted = await client.finish(client.ask(sim={"fault": "103_hints"}))
            assert (hinted.status, hinted.ended) == (200, True)
            client.ask(stream=True, sim={"fault": "chunk_truncated"})
            while await client.read():
                pass
            assert client.gone

    run(story)


def test_http_2_can_be_refused() -> None:
    async def story(world: World) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.running.port)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert (await reader.read(12)).startswith(b"HTTP/1.1 400")
        writer.close()

    run(story, Config(hosts=(HostConfig(http2=False),)))


def test_a_broken_frame_ends_the_connection() -> None:
    async def story(world: World) -> None:
        async with H2Client(world.running.port) as client:
            client.ask(stream=True, sim={"first_token": 60})
            while not client.answers[1].status:
                await client.read()
            client._writer.write(b"\0\0\1\0\0\0\0\0\0x")  # DATA on stream 0
            with contextlib.suppress(ConnectionResetError):
                while await client.read():
                    pass
        assert [row["how"] for row in await world.settled()] == ["aborted"]

    run(story)
