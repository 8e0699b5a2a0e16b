"""Measure moongate against nginx and, if asked, peers. `make bench`; `make bench ARGS="--quick --only stream"`.

The subject is pinned to one core, everything else to another; subjects take turns within each repetition, so that a
busy minute hits all of them; the medians of three repetitions count. What is compared is CPU time, which a busy
machine disturbs least.
"""

import argparse
import datetime as dt
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import machine
import report
from scenarios import SCENARIOS, Figures, Scenario
from subjects import GATEWAY, HERE, Subject, gateway, over_http2, peer, yardstick


def measured(
    scenarios: list[Scenario], subjects: list[Subject], repetitions: int, seconds: float
) -> tuple[report.Runs, list[str]]:
    """Run everything, repetition by repetition; gives the figures, and a sentence for each that could not be had."""
    runs: dict[str, dict[str, list[Figures]]] = {}
    failures: dict[tuple[str, str], str] = {}
    for repetition in range(repetitions):
        for scenario in scenarios:
            for subject in standing(subjects, scenario) if repetition < scenario.most else ():
                where = (scenario.name, subject.name)
                if where in failures:
                    continue
                try:
                    figures = once(scenario, subject, seconds)
                except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                    failures[where] = f"{', '.join(where)}: {error}"
                    runs.get(scenario.name, {}).pop(subject.name, None)
                    print(f"failed: {failures[where]}", file=sys.stderr)
                    continue
                runs.setdefault(scenario.name, {}).setdefault(subject.name, []).append(figures)
                shown = " · ".join(report.cell(name, value) for name, value in figures.items())
                print(f"{repetition + 1}/{repetitions} {', '.join(where)}: {shown}", file=sys.stderr)
    return runs, list(failures.values())


def standing(subjects: list[Subject], scenario: Scenario) -> list[Subject]:
    """Who is measured in a scenario: over TLS the gateway in both protocols."""
    if not scenario.over_tls:
        return subjects
    return [*subjects, *(over_http2(subject) for subject in subjects if "moongate.yaml" in subject.files)]


def once(scenario: Scenario, subject: Subject, seconds: float) -> Figures:
    """One measurement with fresh processes in a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="moongate-bench-") as folder:
        return scenario.measure(subject, Path(folder), seconds)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="scenarios whose name holds this text")
    parser.add_argument("--quick", action="store_true", help="one short repetition; not for the history")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of load in a measurement")
    parser.add_argument(
        "--gateway", default=GATEWAY, metavar="COMMAND", help="another way to start the gateway"
    )
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=COMMAND", help="measure this one as well"
    )
    parser.add_argument("--record", action="store_true", help="add the ratios to bench/history.jsonl")
    return parser.parse_args()


def main() -> int:
    """Measure, print the table, write the files; 1 if a promise was not kept."""
    chosen = options()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    scenarios = [scenario for scenario in SCENARIOS if chosen.only in scenario.name]
    subjects = [yardstick(), gateway(chosen.gateway), *map(peer, chosen.peer)]
    repetitions, seconds = (1, 2.0) if chosen.quick else (chosen.repetitions, chosen.seconds)
    first = machine.Reading.now()
    runs, failures = measured(scenarios, subjects, repetitions, seconds)
    weather = machine.Weather.between(first, machine.Reading.now())

    medians = report.summary(runs)
    history = HERE / "history.jsonl"
    when = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    about = {
        "when": when,
        "commit": report.commit(),
        "processor": machine.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "weather": asdict(weather) | {"quiet": weather.quiet},
    }
    print(report.table(medians, report.last_ratios(history, machine.processor())))
    print(f"\nmachine: {machine.processor()}, {os.cpu_count()} cores; {weather}")
    if len(set(machine.two_cores())) == 1:
        print("only one core: load and subject share it, so latencies mean little")
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    written = results / f"{when.replace(':', '')}.json"
    written.write_text(json.dumps(about | {"medians": medians, "runs": runs}, indent=1) + "\n")
    print(f"written: {written.relative_to(HERE.parent)}")
    if chosen.record:
        with history.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(about | {"ratios": report.ratios(medians)}) + "\n")
    bad = [f"failed: {sentence}" for sentence in failures]
    bad += [f"missed: {sentence}" for sentence in report.missed(medians, quiet=weather.quiet)]
    print("\n".join(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
