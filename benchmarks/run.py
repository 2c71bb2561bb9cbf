"""Runs the cases, each in its own process, and prints the measured values with their targets.

python -m benchmarks.run                     everything, half an hour
python -m benchmarks.run core timer          some cases
python -m benchmarks.run --quick             everything on little data: only checks that it runs
python -m benchmarks.run --spark             rebuilds and snapshots: a separate table
python -m benchmarks.run --kafka             services on Kafka, with a broker of their own: a separate table
python -m benchmarks.run --write-docs        also write the table, or the measured lines, to docs/performance.md
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec

from benchmarks import table
from benchmarks.kafka.broker import BROKER, broker
from benchmarks.measure import FULL, QUICK, WALL, Row

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"


class Report(msgspec.Struct):
    """The content of the JSON file."""

    at: str
    python: str
    processor: str
    cores: int
    clock: str
    quick: bool
    rows: list[Row]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases. Returns 0 if every case ran, whether targets were met or not."""
    parser = argparse.ArgumentParser(prog="benchmarks.run", description="Measure Tailrace.")
    parser.add_argument("cases", nargs="*", help="names of cases; all by default")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--spark", action="store_true", help="rebuilds, by Spark and without it, and snapshots"
    )
    which.add_argument("--kafka", action="store_true", help="services on Kafka")
    parser.add_argument("--quick", action="store_true", help="little data: does it run?")
    parser.add_argument("--repeats", type=int, help="pairs, or runs, of each case")
    parser.add_argument("--out", type=Path, default=ROOT / "out", help="folder of the JSON file")
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help="put the table, or these lines of it, into docs/performance.md",
    )
    parser.add_argument("--here", action="store_true", help="in this process, rows as JSON: for the profiler")
    options = parser.parse_args(arguments)
    # On SIGTERM, this process also ends its child processes.
    signal.signal(signal.SIGTERM, _leave)
    chosen = "spark" if options.spark else "kafka" if options.kafka else ""
    of_table = _names(chosen)
    names: list[str] = options.cases or of_table
    others = [name for name in names if name not in of_table] if options.write_docs else []
    if others:
        parser.error(f"{', '.join(others)}: not in this table of the page")
    with ExitStack() as running:
        if options.kafka:
            os.environ[BROKER] = running.enter_context(broker())
        if options.here:
            found = _measure(names, quick=options.quick, repeats=options.repeats)
            sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
            return 0
        return _run(names, options, chosen)


def _run(names: Sequence[str], options: argparse.Namespace, chosen: str) -> int:
    """Measure each case in a process, and print and store the rows. Returns 1 if a case failed."""
    rows: list[Row] = []
    failed: list[str] = []
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        measured = _in_a_process(name, _arguments_of(options))
        if measured is None:
            failed.append(name)
        else:
            rows += measured
    text = table.markdown(rows)
    print(text, end="")
    _write(options.out, rows, chosen, quick=options.quick)
    if options.write_docs:
        marks = {"spark": table.SPARK, "kafka": table.KAFKA}.get(chosen, table.SERVED)
        page = table.replaced(PAGE.read_text("utf-8"), rows, marks, whole=not (options.cases or failed))
        PAGE.write_text(page, "utf-8")
    for name in failed:
        print(f"the case {name!r} failed", file=sys.stderr)
    return 1 if failed else 0


def _leave(_signal: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal would interrupt the cleanup
    sys.exit(1)


def _names(chosen: str) -> list[str]:
    from benchmarks.catalogue import CASES, KAFKA, SPARK  # noqa: PLC0415  # printing needs no import of the framework

    return list({"spark": SPARK, "kafka": KAFKA}.get(chosen, CASES))


def _arguments_of(options: argparse.Namespace) -> list[str]:
    """The command-line arguments for the process of a case."""
    told = ["--quick"] if options.quick else []
    return told if options.repeats is None else [*told, "--repeats", str(options.repeats)]


def _measure(names: Sequence[str], *, quick: bool, repeats: int | None) -> list[Row]:
    from benchmarks.catalogue import CASES, KAFKA, SPARK  # noqa: PLC0415  # as above

    scale = QUICK if quick else FULL
    if repeats is not None:
        scale = msgspec.structs.replace(scale, repeats=repeats)
    rows = [row for name in names for row in (CASES | SPARK | KAFKA)[name](scale)]
    # With little data, no target counts as met or missed.
    return [msgspec.structs.replace(row, met=None) for row in rows] if quick else rows


def _in_a_process(name: str, told: Sequence[str]) -> list[Row] | None:
    command = [sys.executable, "-m", "benchmarks.run", name, "--here", *told]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            found, _ = process.communicate()
        except SystemExit:  # Ctrl-C has reached the case as well
            process.terminate()
            raise
    return msgspec.json.decode(found, type=list[Row]) if process.returncode == 0 else None


def _write(folder: Path, rows: list[Row], chosen: str, *, quick: bool) -> None:
    report = Report(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        python=platform.python_version(),
        processor=_processor(),
        cores=os.cpu_count() or 1,
        clock="wall" if WALL else "processor",
        quick=quick,
        rows=rows,
    )
    folder.mkdir(parents=True, exist_ok=True)
    parts = ("benchmarks", *([chosen] if chosen else []), *(["quick"] if quick else []))
    (folder / f"{'-'.join(parts)}.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor())


if __name__ == "__main__":
    sys.exit(main())
