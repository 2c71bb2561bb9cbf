from __future__ import annotations

import importlib
import json
import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tailrace.core import errors
from tailrace.core.records import InputRecord
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.archive import Archive, ArchivedLog, archive_log
from tailrace.log.archive.layout import FORMAT
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import RecordFilter
from tailrace.state.snapshots import Place
from tests.log.archive import lived
from tests.log.archive.lived import DAY_MS, PLACES, SMALL, TOPICS, archive_in, grow, history, read

dataset: Any = importlib.import_module("pyarrow.dataset")
filesystems: Any = importlib.import_module("pyarrow.fs")
parquet: Any = importlib.import_module("pyarrow.parquet")


def test_archive_and_log_are_one_history_wherever_they_are_joined(tmp_path, log):
    chance = random.Random(2)
    for _ in range(4):
        archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL)
        grow(log, chance, chance.randrange(3))
        expected = history(log)
        for most in (1, 7, 1000):
            joined = ArchivedLog(log, archive_in(tmp_path))
            assert history(joined, most=most) == expected
        for place, records in expected.items():
            for start in {0, *(one.offset + chance.randrange(2) for one in chance.sample(records, 5))}:
                assert read(joined, place, start) == [one for one in records if one.offset >= start]


def test_what_the_log_has_deleted_since_is_read_from_the_archive(tmp_path, log):
    expected = history(log)
    archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL)
    for place in PLACES:
        log.delete_before(*place, log.end_offset(*place) - 3)
    assert history(log) != expected
    joined = ArchivedLog(log, archive_in(tmp_path))
    assert history(joined) == expected
    assert {joined.start_offset(*place) for place in PLACES} == {0}
    assert history(ArchivedLog(None, archive_in(tmp_path))) == expected


def test_compaction_takes_nothing_from_the_archive(tmp_path, log):
    expected = history(log)
    archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL)
    log.clean(deletions_kept_ms=0)
    place = TopicPartition("kept", 0)
    assert len(read(log, place)) < len(expected[place])
    assert history(ArchivedLog(log, archive_in(tmp_path))) == expected


def test_compaction_meanwhile_takes_nothing_that_was_the_last_of_its_key_at_the_ends_archived(tmp_path, log):
    place = TopicPartition("kept", 1)
    expected = last_of_each_key(read(log, place))
    cleaner = EmbeddedLog(log.path, create=False)
    rewritten: list[int] = []

    def clean(_: Any) -> None:
        if not rewritten:  # before this partition's turn
            for key in expected:
                cleaner.append("kept", key, b"later", 1, (), 1)
            rewritten.append(cleaner.clean(deletions_kept_ms=0).blocks_rewritten)

    archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL, on_progress=clean)
    cleaner.close()
    assert len(rewritten) == 1
    archived = ArchivedLog(None, archive_in(tmp_path))
    assert archived.ends(["kept"]).offsets["kept"][1] == archived.end_offset(*place)
    assert last_of_each_key(read(archived, place)) == expected
    assert log.clean(deletions_kept_ms=0).blocks_rewritten > 0


def last_of_each_key(records: list[InputRecord]) -> dict[bytes | None, bytes | None]:
    return {one.key: one.value for one in records}


def test_positions_and_times_are_those_of_the_log(tmp_path, log):
    archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL)
    grow(log, random.Random(3))
    joined = ArchivedLog(log, archive_in(tmp_path))
    assert joined.topics() == log.topics()
    for place in PLACES:
        assert joined.end_offset(*place) == log.end_offset(*place)
        assert joined.partitions(place.topic) == log.partitions(place.topic)
        for timestamp_ms in (-10, 0, 1, DAY_MS, 3 * DAY_MS + 18, 1 << 60, (1 << 60) + 1):
            assert joined.offset_at(*place, timestamp_ms) == log.offset_at(*place, timestamp_ms)
    assert joined.ends(TOPICS) == log.ends(TOPICS)


