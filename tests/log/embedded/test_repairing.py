"""A repair takes out what is damaged, keeps the old files, and says what is lost: no record is missing that it does not name."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import apsw
import pytest

from tailrace.core.errors import CorruptLogError, LogUnavailableError
from tailrace.core.records import Output
from tailrace.log import Publication, TopicPartition, TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded import database as database_
from tailrace.log.embedded import repairing as repairing_
from tailrace.log.embedded.database import DATABASE, WAL
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
    reader = log.reader({place: log.start_offset(*place)})
    found: dict[int, bytes | None] = {}
    while (fetched := reader.fetch(*place, 1000)).records or fetched.unread:
        found.update((one.offset, one.value) for one in fetched.records)
    return found


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
    connection = apsw.Connection(str(before))
    connection.execute(harm)
    connection.close()
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
            assert any(f"the topic '{place.topic}'" in one for one in lost) or any(
                "rows of topics" in one for one in lost
            )
            continue
        found = records(log, place)
        start, end = log.start_offset(*place), log.end_offset(*place)
        assert all(value(place, number) == found[number] for number in found)
        moved = (
            f"start and end of '{place.topic}' partition {place.partition}: they are {start} and {end} now"
        )
        outside = set() if (start, end) == (0, count) else set(range(start)) | set(range(end, count))
        assert not outside or moved in lost
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
    connection = apsw.Connection(str(path))
    connection.execute("DELETE FROM blocks WHERE id = 7")
    connection.close()

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
