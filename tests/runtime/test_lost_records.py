"""Records that a repair of the log has lost are never missing in silence: not from a state, an output, a history or an archive."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw
import pytest

from tailrace.core.errors import OffsetGoneError, RecordsLostError
from tailrace.history.stretches import first, last, scan
from tailrace.log import TopicPartition
from tailrace.log.archive import Archive, ArchiveOptions, archive_log
from tailrace.log.embedded.database import DATABASE
from tailrace.log.embedded.repairing import repair
from tailrace.state.snapshots import Place
from tests.cli.commands import done as command
from tests.cli.commands import run as attempt
from tests.history.rebuilding import lived, sharing
from tests.history.rebuilding.sharing import counted, ids
from tests.runtime.test_first_positions import LEDGER, PLAN, kept, of_service, opened, order, run

PARTITION = 1


def lose(folder: Path, topic: str, block: int) -> tuple[int, int]:
    """Damage a block of a topic's partition, and repair the log. Returns the offsets from and up to which records are lost."""
    with opened(folder) as log:
        log._appender.checkpoint()
        with log._view.moment() as rows:
            found = list(rows.blocks(rows.place(topic, PARTITION)))[block]
    connection = apsw.Connection(str(folder / "log" / DATABASE))
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.execute("UPDATE blocks SET data_checksum = 0 WHERE id = ?", (found.id,))
    connection.close()
    assert repair(folder / "log").lost
    said = command("log", "verify", "--log", folder / "log").out
    assert f"'{topic}' partition {PARTITION}: offsets {found.first:,} to {found.end - 1:,}" in said
    return found.first, found.end


def left(folder: Path, lost: tuple[int, int]) -> dict[str, list[int]]:
    """What the inputs hold, without what is lost."""
    found: list[sharing.Order] = []
    with opened(folder) as log:
        for number in range(2):
            stretches = ((None, lost[0]), (lost[1], None)) if number == PARTITION else ((None, None),)
            for start, stop in stretches:
                found += sharing.originals(scan(log, "orders", number, start, stop))
    return counted(found)


def several(folder: Path, count: int) -> None:
    """Append events, in some blocks of each partition."""
    with opened(folder) as log:
        begin = 0 if "orders" not in log.topics() else sum(log.end_offset("orders", one) for one in range(2))
    for number in range(count):
        order(folder, begin + 20 * number, 20)


@pytest.mark.parametrize("block", [2, -1], ids=["in the middle", "at the end"])
def test_lost_records_that_an_app_has_not_read_are_an_error_until_it_may_continue_without_them(
    tmp_path: Path, block: int
) -> None:
    several(tmp_path, 1)
    run(tmp_path)
    several(tmp_path, 4)
    lost = lose(tmp_path, "orders", block)
    arguments = "run", LEDGER, "--log", tmp_path / "log", "--state", tmp_path / "state", "--until-end"
    for _ in range(2):
        said = attempt(*arguments)
        assert said.code == 1
        assert f"offsets {lost[0]} to {lost[1] - 1}" in said.err
        assert "--after-deleted" in said.err
    said = command(*arguments, "--after-deleted")
    assert (
        said.err.count(f"continues without offsets {lost[0]} to {lost[1] - 1} of 'orders' partition 1") == 1
    )
    assert of_service(tmp_path) == left(tmp_path, lost)
    several(tmp_path, 1)
    run(tmp_path)  # it has committed where it continues
    assert of_service(tmp_path) == left(tmp_path, lost)
    command("replay", LEDGER, "--log", tmp_path / "log", "--compare")
    report, snapshot = lived.done(tmp_path, LEDGER, order="tape")
    assert ids(lived.rebuilt(snapshot)) == left(tmp_path, lost)
    assert report.same_rows
    assert not report.other_rows
    with pytest.raises(RecordsLostError, match=f"offsets {lost[0]} to {lost[1] - 1}"):
        lived.done(tmp_path, LEDGER, order="canonical")
    report, snapshot = lived.done(tmp_path, LEDGER, order="canonical", after_deleted=True)
    assert ids(lived.rebuilt(snapshot)) == left(tmp_path, lost)
    assert f"offsets {lost[0]} to {lost[1] - 1} of orders partition 1 are lost, and left out" in report.notes


