"""What retention deletes before an app has read it is told of, whether the app's task has ever committed or not."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tailrace.core.errors import OffsetGoneError
from tailrace.history.reading.stretches import scan
from tailrace.log.archive import Archive, archive_log
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import TopicPartition
from tailrace.processes.app_loading import find_app
from tailrace.runtime.first_positions import first_positions
from tailrace.runtime.preparing import prepare_log
from tailrace.state.snapshots import Place
from tests.cli.commands import TO_THE_END, at
from tests.cli.commands import done as command
from tests.cli.commands import run as attempt
from tests.history.rebuilding import lived, sharing
from tests.history.rebuilding.lived import live
from tests.history.rebuilding.sharing import Order, counted, ids

LEDGER = "tests.history.rebuilding.sharing:ledger"
PLAN = find_app(LEDGER).plan()


def order(folder: Path, first: int, count: int) -> None:
    found = [
        Order("abcdef"[number % 6], 1_000 + 10 * number, 1, number) for number in range(first, first + count)
    ]
    lived.append(folder, [sharing.record(one) for one in found], {"orders": 2})


@contextmanager
def opened(folder: Path) -> Generator[EmbeddedLog]:
    with closing(EmbeddedLog(folder / "log")) as log:
        yield log


def delete(folder: Path, up_to: int, *partitions: int) -> None:
    with opened(folder) as log:
        for number in partitions:
            log.delete_before("orders", number, up_to)


def run(folder: Path, app: str = LEDGER, *, after_deleted: bool = False) -> None:
    lived.live_on(folder, app, after_deleted=after_deleted)


def declare(folder: Path) -> None:
    command("topics", "apply", "--app", LEDGER, "--log", folder / "log")


def kept(folder: Path) -> dict[str, list[int]]:
    """What the log holds now, each event once, by plain reading."""
    with opened(folder) as log:
        return counted(one for number in range(2) for one in sharing.originals(scan(log, "orders", number)))


def of_service(folder: Path) -> dict[str, list[int]]:
    return ids(live(folder, PLAN))


def test_a_declared_app_whose_unread_records_were_deleted_does_not_start_in_silence(tmp_path: Path) -> None:
    declare(tmp_path)
    order(tmp_path, 0, 60)
    delete(tmp_path, 7, 1)
    with pytest.raises(
        OffsetGoneError, match=r"offsets 0 to 6 of 'orders' partition 1.*--after-deleted"
    ) as caught:
        run(tmp_path)
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("orders", 1, 0)
    said = attempt("run", LEDGER, *at(tmp_path), *TO_THE_END)
    assert said.code == 1
    assert "offsets 0 to 6 of 'orders' partition 1" in said.err
    run(tmp_path, after_deleted=True)
    assert of_service(tmp_path) == kept(tmp_path)
    order(tmp_path, 60, 10)
    run(tmp_path)  # it has committed where it goes on
    assert of_service(tmp_path) == kept(tmp_path)


def test_a_started_app_whose_task_has_not_committed_is_told_what_was_deleted(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        prepare_log(log, PLAN, create_declared=True)  # as every start does, before there is a task
    order(tmp_path, 0, 30)
    with opened(tmp_path) as log:
        log.set_retention("orders", retention_ms=1_000, retention_bytes=None)
        log.clean()
        assert log.start_offset("orders", 0) > 0, "nothing was deleted, so nothing is tested"
    with pytest.raises(OffsetGoneError, match="has deleted offsets 0 to "):
        run(tmp_path)


def test_a_service_that_is_behind_what_is_left_says_how_to_go_on_and_its_history_is_as_it_was(
    tmp_path: Path,
) -> None:
    """With the archive everything is there to be read, and a rebuild still leaves out what the service has left out."""
    order(tmp_path, 0, 60)
    run(tmp_path)
    read = kept(tmp_path)
    order(tmp_path, 60, 60)
    with opened(tmp_path) as log:
        positions = log.committed_offsets("ledger", [TopicPartition("orders", number) for number in range(2)])
        first = {place.partition: at for place, at in positions.items()}
        archive_log(log, Archive(Place.at(str(tmp_path / "archive"))))
    delete(tmp_path, first[0] + 5, 0)
    with pytest.raises(
        OffsetGoneError, match=rf"offsets {first[0]} to {first[0] + 4} of 'orders' partition 0"
    ):
        run(tmp_path)
    run(tmp_path, after_deleted=True)
    with opened(tmp_path) as log:
        rest = [
            one
            for number in range(2)
            for one in sharing.originals(scan(log, "orders", number, first[number] + 5 * (number == 0)))
        ]
    wanted = {key: sorted(read.get(key, []) + counted(rest).get(key, [])) for key in read}
    assert of_service(tmp_path) == wanted
    run(tmp_path)
    report, snapshot = lived.done(tmp_path, LEDGER, order="tape", archive=str(tmp_path / "archive"))
    assert ids(lived.rebuilt(snapshot)) == wanted
    assert report.same_rows


def test_a_new_app_is_told_that_the_beginning_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    order(tmp_path, 0, 60)
    delete(tmp_path, 7, 0, 1)
    with caplog.at_level(logging.WARNING, "tailrace.service"):
        run(tmp_path)
    said = [one.getMessage() for one in caplog.records if "deleted" in one.getMessage()]
    (line,) = said
    assert line.startswith(
        "the log has deleted the beginning of 'orders'. 'ledger' reads it for the first time and "
    )
    assert line.endswith("begins at offset 7 of partition 0, 7 of partition 1")
    assert of_service(tmp_path) == kept(tmp_path)
    caplog.clear()
    run(tmp_path)
    assert not [one for one in caplog.records if "deleted" in one.getMessage()]


def test_where_an_app_begins_is_noted_once(tmp_path: Path) -> None:
    """When it is declared again, or started, the first note holds."""
    declare(tmp_path)
    with opened(tmp_path) as log:
        log.append_all([sharing.record(Order("a", 1, 1, 1))])
    delete(tmp_path, 1, 0, 1)
    declare(tmp_path)
    with opened(tmp_path) as log:
        places = [TopicPartition("orders", number) for number in range(2)]
        assert first_positions(PLAN, log, places) == dict.fromkeys(places, 0)
