"""Frames and descriptors between two processes, here between two ends of one socket."""

import asyncio
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from moongate.processes import channel
from moongate.processes.channel import Channel, Control, Drain, Hello, Message, Reception, Scrape, State


class Ear:
    """A receiver that remembers."""

    def __init__(self) -> None:
        self.heard: list[tuple[Message, list[int]]] = []
        self.gone = 0

    def received(self, _: Channel, message: Message, fds: list[int]) -> None:
        self.heard.append((message, fds))

    def closed(self, _: Channel) -> None:
        self.gone += 1


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def until(true: Callable[[], object]) -> None:
    for _ in range(500):
        if true():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("not within a second")


def joined(story: Callable[[Channel, Ear, socket.socket], Awaitable[None]]) -> None:
    """Tell a story of a channel, its receiver and the raw other end."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        ear = Ear()
        line = Channel(ours, ear)
        await story(line, ear, theirs)
        line.close()
        theirs.close()

    asyncio.run(main())


def frame(message: object) -> bytes:
    body = msgspec.msgpack.encode(message)
    return struct.pack(">I", len(body)) + body


HELLO = Hello(0, os.getpid(), 1, "id", "0", "", serving=True, ready=True, draining=False, fds=1)


def test_frames_may_be_cut_anywhere_and_glued() -> None:
    async def story(_: Channel, ear: Ear, theirs: socket.socket) -> None:
        messages = [Drain(1.5), Scrape(7), Control(b"x" * 300)]
        for octet in b"".join(map(frame, messages)):
            theirs.send(bytes([octet]))
            await asyncio.sleep(0)
        theirs.send(b"".join(map(frame, messages)))
        await until(lambda: len(ear.heard) == 6)
        assert [message for message, _ in ear.heard] == messages * 2

    joined(story)


def test_more_than_a_socket_holds_arrives_whole_and_in_order() -> None:
    async def story(line: Channel, _: Ear, theirs: socket.socket) -> None:
        ear = Ear()
        large = Control(os.urandom(3_000_000))
        line.send(large)
        line.send(Scrape(1))
        assert line.unsent > 1_000_000
        other = Channel(theirs.dup(), ear)
        await until(lambda: len(ear.heard) == 2)
        assert [message for message, _ in ear.heard] == [large, Scrape(1)]
        assert line.unsent == 0
        other.close()

    joined(story)


def test_descriptors_arrive_with_their_hello() -> None:
    async def story(_: Channel, ear: Ear, theirs: socket.socket) -> None:
        read, write = os.pipe()
        speaker = Channel(theirs.dup(), Ear())
        speaker.send(State(serving=True, ready=True, draining=False))
        speaker.send(HELLO, [write])
        speaker.send(Scrape(1))
        await until(lambda: len(ear.heard) == 3)
        (fd,) = ear.heard[1][1]
        os.close(write)
        os.write(fd, b"same pipe")
        assert os.read(read, 99) == b"same pipe"
        assert [fds for _, fds in ear.heard] == [[], [fd], []]
        for open_fd in (fd, read):
            os.close(open_fd)
        speaker.close()

    joined(story)


def test_descriptors_that_nobody_takes_are_closed() -> None:
    async def story(line: Channel, _: Ear, theirs: socket.socket) -> None:
        before = open_descriptors()
        read, write = os.pipe()
        socket.send_fds(theirs, [frame(Scrape(1))], [write])
        await asyncio.sleep(0.05)
        os.close(write)
        line.close()
        assert os.read(read, 1) == b""
        os.close(read)
        assert open_descriptors() == before - 1

    joined(story)


def test_a_word_of_another_version_is_passed_over() -> None:
    async def story(_: Channel, ear: Ear, theirs: socket.socket) -> None:
        theirs.send(frame({"type": "word of tomorrow"}) + frame(Scrape(1)))
        await until(lambda: ear.heard)
        assert ear.heard == [(Scrape(1), [])]

    joined(story)


def test_a_frame_without_end_closes_the_channel() -> None:
    async def story(line: Channel, ear: Ear, theirs: socket.socket) -> None:
        theirs.send(struct.pack(">I", channel.LONGEST_FRAME + 1))
        await until(lambda: ear.gone)
        assert not line.is_open
        line.send(Scrape(1))

    joined(story)


def test_who_never_reads_is_given_up() -> None:
    async def story(line: Channel, ear: Ear, _: socket.socket) -> None:
        for _again in range(20):
            line.send(Control(bytes(1_000_000)))
        assert (line.is_open, ear.gone) == (False, 1)

    joined(story)


def test_the_last_words_of_who_is_gone_can_be_taken_at_once() -> None:
    async def story(line: Channel, ear: Ear, theirs: socket.socket) -> None:
        theirs.send(frame(Scrape(1)) + frame(Scrape(2)))
        theirs.shutdown(socket.SHUT_WR)
        line.take_rest()
        assert [message for message, _ in ear.heard] == [Scrape(1), Scrape(2)]
        assert ear.gone == 1

    joined(story)


def test_only_an_own_supervisor_is_connected_to(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.sock"

    async def main() -> None:
        assert channel.connect(path, Ear()) is None
        path.write_text("stale")
        sock = channel.listen(path)
        reception = Reception(sock, Ear)
        line = channel.connect(path, Ear())
        assert line is not None
        assert line.peer_pid == os.getpid()
        await until(lambda: reception.channels)
        ear = Ear()
        other = channel.connect(path, ear)
        assert other is not None
        await until(lambda: len(reception.channels) == 2)
        reception.close()
        await until(lambda: ear.gone)
        line.close()
        sock.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            sock.accept()

    asyncio.run(main())
