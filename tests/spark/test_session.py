from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest

from tailrace.core.errors import MissingExtraError, UnfitJavaError
from tailrace.spark.session import retrying, session


def test_workers_run_this_interpreter_and_find_what_this_process_finds(spark):
    def told(_: object) -> tuple[str, str]:
        from tests.spark import travel

        return sys.executable, travel.__file__

    from tests.spark import travel

    assert spark.sparkContext.parallelize([0], 1).map(told).first() == (sys.executable, travel.__file__)


def test_nothing_of_a_local_spark_is_open_to_the_network(spark):
    assert spark.conf.get("spark.driver.host") == spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None


def test_a_local_master_tries_a_task_again_as_a_cluster_does(spark):
    assert spark.sparkContext.master == "local[2,4]"
    assert [retrying(one) for one in ("local", "local[*]", "local[3,1]", "spark://host:7077")] == [
        "local[1,4]",
        "local[*,4]",
        "local[3,1]",
        "spark://host:7077",
    ]


def test_an_unfit_java_is_told_before_spark_tries(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UnfitJavaError, match="JAVA_HOME"):
        session()


def test_without_pyspark_the_mend_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(MissingExtraError, match=r"pip install tailrace\[spark\]"):
        session()


def test_the_framework_is_imported_without_the_extra():
    blocked = "import sys; sys.modules.update(pyspark=None, pyarrow=None, pandas=None, numpy=None)"
    code = f"{blocked}; import tailrace, tailrace.spark, tailrace.cli.main"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


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


def test_a_session_that_has_ended_leaves_no_process():
    code = """
import os
from tailrace.spark import running

def children():
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as file:
        return file.read().split()

with running("local[1]") as spark:
    assert spark.sparkContext.parallelize([1, 2], 1).map(str).collect() == ["1", "2"]
    assert children()
assert not children(), children()
"""
    mark = f"TAILRACE_TEST={uuid4().hex}"
    environment = {**os.environ, "TAILRACE_TEST": mark.partition("=")[2]}
    begun = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(begun, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    deadline_s = time.monotonic() + 60
    while marked(mark) and time.monotonic() < deadline_s:
        time.sleep(0.05)  # Spark's Python workers end when they find that their parent has
    assert not marked(mark)
