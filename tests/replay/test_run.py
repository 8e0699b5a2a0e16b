"""A whole replay, from the file to the table and the picture, against a scripted server."""

import asyncio
import io
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from moongate.replay import run
from moongate.replay.player import Pace
from moongate.replay.prompts import Script
from moongate.replay.trace import TraceError
from moongate.world import RealWorld
from tests.replay.server import Server, answer, refusal, serving

Outcome = tuple[int, str, Server]


def written(folder: Path, *moments: float) -> Path:
    """A trace of calls at these seconds; the nth asks for n tokens."""
    path = folder / "trace.jsonl"
    row = '{"timestamp": %d, "input_length": 600, "output_length": %d, "hash_ids": [0, %d]}\n'
    path.write_text("".join(row % (at * 1000, n, n) for n, at in enumerate(moments, 1)))
    return path


def played(trace: Path, script: Callable[[int], bytes | None], speed: float = 100.0, **more: Any) -> Outcome:
    """Exit code, what was printed, and the server as it was left."""

    async def main() -> Outcome:
        async with serving(script, clock=time.monotonic) as server:
            order = run.Order(
                trace, server.base, "mg_key", Script("kimi-k2.5"), Pace(speed, timeout=5), **more
            )
            printed = io.StringIO()
            console = Console(file=printed, width=100)
            code = await asyncio.to_thread(run.replay, order, console, RealWorld())
            return code, printed.getvalue(), server

    return asyncio.run(main())


def cells(printed: str) -> dict[str, list[str]]:
    """The rows of the printed tables by their first cell."""
    rows = (line.strip("│").split("│") for line in printed.splitlines() if line.startswith("│"))
    return {first.strip(): [cell.strip() for cell in rest] for first, *rest in rows}


def test_all_completed_is_success_and_the_table_adds_up(tmp_path: Path) -> None:
    code, printed, server = played(written(tmp_path, 0, 1, 2), lambda _: answer(1500, 250, cached=512))
    table = cells(printed)
    assert code == 0
    assert table["completed"] == ["3"]
    assert table["input"] == ["4,500"]
    assert table["of these cached by the provider"] == ["1,536 (34.1%)"]
    assert table["output"] == ["750"]
    assert table["cost"] == ["0.0042 USD"]
    assert all(float(figure) >= 0 for figure in table["to the first event"] + table["in all"])
    assert [body["max_tokens"] for body in server.asked] == [1, 2, 3]


def test_what_failed_is_counted_by_its_code_and_is_no_success(tmp_path: Path) -> None:
    said = [answer(), refusal(503), None, refusal(503), answer()]
    code, printed, _ = played(written(tmp_path, 0, 1, 2, 3, 4), lambda number: said[number])
    table = cells(printed)
    assert code == 1
    assert (table["completed"], table["engine_overloaded"], table["connection_lost"]) == (["2"], ["2"], ["1"])
    assert table["input"] == ["20"]


def test_calls_are_made_at_the_times_of_the_trace(tmp_path: Path) -> None:
    _, _, server = played(written(tmp_path, 0, 1, 1, 3), lambda _: answer(), speed=10)
    offsets = [moment - server.moments[0] for moment in server.moments]
    assert [body["max_tokens"] for body in server.asked] == [1, 2, 3, 4]
    for offset, due in zip(offsets, (0, 0.1, 0.1, 0.3), strict=True):
        assert due - 0.05 < offset < due + 0.5


@pytest.mark.parametrize(("part", "count"), [({"limit": 2}, 2), ({"seconds": 3.0}, 3), ({}, 4)])
def test_a_part_of_a_trace_can_be_played(tmp_path: Path, part: dict[str, Any], count: int) -> None:
    code, printed, server = played(written(tmp_path, 0, 1, 2, 3), lambda _: answer(), **part)
    assert (code, len(server.asked)) == (0, count)
    assert f"{count} calls" in printed


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    said = [answer(), refusal(503), answer()]
    picture = tmp_path / "p.png"
    _, printed, _ = played(
        written(tmp_path, 0, 30, 90), lambda number: said[number], speed=1000, plot=picture
    )
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000
    assert str(picture) in printed.replace("\n", "")


def test_a_picture_of_nothing_is_no_accident(tmp_path: Path) -> None:
    code, _, _ = played(written(tmp_path, 0), lambda _: None, plot=tmp_path / "p.svg")
    assert code == 1
    assert (tmp_path / "p.svg").read_text().startswith("<?xml")


def test_a_trace_that_breaks_off_is_told_before_anything_is_asked(tmp_path: Path) -> None:
    trace = written(tmp_path, 0, 1)
    trace.write_text(trace.read_text() + '{"timestamp": 5')
    with pytest.raises(TraceError, match=r"^line 3: "):
        played(trace, lambda _: answer())


def test_interrupted_it_says_what_had_ended(tmp_path: Path) -> None:
    async def main() -> tuple[int | None, str]:
        async with serving(lambda number: b"" if number else answer()) as server:
            command = [
                sys.executable,
                "-W",
                "error",
                "-m",
                "moongate",
                "replay",
                str(written(tmp_path, 0, 1, 900)),
            ]
            child = await asyncio.create_subprocess_exec(
                *command,
                "--base-url",
                str(server.base),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            while len(server.asked) < 2:  # noqa: ASYNC110 - the other side is a process
                await asyncio.sleep(0.02)
            child.send_signal(signal.SIGINT)
            printed, _ = await asyncio.wait_for(child.communicate(), 20)
            return child.returncode, printed.decode()

    code, printed = asyncio.run(main())
    assert code == 1
    assert "interrupted" in printed
    assert "Traceback" not in printed
    assert cells(printed)["completed"] == ["1"]
