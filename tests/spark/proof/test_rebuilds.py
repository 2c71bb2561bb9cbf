"""Live, Spark and this machine come to the same bytes: rows, timers, cuts, outputs, messages; whoever dies on the way."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tailrace.history.rebuilding import canonical_history, canonical_unit
from tests.conftest import FIRST_SEED, SEEDS
from tests.spark.proof.proving import HASH_SEED, abroad, prove, prove_doomed
from tests.spark.proof.seeded import never_synced, short_ways

ALL = SEEDS < 10
EACH_100 = (0, 11, 25, 53, 96)
"""The seeds of a hundred that are tried, as each takes 4 s: programs, a web, and a web with circles."""
DOOMED_OF = 500
"""One of so many: whoever is killed leaves much to be started anew."""
STRETCH = 250
FEW = 10


@pytest.fixture(scope="session")
def marks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("marks")


@pytest.fixture(autouse=True)
def _as_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", never_synced)
    for module, name in ((canonical_unit, "_COMMIT_EVERY"), (canonical_history, "_LOOK_EVERY")):
        monkeypatch.setattr(module, name, getattr(module, name))
    short_ways()


def test_spark_has_other_hashes_another_time_zone_and_ways_of_its_own(
    spark: SparkSession, marks: Path
) -> None:
    def there(_: int) -> tuple[int, str, tuple[str, str]]:
        return hash("a text"), os.environ["PYTHONHASHSEED"], time.tzname

    with abroad(spark, marks):
        ((hashed, seed, zone),) = spark.sparkContext.parallelize([0], 1).map(there).collect()
    assert seed == str(HASH_SEED)
    assert hashed != hash("a text")
    assert zone != time.tzname


@pytest.mark.property
@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + SEEDS, STRETCH))
def test_live_spark_and_this_machine_come_to_the_same_bytes(
    spark: SparkSession, marks: Path, tmp_path: Path, first: int
) -> None:
    seeds = range(first, min(first + STRETCH, FIRST_SEED + SEEDS))
    chosen = [seed for seed in seeds if ALL or seed % 100 in EACH_100]
    with abroad(spark, marks) as engine:
        counts = prove(engine, chosen, tmp_path)
    if len(chosen) >= FEW:
        assert counts["faults"] > FEW
        assert {*counts} >= {"late", "fired", "idle", "skips"}


@pytest.mark.property
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + max(1, SEEDS // DOOMED_OF)))
def test_units_that_die_anywhere_and_run_twice_at_once_come_to_the_same_and_nothing_half_is_seen(
    spark: SparkSession, marks: Path, tmp_path: Path, seed: int
) -> None:
    with abroad(spark, marks) as engine:
        counts = prove_doomed(engine, seed, tmp_path, marks)
    assert counts["seen"] == counts["rebuilds"]
    assert counts["deaths"]
