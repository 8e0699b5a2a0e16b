"""Traffic of others through the gateway: what the trace says, the table, the ledger and the book are one."""

import itertools
import json
import re

from tests.recorded import DATA, needs_data
from tests.wire.house import House, until

CONVERSATION = DATA / "traces" / "mooncake_conversation_trace.jsonl"
COUNTED = (
    "SELECT COUNT(*) AS calls, SUM(input) AS input, SUM(output) AS output, SUM(cached) AS cached FROM calls "
    "WHERE created > ? AND outcome = 'completed'"
)


def figure(printed: str, row: str) -> int:
    """The first number of a row of the table."""
    found = re.search(rf"│ {row} +│ +([\d,]+)", printed)
    assert found, printed
    return int(found[1].replace(",", ""))


def shared_tokens(seconds: int) -> int:
    """How many tokens of its calls' prompts the trace itself says had been read before."""
    read: set[int] = set()
    tokens = 0
    for line in CONVERSATION.read_text().splitlines():
        call = json.loads(line)
        if call["timestamp"] < seconds * 1000:
            known = itertools.takewhile(read.__contains__, call["hash_ids"])
            tokens += min(512 * sum(1 for _ in known), call["input_length"])
            read.update(call["hash_ids"])
    return tokens


@needs_data
def test_a_minute_of_real_traffic_is_completed_and_counted_alike_everywhere(house: House) -> None:
    assert CONVERSATION.exists(), f"{CONVERSATION} is missing from the recorded traffic"
    done = house.command(
        "replay", str(CONVERSATION), "--seconds", "60", "--speed", "30", "--sim", "--at-once", "64",
        "--base-url", f"http://127.0.0.1:{house.port}/v1", "--key", house.key,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    until(10, lambda: house.rows(COUNTED, house.cleared)[0]["calls"] == 162, "a row for each of 162 calls")
    [ledger] = house.rows(COUNTED, house.cleared)
    book = house.sim("/_sim/book/totals")
    assert book["executions"] == book["ended"]["completed"] == figure(done.stdout, "completed") == 162
    assert ledger["input"] == book["input_tokens"] == figure(done.stdout, "input") == 2_209_273
    assert ledger["output"] == book["output_tokens"] == figure(done.stdout, "output") == 58_039
    cached = figure(done.stdout, "of these cached by the provider")
    assert ledger["cached"] == book["cached_tokens"] == cached == shared_tokens(60)
