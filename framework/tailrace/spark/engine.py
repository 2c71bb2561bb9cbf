"""The units of a rebuild, run by Spark: one task for each, tried again where it fails, twice at once where it is slow.

Theory. A unit is a value that any process can run, at any time and more than once (``history.rebuilding.job``), so Spark may
do with its tasks what it likes. What this adds is how results come home: each through an accumulator, when its task
ends. Spark counts what a task of an action adds once, for the attempt that won; so a result comes once, and before the
slowest unit is done.

What stands in a unit's way and would again is a result, too (``failure``): it is not tried again. Anything else that a task
raises, and any death of its process, is: ``spark.task.maxFailures`` times. The work folder has to be one that all machines
of the cluster share, as the place of the snapshots has.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.accumulators import AccumulatorParam

from tailrace.core.errors import WorkerLostError
from tailrace.history.rebuilding.engines import OnProgress
from tailrace.history.rebuilding.job import Unit, UnitResult, decode_result, decode_unit, encode_result
from tailrace.history.rebuilding.units import run_unit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EVERY_S = 0.25
_HASH_SEED = "PYTHONHASHSEED"
_MOST_SAID = 300


class SparkEngine:
    """Runs units with a session of Spark, whose workers have to find the app's code.

    ``hash_seed`` is what Python's string hashes begin with there.
    """

    name = "spark"

    def __init__(self, spark: SparkSession, hash_seed: int | None = None) -> None:
        self.spark = spark
        self.hash_seed = hash_seed

    @property
    def workers(self) -> int:
        """The cores that the session's default parallelism counts."""
        return self.spark.sparkContext.defaultParallelism

    def run(self, units: Sequence[Unit], on_progress: OnProgress) -> Iterator[UnitResult]:
        """See ``history.rebuilding.engines.Engine.run``.

        Raises:
            WorkerLostError: Spark has given a unit up, or is gone.
        """
        context = self.spark.sparkContext
        environment: dict[str, str] = context.environment  # a part of what Spark tells its workers apart by
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
            except Exception as error:  # noqa: BLE001 (told by the thread that waits for it)
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
                with suppress(Exception):  # Spark itself may be what is gone
                    context.cancelJobGroup(group)
                thread.join()
        if failed:
            raise WorkerLostError(
                f"Spark has given a part of the rebuild up: {_said(failed[0])}",
                hint="Fix the reported error and run the same command again; it resumes.",
            ) from failed[0]
        if given != len(units):
            raise WorkerLostError(
                f"Spark has run {len(units)} parts of the rebuild, and told of {given}",
                hint="Run the same command again: it goes on where it was.",
            )


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
    """What Python said in the worker, or what Spark says, in a line."""
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
