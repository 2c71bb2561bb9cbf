"""`make test`: lint, types, and the tests on every supported Python; all of it, whatever fails first.

Lint, types and the other environments are made beside the tests on the main Python. Then the other Pythons run theirs, at the same
time. The tests of all rooms share a Kafka broker.

The last line of output is always the count over all Pythons, `N passed, N failed`. A test that errors outside its body
counts as failed. Where CI is set, a Python that is missing and a test that is skipped are failures too.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / ".reports"
JOBS = "2"
WORKERS = 4
"""Of the tests, twice the cores of a small machine: many tests wait for processes that start, brokers and groups. Each worker takes some
ten seconds of a core to collect the tests, and more if it needs a Spark of its own.
"""
WORKERS_BESIDE = 2
"""Of the tests on each of several Pythons at the same time."""
MEMORY = Path("/dev/shm")
MEMORY_BYTES = 12 << 30
COMPILED = ("framework", "services", "schemas", "tests", "benchmarks")
IMPORTED_LATER = (
    "boto3",
    "ipykernel.kernelapp",
    "moto.server",
    "nbclient",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "pyiceberg.catalog.sql",
    "pyspark.ml",
    "pyspark.worker",
)
"""What the processes of tests import, and no file of tests when it is collected."""
MISSING = "no such Python on this machine"
OTHERS = ("tests/core", "tests/library", "tests/typing")
"""What the other Pythons run: declarations, code objects, values and their schemas, hashes and their order, types. All else is the same
code on top of that, and runs on the main Python. `make nightly` runs all tests on each.
"""
NIGHTLY = ("-m", "nightly or not nightly")
NOT_NIGHTLY = ("-m", "not nightly")

QUICK = (
    *("tests/broadcast", "tests/cli", "tests/core", "tests/graph", "tests/history", "tests/library", "tests/log", "tests/oracle"),
    *("tests/proof", "tests/schemas", "tests/state", "tests/testing", "tests/test_documentation.py", "tests/test_repository.py"),
)  # fmt: skip
NOT_QUICK = (
    "tests/cli/test_rebuild.py",
    "tests/cli/test_replay.py",
    "tests/cli/test_run.py",
    "tests/cli/test_script.py",
    "tests/history/rebuilding",
    "tests/history/test_reshaping.py",
    "tests/history/test_starting_process.py",
    "tests/log/embedded/test_processes.py",
    "tests/proof/test_mutations.py",
    "tests/proof/test_simulation.py::test_struck_at_every_operation_two_tasks_that_send_one_another_messages_lose_and_repeat_nothing",
    "tests/state/snapshots/test_dying.py",
    "tests/state/snapshots/test_outages.py",
    "tests/state/snapshots/test_places.py",
    "tests/testing/exploring/test_exploration.py",
)
"""What `make quick` runs: the rooms whose tests compute and start nothing, without the few that start processes after all, or take long."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One line of the summary; a stage that ran no tests counts none."""

    name: str
    ok: bool
    seconds: float
    passed: int = 0
    failed: int = 0
    remark: str = ""

    @property
    def verdict(self) -> str:
        """The word at the head of the line; a stage that was let off has not been passed."""
        if not self.ok:
            return "FAILED"
        return "NOT RUN" if self.remark == MISSING else "ok"


def run(*command: str, beside: bool = False, **environment: str) -> tuple[int, float]:
    """Exit status and duration in seconds of a command. Its output goes straight to the terminal, but at its end if others run beside."""
    typed = f"\n$ {' '.join(command)}"
    if not beside:
        print(typed, flush=True)
    start = time.monotonic()
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE if beside else None,
        stderr=subprocess.STDOUT if beside else None,
        text=True,
        check=False,
    )
    if beside:
        print(f"{typed}\n{done.stdout}", flush=True)
    return done.returncode, time.monotonic() - start


def checks(folders: Sequence[str]) -> Outcome:
    """Lint and types, and the environments that are needed later: two at a time, all of it whatever fails first.

    It runs beside the tests, so what it says is printed at its end.
    """
    environments = [f"{folder}/installed" for folder in folders]
    command = [
        "make", "--no-print-directory", "--keep-going", "--jobs", JOBS, "--output-sync=target",
        "types", "lint", *environments,
    ]  # fmt: skip
    status, seconds = run(*command, beside=True)
    return Outcome("lint and types", status == 0, seconds)


def tests(version: str, folder: str, seeds: int, *which: str, strict: bool, beside: bool) -> Outcome:
    """Tests in the environment `folder`, which is made first if need be. `which`: rooms, or options of pytest that leave some out.

    Rooms that are named start no processes: they need no broker, and little is compiled.
    """
    workers = WORKERS_BESIDE if beside else WORKERS
    name = f"tests on Python {version}"
    status, setup_seconds = run("make", "--no-print-directory", f"{folder}/installed", beside=beside)
    if status != 0:
        return Outcome(name, ok=False, seconds=setup_seconds, remark="no environment")
    python = f"{folder}/bin/python"
    whole = not any(one.startswith("tests/") for one in which)
    if whole:
        setup_seconds += compile_all(python, which)
    broker = [python, "-m", "tests.kafka.broker"] if whole else []
    report = REPORTS / f"tests-{version}.xml"
    report.unlink(missing_ok=True)
    with files_of_tests() as files:
        status, seconds = run(
            *broker, python, "-m", "pytest", "-q", "-n", str(workers), "--dist", "worksteal",
            f"--junitxml={report.relative_to(ROOT)}", *which,
            beside=beside, TAILRACE_SEEDS=str(seeds), TMPDIR=files, PYTHONDONTWRITEBYTECODE="",
        )  # fmt: skip
    passed, failed, skipped = counts(report)
    remark = f"{skipped} skipped" if skipped else ""
    ok = status == 0 and failed == 0 and passed > 0 and not (strict and skipped)
    return Outcome(name, ok, setup_seconds + seconds, passed, failed, remark)


