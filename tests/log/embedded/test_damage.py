"""Damage is an error that names the file and what to do, and is never read past; what was not committed was never there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from tailrace.core.errors import CorruptLogError, ForeignLogError, FormatError, LogUnavailableError
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded.database import DATABASE, JOURNAL, MAKING, SHARED_MEMORY, WAL
from tailrace.log.embedded.lock import NOTE, Note
from tests.log.embedded import damaged
from tests.log.embedded.inside import note, turn, view


class TestRows:
    """Each block of records has a checksum, and none of them may be missing."""

    @pytest.mark.parametrize("part", ["data", "the other columns"])
    def test_a_bit_of_a_block_that_is_flipped_is_found_when_its_records_are_read(
        self, tmp_path, part
    ) -> None:
        """Whichever bit it is: of the records, their offsets, their times, or the checksum itself."""
        damaged.made(tmp_path / "log").close()
        columns = "end_offset, base, last, max_ms, highest_ms, length, checksum"
        log = EmbeddedLog(tmp_path / "log")
        with turn(tmp_path / "log") as changes:
            (number, data, *others) = next(
                changes.connection.execute(f"SELECT id, data, {columns} FROM blocks")
            )
        names = ["data"] if part == "data" else columns.split(", ")
        values = [data] if part == "data" else others
        tried = 0
        for name, value in zip(names, values, strict=True):
            for bit in range(0, 8 * len(value) if name == "data" else 40, 3):
                if name == "data":
                    harmed = bytearray(value)
                    harmed[bit // 8] ^= 1 << bit % 8
                else:
                    harmed = value ^ 1 << bit
                with turn(tmp_path / "log") as changes:
                    changes.connection.execute(f"UPDATE blocks SET {name} = ? WHERE id = ?", (harmed, number))
                    changes.changed = True
                reader = log.reader({damaged.A0: 0})
                with pytest.raises(CorruptLogError, match="'a' partition 0 from offset 0 on"):
                    reader.fetch(*damaged.A0, 10)
                with turn(tmp_path / "log") as changes:
                    changes.connection.execute(f"UPDATE blocks SET {name} = ? WHERE id = ?", (value, number))
                    changes.changed = True
                tried += 1
        assert tried > 50
        assert damaged.read(log) == damaged.whole(2)

    def test_damaged_records_are_found_when_they_are_read_and_others_can_be_read(self, tmp_path) -> None:
        damaged.on_disk(tmp_path)
        damaged.changed(
            tmp_path, "UPDATE blocks SET data = zeroblob(length) WHERE id = (SELECT max(id) FROM blocks)"
        )
        log = EmbeddedLog(tmp_path)
        assert [one.value for one in log.reader({damaged.A0: 0}).fetch(*damaged.A0, 10).records] == [
            b"0 of a",
            b"1 of a",
        ]
        with pytest.raises(CorruptLogError, match="'b' partition 1 from offset 1 on"):
            log.reader({damaged.B1: 0}).fetch(*damaged.B1, 10)

    def test_what_sqlite_saves_of_a_damaged_log_is_a_log_without_the_missing_commits(self, tmp_path) -> None:
        """What docs/running.md says of a log that has lost its WAL and has no copy."""
        damaged.on_disk_and_in_wal(tmp_path / "log").close()
        (tmp_path / "log" / WAL).unlink()
        with pytest.raises(CorruptLogError, match="the last 1 commits are missing"):
            EmbeddedLog(tmp_path / "log")
        (tmp_path / "saved").mkdir()
        connection = apsw.Connection(str(tmp_path / "log" / DATABASE))
        connection.execute(f"VACUUM INTO '{tmp_path / 'saved' / DATABASE}'")
        connection.close()
        log = EmbeddedLog(tmp_path / "saved")
        log.verify()
        assert damaged.read(log) == damaged.whole(2)
        assert log.append("a", b"k", b"v", 0) == 2

    def test_a_reader_does_not_pass_over_a_block_that_is_missing(self, tmp_path) -> None:
        damaged.on_disk(tmp_path, 3)
        damaged.changed(tmp_path, "DELETE FROM blocks WHERE id = 1")
        log = EmbeddedLog(tmp_path)
        reader = log.reader({damaged.A0: 0})
        for _ in range(2):
            with pytest.raises(CorruptLogError, match="'a' partition 0 from offset 1 on"):
                reader.fetch(*damaged.A0, 10)
        reader.seek(*damaged.A0, 2)
        assert [one.value for one in reader.fetch(*damaged.A0, 10).records] == [b"2 of a"]


class TestBytes:
    @pytest.mark.parametrize("harm", [os.unlink, lambda path: Path(path).write_bytes(b"")])
    def test_a_wal_that_was_deleted_is_missed(self, tmp_path, harm) -> None:
        damaged.made(tmp_path).close()
        harm(tmp_path / WAL)
        with pytest.raises(CorruptLogError, match="commits are missing"):
            EmbeddedLog(tmp_path)

    @pytest.mark.parametrize("name", [DATABASE, WAL, SHARED_MEMORY, NOTE])
    @pytest.mark.parametrize("replaced", [False, True])
    def test_a_file_that_is_deleted_or_replaced_under_a_process_is_missed_when_it_writes_and_reads(
        self, tmp_path, name, replaced
    ) -> None:
        damaged.made(tmp_path).close()
        log, reader = EmbeddedLog(tmp_path), view(tmp_path)
        log.append("a", b"k", b"v", 0)
        reader.version()
        kept = (tmp_path / name).read_bytes()
        (tmp_path / name).unlink()
        if replaced:
            (tmp_path / name).write_bytes(kept)
        for _ in range(2):
            with pytest.raises(CorruptLogError, match=f"{name}: deleted or replaced"):
                log.append("a", b"k", b"v", 0)
        if name != NOTE:
            with pytest.raises(CorruptLogError, match=f"{name}: deleted or replaced") as raised:
                reader.version()
            assert "start them again" in raised.value.hint

    def test_a_note_that_is_cut_off_or_gone_only_knows_less(self, tmp_path) -> None:
        damaged.made(tmp_path).close()
        for harm in (lambda: os.truncate(tmp_path / NOTE, 3), (tmp_path / NOTE).unlink):
            harm()
            log = EmbeddedLog(tmp_path)
            assert damaged.read(log) == damaged.whole(2)
            assert note(tmp_path).synced == 0
            log.writer("w")
            assert note(tmp_path) != Note()
            log.close()


class TestBeforeSQLite:
    """SQLite deletes a WAL, or overwrites the database, before anybody can look. So the files are checked before that."""

    HARMS: dict[str, Callable[[Path], object]] = {
        "an empty database": lambda folder: os.truncate(folder / DATABASE, 0),
        "a database of one byte": lambda folder: os.truncate(folder / DATABASE, 1),
        "a database that ends in its header": lambda folder: os.truncate(folder / DATABASE, 99),
        "a file that is no database": lambda folder: (folder / DATABASE).write_bytes(b"not a database" * 100),
        "a bit of the magic": lambda folder: damaged.flipped(folder / DATABASE, 3),
        "a bit of the page size": lambda folder: damaged.flipped(folder / DATABASE, 16),
        "a bit of the application id": lambda folder: damaged.flipped(folder / DATABASE, 70),
        "a journal": lambda folder: (folder / JOURNAL).write_bytes(
            b"\xd9\xd5\x05\xf9 \xa1c\xd7".ljust(600, b"1")
        ),
    }

    @pytest.mark.parametrize("harm", HARMS)
    def test_nothing_of_a_damaged_log_is_changed(self, tmp_path, harm) -> None:
        damaged.made(tmp_path).close()
        self.HARMS[harm](tmp_path)
        before = damaged.contents(tmp_path)
        with pytest.raises((CorruptLogError, ForeignLogError), match=r"cut off|damaged|journal"):
            EmbeddedLog(tmp_path, create=False)
        assert damaged.contents(tmp_path) == before

    def test_a_database_of_another_kind_is_left_alone(self, tmp_path) -> None:
        connection = apsw.Connection(str(tmp_path / DATABASE))
        connection.execute("CREATE TABLE topics (name)")
        connection.close()
        before = damaged.contents(tmp_path)
        with pytest.raises(ForeignLogError, match="of another kind"):
            EmbeddedLog(tmp_path)
        assert damaged.contents(tmp_path) == before

    @pytest.mark.parametrize("killed", [False, True])
    def test_a_database_that_was_copied_without_its_wal_is_refused(self, tmp_path, killed) -> None:
        log = damaged.on_disk_and_in_wal(tmp_path / "made")
        if not killed:
            log.close()
        (tmp_path / "copy").mkdir()
        shutil.copy(tmp_path / "made" / DATABASE, tmp_path / "copy")
        for _ in range(2):
            with pytest.raises(CorruptLogError, match=r"without log\.sqlite-wal"):
                EmbeddedLog(tmp_path / "copy")
        assert list(damaged.contents(tmp_path / "copy")) == [DATABASE]

    @pytest.mark.parametrize("names", [(DATABASE, WAL), (DATABASE, WAL, NOTE)])
    def test_a_copy_of_database_and_wal_of_a_stopped_log_is_the_log(self, tmp_path, names) -> None:
        damaged.on_disk_and_in_wal(tmp_path / "made").close()
        (tmp_path / "copy").mkdir()
        for name in names:
            shutil.copy(tmp_path / "made" / name, tmp_path / "copy")
        log = EmbeddedLog(tmp_path / "copy")
        assert log.end_offset("a", 0) == 3
        log.append("a", b"k", b"v", 0)
        log.verify()


class TestFolders:
    def test_a_folder_that_holds_something_else_is_refused_and_left_alone(self, tmp_path) -> None:
        (tmp_path / "thesis.txt").write_text("mine")
        with pytest.raises(ForeignLogError, match=r"thesis\.txt"):
            EmbeddedLog(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
        with pytest.raises(ForeignLogError):
            EmbeddedLog(tmp_path / "thesis.txt")

    def test_a_log_of_another_format_and_another_database_are_each_refused(self, tmp_path) -> None:
        damaged.on_disk(tmp_path / "log")
        damaged.changed(tmp_path / "log", "PRAGMA user_version = 2")
        with pytest.raises(FormatError, match=r"format 2, and this version .* a new log"):
            EmbeddedLog(tmp_path / "log")
        damaged.changed(tmp_path / "log", "PRAGMA user_version = 99")
        with pytest.raises(FormatError, match="99"):
            EmbeddedLog(tmp_path / "log")
        damaged.changed(tmp_path / "log", "PRAGMA application_id = 7")
        with pytest.raises(ForeignLogError, match="of another kind"):
            EmbeddedLog(tmp_path / "log")

    def test_a_creation_that_was_interrupted_is_begun_again(self, tmp_path) -> None:
        (tmp_path / MAKING).write_bytes(b"half a database")
        log = EmbeddedLog(tmp_path)
        assert log.topics() == {}
        assert not (tmp_path / MAKING).exists()


def test_each_log_has_an_identity_of_its_own(tmp_path) -> None:
    one, other = damaged.made(tmp_path / "one"), damaged.made(tmp_path / "other")
    assert len(one.identity) == 16
    assert one.identity != other.identity
    assert EmbeddedLog(tmp_path / "one").identity == one.identity


def test_an_old_sqlite_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")
    with pytest.raises(LogUnavailableError, match=r"3\.51\.2 can lose commits"):
        EmbeddedLog(tmp_path)
