"""Settings of the property tests, and fixtures for all tests.

TAILRACE_SEEDS is the number of seeds (`make test`: 100 on one Python, 10 on the others; `make fuzz`: many more), and
TAILRACE_FIRST_SEED is the first of them. All randomness in a test comes from such a seed or from Hypothesis.

A property test runs all seeds if one takes less than about 10 ms. Slower tests have `@pytest.mark.one_seed_in(n)` and run only
every n-th seed, so that they take at most about a second with 100 seeds.
"""

import gc
import logging
import os
import resource
import signal
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from tailrace.log.embedded import EmbeddedLog
from tests.messages import pytest_addoption, pytest_collection_finish, refused, says
from tests.order import long_first

__all__ = ["pytest_addoption", "pytest_collection_finish", "refused", "says"]

# A thousand seeds on real files need more open files than a low default limit allows.
MOST_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_FILES, MOST_FILES))

# A test's Spark lives for seconds. Without the optimizing compiler its Java takes half of the processor time, and an eighth less if it
# does not verify the classes of Spark's jars. Commands that start a Spark have small tables, too: few partitions, no generated code.
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote "
    "-Dspark.sql.shuffle.partitions=2 -Dspark.sql.codegen.wholeStage=false",
)

# Tests started in the background of a shell ignore Ctrl-C, and so do their child processes. Some tests send it to these.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SEEDS = int(os.environ.get("TAILRACE_SEEDS", "100"))
FIRST_SEED = int(os.environ.get("TAILRACE_FIRST_SEED", "0"))
SEEDS_PER_TEST = 50  # the length of a range of seeds: short, so that workers share them
FEWEST_PER_TEST = 10  # and of so many that are run: a test may ask that faults have struck, on average
FUZZING = SEEDS > 1000

WAITING = (
    *("tests/test_benchmarks.py", "tests/kafka", "tests/registry/test_registry.py"),
    *("tests/soak", "tests/services", "tests/spark"),
)
"""What waits for other processes. One worker of pytest-xdist begins with it, the others compute meanwhile, and what is left for the
end are short tests, which are shared out well."""

# The suite draws the same examples each time, so a failure is caused by a change; `make fuzz` searches for new ones.
settings.register_profile(
    "suite",
    max_examples=max(10, SEEDS // 10),
    deadline=None,  # a shared machine stalls at times
    derandomize=not FUZZING,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[one for one in Phase if one is not Phase.shrink or "TAILRACE_MUTATED" not in os.environ],
)
settings.load_profile("suite")


_LINES = 12


class FailuresAtOnce:
    """Prints the name of a test when it fails, and the last lines of why, as a run that is stopped does not come to the summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._reporter: Any = config.pluginmanager.get_plugin("terminalreporter")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            why = "\n".join(report.longreprtext.splitlines()[-_LINES:])
            self._reporter.write_line(
                f"\nfailed: {report.nodeid} ({report.when}, {report.duration:.0f} s)\n{why}"
            )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """See ``FailuresAtOnce``; the workers of pytest-xdist report to the main process, which has them all."""
    if "PYTEST_XDIST_WORKER" not in os.environ and os.environ.get("CI"):
        config.pluginmanager.register(FailuresAtOnce(config))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage meanwhile, and never look again at what is there then: tests and modules, which stay. It saves a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with an argument `seeds: range` once for each range of seeds. The test loops over them itself."""
    if "seeds" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("one_seed_in")
        step: int = marker.args[0] if marker else 1
        span = max(FEWEST_PER_TEST, SEEDS_PER_TEST // step) * step
        stop = FIRST_SEED + SEEDS
        stretches = [range(at, min(at + span, stop), step) for at in range(FIRST_SEED, stop, span)]
        metafunc.parametrize("seeds", stretches, ids=[f"{s.start}-{s.stop - 1}" for s in stretches])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that run many seeds as `property`. In workers of pytest-xdist, put those first that are marked as `long`."""
    for item in items:
        if item.get_closest_marker("hypothesis") or "seeds" in getattr(item, "fixturenames", ()):
            item.add_marker("property")
    if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
        long = [item for item in items if item.get_closest_marker("long")]
        others = [item for item in items if not item.get_closest_marker("long")]
        others.sort(key=lambda item: not item.nodeid.startswith(WAITING))
        items[:] = long_first(long, others, workers)


@pytest.fixture(autouse=True)
def _logs_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the logs that a test has left open to simulate a crash: each holds one open file per segment."""
    opened: list[EmbeddedLog] = []
    original = EmbeddedLog.__init__

    def init(self: EmbeddedLog, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        opened.append(self)

    monkeypatch.setattr(EmbeddedLog, "__init__", init)
    yield
    for log in opened:
        log.close()


@pytest.fixture
def quiet_logs() -> Iterator[None]:
    """The handlers and the level of the root logger as they were: a command that runs in this process sets up its logs."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in before:
        if handler not in root.handlers:
            root.addHandler(handler)
    root.setLevel(level)