def compile_all(python: str, which: Sequence[str]) -> float:
    """Write all bytecode once, also where the machine does not let Python keep any. How many seconds it took.

    Many tests start processes, and each would compile what it imports. pytest compiles the tests in a way of its own, and each of its
    workers would do so. Of what is installed, which is not compiled before, this compiles what is imported: a fifth. An error is left to
    the tests, which find it again.
    """
    start = time.monotonic()
    commands = (
        [python, "-m", "compileall", "-q", *COMPILED],
        [python, "-m", "pytest", "-q", "--collect-only", *which],
        [python, "-c", f"import {', '.join(IMPORTED_LATER)}"],
    )
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
    running = [
        subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for command in commands
    ]
    for one in running:
        one.wait()
    return time.monotonic() - start


@contextmanager
def files_of_tests() -> Generator[str]:
    """A folder for what the tests write: in memory if there is plenty, as they wait for the disk more than they compute.

    Nothing is lost by it. The tests kill processes and not machines, and a file in memory outlives its process, too.
    """
    try:
        plenty = min(shutil.disk_usage(MEMORY).free, available_bytes()) > MEMORY_BYTES
    except OSError:
        plenty = False
    with TemporaryDirectory(
        prefix="tests-", dir=MEMORY if plenty else None, ignore_cleanup_errors=True
    ) as folder:
        Path(folder).chmod(0o711)  # some tests work as another user
        yield folder


def available_bytes() -> int:
    """The memory that the system can give without swapping."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def counts(report: Path) -> tuple[int, int, int]:
    """Passed, failed and skipped tests of a JUnit report; an expected failure is none of them."""
    if not report.exists():
        return 0, 0, 0
    cases = list(ET.parse(report).getroot().iter("testcase"))
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    kinds = [skip.get("type") for case in cases if (skip := case.find("skipped")) is not None]
    return len(cases) - failed - len(kinds), failed, len(kinds) - kinds.count("pytest.xfail")


def quick() -> list[str]:
    """What `make quick` runs, as arguments of pytest."""
    gone = [one for one in (*QUICK, *NOT_QUICK) if not (ROOT / one.partition("::")[0]).exists()]
    if gone:
        sys.exit(f"what .ci/suite.py names is not there: {', '.join(gone)}")
    return [*QUICK, *(f"--{'deselect' if '::' in one else 'ignore'}={one}" for one in NOT_QUICK)]


def found(version: str) -> bool:
    """Whether a Python of this version is on this machine."""
    find = [str(ROOT / ".ci" / "environment"), "--find", version]
    return subprocess.run(find, capture_output=True, check=False).returncode == 0


def main() -> int:
    """Run every stage and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, required=True, help="on the main Python")
    parser.add_argument("--seeds-others", type=int, default=0)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--quick", action="store_true", help="the main Python alone, and what computes")
    which.add_argument(
        "--nightly", action="store_true", help="all tests on each Python, and those marked as nightly"
    )
    parser.add_argument("versions", nargs="*", metavar="VERSION")
    options = parser.parse_args()
    strict = os.environ.get("CI", "").lower() not in {"", "0", "false"}
    main_version = f"{sys.version_info.major}.{sys.version_info.minor}"
    REPORTS.mkdir(exist_ok=True)

    if options.quick:
        outcome = tests(
            main_version, ".venv", options.seeds, *NOT_NIGHTLY, *quick(), strict=strict, beside=False
        )
        return 0 if outcome.ok else 1
    selected = NIGHTLY if options.nightly else NOT_NIGHTLY
    on_others = NIGHTLY if options.nightly else (*NOT_NIGHTLY, *OTHERS)
    others = [version for version in options.versions if version != main_version]
    present = {version: f".venv-{version}" for version in others if found(version)}
    with ThreadPoolExecutor(1) as beside:
        checked = beside.submit(checks, list(present.values()))
        on_main = tests(main_version, ".venv", options.seeds, *selected, strict=strict, beside=False)

    def on_other(version: str) -> Outcome:
        if version not in present:
            return Outcome(f"tests on Python {version}", not strict, seconds=0, remark=MISSING)
        folder, seeds = present[version], options.seeds_others
        return tests(version, folder, seeds, *on_others, strict=strict, beside=True)

    with ThreadPoolExecutor() as beside:
        outcomes = [checked.result(), on_main, *beside.map(on_other, others)]

    print()
    for outcome in outcomes:
        print(f"{outcome.verdict:9}{outcome.name:22}{outcome.seconds:6.0f} s   {outcome.remark}".rstrip())
    print(f"{sum(o.passed for o in outcomes)} passed, {sum(o.failed for o in outcomes)} failed", flush=True)
    return 0 if all(outcome.ok for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
