"""What becomes of one attempt's answer: a sink that checks before it passes anything on.

A stream is passed on in whole events as they come; a plain answer is held whole and judged before its first byte.
Whatever is not a 200 is collected and named by the target's dialect.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from moongate.core.faults import Failure, Fault, Reach
from moongate.core.held import Held
from moongate.core.surface import Answer, Classify, Step, StreamReader, Surface
from moongate.flow.flight import Flight
from moongate.upstream.transport import Ended, Headers, Timeouts, Valve

ERROR_BYTES: Final = 64 * 1024
"""Most of an error's body that is read to name it."""

PLAIN_BYTES: Final = 32 * 1024 * 1024
"""The largest plain answer (DESIGN section 1)."""

AFTER_DONE: Final = 1.0
"""Seconds upstream has for its clean end after `[DONE]` was passed on; the client has its answer by then."""


class Explain(Protocol):
    """The dialect's word on an answer that is not a 200, or on an error object inside one."""

    def __call__(self, status: int, headers: Headers, body: bytes) -> Failure:
        """Name the fault; reach is HEAD."""


class Relay:
    """What both kinds share: status, headers, the collected body, the judgement."""

    # values at the start stand on the class: one is made for every attempt
    status = 0
    headers: Headers = ()
    opened = False
    first_at = 0.0
    received = 0
    _limit = ERROR_BYTES
    _valve: Valve | None = None

    def __init__(self, flight: Flight, explain: Explain) -> None:
        self._flight = flight
        self._explain = explain
        self._pieces: list[bytes] = []

    def open(self, valve: Valve) -> None:
        """Let the flight hold the exchange back or cut it."""
        self.opened = True
        self._valve = valve
        self._flight.valve = valve

    def head(self, status: int, headers: Headers) -> None:
        """Keep what came; 200 alone is an answer."""
        self.status = status
        self.headers = headers

    def close(self) -> None:
        """Give back all that the answer held."""
        self._flight.valve = None
        self._pieces.clear()

    @property
    def body(self) -> bytes:
        """What was collected, joined."""
        if len(self._pieces) != 1:
            self._pieces[:] = [b"".join(self._pieces)]
        return self._pieces[0]

    def _collect(self, chunk: bytes) -> None:
        self.received += len(chunk)
        if self.received <= self._limit:
            self._pieces.append(chunk)
        elif self._valve is not None:
            self._valve.cut(None)

    def _named(self, ended: Ended, timeouts: Timeouts, reach: Reach) -> Failure:
        """The transport's own fault, as a failure."""
        fault = ended.fault or Fault.KIMI_BAD_RESPONSE
        if fault is not Fault.KIMI_NETWORK_TIMEOUT:
            return Failure(fault, reach, detail=ended.detail)
        seconds = float(getattr(timeouts, ended.phase.value))
        return Failure(
            fault, reach, phase=ended.phase.value, timeout_ms=round(seconds * 1000), detail=ended.detail
        )

    def _classify(self, status: int, body: bytes) -> Fault:
        return self._explain(status, self.headers, body).fault


class PlainRelay(Relay):
    """Holds a plain answer whole."""

    answer: Answer | None = None
    _taken = 0

    def __init__(
        self, flight: Flight, explain: Explain, surface: Surface, held: Held, clock: Callable[[], float]
    ) -> None:
        super().__init__(flight, explain)
        self._surface = surface
        self._held = held
        self._clock = clock

    def head(self, status: int, headers: Headers) -> None:
        """A 200 may be as large as plain answers may be."""
        self.status = status
        self.headers = headers
        if status == 200:
            self._limit = PLAIN_BYTES

    def data(self, chunk: bytes) -> None:
        """Collect, under the bound that all calls share."""
        size = len(chunk)
        if not self.first_at and self.status == 200:
            self.first_at = self._clock()
        if self._held.take(size):
            self._taken += size
            self.received += size
            if self.received <= self._limit:
                self._pieces.append(chunk)
            elif self._valve is not None:
                self._valve.cut(Fault.KIMI_BAD_RESPONSE if self.status == 200 else None)
        elif self._valve is not None:
            self._valve.cut(Fault.GATEWAY_OVERLOADED, "no memory left for the answer")

    def close(self) -> None:
        """Give back all that the answer held."""
        super().close()
        self._held.give(self._taken)
        self._taken = 0

    def verdict(self, ended: Ended, timeouts: Timeouts) -> Failure | None:
        """Judge the attempt; a good answer is passed on whole."""
        if self.status not in (0, 200):
            return self._explain(self.status, self.headers, self.body)
        if ended.fault is not None:
            return self._named(ended, timeouts, ended.reach)
        read = self._surface.read_plain(self.body, self._classify)
        if isinstance(read, Failure):
            return read
        self.answer = read
        self._flight.respond(self.body)
        return None


