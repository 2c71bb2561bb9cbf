"""Laws on the benchmarks: they run, their table is well formed, and what is compared does the same."""

import os
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks import apps, event_kinds, loops, table
from benchmarks.drive import SLICE, Drive
from benchmarks.measure import Row
from benchmarks.run import Report, main
from benchmarks.served.bare import OUT, BareLoop
from benchmarks.served.costs import PARTS, costs
from benchmarks.served.house import House, endless
from benchmarks.served.service import BenchmarkError, group_tasks
from tailrace.core.engine.task import Task
from tailrace.history.reading.stretches import scan

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"


def targets(marks: table.Marks) -> set[str]:
    """The cases of a table of the page that have a target, without the part that says how much data they have."""
    lines = PAGE.read_text("utf-8").partition(marks.begin)[2].partition(marks.end)[0].splitlines()[3:]
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    return {short(case) for _, case, target, *_ in cells if target}


def short(case: str) -> str:
    return re.sub(r"[\d,]+", "N", case.rpartition(": ")[2])


def run(temporary, *arguments):
    """The benchmarks as a process. What they print."""
    command = [sys.executable, "-m", "benchmarks.run", "--quick", *arguments]
    path = os.pathsep.join(filter(None, (str(ROOT / "framework"), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(temporary)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The rows of every case, on little data, and the temporary folder; all in one process, which saves seconds."""
    temporary = tmp_path_factory.mktemp("temporary")
    return msgspec.json.decode(run(temporary, "--here"), type=list[Row]), temporary


@pytest.mark.nightly
def test_every_case_runs_and_gives_whole_rows(quick):
    rows, _ = quick
    assert all(
        row.measured > 0 and row.unit and (row.ratio is None) == (row.compared is None) for row in rows
    )
    assert len({row.case for row in rows}) == len(rows)


@pytest.mark.nightly
def test_every_target_is_in_the_table(quick):
    rows, _ = quick
    assert {short(row.case) for row in rows if row.target} >= targets(table.SERVED)


@pytest.mark.nightly
def test_a_quick_run_judges_nothing(quick):
    rows, _ = quick
    assert all(row.met is None for row in rows)


@pytest.mark.nightly
@pytest.mark.long
def test_rebuilds_and_snapshots_are_measured_beside_what_they_have_to_beat(tmp_path):
    rows = msgspec.json.decode(run(tmp_path, "--spark", "--here"), type=list[Row])
    assert all(row.measured > 0 and row.unit and row.met is None for row in rows)
    assert {short(row.case) for row in rows if row.target} >= targets(table.SPARK)
    assert sum(bool(row.compared and row.ratio) for row in rows) >= 5
    assert list(tmp_path.iterdir()) == []
    assert [line for line in command_lines() if str(tmp_path) in line] == []


@pytest.mark.nightly
def test_nothing_is_left_of_what_was_started(quick):
    _, temporary = quick
    assert list(temporary.iterdir()) == []
    assert [line for line in command_lines() if str(temporary) in line] == []


def command_lines():
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield (entry / "cmdline").read_text(errors="replace")
            except OSError:
                continue  # it has ended meanwhile


@pytest.mark.long
def test_cases_in_processes_of_their_own_make_a_whole_table_and_a_report(tmp_path):
    lines = run(tmp_path, "core", "log", "--out", tmp_path / "out").splitlines()
    report = msgspec.json.decode((tmp_path / "out" / "benchmarks-quick.json").read_bytes(), type=Report)
    assert report.quick
    assert len(lines) == len(report.rows) + 2 > 2
    assert {line.count("|") for line in lines} == {len(table.HEADINGS) + 1}
    assert len({len(line) for line in lines}) == 1


def test_the_loop_over_the_log_makes_the_outputs_of_the_worker():
    with House(apps.counting) as house, house.start("benchmarks.apps:counting", 50) as service:
        house.take(service, islice(endless(50), 2_000), "totals")
        assert BareLoop(house.log, 50).run() == 2_000
        by_worker, by_hand = (
            [(one.key, one.value, one.timestamp_ms) for one in scan(house.log, topic, 0)]
            for topic in ("totals", OUT)
        )
    assert len(by_hand) == 2_000
    assert by_worker == by_hand


def test_the_parts_of_a_worker_make_up_its_costs():
    original = Task.run
    worker, by_hand = costs(1_000, 50, 1)
    assert Task.run is original
    assert {name for _, _, name in PARTS} < worker.keys()
    for of_one in (worker, by_hand):
        in_all = of_one.pop("in all")
        assert min(of_one.values()) >= 0
        assert sum(of_one.values()) == pytest.approx(in_all)


def test_a_service_that_ends_is_not_waited_for():
    with (
        House(apps.counting) as house,
        house.start("benchmarks.apps:no_such_app", 50) as service,
        pytest.raises(BenchmarkError, match="no_such_app"),
    ):
        service.wait_for_partitions(1)


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


def test_two_actors_on_one_input_each_take_all_of_it():
    events = list(apps.events(2_000, apps.keys(50)))
    drive = Drive(apps.sharing)
    drive.task.run(0, drive.heads(events))
    made = [one.topic for one in drive.task.take_outputs()]
    assert made == ["one-totals", "other-totals"] * len(events)


def test_a_payment_reaches_its_order_and_the_watermark_follows():
    names, count = apps.keys(50), SLICE + 1_000
    orders, payments = list(apps.events(count, names)), list(apps.paying(count, names))
    drive = Drive(apps.rekeying)
    number_of = {one.name: one.index for one in drive.task.plan.inputs}
    drive.rejoin(((number_of["orders"], orders), (number_of["payments"], payments)), number_of["paid"])
    assert drive.task.totals.records == 3 * count
    assert drive.task.totals.late == 0
    assert drive.task.totals.outputs == 2 * count
    of_orders, of_payments = (max(one.at for one in events) - 1_001 for events in (orders, payments))
    assert drive.task.watermark == min(of_orders, of_payments)


def test_the_table_goes_between_the_marks_of_a_page():
    rows = [Row(case="a", measured=123_456.0, unit="events/s", target="1 or more", met=True)]
    page = table.replaced(
        f"before\n{table.SERVED.begin}\nold\n{table.SERVED.end}\nafter\n", rows, table.SERVED, whole=True
    )
    assert page.startswith("before\n")
    assert page.endswith("after\n")
    assert "| 123,000 events/s |" in page
    assert "old" not in page
    with pytest.raises(ValueError, match="has no"):
        table.replaced("a page", rows, table.SERVED, whole=True)


def test_some_cases_replace_their_lines_of_the_table_only():
    def rows(measured: float, *names: str) -> list[Row]:
        return [Row(case=name, measured=measured, unit="events/s", note="of it") for name in names]

    page = table.replaced(
        f"{table.SERVED.begin}\n{table.SERVED.end}", rows(100, "a", "b"), table.SERVED, whole=True
    )
    page = table.replaced(page, rows(200_000, "b", "c"), table.SERVED, whole=False)
    assert page == table.replaced(page, [*rows(100, "a"), *rows(200_000, "b", "c")], table.SERVED, whole=True)


@pytest.mark.parametrize("told", [["rebuild"], ["core", "--spark"]])
def test_a_case_does_not_go_into_the_table_of_the_others(told, capsys):
    with pytest.raises(SystemExit):
        main([*told, "--write-docs"])
    assert f"{told[0]}: not in this table of the page" in capsys.readouterr().err


def test_every_kind_of_event_is_measured_in_the_same_way() -> None:
    measured = event_kinds.measure(count=200, repeats=1)
    assert list(measured) == list(event_kinds.KINDS)
    shown = event_kinds.table(measured).splitlines()
    assert len(shown) == 2 + len(event_kinds.KINDS)
    assert all(line.count("|") == 5 for line in shown)


def test_a_copy_of_a_task_that_is_owned_again_does_not_count() -> None:
    copy = "a standby has the state of a task"
    lines: list[dict[str, Any]] = [{"message": "the first line"}]
    lines += [{"message": copy, "partition": number} for number in range(4)]
    assert group_tasks(lines) == (set(), {0, 1, 2, 3})
    lines.append({"message": "tasks were given to this process", "partitions": [1, 3]})
    assert group_tasks(lines) == ({1, 3}, {0, 2})
    lines.append({"message": "tasks were given back", "partitions": [1]})
    assert group_tasks(lines) == ({3}, {0, 2})
    lines.append({"message": copy, "partition": 1})
    assert group_tasks(lines) == ({3}, {0, 1, 2})
