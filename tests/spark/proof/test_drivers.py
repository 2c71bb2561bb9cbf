"""The driver publishes last of all: wherever it dies nothing half is seen, and whoever goes on comes to the same bytes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import Engine, LocalEngine, OnProgress
from tailrace.history.rebuilding.job import Unit
from tailrace.history.rebuilding.request import Request
from tailrace.history.rebuilding.results import UnitResult
from tailrace.spark.engine import SparkEngine
from tailrace.state.snapshots import Snapshots
from tests.runtime.processes import ROOT
from tests.spark.proof.lives import assert_same, made
from tests.spark.proof.proving import Case, Looking
from tests.spark.proof.seeded import variant_of_seed

POINTS = 8


class Interrupted:
    """All units are done, and then the driver is told to stop."""

    name = "interrupted"
    workers = 1

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def run(self, units: Sequence[Unit], on_progress: OnProgress) -> Iterator[UnitResult]:
        yield from list(self._engine.run(units, on_progress))[:-1]
        raise InterruptedError

    def close(self) -> None:
        self._engine.close()


@contextmanager
def drivers(asked: Request, place: Path) -> Generator[subprocess.Popen[str]]:
    place.write_bytes(msgspec.msgpack.encode(asked))
    command = [sys.executable, "-m", "tests.spark.proof.dying", str(place)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ask(process: subprocess.Popen[str], point: int) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{point}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def test_a_driver_that_dies_at_any_point_has_published_nothing_or_all(
    spark: SparkSession, tmp_path: Path
) -> None:
    case = Case(next(seed for seed in count() if variant_of_seed(seed).partitions == 2), tmp_path)
    case.live()
    asked = case.asked("spark")
    to, kept = Path(asked.to.uri), tmp_path / "kept"
    with pytest.raises(InterruptedError):
        rebuild(asked, Interrupted(SparkEngine(spark)))
    shutil.copytree(to, kept)
    looking = Looking(LocalEngine(1), [asked])
    outcomes: list[bool] = []
    with drivers(asked, tmp_path / "request") as process:
        total = int(ask(process, 10**9))
        for point in sorted({*range(1, total, total // POINTS), *range(total - POINTS, total + 1, 2)}):
            shutil.rmtree(to)
            shutil.copytree(kept, to)
            assert ask(process, point) == "killed"
            seen = looking.look()
            outcomes.append(bool(seen))
            report = rebuild(asked, looking)
            # One that dies when it has published may have forgotten that it did, and does it all once more.
            assert len(Snapshots(asked.to.uri, case.plan.app).list()) in (1, 1 + seen)
            assert_same(case.truth, made(asked, case.plan, report.snapshot), f"killed at line {point}")
    assert outcomes == sorted(outcomes), "published once and for all"
    assert {*outcomes} == {False, True}
