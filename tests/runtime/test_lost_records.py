"""Records that a repair of the log has lost are never missing in silence: not from a state, an output, a history or an archive."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from tailrace.core.errors import OffsetGoneError, OffsetsDisagreeError, RecordsLostError
from tailrace.core.records import Output
from tailrace.history.last_reads import check_last_reads
from tailrace.history.stretches import first, last, scan
from tailrace.log import TopicPartition
from tailrace.log.archive import Archive, ArchiveOptions, archive_log
from tailrace.log.embedded.database import DATABASE
from tailrace.log.embedded.repairing import repair
from tailrace.state.looking import StateView
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


def lose_topic(folder: Path, topic: str) -> None:
    """Damage the row of a topic, and repair the log: its records are kept under another name."""
    with opened(folder) as log:
        log._appender.checkpoint()
    connection = apsw.Connection(str(folder / "log" / DATABASE))
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.execute("UPDATE topics SET checksum = 0 WHERE name = ?", (topic,))
    connection.close()
    assert repair(folder / "log").lost


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


def test_a_lost_topic_that_is_created_again_continues_behind_the_offsets_that_were_committed(
    tmp_path: Path,
) -> None:
    several(tmp_path, 2)
    run(tmp_path)
    read = kept(tmp_path)
    places = [TopicPartition("orders", number) for number in range(2)]
    with opened(tmp_path) as log:
        committed = log.committed_offsets("ledger", places)
    lose_topic(tmp_path, "orders")
    command("log", "create", "orders", "--partitions", "2", "--log", tmp_path / "log")
    with opened(tmp_path) as log:
        for place in places:
            assert log.start_offset(*place) == log.end_offset(*place) == committed[place] > 0
    order(tmp_path, 1_000, 60)
    new = kept(tmp_path)
    run(tmp_path)
    assert of_service(tmp_path) == {key: sorted(read[key] + new[key]) for key in read}
    assert not command("log", "verify", "--log", tmp_path / "log").err.count("damaged")


def test_a_reader_that_is_behind_in_a_topic_that_was_created_again_gets_an_error(tmp_path: Path) -> None:
    several(tmp_path, 1)
    run(tmp_path)
    with opened(tmp_path) as log:
        place = TopicPartition("orders", 0)
        ahead = log.end_offset(*place) + 5
        writer = log.writer("another")
        writer.commit({place: ahead}, "another")
        writer.close()
    lose_topic(tmp_path, "orders")
    order(tmp_path, 1_000, 60)
    with opened(tmp_path) as log:
        assert log.start_offset(*place) == ahead
    with pytest.raises(OffsetGoneError, match=f"to {ahead - 1} of 'orders' partition 0"):
        run(tmp_path)


def test_a_state_folder_is_not_emptied_if_the_changelog_is_lost(tmp_path: Path) -> None:
    for _ in range(2):
        several(tmp_path, 1)
        run(tmp_path)
    lose_topic(tmp_path, PLAN.changelog_topic)
    before = _rows(tmp_path)
    for _ in range(2):
        with pytest.raises(OffsetsDisagreeError, match="no commit at all"):
            run(tmp_path)
    assert before
    assert _rows(tmp_path) == before


def test_a_state_folder_is_not_emptied_if_the_changelog_has_lost_its_end(tmp_path: Path) -> None:
    for _ in range(3):
        several(tmp_path, 1)
        run(tmp_path)
    lose(tmp_path, PLAN.changelog_topic, -1)
    lose(tmp_path, PLAN.tape_topic, -1)
    before = _rows(tmp_path)
    said = attempt("run", LEDGER, "--log", tmp_path / "log", "--state", tmp_path / "state", "--until-end")
    assert said.code == 1
    assert "The state cannot be restored from this changelog" in said.err
    assert _rows(tmp_path) == before
    shutil.rmtree(tmp_path / "state")
    said = attempt("run", LEDGER, "--log", tmp_path / "log", "--state", tmp_path / "state", "--until-end")
    assert said.code == 1
    assert "The state cannot be restored from this changelog" in said.err
    assert "--after-deleted" not in said.err


@pytest.mark.parametrize("block", [0, 1, -1], ids=["first", "in the middle", "last"])
def test_a_service_continues_without_lost_records_of_its_tape(tmp_path: Path, block: int) -> None:
    for _ in range(4):
        several(tmp_path, 1)
        run(tmp_path)
    lose(tmp_path, PLAN.tape_topic, block)
    several(tmp_path, 1)
    said = command("run", LEDGER, "--log", tmp_path / "log", "--state", tmp_path / "state", "--until-end")
    assert "emptied" not in said.err, "the changelog shows that the state is of this history"
    assert of_service(tmp_path) == kept(tmp_path)


def test_a_snapshot_does_not_need_the_last_record_that_its_state_has_read(tmp_path: Path) -> None:
    several(tmp_path, 4)
    run(tmp_path)
    lost = lose(tmp_path, "orders", -1)
    command("snapshot", "create", LEDGER, "--log", tmp_path / "log", "--snapshots", tmp_path / "snapshots")
    _, snapshot = lived.done(tmp_path, LEDGER, order="tape", after_deleted=True)
    assert ids(lived.rebuilt(snapshot)) == left(tmp_path, lost)


def test_a_snapshot_is_compared_without_records_that_were_lost_since(tmp_path: Path) -> None:
    several(tmp_path, 4)
    run(tmp_path)
    _, snapshot = lived.done(tmp_path, LEDGER, order="tape")
    lose(tmp_path, "orders", -1)
    with opened(tmp_path) as log:
        check_last_reads(log, snapshot, PARTITION)


def test_an_archive_continues_behind_a_last_archived_record_that_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    several(tmp_path, 4)
    archive = Archive(Place.at(str(tmp_path / "archive")))
    place = TopicPartition("orders", PARTITION)
    with opened(tmp_path) as log:
        archive_log(log, archive)
    lost = lose(tmp_path, "orders", -1)
    several(tmp_path, 1)
    with opened(tmp_path) as log:
        archive_log(log, archive)
        assert not caplog.messages, "the record before, or the other partition, shows that it is the same log"
        stretches = [(one.start, one.stop) for one in archive.chunks(place)]
        assert stretches[0] == (0, lost[1])
        assert stretches[-1][1] == log.end_offset(*place)


def test_dead_letters_that_are_left_are_listed_and_the_lost_ones_are_named(tmp_path: Path) -> None:
    for number in range(3):
        order(tmp_path, 20 * number, 20)
        lived.append(
            tmp_path, [Output("orders", key.encode(), b"nonsense", 1) for key in "abcdef"], {"orders": 2}
        )
        run(tmp_path)
    arguments = "dead-letters", "list", "ledger", "--json", "--log", tmp_path / "log"
    before = command(*arguments).lines
    lost = lose(tmp_path, PLAN.dead_letters_topic, 1)
    said = command(*arguments)
    gone = {f"{PARTITION}-{offset}" for offset in range(*lost)}
    assert gone
    assert said.lines == [one for one in before if one["id"] not in gone]
    assert (
        f"{PLAN.dead_letters_topic!r} partition {PARTITION}: the records at offsets {lost[0]} to" in said.err
    )


def test_outputs_of_a_rebuild_in_canonical_order_are_published_without_the_tape(tmp_path: Path) -> None:
    for _ in range(3):
        several(tmp_path, 1)
        run(tmp_path)
    lose(tmp_path, PLAN.tape_topic, 1)
    _, snapshot = lived.done(tmp_path, LEDGER, order="canonical", outputs="topic:.again")
    assert ids(lived.rebuilt(snapshot)) == kept(tmp_path)
    assert len(lived.read(tmp_path, "ledger-seen.again")) == 60


def _rows(folder: Path) -> dict[bytes, bytes]:
    """All rows in the state folders of the app's tasks."""
    found: dict[bytes, bytes] = {}
    for number in range(2):
        with closing(StateView(folder / "state" / "ledger" / str(number))) as state:
            found |= {b"%d" % number + row: value for row, value in state.scan(b"\x01", b"\xff")}
    return found