def test_a_history_whose_inputs_are_lost_is_refused_or_its_gaps_are_counted(tmp_path: Path) -> None:
    several(tmp_path, 4)
    run(tmp_path)
    wanted = of_service(tmp_path)
    lost = lose(tmp_path, "orders", 1)
    several(tmp_path, 1)
    run(tmp_path)
    assert of_service(tmp_path) != wanted, "the service, which has read them, continues"
    for command_, more in (
        ("replay", ()),
        ("replay", ("--compare",)),
        ("rebuild", ("--to", tmp_path / "to")),
    ):
        arguments = (command_, LEDGER, "--log", tmp_path / "log", *more)
        said = attempt(*arguments)
        assert said.code == 1, arguments
        assert "topic 'orders', partition 1" in said.err
        found = f"offsets {lost[0]} to {lost[1] - 1}", f"{lost[1] - lost[0]} of them are missing"
        assert any(one in said.err for one in found)
    report, snapshot = lived.done(tmp_path, LEDGER, order="tape", after_deleted=True)
    assert f"without {lost[1] - lost[0]} records" in " ".join(report.notes)
    assert ids(lived.rebuilt(snapshot)) == left(tmp_path, lost)


def test_a_state_is_never_restored_from_a_changelog_that_has_lost_records(tmp_path: Path) -> None:
    for _ in range(4):
        several(tmp_path, 1)
        run(tmp_path)
    wanted = kept(tmp_path)
    lost = lose(tmp_path, PLAN.changelog_topic, 1)
    run(tmp_path)  # its state folder has read further
    shutil.rmtree(tmp_path / "state")
    said = attempt("run", LEDGER, "--log", tmp_path / "log", "--state", tmp_path / "state", "--until-end")
    assert said.code == 1
    assert f"offsets {lost[0]} to {lost[1] - 1}" in said.err
    assert f"topic {PLAN.changelog_topic!r}, partition 1" in said.err
    assert "tailrace rebuild" in said.err
    assert "--after-deleted" not in said.err
    with pytest.raises(RecordsLostError):
        of_service(tmp_path)
    report, snapshot = lived.done(tmp_path, LEDGER, order="tape")
    assert ids(lived.rebuilt(snapshot)) == wanted
    assert any("cannot be compared with the changelog" in one for one in report.notes)


def test_a_tape_that_has_lost_records_is_not_replayed(tmp_path: Path) -> None:
    for _ in range(3):
        several(tmp_path, 1)
        run(tmp_path)
    lost = lose(tmp_path, PLAN.tape_topic, 1)
    said = attempt("replay", LEDGER, "--log", tmp_path / "log")
    assert said.code == 1
    assert f"offsets {lost[0]} to {lost[1] - 1}" in said.err
    several(tmp_path, 1)
    run(tmp_path)
    assert of_service(tmp_path) == kept(tmp_path)


def test_outputs_that_are_lost_are_not_compared_and_no_difference(tmp_path: Path) -> None:
    for _ in range(3):
        several(tmp_path, 1)
        run(tmp_path)
    lose(tmp_path, "ledger-seen", 1)
    said = command("replay", LEDGER, "--log", tmp_path / "log", "--compare", "--json").lines[0]
    assert not said["differences"]
    assert "deleted" in " ".join(said["notes"])


def test_an_archive_takes_lost_records_for_deleted_ones(tmp_path: Path) -> None:
    several(tmp_path, 3)
    lost = lose(tmp_path, "orders", 1)
    archive = Archive(Place.at(str(tmp_path / "archive")))
    with opened(tmp_path) as log:
        with pytest.raises(RecordsLostError, match=f"offsets {lost[0]} to {lost[1] - 1}"):
            archive_log(log, archive)
        report = archive_log(log, archive, ArchiveOptions(go_on_after_deleted=True))
        place = TopicPartition("orders", PARTITION)
        assert report.lost == [(place, *lost)]
        kept = [(one.start, one.stop) for one in archive.chunks(place)]
        assert kept == [(lost[1], log.end_offset(*place))], "what is before a gap is not read"
        assert not archive_log(log, archive).records


def test_the_last_record_is_found_if_it_is_behind_the_lost_ones(tmp_path: Path) -> None:
    several(tmp_path, 3)
    lost = lose(tmp_path, "orders", 1)
    with opened(tmp_path) as log:
        found = last(log, "orders", PARTITION, lambda one: one.offset <= lost[1])
        assert found is not None
        assert found.offset == lost[1]
        with pytest.raises(RecordsLostError):
            last(log, "orders", PARTITION, lambda one: one.offset < lost[0])
        with pytest.raises(RecordsLostError):
            last(log, "orders", PARTITION, stop=lost[1])
        with pytest.raises(OffsetGoneError):
            first(log, "orders", PARTITION, lost[0])
