"""The progress of a rebuild: no part of it is reported as more than the whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.rebuilding.work_folder import UnitProgress, WorkFolder
from tailrace.processes.app_loading import find_app
from tests.history.rebuilding import lived
from tests.history.rebuilding.lived import TALLY, request


@pytest.mark.parametrize("order", ["tape", "stages"])
def test_it_never_passes_the_whole_and_ends_at_it(
    tmp_path: Path, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The app of tallies sends a message for each of its ticks: these are records, too."""
    lived.serve_tallies(tmp_path)
    reported = list[tuple[int, int]]()  # also those between which little time passes
    monkeypatch.setattr(
        WorkFolder, "report", lambda _, __, records, of, **___: reported.append((records, of))
    )
    rebuild(request(tmp_path, TALLY, order=order), LocalEngine(1))
    assert len(reported) > 1
    assert all(records <= of for records, of in reported)
    assert reported[-1][0] == reported[-1][1] > 0


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
