"""A driver that is killed between its last steps: when the snapshot is there, when half of the work folder
is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.core.engine.replay import Limits
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine, OnProgress
from tailrace.history.rebuilding.job import Job, Unit
from tailrace.history.rebuilding.results import UnitResult
from tailrace.history.rebuilding.work_folder import WorkFolder
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots import Snapshots
from tests.history.rebuilding import lived
from tests.history.rebuilding.lived import TALLY, live, rebuilt, request


class Killed(BaseException):
    pass


@pytest.fixture
def tally(tmp_path: Path) -> Path:
    lived.serve_tallies(tmp_path)
    return tmp_path


def jobs(folder: Path) -> list[Path]:
    return list((folder / "snapshots" / "tally" / "_work").glob("*/job"))


class Backwards(LocalEngine):
    """Its results come in another order."""

    def run(self, units: Sequence[Unit], on_progress: OnProgress) -> Iterator[UnitResult]:
        return super().run(units[::-1], on_progress)


def killed_at(monkeypatch: pytest.MonkeyPatch, what: type, name: str) -> None:
    def die(*_: Any, **__: Any) -> None:
        raise Killed

    monkeypatch.setattr(what, name, die)


def test_killed_when_the_snapshot_is_published_it_has_nothing_left_to_do(tally: Path, monkeypatch) -> None:
    asked = request(tally, until=Limits(watermark_ms=30))
    killed_at(monkeypatch, WorkFolder, "clear")
    with pytest.raises(Killed):
        rebuild(asked, Backwards(1))
    monkeypatch.undo()
    (made,) = Snapshots(asked.to.uri, "tally").list()
    assert len([note for note in made.notes if "ends within commit" in note]) > 1
    report = rebuild(asked, LocalEngine(1))
    assert (report.snapshot, report.replayed) == (made.id, 0)
    assert Snapshots(asked.to.uri, "tally").list() == [made]
    assert not jobs(tally)


def test_what_is_published_stays_where_the_rebuild_is_begun_anew(tally: Path, monkeypatch) -> None:
    asked = request(tally)
    killed_at(monkeypatch, WorkFolder, "clear")
    with pytest.raises(Killed):
        rebuild(asked, LocalEngine(1))
    monkeypatch.undo()
    (made,) = Snapshots(asked.to.uri, "tally").list()
    (place,) = jobs(tally)
    job = msgspec.msgpack.decode(place.read_bytes(), type=Job)
    place.write_bytes(
        msgspec.msgpack.encode(msgspec.structs.replace(job, code={"app version": "of yesterday"}))
    )
    report = rebuild(asked, LocalEngine(1))
    assert [one.id for one in Snapshots(asked.to.uri, "tally").list()] == [made.id, report.snapshot]


def test_what_is_left_of_a_folder_that_was_being_removed_is_of_no_use(tally: Path, monkeypatch) -> None:
    asked = request(tally)
    killed_at(monkeypatch, Snapshots, "publish")
    with pytest.raises(Killed):
        rebuild(asked, LocalEngine(1))
    monkeypatch.undo()
    (place,) = jobs(tally)
    place.unlink()
    lived.serve_tallies(tally, first_round=3)
    report = rebuild(asked, LocalEngine(1))
    assert not report.resumed
    snapshot = Snapshots(asked.to.uri, "tally").open(report.snapshot)
    assert rebuilt(snapshot) == live(tally, find_app(TALLY).plan())
