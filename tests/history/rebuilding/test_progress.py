"""The progress of a rebuild: no part of it is reported as more than the whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tailrace.history.rebuilding.canonical_unit import run_canonical
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine, OnProgress
from tailrace.history.rebuilding.job import Unit
from tailrace.history.rebuilding.past import opened_past
from tailrace.history.rebuilding.results import UnitResult
from tailrace.history.rebuilding.tape_unit import run_task
from tailrace.history.rebuilding.work_folder import UnitProgress, WorkFolder
from tailrace.processes.app_loading import find_app
from tests.history.rebuilding import lived
from tests.history.rebuilding.lived import TALLY, request

REPORTED: list[tuple[int, int]] = []


class Noting(WorkFolder):
    """Keeps every report, also those between which little time passes."""

    def report(self, unit: str, records: int, of: int, *, now: bool = False) -> None:
        REPORTED.append((records, of))


class OneByOne(LocalEngine):
    def run(self, units: Sequence[Unit], on_progress: OnProgress) -> Iterator[UnitResult]:
        run = {"task": run_task, "canonical": run_canonical}
        for unit in units:
            work = Noting(Path(unit.job.work))
            with opened_past(unit.job.request, find_app(unit.job.request.app).plan(), taped=False) as past:
                yield work.finish(unit, run[unit.kind](unit, past, work, "attempt"))


@pytest.mark.parametrize("order", ["tape", "canonical"])
def test_it_never_passes_the_whole_and_ends_at_it(tmp_path: Path, order: str) -> None:
    """The app of tallies sends a message for each of its ticks: these are records, too."""
    lived.serve_tallies(tmp_path)
    REPORTED.clear()
    rebuild(request(tmp_path, TALLY, order=order), OneByOne(1))
    assert len(REPORTED) > 1
    assert all(records <= of for records, of in REPORTED)
    assert REPORTED[-1][0] == REPORTED[-1][1] > 0


def test_along_the_tape_the_whole_is_known_before_the_last_partition_has_begun(tmp_path: Path) -> None:
    lived.serve_tallies(tmp_path)
    told: list[UnitProgress] = []
    report = rebuild(
        request(tmp_path, TALLY, order="tape"),
        LocalEngine(1),
        on_progress=lambda _stage, progress: told.append(progress),
    )
    assert len(told) >= find_app(TALLY).plan().partitions > 1
    assert {one.of for one in told} == {report.events}
    assert told[0].records < report.events == told[-1].records
