"""A first look without anything around it: a simulated Kimi beside the gateway, and a marked demo key.

What is started here ends with the gateway, and is taken over when the gateway re-executes itself.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

KEY_VARIABLE: Final = "MOONSHOT_API_KEY"
SIM_KEY: Final = "sk-sim"
SIM_PORT: Final = 9000
PACE: Final = ("--first-token", "0.2", "--tokens-per-second", "120")
"""So that a stream is seen to stream."""

_STARTED: Final = "MOONGATE_SIM_URL"
_PR_SET_PDEATHSIG: Final = 1


def is_wanted() -> bool:
    """Whether there is no key to the real Kimi, or the one there is this module's own, left by the image before."""
    return KEY_VARIABLE not in os.environ or _STARTED in os.environ


@contextmanager
def simulated_kimi() -> Iterator[str]:
    """The base URL of a simulated Kimi that lives as long as this scope; its key is in the environment meanwhile.

    A process that re-executes itself within the scope finds it again. Raises OSError if it cannot be started.
    """
    inherited = os.environ.get(_STARTED, "")
    pid, url = _parsed(inherited) if inherited else (_start(SIM_PORT) or _start(0) or (0, ""))
    if not pid:
        raise OSError("the simulated Kimi did not start; `moongate sim` says why")
    os.environ[_STARTED] = f"{pid} {url}"
    os.environ[KEY_VARIABLE] = SIM_KEY
    try:
        yield url
    finally:
        del os.environ[_STARTED], os.environ[KEY_VARIABLE]
        with suppress(OSError):
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)


def _parsed(inherited: str) -> tuple[int, str]:
    pid, _, url = inherited.partition(" ")
    return int(pid), url


def _start(port: int) -> tuple[int, str] | None:
    command = [sys.executable, "-m", "moongate", "sim", "--port", str(port), *PACE]
    child = subprocess.Popen(  # noqa: S603 - our own command
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        process_group=0,  # Ctrl-C is for the gateway, which ends the simulator when it has drained
        preexec_fn=_end_with_parent,  # noqa: PLW1509 - before any thread was started
    )
    assert child.stdout is not None
    line = child.stdout.readline().decode()
    if "http://" not in line:
        child.kill()
        child.wait()
        return None
    os.dup(child.stdout.fileno())  # kept open for ever: a word more would end the simulator
    return child.pid, line[line.index("http://") :].strip() + "/v1"


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def announce(base: str, text: str, seconds: float = 30.0) -> None:
    """Print `text` once the gateway at `base` is ready; gives up silently when it never is. Returns at once."""
    pause = threading.Event()

    def wait() -> None:
        for _ in range(int(seconds / 0.05)):
            with suppress(OSError), urllib.request.urlopen(f"{base}/readyz", timeout=1):  # noqa: S310 - our own
                print(text, flush=True)
                return
            pause.wait(0.05)

    threading.Thread(target=wait, daemon=True).start()


def welcome(base: str, key: str, upstream: str, admin: str) -> str:
    """What a newcomer reads: where everything is, and two snippets that work as printed."""
    return f"""
moongate answers on {base}        Kimi behind it: {upstream}
metrics: {admin}/metrics        demo key (for this machine only): {key}

  curl -sN {base}/v1/chat/completions \\
    -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' \\
    -d '{{"model": "kimi-k2.5", "stream": true, "messages": [{{"role": "user", "content": "Hello, Kimi!"}}]}}'

  from openai import OpenAI
  kimi = OpenAI(base_url="{base}/v1", api_key="{key}")
  for chunk in kimi.chat.completions.create(
      model="kimi-k2.5", stream=True, messages=[{{"role": "user", "content": "Hello, Kimi!"}}]
  ):
      if chunk.choices:
          print(chunk.choices[0].delta.content or "", end="", flush=True)

Stop with Ctrl-C.
"""