def test_watermarks_that_were_published_hold_from_the_archive_too(tmp_path, log):
    archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL)
    for place in PLACES:
        given: list[list[Any]] = []
        for one in (log, ArchivedLog(None, archive_in(tmp_path))):
            reader = one.reader({place: 0})
            found: list[Any] = []
            position = -1
            while position != (position := reader.fetch(*place, 5).next_offset):
                found += reader.published(*place)
            given.append(found)
        assert given[0]
        assert given[0][-1] == given[1][-1]
        assert {one.publisher for one in given[1]} == {"grower"}
        held = [one for one in log.published_in(*place) if one.position > 0]
        for one in (ArchivedLog(None, archive_in(tmp_path)), ArchivedLog(log, archive_in(tmp_path))):
            assert [*dict.fromkeys(one.published_in(*place))] == held


def test_a_time_range_leaves_files_of_other_days_unread(tmp_path, log, monkeypatch):
    archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL)
    opened: list[str] = []
    original = parquet.ParquetFile

    def counted(source: Any, **options: Any) -> Any:
        opened.append(source)
        return original(source, **options)

    monkeypatch.setattr("tailrace.log.archive.files.parquet.ParquetFile", counted)
    expected = history(log)
    everything = ArchivedLog(None, archive_in(tmp_path))
    assert history(everything) == expected
    whole = len(opened)
    opened.clear()
    wanted = RecordFilter(DAY_MS, 2 * DAY_MS)
    found = history(ArchivedLog(None, archive_in(tmp_path), wanted=wanted))
    for place, records in found.items():
        asked = [one for one in expected[place] if DAY_MS <= one.timestamp_ms < 2 * DAY_MS]
        assert [one for one in records if DAY_MS <= one.timestamp_ms < 2 * DAY_MS] == asked
    assert 0 < len(opened) < whole / 3


def test_other_tools_see_tables_partitioned_by_topic_partition_and_day(tmp_path, log):
    report = archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL)
    expected = history(log)
    table = dataset.dataset(tmp_path / "archive", format="parquet", partitioning="hive").to_table()
    assert table.num_rows == report.records == sum(map(len, expected.values()))
    assert set(table.column_names) == {
        *("offset", "timestamp", "key", "value", "headers"),
        *("topic", "partition", "date"),
    }
    rows = table.filter((dataset.field("topic") == "plain") & (dataset.field("partition") == 1))
    one = expected[TopicPartition("plain", 1)]
    assert sorted(rows.column("offset").to_pylist()) == [record.offset for record in one]
    dates = {(row["date"] or "")[:10] for row in rows.select(["date"]).to_pylist()}
    assert {"1970-01-01", "1969-12-31", ""} <= dates


class Struck(Exception):
    """What a kill looks like from inside."""


class Mortal(Place):
    """A place where the writer dies at some operation, before it or after it."""

    left = [-1]

    def _strike(self) -> None:
        self.left[0] -= 1
        if self.left[0] == 0:
            raise Struck

    def write(self, data: bytes, *, replace: bool = True) -> None:
        self._strike()
        super().write(data, replace=replace)
        self._strike()

    def remove(self) -> bool:
        self._strike()
        return super().remove()

    def __truediv__(self, name: str) -> Mortal:
        found = super().__truediv__(name)
        return Mortal(found.uri, None, found.path)


def test_whoever_is_killed_at_any_point_has_archived_nothing_twice_and_lost_nothing(tmp_path, log):
    place = TopicPartition("odd %/name", 0)
    expected = read(log, place)
    strikes = 1
    while True:
        folder = tmp_path / str(strikes)
        uri = str(folder / "archive")
        Mortal.left[0] = strikes
        try:
            archive_log(log, Archive(Mortal(uri, None, uri)), topics=[place.topic], records_per_chunk=30)
        except Struck:
            pass
        survived = Mortal.left[0] > 0
        Mortal.left[0] = -1
        archive = archive_in(folder)
        if archive.exists:  # what is there is right
            assert read(ArchivedLog(log, archive), place) == expected
        # Cut otherwise than before, so that files that were left behind are not written over.
        archive_log(log, archive_in(folder), topics=[place.topic], records_per_chunk=17)
        assert read(ArchivedLog(None, archive_in(folder)), place) == expected
        table = dataset.dataset(folder / "archive", format="parquet", partitioning="hive")
        assert table.count_rows() == len(expected)
        if survived:
            break
        strikes += 1
    assert strikes > 20


