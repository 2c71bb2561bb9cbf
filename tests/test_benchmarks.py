"""Laws on the benchmarks: they run, their table is well formed, and what is compared does the same."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks import apps, loops, table
from benchmarks.drive import SLICE, Drive
from benchmarks.measure import Row
from benchmarks.run import Report

ROOT = Path(__file__).resolve().parent.parent
TARGETS = [
    "core only",
    "core only, beside a loop by hand",
    "a named timer moved per event",
    "two interleaved inputs",
    "a map entry changed per event",
    "RocksDB, a commit per second",
    "events of random keys",
    "peak memory",
    "harness",
]


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The printed table and the report of one quick run of everything."""
    out = tmp_path_factory.mktemp("out")
    command = [sys.executable, "-m", "benchmarks.run", "--quick", "--out", str(out)]
    path = os.pathsep.join(filter(None, (str(ROOT / "framework"), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, msgspec.json.decode((out / "benchmarks-quick.json").read_bytes(), type=Report)


def test_every_case_runs_and_each_line_of_the_table_is_whole(quick):
    printed, report = quick
    lines = printed.splitlines()
    assert len(lines) == len(report.rows) + 2
    assert {line.count("|") for line in lines} == {len(table.HEADINGS) + 1}
    assert len({len(line) for line in lines}) == 1
    assert all(
        row.measured > 0 and row.unit and (row.ratio is None) == (row.compared is None) for row in report.rows
    )


def test_every_target_is_in_the_table(quick):
    _, report = quick
    with_target = [row.case for row in report.rows if row.target]
    for name in TARGETS:
        assert any(case.endswith(name) for case in with_target), name


def test_a_quick_run_judges_nothing(quick):
    _, report = quick
    assert report.quick
    assert all(row.met is None for row in report.rows)


def test_the_loop_by_hand_makes_the_outputs_of_the_task():
    events = list(apps.events(5_000, apps.keys(50), per_ms=0.1, seed=3))
    by_hand: list[loops.Made] = []

    def keep(outputs: list[loops.Made]) -> None:
        by_hand.extend(outputs)
        outputs.clear()

    late = loops.encoding_loop(events, keep)
    drive = Drive(apps.counting)
    drive.task.run(0, drive.heads(events))
    made = [(one.topic, one.key, one.value, one.timestamp_ms) for one in drive.task.take_outputs()]
    assert made == by_hand
    assert drive.task.totals.late == late
    assert loops.bare_loop(events) == late


def test_merged_inputs_are_all_taken():
    events = list(apps.events(3 * SLICE, apps.keys(100)))
    drive = Drive(apps.joining)
    drive.merge((events[::2], events[1::2]))
    assert drive.task.totals.records == len(events)


def test_the_table_goes_between_the_marks_of_a_page():
    text = table.markdown([Row(case="a", measured=123_456.0, unit="events/s", target="1 or more", met=True)])
    page = table.replaced(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n", text)
    assert page.startswith("before\n")
    assert page.endswith("after\n")
    assert "| 123,000 events/s |" in page
    assert "old" not in page
    with pytest.raises(ValueError, match="has no"):
        table.replaced("a page", text)
