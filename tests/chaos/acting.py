"""Makes a drawn run happen to a real gateway over real sockets, and judges what is left behind."""

import contextlib
import json
import os
import re
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moongate.ops.audits import verify
from moongate.store.records import Folder
from tests.chaos.drawing import Ask, Run
from tests.wire.house import House, Process, until
from tests.wire.raw import CutError, Raw

_CALL_ID = re.compile(rb"x-moongate-call-id: (\S+)\r\n", re.IGNORECASE)
_GONE = (OSError, CutError)
_CLOSES = frozenset(("close_on_next_request", "close_after_reply"))
"""Faults that meet the next call on the same connection, whichever that is: it may be of a later run."""


SETTINGS = """drain: {grace_seconds: 1}
routes: {kimi-k2.5: {targets: [kimi], timeouts: {total: 12}}}
"""
"""What a client leaves is read to its end, unless it is a stream; what never ends, for so many seconds."""


@dataclass
class Heard:
    """What one client got: the call's id if a head came, and whether it got a whole 200."""

    ask: Ask
    call_id: str = ""
    whole: bool = False


class Stage:
    """One gateway that lives through many runs, and the simulated Kimi's book of all of them."""

    def __init__(self, folder: Path) -> None:
        self.house = House(folder, settings=SETTINGS)
        self.closing = False
        self.keys = [self.house.key, self.house.add_key("beta")]
        self.house.tell_sim("DELETE", "/_sim/book")
        until(10, self._knows_keys, "both keys are known")

    def _knows_keys(self) -> bool:
        self.house.key, kept = self.keys[1], self.house.key
        try:
            return self.house.ask().status == 200
        finally:
            self.house.key = kept

    def close(self) -> None:
        self.house.close()

    def play(self, run: Run) -> list[str]:
        """Let it happen; returns what must not be, one sentence each. Empty: all is as it should be."""
        self.house.tell_sim("DELETE", "/_sim/book")
        began = time.time()
        clock = time.monotonic()
        heard = [Heard(ask) for ask in run.asks]
        clients = [threading.Thread(target=self._client, args=(one, clock), daemon=True) for one in heard]
        for client in clients:
            client.start()
        for strike in run.strikes:
            time.sleep(max(clock + strike.at - time.monotonic(), 0.0))
            self._strike(strike.whom)
        for client in clients:
            client.join(60)
        stuck = [
            f"{one.ask.name}: its client still waits"
            for one, t in zip(heard, clients, strict=True)
            if t.is_alive()
        ]
        return stuck + self._judge(run, heard, began, struck=bool(run.strikes))

    # -- what happens ------------------------------------------------------------------------------------------

    def _client(self, heard: Heard, clock: float) -> None:
        ask = heard.ask
        time.sleep(max(clock + ask.at - time.monotonic(), 0.0))
        with (
            contextlib.suppress(*_GONE),
            Raw(self.house.port, buffer=4096 if ask.slow else 0, seconds=40) as raw,
        ):
            try:
                self._exchange(raw, heard)
            finally:
                if ask.rudely and ask.leaves:
                    raw.reset()

    def _exchange(self, raw: Raw, heard: Heard) -> None:
        ask = heard.ask
        body = self.house.body(
            ask.sim, stream=ask.stream, stream_options={"include_usage": True} if ask.stream else None
        )
        if ask.leaves == "request":
            raw.send(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: m\r\nAuthorization: Bearer "
                + self.keys[ask.tenant].encode()
            )
            raw.send(
                b"\r\nX-Request-Id: %b\r\nContent-Length: %d\r\n\r\n" % (ask.name.encode(), len(body))
                + body[: len(body) // 2]
            )
            return
        raw.post(body, self.keys[ask.tenant], f"X-Request-Id: {ask.name}", "Connection: close")
        if ask.leaves == "sent":
            return
        head = raw.until(b"\r\n\r\n")
        found = _CALL_ID.search(head)
        heard.call_id = found[1].decode() if found else ""
        if ask.leaves == "head":
            return
        marks = {"first": 1, "middle": 8}.get(ask.leaves, 0)
        for _ in range(marks):
            raw.until(b"\n\n" if ask.stream else b"}")
        if not ask.leaves:
            answer = self._rest(raw, slow=ask.slow)
            ended = b"data: [DONE]" in answer if ask.stream else answer.rstrip().endswith(b"}")
            heard.whole = b" 200 " in head.partition(b"\r\n")[0] and ended

    def _rest(self, raw: Raw, *, slow: bool) -> bytes:
        answer = b""
        while data := raw.receive(2048 if slow else 65_536):
            answer += data
            if slow:
                time.sleep(0.01)
        return answer

    def _strike(self, whom: str) -> None:
        house = self.house
        workers = house.worker_pids()
        supervisor = house.gateway.child.pid
        if whom in ("worker", "both"):
            for pid in workers:
                os.kill(pid, signal.SIGKILL)
        if whom in ("supervisor", "both"):
            os.kill(supervisor, signal.SIGKILL)
            house.gateway.child.wait()
        elif whom == "replace":
            (house.state / "run/addresses.json").unlink(missing_ok=True)
            os.kill(supervisor, signal.SIGUSR2)
            until(20, (house.state / "run/addresses.json").exists, "the supervisor replaced itself")
        elif whom == "restart":
            house.gateway.stop()
        if whom in ("supervisor", "both", "restart"):
            house.gateway = _again(house)
        house.wait_ready()
        if whom in ("worker", "both"):
            until(20, lambda: not set(workers) & set(house.worker_pids()), "another worker")
            house.wait_ready()

    # -- what is left ------------------------------------------------------------------------------------------

    def _judge(self, run: Run, heard: list[Heard], began: float, *, struck: bool) -> list[str]:
        house = self.house
        wrong: list[str] = []
        until(20, lambda: house.total("moongate_in_flight") == 0, "no call in flight", run.story)
        until(20, lambda: house.sim("/_sim/book/totals")["open"] == 0, "no execution upstream", run.story)
        until(20, lambda: house.total("moongate_connections") == 0, "no client's connection", run.story)
        folder = Folder(house.state / "journal", house.state / "ledger.db")
        book = f"http://127.0.0.1:{house.ports['control']}"
        audit = verify(folder, time.time, book=book, since=began)
        wrong += [f"{one.kind}: {one.about}: {one.what}" for one in audit.findings]
        if audit.comparison is not None and audit.comparison.paid_twice:
            wrong.append(f"{audit.comparison.paid_twice} calls were paid twice")
        rows = house.rows("SELECT * FROM calls WHERE created >= ?", began)
        wrong += [f"{row['call_id']} has no outcome" for row in rows if not row["outcome"]]
        known = {row["call_id"]: row for row in rows}
        for one in heard:
            wrong += self._heard(one, known)
        wrong += self._unclear(run, began, struck=struck)
        if not struck:
            until(
                20,
                lambda: house._descriptors() <= house._most_descriptors(),
                "no descriptor too many",
                run.story,
            )
        return wrong

    def _heard(self, heard: Heard, known: dict[str, dict[str, Any]]) -> list[str]:
        """A client's word against the ledger's: what it was answered is in a record, and as it was answered."""
        if not heard.call_id:
            return []
        row = known.get(heard.call_id)
        if row is None:
            return [f"{heard.ask.name} was answered as {heard.call_id}, but no record has that id"]
        # the answer may have left the gateway in the moment in which it was struck
        fits = not heard.whole or row["outcome"] == "completed" or row["cause"] == "gateway_crash"
        return [] if fits else [f"{heard.ask.name} got a whole answer, its record says {row['outcome']}"]

    def _unclear(self, run: Run, began: float, *, struck: bool) -> list[str]:
        """Every ambiguous attempt names what made it so: the script's fault, its client's leaving, or a strike."""
        self.closing = self.closing or any(ask.fault in _CLOSES for ask in run.asks)
        asks = {ask.name: ask for ask in run.asks}
        wrong = []
        for row in self.house.rows(
            "SELECT c.request_id, a.* FROM attempts a JOIN calls c USING (call_id)"
            " WHERE a.started >= ? AND a.state = 'ambiguous'",
            began,
        ):
            ask = asks.get(row["request_id"])
            if ask is None:
                continue
            named = {
                "gateway_crash": struck,
                "gateway_draining": struck,
                "client_closed": bool(ask.leaves),
                "slow_client": ask.slow,
                "kimi_network_unreachable": bool(ask.fault) or (self.closing and bool(row["reused"])),
            }.get(row["cause"], bool(row["cause"]) and bool(ask.fault))
            if not named:
                wrong.append(
                    f"{row['attempt_id']} of {ask.name} is ambiguous for {row['cause'] or 'no cause'}"
                )
        return wrong


def _again(house: House) -> Process:
    """Another supervisor over the same state; living workers are taken over."""
    return house._start(["serve", "-c", str(house.settings)], house.folder / "gateway.log")


def told(run: Run, wrong: list[str]) -> str:
    """What went wrong in a run, and how to see it again."""
    return json.dumps(wrong, indent=2) + f"\n{run.story()}\nagain: make chaos SEED={run.seed} RUNS=1"
