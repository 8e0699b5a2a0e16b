"""SIGKILL at random moments under load: whoever got an answer is in the ledger, and all books agree.

    python -m tests.chaos.kills --kills 200 --seed 1

Each kill takes a worker, the supervisor, or everything at once. Dice come from the seed; the moments of the machine
do not. Exit code 0 if nothing was lost.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.wire.answer import Answer
from tests.wire.house import House, until

SETTINGS: Final = "workers: 2\ndrain: {grace_seconds: 2}\n"
CLIENTS: Final = 6
_GONE: Final = (OSError, http.client.HTTPException)


@dataclass
class Told:
    """What the clients saw: `answered` are the calls whose whole answer came, with the tokens it named."""

    answered: dict[str, int] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    cut: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, answer: Answer, *, stream: bool) -> None:
        with self.lock:
            if answer.status != 200:
                self.refused[answer.error["code"]] += 1
            elif not stream:
                self.answered[answer.call_id] = answer.json["usage"]["completion_tokens"]
            elif answer.events[-1:] == ["[DONE]"]:
                usage = [
                    event["usage"] for event in answer.events if event != "[DONE]" and event.get("usage")
                ]
                self.answered[answer.call_id] = usage[-1]["completion_tokens"]
            else:
                self.cut += 1


class Load:
    """Clients that ask one thing after the other until told to end."""

    def __init__(self, house: House, seed: int) -> None:
        self.told = Told()
        self._house = house
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(random.Random(f"{seed}/{number}"),))
            for number in range(CLIENTS)
        ]
        for thread in self._threads:
            thread.start()

    def _ask(self, dice: random.Random) -> None:
        while not self._over.is_set():
            stream = dice.random() < 0.6
            asked = {
                "output_tokens": dice.randrange(1, 60),
                "tokens_per_second": dice.choice([50, 400, 4000]),
            }
            more: dict[str, Any] = (
                {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
            )
            try:
                self.told.take(self._house.ask(asked, **more), stream=stream)
            except (
                *_GONE,
                ValueError,
                KeyError,
                IndexError,
            ):  # cut somewhere, maybe in the middle of an event
                with self.told.lock:
                    self.told.cut += 1
                self._over.wait(0.02)

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def kill(house: House, dice: random.Random) -> str:
    """Kill something; returns what it was. A supervisor that is killed is started again at once."""
    kind = dice.choices(["worker", "supervisor", "all"], [7, 2, 1])[0]
    workers = _workers(house)
    if kind == "worker":
        _kill(dice.choice(workers))
        return kind
    house.gateway.child.kill()
    if kind == "all":
        for pid in workers:
            _kill(pid)
    house.gateway.child.wait()
    house.start_gateway()
    return kind


def _workers(house: House) -> list[int]:
    def look() -> list[int]:
        with contextlib.suppress(*_GONE):
            return [pid for pid in house.worker_pids() if pid]
        return []

    return until(30, look, "workers are there", house.gateway.printed)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@dataclass
class Verdict:
    """What came of it; `wrong` is empty if nothing was lost."""

    kills: Counter[str]
    answered: int
    cut: int
    refused: Counter[str]
    recovered: int
    wrong: list[str]


def play(folder: Path, kills: int, seed: int, *, between: float = 0.5) -> Verdict:
    """Load a gateway, kill parts of it so many times, at most `between` seconds apart, and compare what remains."""
    dice = random.Random(seed)
    house = House(folder, SETTINGS)
    try:
        load = Load(house, seed)
        done: Counter[str] = Counter()
        try:
            for _ in range(kills):
                time.sleep(dice.uniform(0.0, between))
                done[kill(house, dice)] += 1
        finally:
            load.end()
        until(30, lambda: house.sim("/_sim/book/totals")["open"] == 0, "the provider has nothing open")
        open_calls = "SELECT call_id FROM calls WHERE outcome = ''"
        until(30, lambda: not house.rows(open_calls), "every call has an end", house.gateway.printed)
        told = load.told
        wrong = _lost(house, told) + _balance(house)
        crashed = house.rows("SELECT count(*) AS n FROM calls WHERE cause = 'gateway_crash'")[0]["n"]
        return Verdict(done, len(told.answered), told.cut, told.refused, crashed, wrong)
    finally:
        house.close()


def _lost(house: House, told: Told) -> list[str]:
    """Answers that the ledger does not know, or knows otherwise. A crash after the last byte leaves a doubt."""
    rows = {row["call_id"]: row for row in house.rows("SELECT call_id, outcome, cause, output FROM calls")}
    wrong = []
    for call_id, output in told.answered.items():
        row = rows.get(call_id)
        if row is None:
            wrong.append(f"{call_id} was answered and is not in the ledger")
        elif row["outcome"] == "completed" and row["output"] != output:
            wrong.append(f"{call_id}: {output} tokens told, {row['output']} in the ledger")
        elif row["outcome"] != "completed" and row["cause"] != "gateway_crash":
            wrong.append(f"{call_id} was answered, the ledger says {row}")
    return wrong


def _balance(house: House) -> list[str]:
    """What `ledger verify` finds against the provider's book, and damage that is no killed writer's torn end."""
    done = house.command(
        "ledger", "verify", "--json", "--state", str(house.state),
        "--book", f"http://127.0.0.1:{house.ports['control']}",
    )  # fmt: skip
    wrong = [] if done.returncode == 0 else [f"ledger verify: {done.stdout}{done.stderr}"]
    holes = house.rows("SELECT segment, offset, size, missing, what FROM holes")
    wrong += [f"a hole: {hole}" for hole in holes if hole["missing"] or hole["what"] != "cut or damaged end"]
    if not done.returncode and json.loads(done.stdout).get("journal_records_missing"):
        wrong.append("records are missing in journals")
    return wrong


def main() -> int:
    """Play and tell."""
    reading = argparse.ArgumentParser(prog="python -m tests.chaos.kills")
    reading.add_argument("--kills", type=int, default=200)
    reading.add_argument("--seed", type=int, default=1)
    given = reading.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        verdict = play(Path(folder), given.kills, given.seed)
    kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(verdict.kills.items()))
    print(f"seed {given.seed}: {given.kills} kills ({kinds}) in {time.monotonic() - began:.0f} s")
    print(f"{verdict.answered} answered, {verdict.cut} cut, refused: {dict(verdict.refused)}")
    print(f"{verdict.recovered} calls closed by recovery; {len(verdict.wrong)} wrong")
    for each in verdict.wrong[:20]:
        print(each)
    return 1 if verdict.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
