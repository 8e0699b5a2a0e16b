"""`make chaos`: many runs of random faults, departures and kills, each from a seed of its own.

python -m tests.chaos --runs 500 --seed 1      # seeds 1 to 500; the first that fails is told with its story
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.acting import Stage, told
from tests.chaos.drawing import draw

PER_STAGE = 50
"""Runs on one gateway; then a fresh one, so that the book that every run is held against stays short."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--keep-going", action="store_true", help="tell every run that fails, not the first only"
    )
    given = parser.parse_args()
    failed, began = 0, time.monotonic()
    for first in range(given.seed, given.seed + given.runs, PER_STAGE):
        with tempfile.TemporaryDirectory(prefix="moongate-chaos-") as folder:
            stage = Stage(Path(folder))
            try:
                for seed in range(first, min(first + PER_STAGE, given.seed + given.runs)):
                    run = draw(seed)
                    wrong = stage.play(run)
                    if wrong:
                        failed += 1
                        print(told(run, wrong), flush=True)
                        if not given.keep_going:
                            return 1
            finally:
                stage.close()
        print(f"{seed - given.seed + 1} runs, {failed} failed, {time.monotonic() - began:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
