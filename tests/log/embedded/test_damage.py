"""A commit that was cut short was never there; any other damage is an error that says where, and is never read past."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.core.errors import CorruptLogError, ForeignLogError, LogUnavailableError, NewerFormatError
from tailrace.core.records import Output
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.embedded import EmbeddedLog, LogOptions
from tailrace.log.embedded.frames import FRAME_HEAD, SEGMENT_HEAD, SegmentName
from tailrace.log.embedded.lock import LOCK

FIRST = SegmentName(1).file
A0, B1 = TopicPartition("a", 0), TopicPartition("b", 1)


def made(folder: Path, commits: int = 2) -> tuple[EmbeddedLog, list[int]]:
    """A log, and where its segment ended after each commit."""
    log = EmbeddedLog(folder)
    log.create_topic("a", TopicSettings(1))
    log.create_topic("b", TopicSettings(2))
    writer = log.writer("w")
    ends = [(folder / FIRST).stat().st_size]
    for number in range(commits):
        writer.append([Output("a", b"k", b"%d of a" % number, number)])
        writer.append([Output("b", b"k", b"%d of b" % number, number)], 1)
        writer.commit({A0: number + 1}, "g", {"a": number})
        ends.append((folder / FIRST).stat().st_size)
    return log, ends


def read(log: EmbeddedLog) -> list[bytes | None]:
    reader = log.reader({A0: 0, B1: 0})
    return [one.value for place in (A0, B1) for one in reader.fetch(*place, 100).records]


def whole(commits: int) -> list[bytes]:
    return [b"%d of %s" % (number, name) for name in (b"a", b"b") for number in range(commits)]


def test_a_commit_cut_short_at_any_byte_is_invisible_and_cut_off_by_the_next_writer(tmp_path) -> None:
    log, ends = made(tmp_path / "made")
    log.close()
    data = (tmp_path / "made" / FIRST).read_bytes()
    assert len(data) == ends[-1]
    folder = tmp_path / "torn"
    torn, _ = made(folder, 1)
    torn.close()
    for length in range(ends[-2], ends[-1]):
        (folder / FIRST).write_bytes(data[:length])
        log = EmbeddedLog(folder)
        assert read(log) == whole(1), length
        assert log.committed_offsets("g", [A0]) == {A0: 1}
        assert (folder / FIRST).stat().st_size == length, "a reader changes nothing"
        writer = log.writer("w")
        assert log.bytes_cut_off == length - ends[-2]
        writer.append([Output("a", b"k", b"1 of a", 1), Output("b", b"k", b"x", 1)])
        writer.commit()
        assert log.end_offset("a", 0) == 2
        log.verify()
        other = EmbeddedLog(folder)
        assert read(other)[:2] == [b"0 of a", b"1 of a"]
        other.close()
        log.close()


def test_a_reader_that_follows_never_sees_a_part_of_a_commit(tmp_path) -> None:
    log, ends = made(tmp_path / "made")
    data = (tmp_path / "made" / FIRST).read_bytes()
    folder = tmp_path / "growing"
    made(folder, 1)[0].close()
    path = folder / FIRST
    path.write_bytes(data[: ends[-2]])
    follower = EmbeddedLog(folder)
    with path.open("ab", buffering=0) as file:
        for byte in data[ends[-2] :]:
            assert read(follower) == whole(1)
            file.write(bytes([byte]))
    assert read(follower) == whole(2)
    log.close()


def test_any_flipped_bit_is_an_error_that_names_segment_and_position(tmp_path) -> None:
    folder = tmp_path / "log"
    log, ends = made(folder)
    log.close()
    data = (folder / FIRST).read_bytes()
    at = 0
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << (at % 8)
        (folder / FIRST).write_bytes(flipped)
        with pytest.raises((CorruptLogError, NewerFormatError)) as raised:
            log = EmbeddedLog(folder)
            log.verify()
        if isinstance(raised.value, CorruptLogError):
            assert raised.value.segment == FIRST
            assert raised.value.position is not None
            assert 0 <= raised.value.position <= at
        assert (folder / FIRST).read_bytes() == flipped, "it is left as it was found"
    assert at > ends[-2]


def test_damaged_records_are_found_when_they_are_read_and_others_can_be_read(tmp_path) -> None:
    folder = tmp_path / "log"
    log, ends = made(folder)
    path = folder / FIRST
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # of the last commit's last block, which is of topic b
    path.write_bytes(data)
    other = EmbeddedLog(folder)
    assert [one.value for one in other.reader({A0: 0}).fetch(*A0, 10).records] == [b"0 of a", b"1 of a"]
    with pytest.raises(CorruptLogError) as raised:
        other.reader({B1: 0}).fetch(*B1, 10)
    assert raised.value.position is not None
    assert ends[-2] < raised.value.position < ends[-1]
    log.close()


class TestAfterAPowerLoss:
    """The machine was down since the last commit: what was not synced may be anything."""

    @pytest.fixture
    def folder(self, tmp_path) -> Path:
        return Path(tmp_path, "log")

    def lose(self, folder: Path, at: int, data: bytes) -> None:
        """The bytes from ``at`` on never reached the disk, though the file has its length."""
        (folder / FIRST).write_bytes(data[:at] + bytes(len(data) - at))
        lock = bytearray((folder / LOCK).read_bytes())
        lock[:36] = b"another life of the machine" + bytes(9)
        (folder / LOCK).write_bytes(lock)

    def test_the_log_ends_where_the_damage_begins(self, folder) -> None:
        made(folder)[0].close()
        _, ends = made(folder.with_name("same"))
        data = (folder / FIRST).read_bytes()
        for at in range(ends[-2], ends[-1], 3):
            self.lose(folder, at, data)
            log = EmbeddedLog(folder)
            log.writer("w")
            assert log.bytes_cut_off > 0
            assert read(log) == whole(1), at
            log.verify()
            log.close()

    def test_what_was_known_to_be_synced_is_never_cut_off(self, folder) -> None:
        log = EmbeddedLog(folder, LogOptions(fsync="commit"))
        log.create_topic("a", TopicSettings(1))
        ends = []
        for number in range(3):
            log.append("a", b"k", b"%d" % number, 0)
            ends.append((folder / FIRST).stat().st_size)
        log.close()
        data = (folder / FIRST).read_bytes()
        self.lose(folder, ends[1] + 10, data)
        log = EmbeddedLog(folder)
        log.writer("w")
        assert log.end_offset("a", 0) == 2
        log.close()
        inside = data[: ends[1] - 3] + b"..." + data[ends[1] :]
        self.lose(folder, len(data), inside)
        with pytest.raises(CorruptLogError):
            EmbeddedLog(folder).verify()
        assert (folder / FIRST).read_bytes() == inside


class TestFolders:
    def test_a_folder_that_holds_something_else_is_refused_and_left_alone(self, tmp_path) -> None:
        (tmp_path / "thesis.txt").write_text("mine")
        with pytest.raises(ForeignLogError, match=r"thesis\.txt"):
            EmbeddedLog(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
        with pytest.raises(ForeignLogError):
            EmbeddedLog(tmp_path / "thesis.txt")

    def test_a_log_that_is_not_there_is_not_made_by_who_only_wants_to_read(self, tmp_path) -> None:
        with pytest.raises(LogUnavailableError, match="no log"):
            EmbeddedLog(tmp_path / "log", create=False)
        assert list(tmp_path.iterdir()) == []

    def test_a_newer_format_is_refused_by_the_label_and_by_the_segment(self, tmp_path) -> None:
        import zlib

        made(tmp_path)[0].close()
        path = tmp_path / FIRST
        data = path.read_bytes()
        fields = list(SEGMENT_HEAD.unpack_from(data))
        fields[1], fields[-1] = 99, 0
        fields[-1] = zlib.crc32(SEGMENT_HEAD.pack(*fields))
        path.write_bytes(SEGMENT_HEAD.pack(*fields) + data[SEGMENT_HEAD.size :])
        with pytest.raises(NewerFormatError, match="99"):
            EmbeddedLog(tmp_path)
        (tmp_path / "tailrace-log.json").write_text('{"format": 98}')
        with pytest.raises(NewerFormatError, match="98"):
            EmbeddedLog(tmp_path)

    def test_a_start_that_was_interrupted_is_begun_again(self, tmp_path) -> None:
        made(tmp_path)[0].close()
        (tmp_path / "tailrace-log.json").unlink()
        (tmp_path / FIRST).write_bytes(b"half a segm")
        log = EmbeddedLog(tmp_path)
        assert log.topics() == {}
        log.close()


def test_a_segment_that_ends_before_what_was_read_of_it_is_damage(tmp_path) -> None:
    log, ends = made(tmp_path)
    (tmp_path / FIRST).write_bytes((tmp_path / FIRST).read_bytes()[: ends[-1] - FRAME_HEAD.size])
    with pytest.raises(CorruptLogError, match="ends at"):
        read(log)
