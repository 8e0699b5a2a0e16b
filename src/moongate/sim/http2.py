"""The simulated provider's HTTP/2 side, on the h2 library, over TLS by ALPN or in clear by prior knowledge.

Every stream answers for itself; the same replies and faults as over HTTP/1.1. A reset becomes RST_STREAM
INTERNAL_ERROR, a close without an end GOAWAY and the connection's end; bytes outside of any framing do not
exist here and are left out.
"""

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Final, cast

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from moongate.sim.http2_abuses import frames, vanish
from moongate.sim.play import play
from moongate.sim.reply import Act, Framing, Header, Reply, Request, Word

if TYPE_CHECKING:
    from moongate.sim.host import Exchange, Host

_PER_CONNECTION: Final = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"upgrade"})
_STREAMS: Final = 1000
_WINDOW: Final = 1 << 20


class Http2(asyncio.Protocol):
    """One connection and its streams."""

    def __init__(self, host: "Host") -> None:
        self.transport: asyncio.Transport
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding=None)
        )
        self.paused = False
        self.gives = True
        self._host = host
        self._streams: dict[int, Stream] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the settings."""
        self.transport = cast("asyncio.Transport", transport)
        self._host.connected(self)
        self.h2.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: _STREAMS,
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW,
            },
        )
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(_WINDOW)
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Act on what the peer says."""
        try:
            happened = self.h2.receive_data(data)
        except h2.exceptions.ProtocolError:
            self.flush()
            self.transport.close()
            return
        for event in happened:
            self._on(event)
        self.flush()

    def _on(self, event: h2.events.Event) -> None:
        number = getattr(event, "stream_id", 0) or 0
        stream = self._streams.get(number)
        if isinstance(event, h2.events.RequestReceived):
            self._streams[number] = Stream(self, self._host, number, list(event.headers or []))
        elif isinstance(event, h2.events.DataReceived):
            if self.gives:
                self.h2.acknowledge_received_data(event.flow_controlled_length or 0, number)
            if stream is not None:
                stream.body += event.data or b""
        elif isinstance(event, h2.events.StreamEnded) and stream is not None:
            stream.begin()
        elif isinstance(event, h2.events.StreamReset) and stream is not None:
            stream.cancel()
        elif isinstance(event, h2.events.WindowUpdated | h2.events.RemoteSettingsChanged):
            for one in [stream] if stream is not None else list(self._streams.values()):
                one.pump()
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.transport.close()

    def flush(self) -> None:
        """Write what the library has ready."""
        data = self.h2.data_to_send()
        if data and not self.transport.is_closing():
            self.transport.write(data)

    def forget(self, number: int) -> None:
        """A stream is over."""
        self._streams.pop(number, None)

    def reset(self) -> None:
        """Drop the connection."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel everything that runs for the peer."""
        del exc
        for stream in list(self._streams.values()):
            stream.cancel()
        self._host.disconnected(self)

    def pause_writing(self) -> None:
        """The peer's socket is full."""
        self.paused = True

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self.paused = False
        for stream in list(self._streams.values()):
            stream.pump()


class Stream:
    """One request and its answer; also the `Wire` of that answer."""

    def __init__(self, connection: Http2, host: "Host", number: int, headers: list[Header]) -> None:
        self.body = b""
        self._connection = connection
        self._host = host
        self._number = number
        self._headers = headers
        self._task: asyncio.Task[None] | None = None
        self._pending = bytearray()
        self._ending = False
        self._open = True
        self._emptied = asyncio.Event()

    # the request

    def begin(self) -> None:
        """Answer the request, which is complete."""
        named = dict(self._headers)
        plain = [(name, value) for name, value in self._headers if not name.startswith(b":")]
        request = Request(
            named.get(b":method", b"").decode("latin-1"),
            named.get(b":path", b"").decode("latin-1"),
            [(b"host", named.get(b":authority", b"")), *plain],
            self.body,
            time.time(),
        )
        exchange = self._host.begin(request)
        self._task = asyncio.get_running_loop().create_task(self._answer(exchange))

    async def _answer(self, exchange: "Exchange") -> None:
        complete = None
        try:
            if exchange.turn is not None:
                await exchange.turn
            complete = await play(exchange.reply, self, exchange)
            await self.drain()
        finally:
            self._host.finish(exchange, complete=complete)
            self._connection.forget(self._number)

    def cancel(self) -> None:
        """The peer has left."""
        self._open = False
        if self._task is not None:
            self._task.cancel()
        else:
            self._connection.forget(self._number)

    # the wire

    @property
    def paused(self) -> bool:
        """Whether data waits for the peer."""
        return bool(self._pending)

    def head(self, reply: Reply) -> None:
        """Send HEADERS."""
        headers = [(b":status", b"%d" % reply.status)]
        for name, value in reply.headers:
            lowered = name.lower()
            if lowered not in _PER_CONNECTION:
                headers.append((lowered, value.replace(b"\r\n", b"").replace(b"\x00", b"")))
        if reply.framing is Framing.LENGTH:
            headers.append((b"content-length", b"%d" % reply.length))
        if self._open:
            self._connection.h2.send_headers(self._number, headers)
            self._connection.flush()

    def data(self, data: bytes) -> None:
        """Queue DATA and send what the windows allow."""
        self._pending += data
        self.pump()

    def raw(self, data: bytes) -> None:
        """Leave out what HTTP/2 cannot say."""

    def speak(self, act: Act) -> bool:
        """Say it in frames that the library knows nothing of."""
        connection, word = self._connection, act.word
        assert word is not None
        if not self._open:
            return True
        if word is Word.NO_WINDOW:
            connection.gives = False
            return False
        connection.transport.write(frames(word, act.number, self._number))
        if word is Word.VANISH:
            vanish(connection.transport)
        if word is Word.MAX_STREAMS:
            return False
        self._open = False
        if word in (Word.RST, Word.GOAWAY):  # the peer has nothing more to say here
            asyncio.get_running_loop().call_soon(self.cancel)
        return True

    def end(self, reply: Reply) -> None:
        """End the stream once all data has gone."""
        del reply
        self._ending = True
        self.pump()

    def pump(self) -> None:
        """Send what waits, as far as the windows and the socket allow."""
        connection, number = self._connection.h2, self._number
        try:
            while self._open and self._pending and not self._connection.paused:
                room = min(connection.local_flow_control_window(number), connection.max_outbound_frame_size)
                if room <= 0:
                    break
                connection.send_data(number, bytes(self._pending[:room]))
                del self._pending[:room]
            if self._open and self._ending and not self._pending:
                self._open = False
                connection.end_stream(number)
        except h2.exceptions.ProtocolError:
            self.cancel()
        self._connection.flush()
        if not self._pending:
            self._emptied.set()

    def reset(self) -> None:
        """Send RST_STREAM."""
        if self._open:
            self._open = False
            with contextlib.suppress(h2.exceptions.ProtocolError):
                self._connection.h2.reset_stream(self._number, h2.errors.ErrorCodes.INTERNAL_ERROR)
            self._connection.flush()

    def close(self) -> None:
        """Send GOAWAY and close the connection, this stream unended."""
        self._connection.h2.close_connection()
        self._connection.flush()
        self._connection.transport.close()

    def doom(self) -> None:
        """Tell the peer to open no further stream here, and close."""
        self.close()

    async def drain(self) -> None:
        """Wait until no data waits."""
        while self._pending and self._open:
            self._emptied.clear()
            await self._emptied.wait()
