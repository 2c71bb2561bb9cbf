"""An archive is joined only with the log that it is of."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from tailrace.core.errors import ArchiveError
from tailrace.core.records import Output
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.archive import ArchivedLog, archive_log
from tailrace.log.embedded import EmbeddedLog
from tests.log.archive.lived import PLACES, SMALL, archive_in, history, read


def copied(folder: Path, topic: str, settings: TopicSettings) -> None:
    """A log with a topic, and a copy of it, which has the same identity."""
    with closing(EmbeddedLog(folder / "one")) as log:
        log.create_topic(topic, settings)
    shutil.copytree(folder / "one", folder / "other")


def test_an_archive_of_a_copy_that_has_gone_another_way_is_not_read_with_this_log(tmp_path):
    copied(tmp_path, "ships", TopicSettings(1))
    for name in ("one", "other"):
        with closing(EmbeddedLog(tmp_path / name)) as log:
            log.append_all([Output("ships", b"key-%d" % at, name.encode(), at) for at in range(20)], 0)
    with closing(EmbeddedLog(tmp_path / "one")) as log:
        archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL)
    for deleted in (0, 19):  # as long as there is a record to compare
        with closing(EmbeddedLog(tmp_path / "other")) as log:
            log.delete_before("ships", 0, deleted)
            joined = ArchivedLog(log, archive_in(tmp_path))
            with pytest.raises(
                ArchiveError, match=r"offset 19 .* is another record in the archive"
            ) as refused:
                read(joined, TopicPartition("ships", 0))
            assert "read the two apart" in refused.value.hint
    with closing(EmbeddedLog(tmp_path / "one")) as log:
        assert len(read(ArchivedLog(log, archive_in(tmp_path)), TopicPartition("ships", 0))) == 20


def test_an_archive_that_reaches_further_than_the_log_is_not_read_with_it(tmp_path):
    with closing(EmbeddedLog(tmp_path / "log")) as log:
        log.create_topic("ships", TopicSettings(1))
        log.append_all([Output("ships", b"key", b"value", at) for at in range(10)], 0)
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    with closing(EmbeddedLog(tmp_path / "log")) as log:
        log.append_all([Output("ships", b"key", b"more", at) for at in range(10)], 0)
        archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL)
    with closing(EmbeddedLog(tmp_path / "copy")) as log:
        with pytest.raises(ArchiveError, match="up to offset 20, the log ends at 10"):
            ArchivedLog(log, archive_in(tmp_path)).end_offset("ships", 0)
        log.append_all([Output("ships", b"key", b"other", at) for at in range(30)], 0)
        with pytest.raises(ArchiveError, match="offset 19 "):
            ArchivedLog(log, archive_in(tmp_path)).end_offset("ships", 0)


def test_a_compacted_topic_of_such_a_copy_is_known_by_what_is_left(tmp_path):
    copied(tmp_path, "kept", TopicSettings(1, compacted=True))
    for name in ("one", "other"):
        with closing(EmbeddedLog(tmp_path / name)) as log:
            log.append_all(
                [Output("kept", b"key-%d" % (at % 30), name.encode() * 40, at) for at in range(100)], 0
            )
            if name == "one":
                archive_log(log, archive_in(tmp_path))
            log.append_all(
                [Output("kept", b"key-%d" % (9 - at), name.encode() * 40, at) for at in range(10)], 0
            )
            log.clean(deletions_kept_ms=0)
            place = TopicPartition("kept", 0)
            assert 99 not in {one.offset for one in read(log, place)}
            joined = ArchivedLog(log, archive_in(tmp_path))
            if name == "one":
                assert len(read(joined, place)) == 110
                continue
            with pytest.raises(ArchiveError, match="is another record in the archive"):
                read(joined, place)


def test_the_identity_of_the_log_that_was_archived_is_kept_and_compared(tmp_path, log):
    archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL)
    assert ArchivedLog(None, archive_in(tmp_path)).identity == log.identity
    with closing(EmbeddedLog(tmp_path / "other")) as other:
        for topic, settings in log.topics().items():
            other.create_topic(topic, settings)
        said = f"the archive is of the log {log.identity.hex()}, and this is the log {other.identity.hex()}"
        with pytest.raises(ArchiveError, match=said):
            history(ArchivedLog(other, archive_in(tmp_path)))
        before = sorted(tmp_path.rglob("archive/**/*"))
        with pytest.raises(ArchiveError, match=said):
            archive_log(other, archive_in(tmp_path), records_per_chunk=SMALL)
        assert sorted(tmp_path.rglob("archive/**/*")) == before


def test_a_log_that_has_deleted_all_that_is_archived_is_joined_with_a_warning(tmp_path, log, caplog):
    archive_log(log, archive_in(tmp_path), records_per_chunk=SMALL)
    for place in PLACES:
        log.delete_before(*place, log.end_offset(*place))
    history(ArchivedLog(log, archive_in(tmp_path)))
    assert "cannot be checked" in caplog.text
