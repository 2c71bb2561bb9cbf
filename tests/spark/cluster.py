"""A Spark cluster of two hosts on this machine: a master and two workers in this process, on two addresses of the loopback.

Spark starts a second copy of a slow task only on another host, and none at all with a local master. So: a process that
rebuilds an app there, with speculation on::

    python -m tests.spark.cluster FOLDER NAME
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from tailrace.history.rebuilding.driver import rebuild
from tailrace.spark.engine import SparkEngine
from tailrace.spark.session import end, session
from tests.history.rebuilding.lived import changed, request

HOSTS = ("127.0.0.1", "127.0.0.2")
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.4",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "200ms",
}
DONE = "rebuilt on two hosts"


@contextmanager
def cluster(folder: Path, **config: str) -> Generator[SparkSession]:
    """A session on a cluster with one slot on each host."""
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    os.environ["SPARK_LOCAL_IP"] = HOSTS[0]
    gateway: Any = launch_gateway(SparkConf())
    jvm = gateway.jvm
    deploy = jvm.org.apache.spark.deploy
    java_config = jvm.org.apache.spark.SparkConf()
    master = deploy.master.Master.startRpcEnvAndEndpoint(HOSTS[0], 0, 0, java_config)._1()
    url = f"spark://{HOSTS[0]}:{master.address().port()}"
    urls = gateway.new_array(jvm.java.lang.String, 1)
    urls[0] = url
    workers = [
        deploy.worker.Worker.startRpcEnvAndEndpoint(
            host,
            0,
            0,
            1,
            512,
            urls,
            str(folder / f"worker-{number}"),
            jvm.scala.Some(number),
            java_config,
            jvm.scala.Option.empty(),
        )
        for number, host in enumerate(HOSTS)
    ]
    SparkContext._gateway, SparkContext._jvm = gateway, jvm
    settings = {
        "spark.driver.host": HOSTS[0],
        "spark.driver.bindAddress": HOSTS[0],
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        # Those of Spark itself are no options of a Java process.
        "spark.executor.extraJavaOptions": " ".join(
            one for one in os.environ.get("SPARK_SUBMIT_OPTS", "").split() if not one.startswith("-Dspark.")
        ),
        **SPECULATION,
        **config,
    }
    spark = session(url, config=settings)
    try:
        yield spark
    finally:
        spark.stop()
        for each in (*workers, master):
            each.shutdown()
        end(spark)


def main(folder: Path, name: str) -> None:
    asked = changed(request(folder, "tests.spark.doomed:app"), name=name)
    with cluster(folder / "cluster") as spark:
        report = rebuild(asked, SparkEngine(spark))
    sys.stdout.write(f"{DONE}: {report.snapshot}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
