"""Ends of topics that fit together, on a log that has no moment for all of its partitions.

Theory. A commit of a task writes to several partitions. On Kafka its records become readable in each partition at another time,
and other tasks commit meanwhile. So ends that are read one after the other do not fit together: a task may have handled a message
whose sender stands, by the end of its own changelog, before the commit that sent it. If the sender continued from there, it would send
the message a second time.

A *cut* chooses a commit of each task, which is an end of each changelog. It is *consistent* if every record that a task has read by its
commit, and that a task of the same set has written, was written by the writer's commit in the cut, or by an earlier one. What tells it
is in the log: the commit's ``tape.Cut`` has the positions in all inputs and the number of outputs, and each output has a header with
its task and its number there::

    a record of task q with number n, below the position of task p      q must stand at a commit with more than n outputs

The rules, in this order::

    1  read        the last stable end S of each topic that tasks may read
    2  settle      the changelogs: read their ends, records of open transactions included, and wait until these are stable
                   (every transaction that was open then has ended). Each task stands at the last cut below: that exists now
    3  close       for each task and input, look at the records from S to the task's position. If a writer stands too early, move it
                   forward to its first cut with enough outputs, and look at the records that it has read more
    4  settle      all other topics: their ends now are behind everything that these commits have written

- *Below S there is nothing to look at.* A record below S was committed before the changelogs' ends were read in step 2, and its commit
  has written its cut before. So the cut is below these ends, and the writer stands there or later.
- *It is the least cut* at or after what exists when it begins: a task moves only if it must, and then to the first commit that is enough.
- *It ends, whatever is committed meanwhile.* A task moves only to a commit that sent a message to a commit of the cut, which was
  therefore done before. All of them were done before step 2 had read the last changelog, so there is a bounded number of them.
- A record whose number the changelog of its writer does not have, up to an end that is settled after step 2,
  is of another history. It moves nobody.

What is on its way to a task in this cut is not a range of offsets: between two messages of commits in the cut there may be one of a later
commit. ``history.reading.in_flight`` tells them apart by the same numbers. On the embedded log all commits are one step for all topics, so its
ends at any moment are such a cut, and every record below them is of a commit in it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from tailrace.core import rows
from tailrace.core.engine import tape
from tailrace.core.errors import LogUnavailableError
from tailrace.core.names import apps_in, is_changelog_of
from tailrace.core.records import InputRecord
from tailrace.core.unit_ids import origin_in
from tailrace.log.interface import Reader, TopicPartition

_PAUSE_S: Final = 0.02
_AT_ONCE: Final = 10_000
_FIRST_LOOK: Final = 4
"""Number of offsets before the end of a changelog where its last cut is looked for first: the cut, and the markers behind it."""


class Positions(Protocol):
    """What the log is asked for the positions of partitions."""

    def starts(self, places: Iterable[TopicPartition], /) -> Mapping[TopicPartition, int]:
        """The oldest offset kept in each partition."""
        ...

    def ends(self, places: Iterable[TopicPartition], /) -> Mapping[TopicPartition, int]:
        """The end of each partition, records of open transactions included."""
        ...

    def stable_ends(self, places: Iterable[TopicPartition], /) -> Mapping[TopicPartition, int]:
        """The end of each partition before the first open transaction."""
        ...


def consistent_ends(
    log: Positions, reader: Reader, topics: Mapping[str, int], *, patience_s: float
) -> dict[TopicPartition, int]:
    """The ends of all partitions of topics (names, and numbers of partitions) at a consistent cut. The caller must close the reader.

    The tasks are those of the apps whose changelog and tape are among the topics.
    Raises LogUnavailableError: a transaction was open for longer than ``patience_s``.
    """
    return _Cut(log, reader, topics, patience_s).find()


class _Commit(NamedTuple):
    """A commit of a task: the offset after its cut in the changelog, and what the cut says."""

    end: int
    number: int = 0
    outputs: int = 0
    positions: Mapping[str, int] = {}

    @classmethod
    def of(cls, record: InputRecord) -> _Commit:
        """The commit of a cut."""
        cut = tape.decode_cut(record.value or b"")
        return cls(record.offset + 1, cut.tape, cut.totals.outputs, cut.positions)


class _Task:
    """A task, by its partition of a changelog: the commit where it stands, and the later ones, once they were asked for."""

    __slots__ = ("later", "place", "stands")

    def __init__(self, place: TopicPartition, stands: _Commit) -> None:
        self.place = place
        self.stands = stands
        self.later: list[_Commit] | None = None


class _Cut:
    def __init__(self, log: Positions, reader: Reader, topics: Mapping[str, int], patience_s: float) -> None:
        self._log, self._reader, self._patience_s = log, reader, patience_s
        self._topics = topics
        apps = apps_in(topics)
        self._changelogs = {name: app for name in topics for app in apps if is_changelog_of(app, name)}
        self._tasks: dict[tuple[str, int], _Task] = {}
        self._looked_to: dict[TopicPartition, int] = {}
        """By partition of an input: all records below are looked at."""

    def find(self) -> dict[TopicPartition, int]:
        changelogs = [place for name in self._changelogs for place in self._places(name)]
        others = [place for name in self._topics for place in self._places(name)]
        others = [place for place in others if place not in {*changelogs}]
        self._looked_to = {**self._log.stable_ends(others)} if changelogs else {}
        ends, starts = self._settled(changelogs), self._log.starts(changelogs)
        for place, end in ends.items():
            key = self._changelogs[place.topic], place.partition
            found = self._last_cut(place, starts[place], end)
            stands = _Commit(end) if found is None else _Commit.of(found)._replace(end=end)
            # An app that was upgraded has several changelogs: the others stand at an earlier commit, or at the same.
            if key not in self._tasks or self._tasks[key].stands.number < stands.number:
                self._tasks[key] = _Task(place, stands)
        self._close()
        return ends | {task.place: task.stands.end for task in self._tasks.values()} | self._settled(others)

    def _places(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in range(self._topics[topic])]

    def _settled(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The ends of partitions, once no transaction is open that was open when they were read."""
        ends = {**self._log.ends(places)}
        waiting, deadline = [*ends], time.monotonic() + self._patience_s
        while waiting:
            stable = self._log.stable_ends(waiting)
            waiting = [place for place in waiting if stable[place] < ends[place]]
            if waiting and time.monotonic() > deadline:
                topic, partition = waiting[0]
                raise LogUnavailableError(
                    f"a transaction in {topic!r} partition {partition} has been open for more than {self._patience_s:.0f} s, and "
                    "hides what comes after it",
                    hint="Find the producer that holds it open: Kafka's tool kafka-transactions.sh names it (find-hanging).",
                )
            if waiting:
                time.sleep(_PAUSE_S)
        return ends

    def _close(self) -> None:
        """Move writers forward until every record that was read is covered."""
        unsure = [*self._tasks.values()]
        while unsure:
            moved: dict[TopicPartition, _Task] = {}
            for writer, number in self._read_by(unsure):
                if writer.stands.outputs <= number and self._move(writer, number):
                    moved[writer.place] = writer
            unsure = [*moved.values()]

    def _read_by(self, tasks: Iterable[_Task]) -> Iterator[tuple[_Task, int]]:
        """The records that tasks have read, and that were not looked at: each with its writer, and its number there."""
        for task in tasks:
            for name, position in task.stands.positions.items():
                place = TopicPartition(name, task.place.partition)
                start = self._looked_to.get(place, position)
                if start >= position:
                    continue
                self._looked_to[place] = position
                for record in self._read(place, start, position):
                    if (found := self._writer_of(record)) is not None:
                        yield found

    def _writer_of(self, record: InputRecord) -> tuple[_Task, int] | None:
        if (origin := origin_in(record.headers)) is None:
            return None
        app, partition, number = origin
        task = self._tasks.get((app.decode(errors="replace"), partition))
        return None if task is None else (task, number)

    def _move(self, task: _Task, number: int) -> bool:
        """Move a task to its first commit with more than ``number`` outputs. Returns False if there is none."""
        if task.later is None:  # all that can be needed were done before, see the head of this file
            end = self._settled([task.place])[task.place]
            records = self._read(task.place, task.stands.end, end)
            task.later = [_Commit.of(one) for one in records if one.key == rows.CUT_ROW]
        for at, commit in enumerate(task.later):
            if commit.outputs > number:
                task.stands, task.later = commit, task.later[at + 1 :]
                return True
        return False

    def _last_cut(self, place: TopicPartition, start: int, end: int) -> InputRecord | None:
        look, below = _FIRST_LOOK, end
        while start < below:
            begin = max(start, end - look)
            cuts = [one for one in self._read(place, begin, below) if one.key == rows.CUT_ROW]
            if cuts:
                return cuts[-1]
            look, below = look * 16, begin
        return None

    def _read(self, place: TopicPartition, start: int, stop: int) -> Iterator[InputRecord]:
        """The committed records of a stretch that is stable, or becomes so."""
        reader, position, deadline = self._reader, start, time.monotonic() + self._patience_s
        if start >= stop:
            return
        reader.seek(*place, start)
        while position < stop:
            fetch = reader.fetch(*place, min(_AT_ONCE, stop - position))
            for record in fetch.records:
                if record.offset < stop:
                    yield record
            if fetch.next_offset > position:
                position, deadline = fetch.next_offset, time.monotonic() + self._patience_s
            elif time.monotonic() > deadline:
                raise LogUnavailableError(
                    f"the records of {place.topic!r} partition {place.partition} up to offset {stop} cannot be read",
                    hint="Look at the brokers.",
                )
            else:
                reader.wait(_PAUSE_S)
        reader.forget(*place)
