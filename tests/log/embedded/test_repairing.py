"""A repair takes out what is damaged, keeps the old files, and says what is lost: no record is missing that it does not name, and
nobody reads over a lost record without an error.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import apsw
import pytest

from tailrace.core.errors import (
    CorruptLogError,
    LogUnavailableError,
    OldLogError,
    RecordsLostError,
)
from tailrace.core.records import Output
from tailrace.log import Publication, TopicPartition, TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded import database as database_
from tailrace.log.embedded import repairing as repairing_
from tailrace.log.embedded.database import DATABASE, OLD_LABEL, WAL
from tailrace.log.embedded.repairing import repair
from tests.log.embedded.processes import running

PLACES = [TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("b", 1)]
COMMITS = 60


def made(folder: Path, *, in_wal: bool = False) -> Path:
    log = EmbeddedLog(folder)
    log.create_topic("a", TopicSettings(1))
    log.create_topic("b", TopicSettings(2))
    writer = log.writer("w")
    for number in range(COMMITS):
        for place in PLACES:
            writer.append([Output(place.topic, b"k", value(place, number), number)], place.partition)
        writer.commit({PLACES[0]: number}, "g", {"a": number})
    if not in_wal:
        log._appender.checkpoint()
        log.append("a", b"k", value(PLACES[0], COMMITS), COMMITS)
        log._appender.checkpoint()
    log.close()
    return folder / DATABASE


def value(place: TopicPartition, number: int) -> bytes:
    return f"{place.topic} {place.partition} {number} ".encode() * 300


def records(log: EmbeddedLog, place: TopicPartition) -> dict[int, bytes | None]:
    return read(log, place)[0]


def read(log: EmbeddedLog, place: TopicPartition) -> tuple[dict[int, bytes | None], set[int]]:
    """All records of a partition, and the offsets for which the reader has raised an error."""
    reader = log.reader({place: log.start_offset(*place)})
    found: dict[int, bytes | None] = {}
    lost: set[int] = set()
    unread = True
    while unread:
        try:
            fetched = reader.fetch(*place, 1000)
        except RecordsLostError as error:
            lost |= set(range(error.offset or 0, error.next_offset))
            reader.seek(*place, error.next_offset)
        else:
            found.update((one.offset, one.value) for one in fetched.records)
            unread = fetched.unread
    return found, lost


def named(lost: list[str], place: TopicPartition) -> set[int]:
    """The offsets of a partition that are named as lost."""
    found: set[int] = set()
    for said in lost:
        if given := re.match(
            rf"'{place.topic}' partition {place.partition}: offsets ([\d,]+) to ([\d,]+)", said
        ):
            first, last = (int(one.replace(",", "")) for one in given.groups())
            found |= set(range(first, last + 1))
    return found


def test_a_log_that_is_not_damaged_is_left_as_it_is(tmp_path) -> None:
    path = made(tmp_path)
    before = path.read_bytes()
    done = repair(tmp_path)
    assert (done.kept, done.lost) == (None, [])
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("damaged-*"))


@pytest.mark.parametrize(
    "harm",
    [
        "UPDATE blocks SET data = zeroblob(length) WHERE id = 7",
        "UPDATE blocks SET max_ms = 'x' WHERE id IN (3, 4, 5)",
        "DELETE FROM blocks WHERE id < 20",
        "DELETE FROM blocks WHERE id IN (SELECT id FROM blocks ORDER BY id DESC LIMIT 5)",
        "DELETE FROM partitions WHERE place = 1",
        "DELETE FROM offsets",
        "UPDATE writers SET epoch = 7",
        "UPDATE publications SET watermark_ms = 100000 WHERE id = 9",
        "UPDATE log SET identity = x'00'",
    ],
)
def test_what_is_intact_stays_where_it_was_and_what_is_lost_is_named(tmp_path, harm) -> None:
    before = made(tmp_path)
    harmed(before, harm)
    damaged = before.read_bytes()
    done = repair(tmp_path)
    assert done.kept is not None
    assert (done.kept / DATABASE).read_bytes() == damaged
    check(tmp_path, done.lost)
    assert done.lost
    assert repair(tmp_path).kept is None


def check(folder: Path, lost: list[str]) -> None:
    log = EmbeddedLog(folder)
    log.verify()
    for place in PLACES:
        count = COMMITS + (place == PLACES[0])
        if place.topic not in log.topics():
            assert any("name and settings of a topic" in one for one in lost)
            continue
        found, refused = read(log, place)
        start, end = log.start_offset(*place), log.end_offset(*place)
        assert all(value(place, number) == found[number] for number in found)
        moved = (
            f"start and end of '{place.topic}' partition {place.partition}: they are {start} and {end} now"
        )
        outside = set() if (start, end) == (0, count) else set(range(start)) | set(range(end, count))
        assert not outside or moved in lost
        assert set(range(start, end)) == set(found) | refused, "what is lost is refused, and nothing else"
        assert refused <= named(lost, place)
        assert set(range(count)) - set(found) <= named(lost, place) | outside
    log.create_topic("more", TopicSettings(1))
    log.append("more", b"k", b"v", 0)
    log.clean(least_gain=0)
    log.verify()
    log.close()


@pytest.mark.one_seed_in(5)
def test_no_record_is_lost_without_being_named_whatever_page_is_damaged(tmp_path, seeds) -> None:
    good = made(tmp_path / "made").read_bytes()
    page = 16_384
    for seed in seeds:
        dice = Random(seed)
        folder = tmp_path / str(seed)
        shutil.copytree(tmp_path / "made", folder)
        data = bytearray(good)
        at = dice.randrange(1, len(data) // page) * page
        data[at : at + page] = dice.randbytes(page) if seed % 2 else bytes(page)
        (folder / DATABASE).write_bytes(data)
        (folder / WAL).unlink()
        try:
            done = repair(folder)
        except CorruptLogError:
            assert at // page < 3, "only where the tables begin"
        else:
            check(folder, done.lost)
        shutil.rmtree(folder)


def test_commits_that_were_in_a_lost_wal_are_counted_and_accepted(tmp_path) -> None:
    made(tmp_path, in_wal=True)
    log = EmbeddedLog(tmp_path)
    log._appender.checkpoint()
    for number in range(3):
        log.append("a", b"k", value(PLACES[0], COMMITS + number), 0)
    log.close()
    (tmp_path / WAL).unlink()
    with pytest.raises(CorruptLogError, match="the last 3 commits are missing"):
        EmbeddedLog(tmp_path)
    done = repair(tmp_path)
    assert len(done.lost) == 1
    assert done.lost[0].startswith("the last 3 commits")
    log = EmbeddedLog(tmp_path)
    assert log.end_offset("a", 0) == COMMITS
    assert log.ends([]).position > COMMITS + 3, "positions do not go back"
    reader = log.reader({PLACES[0]: COMMITS})
    assert reader.published("a", 0) == [Publication("w", COMMITS - 1)]


def test_a_log_that_another_process_has_open_is_not_repaired(tmp_path) -> None:
    made(tmp_path)
    with running("log = EmbeddedLog(folder)\nsay('open')\nsys.stdin.readline()", tmp_path) as process:
        assert process.line() == "open"
        with pytest.raises(LogUnavailableError, match="another process has the log"):
            repair(tmp_path)


def test_a_file_whose_beginning_is_gone_is_left_as_it_is(tmp_path) -> None:
    path = made(tmp_path)
    path.write_bytes(bytes(5_000) + path.read_bytes()[5_000:])
    before = path.read_bytes()
    with pytest.raises(CorruptLogError, match="Restore the folder from a copy"):
        repair(tmp_path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["make", "put_in_place", "sync"])
def test_a_repair_that_is_interrupted_is_run_again(tmp_path, monkeypatch, name) -> None:
    path = made(tmp_path)
    harmed(path, "DELETE FROM blocks WHERE id = 7")

    class Kill(BaseException):
        pass

    def kill(*_: object) -> Callable[..., None]:
        raise Kill

    with monkeypatch.context() as patch:
        patch.setattr(database_ if name == "make" else repairing_, name, kill)
        with pytest.raises(Kill):
            repair(tmp_path)
    if name == "put_in_place":
        with pytest.raises(LogUnavailableError, match="was interrupted"):
            EmbeddedLog(tmp_path)
    done = repair(tmp_path)
    assert done.kept is not None
    assert any("offsets 7 to 7" in one for one in done.lost)
    log = EmbeddedLog(tmp_path)
    log.verify()
    assert sorted(records(log, PLACES[0])) == [*range(7), *range(8, COMMITS + 1)]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("shutil.copy2", OSError(errno.ENOSPC, "No space left on device")),
        ("_rescue", apsw.FullError("database or disk is full")),
        ("sync", OSError(errno.EIO, "Input/output error")),
    ],
)
def test_a_repair_that_fails_leaves_nothing_that_looks_like_a_copy(
    tmp_path, monkeypatch, name, error
) -> None:
    path = made(tmp_path, in_wal=True)
    harmed_bytes = path.read_bytes()
    before = sorted(one.name for one in tmp_path.iterdir())

    def fail(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(f"tailrace.log.embedded.repairing.{name}", fail)
        patch.setattr("tailrace.log.embedded.repairing._is_whole", lambda rows: False)
        with pytest.raises(LogUnavailableError):
            repair(tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == before
    assert path.read_bytes() == harmed_bytes


def test_the_damaged_files_are_kept_if_the_last_step_of_a_repair_fails(tmp_path, monkeypatch) -> None:
    path = made(tmp_path)
    harmed(path, "DELETE FROM blocks WHERE id = 7")
    put_in_place = database_.put_in_place

    def fail(repaired: Path) -> None:
        put_in_place(repaired)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(repairing_, "put_in_place", fail)
    with pytest.raises(LogUnavailableError):
        repair(tmp_path)
    assert (tmp_path / "damaged-1" / DATABASE).exists()
    assert "offsets 7 to 7" in (tmp_path / "damaged-1" / "lost.txt").read_text()


def test_what_a_killed_repair_has_left_is_removed_by_the_next_and_kept_files_are_not(tmp_path) -> None:
    path = made(tmp_path)
    for name, list_of_losses in (("damaged-1", True), ("damaged-2", False)):
        (tmp_path / name).mkdir()
        (tmp_path / name / DATABASE).write_bytes(path.read_bytes())
        if list_of_losses:
            (tmp_path / name / "lost.txt").touch()
    harmed(path, "DELETE FROM blocks WHERE id = 1")
    assert repair(tmp_path).kept == tmp_path / "damaged-2"
    assert sorted(one.name for one in tmp_path.glob("damaged-*")) == ["damaged-1", "damaged-2"]
    assert (tmp_path / "damaged-2" / "lost.txt").exists()


def test_a_repair_without_room_names_how_much_it_needs(tmp_path, monkeypatch) -> None:
    path = made(tmp_path)
    size = sum(one.stat().st_size for one in (path, tmp_path / WAL) if one.exists())
    usage = shutil.disk_usage(tmp_path)._replace(free=size)
    monkeypatch.setattr("tailrace.log.embedded.repairing.shutil.disk_usage", lambda path: usage)
    with pytest.raises(LogUnavailableError, match=rf"needs up to {2 * size:,} bytes .*; {size:,} are free"):
        repair(tmp_path)
    assert not list(tmp_path.glob("damaged-*"))


def test_a_log_of_the_older_format_is_not_repaired_but_upgraded(tmp_path) -> None:
    (tmp_path / OLD_LABEL).touch()
    with pytest.raises(OldLogError, match="tailrace log upgrade"):
        repair(tmp_path)


def harmed(path: Path, *statements: str) -> None:
    connection = apsw.Connection(str(path))
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def test_lost_records_of_a_compacted_topic_are_never_taken_for_compacted_ones(tmp_path) -> None:
    log = EmbeddedLog(tmp_path / "log")
    log.create_topic("c", TopicSettings(1, compacted=True))
    for number in range(30):
        log.append("c", b"%d" % (number % 3), b"x" * 500, 1_000 + number)
    log._appender.checkpoint()
    log.close()
    place, path = TopicPartition("c", 0), tmp_path / "log" / DATABASE
    harmed(path, "DELETE FROM blocks WHERE id IN (10, 11)")
    repair(tmp_path / "log")
    log = EmbeddedLog(tmp_path / "log")
    log.clean(least_gain=0, deletions_kept_ms=0)
    assert read(log, place) == ({27: b"x" * 500, 28: b"x" * 500, 29: b"x" * 500}, {10, 11})
    assert log.verify() == ["'c' partition 0: offsets 10 to 11, up to 2 records"]
    assert log.offset_at("c", 0, 1_011) == 10, "the first record of this time may be a lost one"
    with pytest.raises(RecordsLostError, match="offsets 11 to 11") as raised:
        log.reader({place: 11}).fetch("c", 0, 10)
    assert raised.value.next_offset == 12
    log.append("c", b"4", b"y", 2_000)
    log._appender.checkpoint()
    log.copy_to(tmp_path / "copy")
    log.close()
    harmed(path, "UPDATE blocks SET max_ms = 7 WHERE id = 12")
    assert any("offsets 12 to" in one for one in repair(tmp_path / "log").lost)
    for folder, refused in (("log", {*range(10, 27)}), ("copy", {10, 11})):
        with_more = EmbeddedLog(tmp_path / folder)
        assert read(with_more, place)[1] == refused
        with_more.delete_before("c", 0, 30)
        with_more.clean()
        assert (read(with_more, place), with_more.verify()) == (({30: b"y"}, set()), [])
        with_more.close()


@pytest.mark.parametrize(
    ("harm", "places"),
    [
        ("DELETE FROM topics WHERE name = 'b'", {"lost-topic-1": 2}),
        ("UPDATE topics SET retention_ms = 7 WHERE name = 'b'", {"lost-topic-1": 2}),
        ("DELETE FROM topics WHERE name IN ('b', 'c')", {"lost-topic-1": 3}),
        ("DELETE FROM topics", {"lost-topic-0": 4}),
        ("DELETE FROM topics; DELETE FROM partitions", {"lost-topic-0": 4}),
    ],
)
def test_records_of_a_topic_whose_row_is_lost_are_kept_under_another_name(tmp_path, harm, places) -> None:
    path = made(tmp_path)
    log = EmbeddedLog(tmp_path)
    log.create_topic("c", TopicSettings(1))
    log.append("c", b"k", b"v", 0)
    log._appender.checkpoint()
    before = [records(log, place) for place in (*PLACES, TopicPartition("c", 0))]
    log.close()
    harmed(path, harm)
    done = repair(tmp_path)
    log = EmbeddedLog(tmp_path)
    (name,) = places
    assert log.partitions(name) == places[name]
    assert any(repr(name) in one for one in done.lost)
    after = [
        records(log, TopicPartition(topic, at))
        for topic in log.topics()
        for at in range(log.partitions(topic))
    ]
    assert after == before
    log.verify()
    log.create_topic("new", TopicSettings(1))
    log.append("new", b"k", b"v", 0)
    log.verify()
    log.close()
    assert repair(tmp_path).kept is None


def test_a_row_that_is_missing_is_not_hidden_by_one_that_is_named(tmp_path) -> None:
    path = made(tmp_path)
    harmed(path, "UPDATE partitions SET end_offset = 7 WHERE place = 1")
    assert not any("cannot be named" in one for one in repair(tmp_path).lost)
    harmed(path, "UPDATE partitions SET end_offset = 7 WHERE place = 1", "DELETE FROM offsets")
    assert any("cannot be named" in one for one in repair(tmp_path).lost)


def test_a_partition_whose_row_is_lost_does_not_end_before_what_was_read_of_it(tmp_path) -> None:
    path = made(tmp_path)
    log = EmbeddedLog(tmp_path)
    log.writer("w").commit({PLACES[1]: COMMITS}, "g")
    log._appender.checkpoint()
    log.close()
    harmed(
        path,
        "DELETE FROM partitions WHERE place = 1",
        f"DELETE FROM blocks WHERE id = (1 << 40) + {COMMITS - 1}",
    )
    repair(tmp_path)
    log = EmbeddedLog(tmp_path)
    assert (log.start_offset("b", 0), log.end_offset("b", 0)) == (0, COMMITS)
    assert read(log, PLACES[1])[1] == {COMMITS - 1}


def test_a_missing_publication_is_noticed(tmp_path) -> None:
    path = made(tmp_path)
    for harm in ("id = 20", "id = (SELECT max(id) FROM publications)"):
        log = EmbeddedLog(tmp_path)
        log.delete_before("a", 0, 15)
        log.clean()
        log._appender.checkpoint()
        log.verify()
        log.close()
        harmed(path, f"DELETE FROM publications WHERE {harm}")
        log = EmbeddedLog(tmp_path)
        with pytest.raises(CorruptLogError, match="a publication"):
            log.verify()
        log.close()
        assert repair(tmp_path).lost == ["published watermarks: some are missing"]


def test_a_process_that_starts_during_a_repair_uses_the_repaired_file(tmp_path, monkeypatch) -> None:
    path = made(tmp_path)
    harmed(path, "DELETE FROM blocks WHERE id = 7")
    put_in_place = database_.put_in_place
    program = """