def test_a_second_run_adds_what_is_new_and_nothing_else(tmp_path, log):
    first = archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL)
    again = archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL)
    assert (first.records, again.records, again.chunks) == (sum(map(len, history(log).values())), 0, 0)
    before = len(history(log)[TopicPartition("plain", 0)])
    grow(log, random.Random(4))
    third = archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL)
    assert third.records == sum(map(len, history(log).values())) - first.records
    assert len(read(ArchivedLog(None, archive_in(tmp_path)), TopicPartition("plain", 0))) > before


def test_what_the_log_deleted_before_it_was_archived_is_told_with_its_offsets(tmp_path, log):
    place = TopicPartition("plain", 0)
    archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL)
    archived = log.end_offset(*place)
    grow(log, random.Random(5), 20)
    log.delete_before(*place, archived + 10)
    with pytest.raises(
        errors.OffsetGoneError, match=rf"begins at {archived + 10}.*offset {archived}.*in another folder"
    ):
        archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL)


def test_a_gap_between_archive_and_log_is_refused_with_its_offsets_whatever_is_asked(tmp_path, log):
    place = TopicPartition("plain", 0)
    archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL)
    archived = log.end_offset(*place)
    grow(log, random.Random(5), 20)
    expected = read(log, place)
    log.delete_before(*place, archived)
    assert read(ArchivedLog(log, archive_in(tmp_path)), place, 0) == expected
    log.delete_before(*place, archived + 10)
    joined = ArchivedLog(log, archive_in(tmp_path))
    for ask in (joined.start_offset, joined.end_offset, lambda *_: joined.offset_at(*place, 0)):
        with pytest.raises(
            errors.OffsetGoneError, match=f"offsets {archived} to {archived + 9} are neither .*'plain'"
        ):
            ask(*place)
    for start in (0, archived, archived + 20):
        with pytest.raises(errors.OffsetGoneError, match="Without the archive"):
            joined.reader({place: start})
    assert read(joined, TopicPartition("plain", 1)) == read(log, TopicPartition("plain", 1))


def test_the_ends_of_an_archive_are_of_one_commit(tmp_path, log):
    archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL)
    then = log.ends(TOPICS)
    grow(log, random.Random(6))
    archive_log(log, archive_in(tmp_path), topics=["plain"])
    alone = ArchivedLog(None, archive_in(tmp_path))
    assert alone.ends(["kept", "plain"]).offsets == {name: then.offsets[name] for name in ("kept", "plain")}
    assert alone.ends(["plain"]) == log.ends(["plain"])
    with pytest.raises(errors.UnknownTopicError, match="never archived together"):
        alone.ends(["plain", "nothing"])
    with closing(EmbeddedLog(tmp_path / "younger")) as younger:
        joined = ArchivedLog(younger, archive_in(tmp_path))
        assert joined.ends(["plain"]) == alone.ends(["plain"])
        assert read(joined, TopicPartition("plain", 0)) == read(alone, TopicPartition("plain", 0))


def test_nothing_is_written_through_it(tmp_path, log):
    archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL)
    joined = ArchivedLog(log, archive_in(tmp_path))
    joined.create_topic("plain", TOPICS["plain"])
    for change in (lambda: joined.create_topic("new", TopicSettings(1)), lambda: joined.writer("x")):
        with pytest.raises(errors.UsageError, match="only read"):
            change()


