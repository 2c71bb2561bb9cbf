"""What Spark makes of the log of an app of the cast is what this machine makes of it, the service has come to, and the oracle says."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace.spark.engine import SparkEngine
from tests.cast.apps import CAST, place
from tests.cast.test_matrix import lived, orders_of, remade
from tests.cast.test_ranges import made
from tests.history.rebuilding.planted import app_of, fed

HASH_SEED = 417
TIME_ZONE = "Asia/Kathmandu"


@pytest.fixture
def elsewhere(spark: SparkSession) -> Generator[SparkSession]:
    """Spark, whose workers have another hash seed and live in another time zone."""
    environment: dict[str, Any] = spark.sparkContext.environment
    before = dict(environment)
    environment |= {"TZ": TIME_ZONE, "PYTHONHASHSEED": str(HASH_SEED)}
    yield spark
    environment.clear()
    environment.update(before)


def test_its_workers_have_other_hashes_and_another_time_zone(elsewhere: SparkSession) -> None:
    def there(_: int) -> tuple[int, str, tuple[str, str]]:
        return hash("a text"), os.environ["PYTHONHASHSEED"], time.tzname

    ((hashed, seed, zone),) = elsewhere.sparkContext.parallelize([0], 1).map(there).collect()
    assert seed == str(HASH_SEED)
    assert hashed != hash("a text")
    assert zone != time.tzname


@pytest.mark.one_seed_in(100)
@pytest.mark.parametrize("name", CAST)
def test_spark_comes_to_the_bytes_of_the_service_and_the_results_of_the_oracle(
    elsewhere: SparkSession, name: str, seeds: range, tmp_path: Path
) -> None:
    for seed in seeds:
        with lived(name, seed, tmp_path / str(seed)) as (case, _, world):
            world.rest(ends=True)
            for order in orders_of(world):
                found, states = remade(world, place(name, seed), order, case.topics, SparkEngine(elsewhere))
                assert found == case.expected, order
                assert states == remade(world, place(name, seed), order, case.topics)[1]


def test_ranges_of_keys_on_spark_make_the_bytes_of_one_unit_here(
    elsewhere: SparkSession, tmp_path: Path
) -> None:
    fed(tmp_path, 333)
    here = made(tmp_path, app_of(333, "b"), 1)
    assert made(tmp_path, app_of(333, "b"), 2, SparkEngine(elsewhere)) == here