class StreamRelay(Relay):
    """Passes whole events on as they come."""

    passed = False
    _streams = False
    _complete = False
    _held_back = b""
    _failure: Failure | None = None

    def __init__(
        self,
        flight: Flight,
        explain: Explain,
        reader: Callable[[Classify], StreamReader],
        clock: Callable[[], float],
        later: Callable[[float, Callable[[], None]], object],
        *,
        goes_on: bool = False,
    ) -> None:
        super().__init__(flight, explain)
        self._goes_on = goes_on
        self._reader = reader(self._classify)
        self._clock = clock
        self._later = later

    @property
    def answer(self) -> Answer | None:
        """What this attempt brought so far; None if no stream came."""
        return self._reader.own() if self._streams else None

    @property
    def whole(self) -> Answer:
        """What the client has of the answer, parts before this attempt included."""
        return self._reader.answer()

    def head(self, status: int, headers: Headers) -> None:
        """Only a 200 of the right type is a stream."""
        super().head(status, headers)
        self._streams = status == 200 and any(
            name == b"content-type" and value.lstrip().lower().startswith(b"text/event-stream")
            for name, value in headers
        )

    def data(self, chunk: bytes) -> None:
        """Pass on what is whole."""
        if not self._streams:
            self._collect(chunk)
            return
        if self._complete or self._failure is not None:
            return
        self.received += len(chunk)
        self._act(self._reader.feed(chunk))

    def _act(self, step: Step) -> None:
        if step.beats and self._valve is not None:
            self._valve.beat()
        if step.out:
            # before a failure that nothing went before there are but comments, whatever was counted
            bare = step.failure is not None and step.failure.reach < Reach.EVENTS
            self._pass(step.out, 0 if bare else step.beats)
        if step.failure is not None:
            self._failure = step.failure
            if self._valve is not None:
                self._valve.cut(step.failure.fault)
        elif step.done:
            self._complete = True
            self._flight.end()
            self._later(AFTER_DONE, self._enough)

    def _pass(self, out: bytes, beats: int) -> None:
        if not self.passed:
            if not beats:
                # comments alone commit to nothing: the head goes out with the first data event
                self._held_back = (self._held_back + out)[-ERROR_BYTES:]
                return
            self.passed = True
            self.first_at = self._clock()
            if not self._goes_on:
                self._flight.start()
            out = self._held_back + out
            self._held_back = b""
        self._flight.write(out)

    def _enough(self) -> None:
        if self._valve is not None:
            self._valve.cut(None)

    def close(self) -> None:
        """Let go of the exchange: a late `_enough` must not touch the connection's next one."""
        super().close()
        self._valve = None

    def verdict(self, ended: Ended, timeouts: Timeouts) -> Failure | None:
        """Judge the attempt; what was whole has been passed on already."""
        if self._complete:
            return None
        if self._failure is not None:
            return self._broken(self._failure)
        if self.status not in (0, 200):
            return self._explain(self.status, self.headers, self.body)
        if ended.fault is not None:
            return self._named(ended, timeouts, self._reach(ended.reach))
        if not self._streams:
            return self._not_a_stream()
        step = self._reader.finish()
        self._act(step)
        return None if step.failure is None else self._broken(step.failure)

    def _not_a_stream(self) -> Failure:
        explained = self._explain(200, self.headers, self.body) if b'"error"' in self.body else None
        return explained or Failure(
            Fault.KIMI_BAD_RESPONSE, Reach.HEAD, detail="a stream was asked for, none came"
        )

    def _broken(self, failure: Failure) -> Failure:
        return replace(failure, reach=self._reach(Reach.HEAD))

    def _reach(self, least: Reach) -> Reach:
        return Reach.EVENTS if self.passed else least
