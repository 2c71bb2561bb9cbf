"""A Spark session that Tailrace works in: the right Java, this very Python, nothing open to the network.

A session of your own does as well: ``register(spark)`` is all that the data source needs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tailrace.core.errors import MissingExtraError, UnfitJavaError, UsageError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_TASK_LOGGERS = ("org.apache.spark.executor.Executor", "org.apache.spark.scheduler.TaskSetManager")


def session(
    master: str = "local[*]", *, name: str = "tailrace", config: Mapping[str, str] | None = None
) -> SparkSession:
    """The Spark session of this process, started if needed, with the data source ``tailrace``.

    An empty ``master`` is that of ``spark-submit``. ``config`` takes precedence over the settings made here. With a local master all traffic stays on the
    loopback. Workers run this Python interpreter and find the modules that this process finds.

    A local session tries a task once, so that an error in the data is reported at once. For a rebuild that
    must survive the death of a worker process, name more attempts: ``local[*,4]``.

    Raises:
        MissingExtraError: PySpark is not installed.
        UnfitJavaError: There is no Java that Spark can run on.
        UsageError: ``master`` is the URL of a Spark Connect server.
    """
    builder = _pyspark("pyspark.sql").SparkSession.builder
    context(master, name=name, config=config)
    for key, value in _settings(master, name, config).items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    register(spark)
    return spark


def context(
    master: str = "local[*]", *, name: str = "tailrace", config: Mapping[str, str] | None = None
) -> SparkContext:
    """The context of a ``session``, without SQL: enough for a rebuild, and seconds faster to start."""
    if master.startswith("sc://"):
        raise _connect_refused()
    pyspark = _pyspark("pyspark")
    check_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    given = pyspark.SparkConf().setAll(list(_settings(master, name, config).items()))
    found: SparkContext = pyspark.SparkContext.getOrCreate(given)
    found.setLogLevel("ERROR")
    if is_local(master) and "," not in str(found.master):
        _log_no_task(found)
    return found


def register(spark: SparkSession) -> None:
    """Register the data source ``tailrace`` in a session that you have made yourself.

    Raises UsageError: it is a session of Spark Connect.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise _connect_refused()
    from tailrace.spark.source import TailraceSource  # noqa: PLC0415 (PySpark is an extra)

    spark.dataSource.register(TailraceSource)


@contextmanager
def running(
    master: str = "local[*]", *, name: str = "tailrace", config: Mapping[str, str] | None = None
) -> Generator[SparkSession]:
    """A ``session`` that is stopped at the end, with its Java process and workers."""
    spark = session(master, name=name, config=config)
    try:
        yield spark
    finally:
        end(spark)


@contextmanager
def running_context(
    master: str = "local[*]", *, config: Mapping[str, str] | None = None
) -> Generator[SparkContext]:
    """A ``context`` that is stopped at the end, as ``running`` does with a session."""
    found = context(master, config=config)
    try:
        yield found
    finally:
        end(found)


def end(spark: SparkSession | SparkContext) -> None:
    """Stop Spark and wait for its Java process, which ``spark.stop()`` alone leaves behind."""
    from pyspark import SparkContext  # noqa: PLC0415 (PySpark is an extra)

    gateway = SparkContext._gateway
    spark.stop()
    if gateway is None:
        return
    process = getattr(gateway, "proc", None)
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    if process is not None:
        process.stdin.close()  # the gateway ends when nobody can speak to it any more
        process.wait()


def is_local(master: str) -> bool:
    """Whether a master runs on this machine alone."""
    return master.startswith("local")


def _connect_refused() -> UsageError:
    return UsageError(
        "Spark Connect is not supported: rebuilds use the SparkContext, which its clients do not have, and the data source is tested without it",
        hint='Use tailrace.spark.session("spark://host:7077") or session("local[*]").',
    )


def _log_no_task(context: SparkContext) -> None:
    """Leave the failure of a task to the query's exception: the log repeats it as a stack of Java."""
    jvm = cast("Any", context)._jvm.org.apache.logging.log4j
    for name in _TASK_LOGGERS:
        jvm.core.config.Configurator.setLevel(name, jvm.Level.OFF)


def _settings(master: str, name: str, config: Mapping[str, str] | None) -> dict[str, str]:
    settings = {
        "spark.app.name": name,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
    }
    if is_local(master):
        settings["spark.driver.host"] = settings["spark.driver.bindAddress"] = "127.0.0.1"
    if master:
        settings["spark.master"] = master
    return settings | dict(config or {})


def _pyspark(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"Spark is not installed: {error}", hint="pip install tailrace[spark]"
        ) from None


# --- Java

VECTOR = "jdk.incubator.vector"

_HINT = "Install a full JDK 17 or 21 (Debian: openjdk-17-jdk-headless), and set JAVA_HOME to its folder."
_ANSWER_S = 30.0


def check_java(environment: Mapping[str, str] | None = None) -> Path:
    """The ``java`` that Spark will start, checked: that of JAVA_HOME, or the first on the PATH.

    Spark 4 needs a JDK 17 or 21 with all of its modules. With a trimmed runtime it starts, and fails much later
    with a stack trace: such a runtime lacks the module ``jdk.incubator.vector``, which Spark requests by name.
    Raises UnfitJavaError: there is none, it does not start, is of another version, or lacks modules.
    """
    environment = os.environ if environment is None else environment
    java = _found(environment)
    modules = _modules(java, environment)
    version = modules.get("java.base", "8 or older")
    if VECTOR not in modules or re.match(r"(17|21)\b", version) is None:
        lacking = "" if VECTOR in modules else f" without the module {VECTOR}"
        raise UnfitJavaError(
            f"it is Java {version}{lacking}, and Spark needs a full JDK 17 or 21", java=str(java), hint=_HINT
        )
    return java


def _found(environment: Mapping[str, str]) -> Path:
    home = environment.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not java.is_file():
            raise UnfitJavaError(f"JAVA_HOME is {home!r}, and there is no bin/java in it", hint=_HINT)
        return java
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is None:
        raise UnfitJavaError("Spark needs Java, and none was found: JAVA_HOME is not set", hint=_HINT)
    return Path(on_path)


def _modules(java: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The modules of a Java by name, with their versions. Empty for a version without modules."""
    try:
        done = subprocess.run(  # noqa: S603 (it is the very program that Spark is about to start)
            [str(java), "--list-modules"],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ANSWER_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UnfitJavaError(
            f"it did not answer within {_ANSWER_S:.0f} s", java=str(java), hint=_HINT
        ) from None
    except OSError as error:
        raise UnfitJavaError(f"it does not start: {error.strerror}", java=str(java), hint=_HINT) from None
    found: dict[str, str] = {}
    for line in done.stdout.decode(errors="replace").splitlines():
        name, at, version = line.strip().partition("@")
        if at:
            found[name] = version.split()[0] if version.strip() else ""
    return found
