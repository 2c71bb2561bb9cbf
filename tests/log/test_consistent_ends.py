"""The ends that are found beside services that commit are a consistent cut, whatever is committed between two questions.

The log is one in memory that answers each question about a partition at another moment: between any two the tasks go on, and a commit
becomes visible in each of its partitions at another time.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest

from tailrace.core import rows
from tailrace.core.engine import tape
from tailrace.core.engine.task import ORIGIN_HEADER
from tailrace.core.errors import LogUnavailableError
from tailrace.core.records import InputRecord, Output
from tailrace.log import Fetch, TopicPartition, TopicSettings
from tailrace.log.consistent_ends import consistent_ends
from tailrace.log.interface import Publication
from tailrace.testing.memory_log import MemoryLog, MemoryWriter

TASKS = 3
OWN: dict[str, int] = dict.fromkeys(("a.changelog", "a.tape", "a.inbox", "made"), TASKS)


def origin(record: InputRecord) -> tuple[int, int]:
    _, partition, number = record.headers[-1][1].split(b"/")
    return int(partition), int(number)


class Task:
    """Takes messages from its inbox and sends some, in transactions that stay open for a while."""

    def __init__(self, log: MemoryLog, number: int, random: Random) -> None:
        self.log, self.number, self.random = log, number, random
        self.writer: MemoryWriter = log.writer(f"a-{number}")
        self.sent = self.position = self.commits = 0

    def act(self) -> None:
        if self.random.random() < 0.4:
            self.commit()
        else:
            self.take()
            self.send()

    def take(self) -> None:
        end = self.log.at("a.inbox", self.number).last_stable
        self.position = self.random.randint(self.position, end) if end > self.position else self.position

    def send(self) -> None:
        for _ in range(self.random.randint(0, 3)):
            header = (ORIGIN_HEADER, b"a/%d/%d" % (self.number, self.sent))
            topic = self.random.choice(("a.inbox", "a.inbox", "made"))
            self.writer.append([Output(topic, b"k", b"v", 1, (header,))], self.random.randrange(TASKS))
            self.sent += 1

    def commit(self) -> None:
        self.commits += 1
        totals = tape.Totals(outputs=self.sent)
        positions = {"a.inbox": self.position}
        cut = tape.Cut(tape.FORMAT, "a", self.number, b"", positions, {}, [], 0, 0, totals, self.commits)
        self.writer.append([Output("a.changelog", b"row", b"%d" % self.commits, 1)], self.number)
        self.writer.append([Output("a.changelog", rows.CUT_ROW, tape.encode(cut), 1)], self.number)
        self.writer.append([Output("a.tape", None, b"", 1)], self.number)
        self.writer.commit()


class Beside:
    """The log as another process sees it while the tasks run."""

    def __init__(self, log: MemoryLog, tasks: list[Task], random: Random) -> None:
        self.log, self.tasks, self.random = log, tasks, random
        self.shown: dict[TopicPartition, int] = {}
        """How far a partition's transactions have been seen to end. It is behind the truth, and grows."""

    def go_on(self) -> None:
        for _ in range(self.random.choice((0, 1, 3, 20))):
            self.random.choice(self.tasks).act()

    def starts(self, places: Iterable[TopicPartition], /) -> dict[TopicPartition, int]:
        return {place: self.log.start_offset(*place) for place in places}

    def ends(self, places: Iterable[TopicPartition], /) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for place in places:
            self.go_on()
            found[place] = self.log.end_offset(*place)
        return found

    def stable_ends(self, places: Iterable[TopicPartition], /) -> dict[TopicPartition, int]:
        return {place: self.show(place) for place in places}

    def show(self, place: TopicPartition) -> int:
        self.go_on()
        before = self.shown.get(place, 0)
        self.shown[place] = self.random.choice((before, max(before, self.log.at(*place).last_stable)))
        return self.shown[place]


class BesideReader:
    """Reads what is shown, in small pieces."""

    def __init__(self, seen: Beside) -> None:
        self.seen = seen
        self.positions: dict[tuple[str, int], int] = {}

    def seek(self, topic: str, partition: int, offset: int, /) -> None:
        self.positions[topic, partition] = offset

    def forget(self, topic: str, partition: int, /) -> None:
        self.positions.pop((topic, partition), None)

    def fetch(self, topic: str, partition: int, max_records: int, /) -> Fetch:
        at = self.positions[topic, partition]
        stop = min(self.seen.show(TopicPartition(topic, partition)), at + max_records, at + 5)
        found = [one for one in self.seen.log.read(topic, partition) if at <= one.offset < stop]
        self.positions[topic, partition] = max(at, stop)
        return Fetch(found, max(at, stop), unread=False, idle=False)

    def published(self, topic: str, partition: int, /) -> list[Publication]:
        raise NotImplementedError

    def wait(self, timeout_s: float, /) -> bool:
        return True

    def close(self) -> None:
        """Nothing to release."""


