"""An app that is rebuilt in rounds comes to the same by Spark as by processes of this machine."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tailrace.history.rebuilding.driver import rebuild
from tailrace.spark.engine import SparkEngine
from tests.history.rebuilding.lived import done, opened, rebuilt, request
from tests.history.rebuilding.test_rounds import DEEP, FAR_MS, app_of, fed


def test_rounds_by_spark_come_to_the_same_bytes(spark: SparkSession, tmp_path: Path) -> None:
    fed(tmp_path, DEEP)
    _, here = done(tmp_path, app_of(DEEP), order="canonical", as_of_ms=FAR_MS)
    asked = request(tmp_path, app_of(DEEP), order="canonical", as_of_ms=FAR_MS, name="spark")
    report = rebuild(asked, SparkEngine(spark))
    assert "in 3 rounds along the graph" in str(report.notes)
    assert rebuilt(opened(asked, report)) == rebuilt(here)
