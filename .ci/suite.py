"""`make test`: lint, types, and the tests on every supported Python; all of it, whatever fails first.

The last line of output is always the count over all Pythons, `N passed, N failed`. A test that errors outside its body
counts as failed. Where CI is set, a Python that is missing and a test that is skipped are failures too.
"""

import argparse
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / ".reports"
WORKERS = "2"
MISSING = "no such Python on this machine"
MAIN_ONLY = (
    "tests/proof/test_mutations.py",  # whether the checks can fail
    "tests/spark/proof",  # the engine of Spark has tests of its own
    "tests/soak",
    "tests/months",
    "tests/log/embedded",
    "tests/test_benchmarks.py",
    "tests/services/test_demo_flights.py",
    "tests/services/test_flights_again.py",
    "tests/services/test_flights_year.py",
    "tests/docs/test_cookbook.py",
    "tests/docs/test_reference.py",
    "tests/docs/test_tutorial.py",
    "tests/runtime/test_housekeeping.py",
    "tests/state/snapshots/test_dying.py",
)
"""Tests that run on the main Python alone: what they check does not depend on its version."""

SAMPLED = {
    "tests/spark": ("test_session.py",),
    "tests/history/rebuilding": ("test_along_the_tape.py", "test_code.py"),
}
"""Folders of which the other Pythons run these files: they show that the parts work there, which the rest builds on."""


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


def run(*command: str, **environment: str) -> tuple[int, float]:
    """Exit status and duration in seconds of a command whose output goes straight to the terminal."""
    print(f"\n$ {' '.join(command)}", flush=True)
    start = time.monotonic()
    status = subprocess.run(command, cwd=ROOT, env=os.environ | environment, check=False).returncode
    return status, time.monotonic() - start


def make(target: str) -> Outcome:
    """A target of the Makefile as one stage, all its parts whatever fails first."""
    status, seconds = run("make", "--no-print-directory", "--keep-going", target)
    return Outcome(target, status == 0, seconds)


def tests(version: str, folder: str, seeds: int, *without: str, strict: bool) -> Outcome:
    """The test suite, but for some files, in the environment `folder`, which is made first if need be."""
    name = f"tests on Python {version}"
    status, setup_seconds = run("make", "--no-print-directory", f"{folder}/installed")
    if status != 0:
        return Outcome(name, ok=False, seconds=setup_seconds, remark="no environment")
    report = REPORTS / f"tests-{version}.xml"
    report.unlink(missing_ok=True)
    status, seconds = run(
        f"{folder}/bin/python", "-m", "pytest", "-q", "-n", WORKERS, "--dist", "worksteal",
        f"--junitxml={report.relative_to(ROOT)}", *(f"--ignore={one}" for one in without),
        TAILRACE_SEEDS=str(seeds),
    )  # fmt: skip
    passed, failed, skipped = counts(report)
    remark = f"{skipped} skipped" if skipped else ""
    ok = status == 0 and failed == 0 and passed > 0 and not (strict and skipped)
    return Outcome(name, ok, setup_seconds + seconds, passed, failed, remark)


def counts(report: Path) -> tuple[int, int, int]:
    """Passed, failed and skipped tests of a JUnit report; an expected failure is none of them."""
    if not report.exists():
        return 0, 0, 0
    cases = list(ET.parse(report).getroot().iter("testcase"))
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    kinds = [skip.get("type") for case in cases if (skip := case.find("skipped")) is not None]
    return len(cases) - failed - len(kinds), failed, len(kinds) - kinds.count("pytest.xfail")


def main_only() -> list[str]:
    """What the other Pythons leave out."""
    left_out = [
        str(path.relative_to(ROOT))
        for folder, kept in SAMPLED.items()
        for path in sorted((ROOT / folder).iterdir())
        if path.name.startswith("test_") and path.name not in kept
    ]
    return [*MAIN_ONLY, *left_out]


def slow() -> list[str]:
    """What `make quick` leaves out beside that: other processes, Spark, and history run again."""
    return [
        *main_only(),
        "tests/spark",
        "tests/history/rebuilding",
        "tests/runtime/test_worker_process.py",
        "tests/services",
        "tests/proof/test_laws.py",
        "tests/runtime/test_rekeyed_join.py",
    ]


def found(version: str) -> bool:
    """Whether a Python of this version is on this machine."""
    find = [str(ROOT / ".ci" / "environment"), "--find", version]
    return subprocess.run(find, capture_output=True, check=False).returncode == 0


def main() -> int:
    """Run every stage and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, required=True, help="on the main Python")
    parser.add_argument("--seeds-others", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="the main Python alone, without what takes long")
    parser.add_argument("versions", nargs="*", metavar="VERSION")
    options = parser.parse_args()
    strict = os.environ.get("CI", "").lower() not in {"", "0", "false"}
    main_version = f"{sys.version_info.major}.{sys.version_info.minor}"
    REPORTS.mkdir(exist_ok=True)

    if options.quick:
        return 0 if tests(main_version, ".venv", options.seeds, *slow(), strict=strict).ok else 1
    outcomes = [make("lint"), make("types"), tests(main_version, ".venv", options.seeds, strict=strict)]
    for version in options.versions:
        if version == main_version:
            continue
        if found(version):
            outcomes.append(
                tests(version, f".venv-{version}", options.seeds_others, *main_only(), strict=strict)
            )
        else:
            outcomes.append(Outcome(f"tests on Python {version}", not strict, seconds=0, remark=MISSING))

    print()
    for outcome in outcomes:
        print(f"{outcome.verdict:9}{outcome.name:22}{outcome.seconds:6.0f} s   {outcome.remark}".rstrip())
    print(f"{sum(o.passed for o in outcomes)} passed, {sum(o.failed for o in outcomes)} failed", flush=True)
    return 0 if all(outcome.ok for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
