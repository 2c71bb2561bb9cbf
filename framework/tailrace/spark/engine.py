"""Runs the units of a rebuild on Spark: one task for each, which Spark may retry or run twice at once.

Theory. A unit is a value that any process can run, at any time and more than once
(``history.rebuilding.job``), so Spark may schedule its tasks freely. A result returns through an accumulator,
when its task ends. Spark counts the additions of a task of an action once, for the successful attempt. So
each result arrives once, and before the slowest unit is done.

An error that would occur again is a result, too (``failure``), and the unit is not retried. After any other
exception of a task, or the death of its process, the task is retried up to ``spark.task.maxFailures`` times.
All machines of the cluster must share the work folder and the location of the snapshots.

Only processes of its machine can read the log of a running service. To rebuild on several machines, name a past that all of
them reach, such as a log on Kafka or a copy (``tailrace log copy``).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import SparkContext
from pyspark.accumulators import AccumulatorParam

from tailrace.core.errors import WorkerLostError
from tailrace.history.rebuilding.engines import OnProgress
from tailrace.history.rebuilding.job import Unit, decode_unit
from tailrace.history.rebuilding.results import UnitResult, decode_result, encode_result
from tailrace.history.rebuilding.units import run_unit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_Results = tuple[bytes, ...]

DRIVER: Mapping[str, str] = {"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Settings of a session that only runs units. Its Java process hands them to Python: it starts fast, and is not optimized."""
_EVERY_S = 0.25
_LONGEST_REASON = 300


class SparkEngine:
    """Runs units in a Spark session or its context, whose workers must be able to import the app's code."""

    name = "spark"

    def __init__(self, spark: SparkSession | SparkContext) -> None:
        self.context = spark if isinstance(spark, SparkContext) else spark.sparkContext

    def run(self, units: Sequence[Unit], on_progress: OnProgress) -> Iterator[UnitResult]:
        """See ``history.rebuilding.engines.Engine.run``.
        Raises WorkerLostError: Spark has given up a unit, or has stopped.
        """
        count = 0
        action = _Action(self.context, [unit.encode() for unit in units])
        for result in action.results(on_progress):
            count += 1
            yield decode_result(result)
        if action.error is not None:
            raise WorkerLostError(
                f"Spark has given up a part of the rebuild: {_reason(action.error)}",
                hint="Fix the reported error and run the same command again; it resumes.",
            ) from action.error
        if count != len(units):
            raise WorkerLostError(
                f"Spark has run {len(units)} parts of the rebuild, and returned {count} results",
                hint="Run the same command again: it resumes.",
            )

    def close(self) -> None:
        """See ``Engine.close``: Spark keeps its own."""


class _Action:
    """One action of Spark, which a thread waits for. If ``results`` is closed early, it is cancelled."""

    def __init__(self, context: SparkContext, units: Sequence[bytes]) -> None:
        self.error: Exception | None = None
        self._context, self._units = context, units
        self._results = context.accumulator(_Results(), _Gathered())
        self._group = f"tailrace-{uuid4().hex}"
        self._ended = threading.Event()

    def results(self, on_progress: OnProgress) -> Iterator[bytes]:
        """The results of units, each soon after its task has ended."""
        thread = threading.Thread(target=self._run, name=self._group, daemon=True)
        thread.start()
        count, ended = 0, False
        try:
            while not ended:
                ended = self._ended.wait(_EVERY_S)
                found = self._results.value
                yield from found[count:]
                count = len(found)
                on_progress()
        finally:
            if not ended:
                with suppress(Exception):  # Spark itself may have stopped
                    self._context.cancelJobGroup(self._group)
            thread.join()

    def _run(self) -> None:
        results = self._results
        try:
            self._context.setJobGroup(self._group, "rebuild", interruptOnCancel=True)
            units = self._context.parallelize(self._units, max(1, len(self._units)))
            units.foreach(lambda unit: results.add((_ran(unit),)))
        except Exception as error:  # noqa: BLE001 (raised by the thread that waits for it)
            self.error = error
        finally:
            self._ended.set()


def _ran(unit: bytes) -> bytes:
    """The result of a unit. Workers of Spark import it: what it uses cannot be sent to them."""
    return encode_result(run_unit(decode_unit(unit)))


class _Gathered(AccumulatorParam[_Results]):
    """Gathers results of units."""

    def zero(self, value: _Results) -> _Results:  # noqa: ARG002 (PySpark's)
        """See PySpark."""
        return ()

    def addInPlace(self, value1: _Results, value2: _Results) -> _Results:  # noqa: N802 (PySpark's)
        """See PySpark."""
        return value1 + value2


def _reason(error: Exception) -> str:
    """The message of Python in the worker, or of Spark, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    python = [line for line in lines if _is_python(line)]
    reason = (python or lines or [type(error).__name__])[-1 if python else 0]
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}..."


def _is_python(line: str) -> bool:
    """Whether it is the last line of a Python traceback: the name of an error, and no frame of the JVM."""
    name, colon, _ = line.partition(":")
    return (
        bool(colon)
        and name.replace(".", "").isidentifier()
        and not name.startswith(("org.", "java.", "Caused"))
    )
