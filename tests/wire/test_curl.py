"""What `moongate serve --embedded` prints works as printed: curl, and the SDK's snippet."""

import json
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.wire.answer import payloads
from tests.wire.house import House, until


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    house = House(tmp_path_factory.mktemp("embedded"))
    house.gateway.stop()
    house.start_gateway("--embedded")
    try:
        yield until(10, lambda: house.gateway.printed().partition("moongate answers on")[2], "the greeting")
    finally:
        house.close()


needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="not here: curl")


def _curl(printed: str) -> str:
    return printed[printed.index("curl -sN") : printed.index("  from openai")]


def _run(*command: str, folder: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_curl
def test_curl_as_printed_streams(printed: str) -> None:
    events = list(payloads(_run("bash", "-c", _curl(printed)).encode()))
    assert events[-1] == "[DONE]"
    assert len(events) > 5
    assert json.loads(events[0])["model"] == "kimi-k2.5"


@needs_curl
def test_curl_without_stream_and_with_headers(printed: str) -> None:
    command = _curl(printed).replace('"stream": true, ', "").replace("curl -sN", "curl -si")
    head, _, body = _run("bash", "-c", command).replace("\r\n", "\n").partition("\n\n")
    assert head.startswith("HTTP/1.1 200 OK\n")
    assert "x-moongate-call-id: " in head.lower()
    assert json.loads(body)["choices"][0]["message"]["content"]


@needs_curl
def test_curl_sends_a_large_body_after_100_continue(printed: str, tmp_path: Path) -> None:
    found = re.search(r"(http://\S+/v1)/chat.*?Bearer (mg_\S+)'", _curl(printed), re.DOTALL)
    assert found is not None
    said = [{"role": "user", "content": "Hello!"}]
    body = {"model": "kimi-k2.5", "messages": said, "padding": "moon " * 300_000}
    (tmp_path / "body.json").write_text(json.dumps(body))
    told = _run(
        *("curl", "-s", "-o", "answer.json", "-w", "%{http_code}", "-d", "@body.json"),
        *("-H", "Expect: 100-continue", "-H", f"Authorization: Bearer {found[2]}"),
        *("-H", "Content-Type: application/json", f"{found[1]}/chat/completions"),
        folder=tmp_path,
    )
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert told == "200", answer


def test_the_snippet_as_printed(printed: str) -> None:
    snippet = textwrap.dedent(printed[printed.index("  from openai") : printed.index("Stop with")])
    assert len(_run(sys.executable, "-c", snippet).strip()) > 20


def test_the_demo_key_is_marked_and_for_this_machine_only(printed: str) -> None:
    assert "demo key (for this machine only)" in printed
    assert "mg_" in printed