def service(seed: int) -> Beside:
    random, log = Random(seed), MemoryLog()
    for name, partitions in OWN.items():
        log.create_topic(name, TopicSettings(partitions))
    tasks = [Task(log, number, random) for number in range(TASKS)]
    for _ in range(random.randrange(40)):
        random.choice(tasks).act()
    return Beside(log, tasks, random)


def commits_of(log: MemoryLog, number: int) -> list[tuple[int, tape.Cut]]:
    """The commits of a task: the offset of each cut, and the cut."""
    found = [one for one in log.read("a.changelog", number) if one.key == rows.CUT_ROW]
    return [(one.offset, tape.decode_cut(one.value or b"")) for one in found]


@pytest.mark.one_seed_in(10)
def test_what_a_task_has_read_was_written_within_the_cut(seeds: range) -> None:
    for seed in seeds:
        beside = service(seed)
        log, before = beside.log, [task.commits for task in beside.tasks]
        ends = consistent_ends(beside, BesideReader(beside), OWN, patience_s=60)
        last: dict[int, tape.Cut | None] = {}
        for number in range(TASKS):
            end = ends[TopicPartition("a.changelog", number)]
            below = [cut for offset, cut in commits_of(log, number) if offset < end]
            assert len(below) >= before[number], f"seed {seed}: a commit that existed is not in the cut"
            last[number] = below[-1] if below else None
        sent = {number: 0 if cut is None else cut.totals.outputs for number, cut in last.items()}
        for number, cut in last.items():
            position = 0 if cut is None else cut.positions["a.inbox"]
            for record in log.read("a.inbox", number):
                writer, which = origin(record)
                if record.offset < position:
                    assert which < sent[writer], (
                        f"seed {seed}: task {number} has read message {which} of task {writer}, which has sent {sent[writer]}"
                    )
        for topic in ("a.inbox", "made"):
            for number in range(TASKS):
                for record in log.read(topic, number):
                    writer, which = origin(record)
                    if which < sent[writer]:
                        assert record.offset < ends[TopicPartition(topic, number)], (
                            f"seed {seed}: {topic} ends before"
                        )


def test_a_cut_of_a_log_at_rest_is_its_end() -> None:
    beside = service(7)
    for task in beside.tasks:
        task.commit()
    beside.tasks = [Task(MemoryLog(), 0, Random(0))]
    beside.go_on = lambda: None  # type: ignore[method-assign]  # at rest
    found = consistent_ends(beside, BesideReader(beside), OWN, patience_s=60)
    assert found == {place: beside.log.end_offset(*place) for place in found}


@pytest.mark.parametrize("said", [b"a/1/1000000", b"rubbish", b"a/x/y", b"\xff/1/0", b"a/1/" + b"9" * 5_000])
def test_a_message_of_another_history_moves_nobody(said: bytes) -> None:
    """Its writer has no such number: somebody has copied it into the inbox, or the writer's topics were made again."""
    beside = service(3)
    for task in beside.tasks:
        task.commit()
    beside.log.append("a.inbox", b"k", b"v", 1, ((ORIGIN_HEADER, said),), 0)
    reader = beside.tasks[0]
    seen = Beside(beside.log, [reader], Random(1))

    def once() -> None:
        if seen.shown and reader.position < seen.log.end_offset("a.inbox", 0):
            reader.position = seen.log.end_offset("a.inbox", 0)
            reader.commit()

    seen.go_on = once  # type: ignore[method-assign]
    found = consistent_ends(seen, BesideReader(seen), OWN, patience_s=60)
    commits = [offset for offset, _ in commits_of(seen.log, 1)]
    assert found[TopicPartition("a.changelog", 1)] > commits[-1]


def test_a_transaction_that_stays_open_is_named() -> None:
    beside = service(3)
    beside.tasks[1].writer.append([Output("made", b"k", b"v", 1)], 2)
    beside.go_on = lambda: None  # type: ignore[method-assign]
    for task in (beside.tasks[0], beside.tasks[2]):
        task.commit()
    with pytest.raises(LogUnavailableError, match="has been open"):
        consistent_ends(beside, BesideReader(beside), {"made": TASKS}, patience_s=0.2)
