"""A client in memory: what the flow pushes an answer into, with nothing behind it."""

from collections.abc import Callable

from moongate.core.faults import Fault
from moongate.flow.downstream import Head, Watcher


class Client:
    """A downstream in memory. `room` False: it is above its high-water mark."""

    def __init__(self) -> None:
        self.head: Head | None = None
        self.body = b""
        self.ended = False
        self.aborted = False
        self.gone: Fault | None = None
        self.answered: object = None
        self.ready = True
        self.watcher: Watcher | None = None
        self.writes: list[bytes] = []
        self.on_write: Callable[[bytes], None] = lambda _data: None

    @property
    def started(self) -> bool:
        return self.head is not None

    def watch(self, watcher: Watcher | None) -> None:
        self.watcher = watcher

    def start(self, head: Head) -> None:
        assert self.head is None, "a second head"
        self.head = head

    def write(self, data: bytes) -> None:
        assert self.head is not None, "bytes before the head"
        assert not self.ended, "bytes after the end"
        self.body += data
        self.writes.append(data)
        self.on_write(data)

    def end(self) -> None:
        assert not self.ended, "a second end"
        self.ended = True

    def respond(self, head: Head, body: bytes) -> None:
        self.start(head)
        self.body = body
        self.end()

    def abort(self) -> None:
        self.aborted = True

    async def drain(self) -> None:
        return None

    def leave(self, fault: Fault = Fault.CLIENT_CLOSED) -> None:
        self.gone = fault
        if self.watcher is not None:
            self.watcher.downstream_gone()

    def make_room(self) -> None:
        self.ready = True
        if self.watcher is not None:
            self.watcher.downstream_ready()

    @property
    def status(self) -> int:
        return self.head.status if self.head is not None else 0
