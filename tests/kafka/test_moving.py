"""Apps move between logs, and to another number of partitions: as an operator does it, killed at every step, beside processes that live."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random

import msgspec
import pytest

from tailrace.core.errors import FencedError, OtherHistoryError
from tailrace.core.records import Output
from tailrace.history.provenance.moves import check_lives_here
from tailrace.history.reading.stretches import scan
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import MovableLog, PublishedAt, Stretch, TopicPartition, TopicSettings
from tailrace.log.kafka import KafkaLog
from tailrace.log.opening import open_log
from tests.cli.commands import Ended, done, run
from tests.history import resized
from tests.kafka.killed_move import STEPS
from tests.kafka.outside import Outside
from tests.kafka.processes import Members, stopped
from tests.runtime.processes import Process, wait_until

APP = "tests.kafka.apps:app"
KEYS = [f"k{number}" for number in range(20)]
OF_A_LEG = 3
PARTITIONS = 3
TOPIC, SCRATCH = "events", "scratch"


class Life:
    """The app, on one log after the other. In each leg it gets some events of every key, and emits the count of each key once."""

    def __init__(self, folder: Path, log: object) -> None:
        self.folder, self.log, self.legs = folder, log, 0
        done("topics", "apply", "--app", APP, "--log", log)

    def live(self) -> None:
        self.legs += 1
        numbers = [100_000 * self.legs + 100 * number for number in range(OF_A_LEG)]
        events = [{"key": key, "at_ms": 1_000_000 + number} for number in numbers for key in KEYS]
        lines = b"\n".join(map(msgspec.json.encode, events))
        done("log", "append", "seen", "--app", APP, "--log", self.log, stdin=lines)
        assert self.run().code == 0
        dumped = done("log", "dump", "totals", "--log", self.log).lines
        found = Counter((line["value"]["key"], line["value"]["count"]) for line in dumped)
        assert found == {(key, OF_A_LEG * leg): 1 for key in KEYS for leg in range(1, self.legs + 1)}

    def run(self) -> Ended:
        end = ("--end-of-input", "--after-end")
        return run("run", APP, *end, "--log", self.log, "--state", self.folder / "state")

    def to(self, log: object) -> list[object]:
        """The command that moves it."""
        return ["migrate", "--from", self.log, "--to", log, "--app", APP, "--json"]

    def move(self, log: object, *, whole: bool = True) -> None:
        """Move it, once its group has no member any more. ``whole``: nothing of it has been moved before."""
        moved: list[Ended] = []

        def is_moved() -> bool:
            moved.append(run(*self.to(log)))
            return moved[-1].code == 0

        wait_until(is_moved, "the app is moved")
        (found,) = moved[-1].lines
        assert found["done"]
        assert found["rows"] > len(KEYS)
        records = {one["topic"]: one["records"] for one in found["topics"]}
        assert records["seen"] == (self.legs * OF_A_LEG * len(KEYS) if whole else 0)
        refused(self.run(), f"was moved from this log to {log}")
        self.log = log

    def check_replay(self) -> None:
        (replayed,) = done("replay", APP, "--compare", "--json", "--log", self.log).lines
        assert (replayed["differences"], replayed["records"]) == (0, self.legs * OF_A_LEG * len(KEYS))


def refused(ended: Ended, said: str) -> None:
    assert ended.code == 1, ended
    assert said in ended.err


def lives(place: Path | str) -> bool:
    with closing(open_log(place)) as log:
        try:
            check_lives_here(log, "totals")
        except OtherHistoryError:
            return False
        return True


def test_an_app_moves_to_kafka_between_prefixes_and_to_a_folder_but_not_while_it_runs(
    kafka_url: str, tmp_path: Path
) -> None:
    """The first move is killed at every step, and ends with the same command. Until it is done the app runs on the old log, never on both."""
    source, one, other = tmp_path / "log", f"{kafka_url}one.", f"{kafka_url}other."
    life = Life(tmp_path, source)
    life.live()
    for step in STEPS:
        process = Process(tmp_path / f"{step}.log", "tests.kafka.killed_move", step, *life.to(one))
        assert process.ended() == -signal.SIGKILL, process.text()
        assert not lives(one)
        assert lives(source) == (step in ("arriving", "reading"))
        if step == "reading":
            life.live()
    life.move(one, whole=False)
    life.live()
    life.check_replay()
    with closing(Members(one, tmp_path)) as members:
        service = members.start(APP, "running", tasks=4)
        refused(run(*life.to(other)), "runs")
        assert service.code() is None
        stopped(service)
        life.move(other)
    refused(run(*life.to(one)), "the target has records in")
    Outside(one).delete(*Outside(one).names())
    with closing(Members(other, tmp_path)) as members:
        service = members.start(APP, "suspended", tasks=4)
        service.signal(signal.SIGSTOP)
        life.move(one)  # once its session is over
        service.signal(signal.SIGCONT)
        assert service.ended() == 1
        assert "was moved from this log" in service.text()
    life.live()
    life.move(tmp_path / "back")
    life.live()
    life.check_replay()


def test_an_app_continues_on_kafka_with_fewer_partitions_and_back_with_more(
    kafka_url: str, tmp_path: Path
) -> None:
    events, old, new = resized.EVENTS, tmp_path / "log", tmp_path / "new"

    def live(log: object, partitions: int, some: Sequence[Output], end: str) -> None:
        with closing(open_log(str(log))) as opened:
            opened.append_all(some)
        state = tmp_path / f"state{partitions}"
        done("run", f"tests.history.resized:of_{partitions}", end, "--log", log, "--state", state)

    done("topics", "apply", "--app", "tests.history.resized:of_3", "--log", old)
    live(old, 3, events[:60], "--until-end")
    with closing(open_log(str(old))) as log:
        log.append_all(events[60:90])  # which it has not read
    fewer = ["reshape", "tests.history.resized:of_3", "--partitions", "2", "--log", old, "--to", kafka_url]
    fewer += ["--snapshots", tmp_path / "snapshots"]
    assert "begins on kafka://" in done(*fewer).out
    live(kafka_url, 2, events[90:120], "--until-end")
    more = ["reshape", "tests.history.resized:of_2", "--partitions", "5", "--log", kafka_url, "--to", new]
    done(*more, "--snapshots", tmp_path / "more")
    live(new, 5, events[120:], "--end-of-input")
    with closing(open_log(str(new))) as log:
        assert resized.found(log) == resized.CASE.expected
    done("replay", "tests.history.resized:of_5", "--log", new)


# --- the copy of a topic


def made(kind: str, kafka_url: str, folder: Path) -> EmbeddedLog | KafkaLog:
    log = EmbeddedLog(folder) if kind == "embedded" else KafkaLog(kafka_url)
    log.create_topic(TOPIC, TopicSettings(PARTITIONS))
    return log


@pytest.fixture(params=[("embedded", "kafka"), ("kafka", "embedded"), ("kafka", "kafka")], ids="-".join)
def logs(request, kafka_url, tmp_path) -> Iterator[tuple[MovableLog, MovableLog]]:
    """A log with records of many commits, some of which were aborted, and an empty one with the topic."""
    source, target = (
        made(kind, f"{kafka_url}{n}.", tmp_path / str(n)) for n, kind in enumerate(request.param)
    )
    target.create_topic(SCRATCH, TopicSettings(1))
    chance = Random(7)
    writer = source.writer("w")
    for number in range(25):
        for partition in chance.sample(range(PARTITIONS), chance.randint(1, PARTITIONS)):
            writer.append([output(number, one) for one in range(chance.choice((1, 2, 7)))], partition)
        if number % 5 == 3:
            writer.abort()
        else:
            writer.commit(None, "", {TOPIC: number * 100, f"{TOPIC}#part": None if number % 2 else number})
    writer.close()
    yield source, target
    if isinstance(target, EmbeddedLog):
        target.verify()
    source.close()
    target.close()


def output(number: int, one: int) -> Output:
    key = None if one == 2 else b"k%d" % number
    value = None if one == 3 else b"v%d" % one
    headers = (("h", b"1"), ("h", b"")) if one == 4 else ()
    return Output(TOPIC, key, value, 0 if one == 5 else number * 1_000, headers)


def stretch(log: MovableLog, partition: int, start: int, end: int) -> Stretch:
    place = TopicPartition(TOPIC, partition)
    return Stretch(place, list(scan(log, *place, start, end)), end)


def whole(log: MovableLog) -> list[Stretch]:
    ends = [(log.start_offset(TOPIC, one), log.end_offset(TOPIC, one)) for one in range(PARTITIONS)]
    return [stretch(log, one, start, end) for one, (start, end) in enumerate(ends)]


def last_of_each(published: list[PublishedAt]) -> dict[str, int | None]:
    return {one.name: one.watermark_ms for one in published}


def test_a_copy_has_the_same_records_and_watermarks_at_the_same_offsets_wherever_it_was_interrupted(
    logs,
) -> None:
    """Each placer is left after one step."""
    source, target = logs
    for share in range(1, 8):
        with closing(target.placer(SCRATCH)) as placer:
            placer.append(
                [
                    stretch(source, one.place.partition, target.end_offset(*one.place), one.end * share // 7)
                    for one in whole(source)
                ]
            )
    assert whole(target) == whole(source)
    assert sum(len(one.records) for one in whole(target)) > 50
    with closing(target.placer(SCRATCH)) as placer:
        placer.publish(TOPIC, source.published(TOPIC))
    assert last_of_each(target.published(TOPIC)) == last_of_each(source.published(TOPIC))
    assert target.publications() == source.publications()
    for one in whole(source):
        mine, its = (log.reader({one.place: one.end}) for log in (target, source))
        with closing(mine), closing(its):
            assert sorted(mine.published(*one.place)) == sorted(its.published(*one.place))


def test_a_partition_begins_where_it_should_and_records_come_after(logs) -> None:
    source, target = logs
    stretches = whole(source)  # once: the marker of the last transaction may come later
    with closing(target.placer(SCRATCH)) as placer:
        for one in stretches:
            placer.begin_at(one.place, one.end // 2)
        placer.append([stretch(source, one.place.partition, one.end // 2, one.end) for one in stretches])
    for one in stretches:
        assert target.start_offset(*one.place) == one.end // 2
        assert stretch(target, one.place.partition, one.end // 2, one.end).records == [
            record for record in one.records if record.offset >= one.end // 2
        ]


def test_a_copy_that_another_has_taken_over_ends_as_fenced(log: KafkaLog) -> None:
    for name in (TOPIC, SCRATCH):
        log.create_topic(name, TopicSettings(1))
    place = TopicPartition(TOPIC, 0)
    for gap in (1, 2):  # one offset, and several, are made by different producers
        former = log.placer(SCRATCH)
        end = log.end_offset(*place)
        log.placer(SCRATCH).close()
        with pytest.raises(FencedError, match="fenced"):
            former.append([Stretch(place, (), end + gap)])
        former.close()
        assert log.end_offset(*place) == end
