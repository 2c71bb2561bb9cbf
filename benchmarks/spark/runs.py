"""Runs several rebuilds in a separate process, with one Spark session or one local engine.

``python -m benchmarks.spark.runs`` reads an order as JSON from standard input, and prints the time of each rebuild. Measurement
begins after Spark has started and has run a job, so the start does not count.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Literal, NoReturn, TypeAlias

import msgspec

from benchmarks.served.service import ROOT, BenchmarkError
from benchmarks.spark.processes import environment, session_processor_s
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import Engine, LocalEngine
from tailrace.history.rebuilding.report import RebuildReport
from tailrace.history.rebuilding.request import Destination, Request, Source

EngineName: TypeAlias = Literal["spark", "local"]


class Order(msgspec.Struct, frozen=True):
    """Rebuilds to run on one engine, one after the other."""

    app: str
    log: str
    work: str
    """A temporary folder for the snapshots and the files of Spark."""
    engine: EngineName
    cores: int
    times: int


class Run(msgspec.Struct, frozen=True):
    """A completed rebuild. ``processor_s`` is of all processes, including the JVM."""

    wall_s: float
    processor_s: float
    report: RebuildReport


def run(order: Order) -> list[Run]:
    """Run the rebuilds in a separate process, which ends all processes that it has started."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.spark.runs"],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            made, _ = process.communicate(msgspec.json.encode(order))
        except BaseException:
            process.send_signal(signal.SIGTERM)  # the process ends Spark before it exits
            raise
    if process.returncode:
        raise BenchmarkError(
            f"the rebuilds with {order.engine} have failed, with status {process.returncode}"
        )
    return msgspec.json.decode(made, type=list[Run])


def main() -> int:
    """See the head of this file."""
    signal.signal(signal.SIGTERM, _leave)
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    with _engine(order) as engine:
        made = [_made(order, engine) for _ in range(order.times)]
    sys.stdout.buffer.write(msgspec.json.encode(made))
    return 0


def _leave(_signal: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(1)


def _made(order: Order, engine: Engine) -> Run:
    to = Path(order.work) / "snapshots"
    request = Request(app=order.app, source=Source(log=order.log), to=Destination(uri=str(to)), order="tape")
    before_s, start = session_processor_s(), perf_counter()
    report = rebuild(request, engine, restart=True)
    spent = Run(perf_counter() - start, session_processor_s() - before_s, report)
    shutil.rmtree(to)
    return spent


@contextmanager
def _engine(order: Order) -> Generator[Engine]:
    if order.engine == "local":
        yield LocalEngine(order.cores)
        return
    # Imported here, as the process that only starts this one does not need Spark.
    from tailrace.spark.engine import SparkEngine  # noqa: PLC0415
    from tailrace.spark.session import running  # noqa: PLC0415

    folder = Path(order.work) / "spark"
    folder.mkdir(parents=True, exist_ok=True)
    config = {"spark.local.dir": str(folder), "spark.driver.memory": "768m"}
    with running(f"local[{order.cores}]", name="bench", config=config) as spark:
        numbers: Sequence[int] = range(order.cores)
        spark.sparkContext.parallelize(numbers, order.cores).foreach(_nothing)
        yield SparkEngine(spark)


def _nothing(_: int) -> None:
    os.getpid()


if __name__ == "__main__":
    sys.exit(main())
