"""Along the tape, rows are compared with the service's: code whose state differs is refused, however alike its counts and outputs are."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from tailrace.core import rows
from tailrace.core.errors import ReplayDivergedError, SnapshotMismatchError
from tailrace.history.reading.stretches import batches
from tailrace.history.rebuilding import recorded_rows
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.past import HistorySource, opened_past
from tailrace.history.rebuilding.results import StateFiles
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import TopicPartition
from tailrace.processes.app_loading import find_app
from tests.history.rebuilding import lived, shops
from tests.history.rebuilding.lived import TALLY, TaskState, done, live, opened, rebuilt, request
from tests.history.rebuilding.struck_engines import During

SHOPS = "tests.history.rebuilding.shops:app"


@pytest.fixture
def sold(tmp_path: Path) -> Path:
    lived.append(tmp_path, shops.sales(60), {"sales": 2})
    lived.live_on(tmp_path, SHOPS)
    return tmp_path


@pytest.mark.parametrize("keys", [(), ("shop-1", "shop-2")])
def test_code_that_stores_something_else_is_refused(
    sold: Path, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...]
) -> None:
    report, _ = done(sold, SHOPS, keys=keys)
    assert report.same_rows == report.rows + 2  # each partition has a schema, too
    said = f"{report.rows + 2:,} rows compared with the service's, the schema of each partition included: "
    assert f"{said}all equal, byte for byte; the outputs of each commit are equal, too" in report.lines()
    monkeypatch.setenv("SHOPS_WRONG", "stores")
    with pytest.raises(
        ReplayDivergedError, match=r"not what the service has stored \(Shop 'shop-.*--order stages"
    ):
        done(sold, SHOPS, keys=keys)
    report, snapshot = done(sold, SHOPS, order="stages")
    assert {one.changelog_position for one in snapshot.manifest.tasks} == {None}
    (sold / "state").rename(sold / "away")
    with pytest.raises(SnapshotMismatchError, match="has a history of its own"):
        lived.live_on(sold, SHOPS, from_snapshot=f"{sold / 'snapshots'}")


def test_it_is_known_though_the_service_has_gone_on_and_its_changelog_was_compacted(tmp_path: Path) -> None:
    lived.serve_tallies(tmp_path)
    then = live(tmp_path, find_app(TALLY).plan())
    asked = request(tmp_path)

    def live_on(_: object) -> None:
        lived.serve_tallies(tmp_path, 20, 1, first_round=3)
        with closing(EmbeddedLog(tmp_path / "log", create=False)) as log:
            log.clean()

    report = rebuild(asked, During(live_on))
    assert rebuilt(opened(asked, report)) == then
    assert report.same_rows == report.rows + 4
    with opened_past(asked, find_app(TALLY).plan(), taped=True) as past:
        gone = [
            row
            for number in range(4)
            for row, _ in then[number].rows
            if row not in _below(past, then, number)
        ]
    assert gone, "nothing was compacted away: the test shows nothing"


def _below(past: HistorySource, then: list[TaskState], number: int) -> set[bytes | None]:
    """The rows that the changelog still names below where the task stood."""
    place = TopicPartition(past.plan.changelog_topic, number)
    return {one.key for some in batches(past.log, *place, stop=then[number].position) for one in some}


@pytest.mark.parametrize("at_once", [3, 1_000])
@pytest.mark.parametrize(
    ("wrong", "schema", "different"), [(False, None, 0), (True, None, 3), (False, b"another", 0)]
)
def test_a_row_too_many_one_too_few_and_one_that_differs_are_found(
    sold: Path,
    at_once: int,
    wrong: bool,
    schema: bytes | None,
    different: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorded_rows, "_AT_ONCE", at_once)
    plan = find_app(SHOPS).plan()
    (task, _), made = live(sold, plan), list[tuple[bytes, bytes]]()
    altered, dropped = Random(7).sample(range(len(task.rows)), 2)
    for at, (row, value) in enumerate(task.rows):
        if not wrong or at != dropped:
            made.append((row, value + b"\x00" * (wrong and at == altered)))
    if wrong:
        made.append((rows.key_prefix(task.rows[0][0]) + b"m" + b"none\x00", b"-"))
    files = StateFiles(schema=schema or task.schema or b"", rows=len(task.rows))
    with opened_past(request(sold, SHOPS), plan, taped=True) as past:
        if different:
            with pytest.raises(ReplayDivergedError, match=f"{different} rows are not what"):
                recorded_rows.compare_rows(past, 0, task.position, files, lambda: made)
            return
        compared = recorded_rows.compare_rows(past, 0, task.position, files, lambda: made)
    assert compared.same == (0 if schema else len(task.rows) + 1)
    assert ("rows have another form" in compared.note) == bool(schema)
