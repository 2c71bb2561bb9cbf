"""One Spark for all tests of this folder: two tasks at a time, gone with its processes at the end. And the broker of those with Kafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tailrace.spark import session
from tailrace.spark.session import end
from tests.kafka.conftest import kafka, kafka_url

__all__ = ["kafka", "kafka_url", "spark"]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    config = {
        "spark.driver.memory": "768m",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        # Python workers are used again, so that the tests are fast, and end soon when nobody needs them.
        "spark.sql.codegen.wholeStage": "false",
        "spark.python.worker.reuse": "true",
    }
    # A rebuild has to survive the death of a worker process.
    found = session("local[2,4]", name="tests", config=config)
    yield found
    end(found)
