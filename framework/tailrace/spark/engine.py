"""Runs the units of a rebuild on Spark: one task for each, which Spark may retry, or run twice at once if it is slow.

Theory. A unit is a value that any process can run, at any time and more than once (``history.rebuilding.job``), so Spark may
schedule its tasks freely. A result returns through an accumulator, when its task ends. Spark counts the additions of a task
of an action once, for the successful attempt. So each result arrives once, and before the slowest unit is done.

An error that would occur again is a result, too (``failure``), and the unit is not retried. After any other exception of a
task, or the death of its process, the task is retried up to ``spark.task.maxFailures`` times. All machines of the cluster
must share the work folder and the location of the snapshots.

The log of a running service cannot be read by other machines: its processes share memory. So unless Spark runs on this machine
alone, the engine first puts a copy of the log into the work folder, and the units read that.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from msgspec.structs import replace
from pyspark.accumulators import AccumulatorParam

from tailrace.core.errors import WorkerLostError
from tailrace.history.rebuilding.engines import OnProgress
from tailrace.history.rebuilding.job import Unit, UnitResult, decode_result, decode_unit, encode_result
from tailrace.history.rebuilding.units import run_unit
from tailrace.log.opening import open_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EVERY_S = 0.25
_HASH_SEED = "PYTHONHASHSEED"
_MOST_SAID = 300
_COPY = "log"
"""Folder in the work folder that a copy of the log is in."""


class SparkEngine:
    """Runs units in a Spark session, whose workers must be able to import the app's code.

    ``hash_seed`` is the seed of Python's string hashes in the workers.
    """

    name = "spark"

    def __init__(self, spark: SparkSession, hash_seed: int | None = None) -> None:
        self.spark = spark
        self.hash_seed = hash_seed

    @property
    def on_other_machines(self) -> bool:
        """Whether units may run on other machines than this one."""
        return not (self.spark.sparkContext.master or "local").startswith("local")

    def run(self, units: Sequence[Unit], on_progress: OnProgress) -> Iterator[UnitResult]:
        """See ``history.rebuilding.engines.Engine.run``.

        Raises:
            WorkerLostError: Spark has given up a unit, or has stopped.
        """
        if self.on_other_machines:
            units = _of_a_copy(units)
        context = self.spark.sparkContext
        environment: dict[str, str] = (
            context.environment
        )  # a part of the key by which Spark distinguishes its workers
        before = environment.get(_HASH_SEED)
        if self.hash_seed is not None:
            environment[_HASH_SEED] = str(self.hash_seed)
        home = context.accumulator(tuple[bytes, ...](), _Together())
        coming = threading.Condition()
        failed: list[Exception] = []
        group = f"tailrace-{uuid4().hex}"

        def run_all() -> None:
            try:
                context.setJobGroup(group, "rebuild", interruptOnCancel=True)
                encoded = context.parallelize([one.encode() for one in units], max(1, len(units)))
                encoded.foreach(lambda unit: home.add((_run(unit),)))
            except Exception as error:  # noqa: BLE001 (raised by the thread that waits for it)
                failed.append(error)
            with coming:
                coming.notify()

        thread = threading.Thread(target=run_all, name=group, daemon=True)
        thread.start()
        given = 0
        try:
            while True:
                with coming:
                    ended = not thread.is_alive() or bool(failed) or coming.wait(_EVERY_S)
                if ended:
                    thread.join()
                found = home.value
                for one in found[given:]:
                    yield decode_result(one)
                given = len(found)
                on_progress()
                if ended:
                    break
        finally:
            if before is not None:
                environment[_HASH_SEED] = before
            if thread.is_alive():
                with suppress(Exception):  # Spark itself may have stopped
                    context.cancelJobGroup(group)
                thread.join()
        if failed:
            raise WorkerLostError(
                f"Spark has given up a part of the rebuild: {_said(failed[0])}",
                hint="Fix the reported error and run the same command again; it resumes.",
            ) from failed[0]
        if given != len(units):
            raise WorkerLostError(
                f"Spark has run {len(units)} parts of the rebuild, and returned {given} results",
                hint="Run the same command again: it resumes.",
            )


def _of_a_copy(units: Sequence[Unit]) -> list[Unit]:
    """The units, reading a copy of the log, which the first units of a job make. An archive needs no copy."""
    copies: dict[str, str] = {}
    for unit in units:
        log, copy = unit.job.request.source.log, Path(unit.job.work) / _COPY
        if unit.job.work not in copies and Path(log).is_dir():
            if not copy.is_dir() or not any(copy.glob("*.sqlite")):
                with closing(open_folder(log)) as opened:
                    opened.copy_to(copy)
            copies[unit.job.work] = str(copy)
    return [replace(unit, log=copies.get(unit.job.work, "")) for unit in units]


class _Together(AccumulatorParam[tuple[bytes, ...]]):
    """Results of units, gathered."""

    def zero(self, value: tuple[bytes, ...]) -> tuple[bytes, ...]:  # noqa: ARG002 (PySpark's)
        """None yet."""
        return ()

    def addInPlace(self, value1: tuple[bytes, ...], value2: tuple[bytes, ...]) -> tuple[bytes, ...]:  # noqa: N802 (PySpark's)
        """Those of both."""
        return value1 + value2


def _run(unit: bytes) -> bytes:
    return encode_result(run_unit(decode_unit(unit)))


def _said(error: Exception) -> str:
    """The message of Python in the worker, or of Spark, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    python = [line for line in lines if _is_python(line)]
    said = (python or lines or [type(error).__name__])[-1 if python else 0]
    return said if len(said) <= _MOST_SAID else f"{said[:_MOST_SAID]}..."


def _is_python(line: str) -> bool:
    """Whether it is the last line of a Python traceback: the name of an error, and no frame of the JVM."""
    name, colon, _ = line.partition(":")
    return (
        bool(colon)
        and name.replace(".", "").isidentifier()
        and not name.startswith(("org.", "java.", "Caused"))
    )
