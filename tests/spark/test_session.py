from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pyspark
import pytest

from tailrace.core.errors import MissingExtraError, UnfitJavaError, UsageError
from tailrace.core.records import Output
from tailrace.spark.session import register, session
from tests.spark import travel


def test_nothing_of_a_local_spark_is_open_to_the_network(spark):
    assert spark.conf.get("spark.driver.host") == spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None


def test_an_unfit_java_is_told_before_spark_tries(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UnfitJavaError, match="JAVA_HOME"):
        session()


def test_without_pyspark_the_mend_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(MissingExtraError, match=r"pip install tailrace\[spark\]"):
        session()


def marked(mark: str) -> set[str]:
    """The processes whose environment has the mark."""
    found: set[str] = set()
    for place in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in place.read_bytes():
                found.add(place.parent.name)
        except OSError:
            continue  # it has ended, or is not ours
    return found


class Session(NamedTuple):
    """A process that has had a session of Spark: how it has ended, and the mark in the environment of all that it started."""

    done: subprocess.CompletedProcess[str]
    mark: str


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("session")
    travel.filled(folder / "log", 5, more=(Output("trips", b"N100", b"none", 0),)).close()
    code = """
import os, sys
from tailrace.spark import running

def children():
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as file:
        return file.read().split()

def read(**more):
    options = {"log": sys.argv[1], "topic": "trips", "app": "tests.spark.travel:app", **more}
    return spark.read.format("tailrace").options(**options).load().count()

with running("local[1]") as spark:
    assert spark.sparkContext.master == "local[1]"
    for more in ({}, {"columns": "mile"}, {"endingOffsets": "99"}):
        try:
            read(**more)
        except Exception as error:
            print(str(error).strip(), end="\\0")
    assert read(undecodable="keep") == 6
    assert children()
assert not children(), children()
"""
    mark = f"TAILRACE_TEST={uuid4().hex}"
    environment = {**os.environ, "TAILRACE_TEST": mark.partition("=")[2]}
    begun = [sys.executable, "-W", "error", "-c", code, str(folder / "log")]
    done = subprocess.run(begun, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Session(done, mark)


def test_a_session_that_has_ended_leaves_no_process(ended: Session):
    deadline_s = time.monotonic() + 60
    while marked(ended.mark) and time.monotonic() < deadline_s:
        time.sleep(0.05)  # Spark's Python workers end when they find that their parent has
    assert not marked(ended.mark)


def test_a_rebuild_below_spark_submit_has_the_master_that_was_submitted_and_starts_no_sql(tmp_path):
    """Before, it was local[*,4], whatever the cluster; and a session of SQL took as long to start as the rest of Spark."""
    (tmp_path / "submitted.py").write_text("""
from pyspark.sql import SparkSession

from tailrace.history.rebuilding.engines import Where, opened_engine

with opened_engine(Where(engine="spark")) as engine:
    print("the master is", engine.context.master, "and the session", SparkSession._instantiatedSession)
""")
    spark_submit = Path(pyspark.__path__[0]) / "bin" / "spark-submit"
    command = [spark_submit, "--master", "local[3,2]", tmp_path / "submitted.py"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "the master is local[3,2] and the session None" in done.stdout, done.stderr


def test_an_error_in_the_data_or_the_options_is_reported_once_and_in_a_sentence(ended: Session):
    done = ended.done
    assert "Traceback" not in done.stdout + done.stderr
    assert "\tat " not in done.stdout + done.stderr  # no stack of Java
    bad, unknown, gone = done.stdout.split("\0")[:3]
    assert re.search(r"BadRecordError: .*topic 'trips', partition \d, offset \d, key b'N100'.*keep", bad)
    assert "UsageError: columns: there is no column 'mile'" in unknown
    assert "OffsetGoneError: the last offset that is asked for is not in the log" in gone
    assert max(one.count("\n") for one in (bad, unknown, gone)) <= 1


def test_spark_connect_is_refused_where_a_user_meets_it():
    connect: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    for meet in (lambda: session("sc://host:15002"), lambda: register(connect)):
        with pytest.raises(UsageError, match="Spark Connect is not supported"):
            meet()