def test_a_place_that_is_no_disk_holds_an_archive_as_well(tmp_path, log):
    far = Place(
        "far://archive", filesystems.SubTreeFileSystem(str(tmp_path), filesystems.LocalFileSystem()), "far"
    )
    archive_log(log, Archive(far), records_per_chunk=SMALL)
    assert history(ArchivedLog(log, Archive(far))) == history(log)


# --- what is wrong with an archive


def parquet_files(folder: Path) -> list[Path]:
    return sorted((folder / "archive").glob("topic=*/**/*.parquet"))


def test_a_missing_file_is_named(tmp_path, log):
    archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL)
    gone = parquet_files(tmp_path)[0]
    gone.unlink()
    with pytest.raises(errors.ArchiveError, match=r"missing.*parquet"):
        history(ArchivedLog(None, archive_in(tmp_path)))


@pytest.mark.parametrize("cut", [True, False])
def test_a_damaged_file_is_named(tmp_path, log, cut):
    archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL)
    path = parquet_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    if cut:
        del data[len(data) // 2 :]
    else:
        data[30] ^= 1
    path.write_bytes(data)
    with pytest.raises(errors.ArchiveError, match=r"damaged.*parquet"):
        history(ArchivedLog(None, archive_in(tmp_path)))


def test_a_marker_that_cannot_be_read_is_named(tmp_path, log):
    archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL)
    marker = next((tmp_path / "archive" / "_chunks").glob("plain/0/*.json"))
    marker.write_text("{")
    with pytest.raises(errors.ArchiveError, match=r"cannot be read.*json"):
        history(ArchivedLog(None, archive_in(tmp_path)))


@pytest.mark.parametrize("missing", [False, True])
def test_chunks_that_overlap_or_leave_a_gap_are_refused(tmp_path, log, missing):
    archive_log(log, archive_in(tmp_path), records_per_chunk=3)
    first, second, *_ = sorted((tmp_path / "archive" / "_chunks" / "plain" / "0").glob("*.json"))
    if missing:
        second.unlink()
    else:
        _, stop, *rest = first.name.split("_")
        (first.parent / "_".join([f"{1:020d}", stop, *rest])).write_bytes(first.read_bytes())
    with pytest.raises(errors.ArchiveError, match="overlap, or one between them is missing"):
        archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL)


def test_a_folder_with_something_else_is_left_alone(tmp_path, log):
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "thesis.txt").write_text("important")
    with pytest.raises(errors.ArchiveError, match=r"thesis\.txt"):
        archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL)
    assert [one.name for one in (tmp_path / "archive").iterdir()] == ["thesis.txt"]


def test_an_archive_of_a_newer_format_is_refused(tmp_path, log):
    archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL)
    (tmp_path / "archive" / "_archive.json").write_text(json.dumps({"format": FORMAT + 1}))
    with pytest.raises(errors.FormatError, match=f"format {FORMAT + 1}"):
        archive_in(tmp_path)


def test_a_place_without_an_archive_is_told(tmp_path, log):
    with pytest.raises(errors.LogUnavailableError, match="there is no archive"):
        ArchivedLog(log, archive_in(tmp_path))
    with pytest.raises(errors.UnknownTopicError, match="nothing"):
        archive_log(log, archive_in(tmp_path), topics=["nothing"])


def test_two_at_once_are_one_too_many(tmp_path, log):
    def again(_: Any) -> None:
        with pytest.raises(errors.ArchiveError, match="another process"):
            archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL)
        raise Struck

    with pytest.raises(Struck):
        archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL, on_progress=again)


def test_a_full_disk_is_told_and_gone_on_after(tmp_path, log, monkeypatch):
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        with pytest.raises(errors.SnapshotUnavailableError, match="the disk is full"):
            archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL)
    archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL)
    assert history(ArchivedLog(None, archive_in(tmp_path))) == lived.history(log)