log = EmbeddedLog(folder)
try:
    log.reader({TopicPartition('a', 0): 7}).fetch('a', 0, 1)
except TailraceError as error:
    say(type(error).__name__)
say(log.append('a', b'k', b'v', 0))
"""
    with monkeypatch.context() as patch:
        started = []

        def late(repaired: Path) -> None:
            # A process that was let in before the last steps has opened the old file, and waits for its lock.
            process = running(program, tmp_path)
            started.append((process, process.__enter__()))
            descriptors = Path(f"/proc/{started[0][1].process.pid}/fd")
            while not any(os.path.realpath(one) == str(path) for one in descriptors.iterdir()):
                time.sleep(0.01)
            put_in_place(repaired)

        patch.setattr(repairing_, "put_in_place", late)
        patch.setattr(repairing_, "REPAIRED", "unnoticed")
        repair(tmp_path)
    ((context, process),) = started
    assert (process.line(), process.line()) == ("RecordsLostError", str(COMMITS + 1))
    context.__exit__(None, None, None)
    log = EmbeddedLog(tmp_path)
    assert log.end_offset("a", 0) == COMMITS + 2
    log.verify()


@pytest.mark.parametrize("gone", [False, True], ids=["replaced", "deleted"])
def test_a_file_that_is_replaced_while_it_is_open_is_an_error(tmp_path, gone) -> None:
    path = made(tmp_path / "log")
    made(tmp_path / "other")
    log = EmbeddedLog(tmp_path / "log")
    log.append("a", b"k", b"v", 0)
    if gone:
        path.unlink()
    else:
        (tmp_path / "other" / DATABASE).rename(path)
    with pytest.raises(CorruptLogError, match="deleted or replaced"):
        log.append("a", b"k", b"v", 0)
    log._view._look_s = 0.0
    with pytest.raises(CorruptLogError, match="deleted or replaced"):
        log.end_offset("a", 0)
    log.close()


def test_a_repair_keeps_the_order_of_commits_over_all_partitions(tmp_path) -> None:
    log = EmbeddedLog(tmp_path)
    log.create_topic("t", TopicSettings(2))
    log.create_topic("other", TopicSettings(1))
    for number in range(6):
        log.append("t", b"k", b"v", number, partition=number % 2)
    log.append("other", b"k", b"v", 0)
    before = list(log.commit_order("t"))
    log._appender.checkpoint()
    log.close()
    connection = apsw.Connection(str(tmp_path / DATABASE))
    connection.execute("UPDATE blocks SET data = zeroblob(5) WHERE id = (SELECT max(id) FROM blocks)")
    connection.close()
    assert len(repair(tmp_path).lost) == 1
    assert list(EmbeddedLog(tmp_path).commit_order("t")) == before
