"""One run: an app over an in-memory log, driven by a schedule, up to an end that all runs share.

Every partition is the one that a live worker drives. A crash drops the partition without closing it. It
starts again at its next turn, from its store or, if the store is lost, from the changelog.

The end. When all records are handled and committed, the clock of every run advances to the same instant. Then
the levels of the app end one after the other: their inputs end, their actors advance to the highest event
time that could reach them (``feed.horizons``), and then to the latest timer that is pending, until all have
fired. In this they follow the reference run instant by instant. So a key that differs does not affect the
other keys of its partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from tailrace.core.declare.plan import InputPlan, Plan
from tailrace.core.engine.task import Task, TaskSettings
from tailrace.core.errors import TailraceError
from tailrace.core.records import Output
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.log.interface import TopicPartition
from tailrace.runtime.lifecycle import State
from tailrace.runtime.partition import Partition
from tailrace.runtime.slices import PartitionSettings
from tailrace.state import MemoryStore
from tailrace.testing.exploring.feed import Feed, horizons, inputs_from_outside
from tailrace.testing.exploring.outcome import Outcome, outcome_of
from tailrace.testing.exploring.schedules import NEVER, Schedule
from tailrace.testing.exploring.tracks import Tracer
from tailrace.testing.inputs import written_topics
from tailrace.testing.memory_log import MemoryLog
from tailrace.testing.service import drain

LINEAGE = b"explore"
END_OF_CLOCK_MS = 86_400_000
"""Final clock reading of each run, counted from its start: later than any schedule advances the clock."""
_FEEDER = "explore-feeder"
_MOST = 10_000
"""The longest slice."""


class LawBrokenError(TailraceError, AssertionError):
    """The framework itself has broken one of its laws."""


@dataclass(slots=True)
class Ends:
    """The watermarks to which actors rise, recorded by the reference run and used by the others."""

    horizons: Mapping[int, int]
    rises: dict[tuple[int, int], list[int]] = field(default_factory=dict[tuple[int, int], list[int]])
    """By partition and actor: to the last timer that was pending then, again and again."""

    @classmethod
    def of(cls, plan: Plan, feed: Feed) -> Ends:
        """Ends for the reference run: no watermarks are recorded yet."""
        return cls(horizons(plan, feed))


class Run:
    """One run; see the head of this file.

    ``now_ms`` is the first clock reading. ``tracer`` records every handler call.
    """

    def __init__(
        self,
        plan: Plan,
        feed: Feed,
        schedule: Schedule,
        ends: Ends,
        now_ms: int,
        tracer: Tracer | None = None,
    ) -> None:
        self.plan = plan = _with_idleness(plan, schedule)
        self.now_ms = now_ms
        self._begun_ms = now_ms
        self._feed = feed
        self._schedule = schedule
        self._ends = ends
        self._tracer = tracer
        self._random: Random = schedule.random()
        self._log = MemoryLog()
        prepare_topics(self._log, plan, create_declared=True)
        self._stores = [MemoryStore() for _ in range(plan.partitions)]
        self._partitions: list[Partition | None] = [None] * plan.partitions
        self._settings = PartitionSettings(
            commit_interval_ms=NEVER,
            commit_entries=NEVER,
            commit_records=schedule.commit_records,
            deletions_kept_ms=NEVER,
            # What a checked run finds does not depend on the schedule, so one run is enough.
            task=TaskSettings(
                firing_budget=schedule.firing_budget,
                checked=schedule.is_reference,
                max_record_bytes=self._log.max_record_bytes,
            ),
        )
        self._news = False
        self._appended = dict.fromkeys(feed.places, 0)
        self._speeds = dict(schedule.speeds)
        self._published = {one.name for one in inputs_from_outside(plan) if one.watermark == "upstream"}
        self._feeder = self._log.writer(_FEEDER)
        written = written_topics(plan)
        self._quiet = [
            one
            for one in inputs_from_outside(plan)
            if one.moves and one.watermark != "upstream" and one.name not in written
        ]
        """The inputs whose last record is known: they come from outside, and nothing else writes them."""

    def run(self) -> Outcome:
        """Drive the app from the first record to the end. Returns the results."""
        for place in self._feed.places:
            if any(one.broadcast and one.name == place.topic for one in self.plan.inputs):
                self._append(place, NEVER)  # how results depend on when these come is known
        for number in range(self.plan.partitions):
            self._start(number)
        for wave, settled in zip(self._schedule.waves, self._schedule.settled, strict=True):
            self._feed_wave([place for place in wave if self._feed.places[place]])
            if settled:
                self._settle()
        self._settle()
        self._check_all_taken()
        self._end()
        return self._outcome()

    # --- records arrive

    def _feed_wave(self, places: list[TopicPartition]) -> None:
        schedule, random = self._schedule, self._random
        total = sum(len(self._feed.places[place]) for place in places)
        odds = schedule.faults * schedule.piece / (2 * total) if total else 0.0
        while places:
            if schedule.piece >= NEVER:
                for place in places:
                    self._append(place, NEVER)
            else:
                place = random.choices(places, [self._speeds[one] for one in places])[0]
                self._append(place, random.randint(1, schedule.piece))
            places = [place for place in places if self._appended[place] < len(self._feed.places[place])]
            for _ in range(schedule.slices):
                self._work(self._any(range(self.plan.partitions)))
            if odds and random.random() < odds:
                self._fault(random.randrange(self.plan.partitions))
            if schedule.clock_ms:
                self.now_ms += random.randrange(2 * schedule.clock_ms * schedule.piece // max(total, 1) + 2)
                self.now_ms = min(self.now_ms, self._begun_ms + END_OF_CLOCK_MS)

    def _append(self, place: TopicPartition, most: int) -> None:
        fed, start = self._feed.places[place], self._appended[place]
        stop = self._appended[place] = min(len(fed), start + most)
        records = [one.record for one in fed[start:stop]]
        self._log.append_all(
            [Output(place.topic, one.key, one.value, one.timestamp_ms, one.headers) for one in records],
            place.partition,
        )
        if place.topic in self._published:
            self._publish(place.topic)

    def _publish(self, topic: str) -> None:
        """Publish a watermark as the topic's producers would: just below the lowest event time to come."""
        rest_ms = min(self._feed.rest_ms[one][at] for one, at in self._appended.items() if one.topic == topic)
        self._feeder.commit({}, "", {topic: min(rest_ms - 1, self._feed.last_ms[topic])})

    # --- tasks work

    def _any(self, numbers: range | list[int]) -> int:
        return self._random.choices(numbers, [self._schedule.task_speeds[one] for one in numbers])[0]

    def _work(self, number: int) -> bool:
        """Drive a task for one slice. Returns whether it had work."""
        partition = self._partitions[number]
        if partition is None:
            self._start(number)
            return True
        most = min(self._schedule.slice_records, _MOST)
        worked = partition.poll(most)
        if self._schedule.quiet_idle:
            worked = self._fall_idle(number, partition) or worked
        if self._random.random() < self._schedule.commit_odds:
            partition.commit()
        return worked

    def _settle(self) -> None:
        """Drive the tasks, each at its speed, until none has work or uncommitted changes."""
        active = list(range(self.plan.partitions))
        while active:
            number = self._any(active)
            self._news = False
            if self._work(number):
                pass
            elif (partition := self._partitions[number]) is not None and partition.dirty:
                partition.commit()
            else:
                active.remove(number)
            if self._news:
                active = list(range(self.plan.partitions))

    def _fall_idle(self, number: int, partition: Partition) -> bool:
        """Mark the inputs idle whose records are all appended and read. Returns whether one was marked."""
        if partition.state is not State.RUNNING:
            return False
        task, found = partition.task, False
        for one in self._quiet:
            place = TopicPartition(one.name, number)
            ended = self._appended[place] == len(self._feed.places[place])
            if ended and not task.watermarks.idle[one.index] and self._is_taken(task, one):
                _bring_idle(task, one)
                found = True
        return found

    def _is_taken(self, task: Task, one: InputPlan) -> bool:
        return task.positions[one.name] >= self._log.at(one.name, task.partition).end

    # --- tasks come and go

    def _start(self, number: int) -> None:
        """Start a task. Empty input partitions are idle at once; live, they become idle after a minute."""
        partition = self._partitions[number] = Partition(
            self.plan,
            number,
            self._log,
            self._stores[number],
            lambda: self.now_ms,
            lineage=LINEAGE,
            draw_nonce=lambda: LINEAGE,
            settings=self._settings,
            on_committed=partial(self._committed, number),
            watch=None if self._tracer is None else self._tracer.watch(number),
        )
        partition.restore()
        for one in self._quiet:
            if not self._feed.places[TopicPartition(one.name, number)]:
                _bring_idle(partition.task, one)

    def _committed(self, number: int, _batch: object) -> None:
        self._news = True
        if self._tracer is not None:
            self._tracer.committed(number)

    def _fault(self, number: int) -> None:
        partition = self._partitions[number]
        if partition is None:
            return
        kind = self._random.choice(("crash", "crash without state", "rebalance"))
        if kind == "rebalance":
            partition.revoke()
        if kind != "crash":
            self._stores[number] = MemoryStore()
        if self._tracer is not None:
            self._tracer.lost(number)
        self._partitions[number] = None

    def _check_all_taken(self) -> None:
        for place in self._feed.places:
            partition = self._partitions[place.partition]
            records = self._log.at(*place).records
            if (
                records
                and partition is not None
                and partition.task.positions[place.topic] <= records[-1].offset
            ):
                raise LawBrokenError(
                    f"nothing moves any more, and {place.topic!r} partition {place.partition} was read up to "
                    f"{partition.task.positions[place.topic]} of {len(records)}"
                )

    def _end(self) -> None:
        self.now_ms = self._begun_ms + END_OF_CLOCK_MS
        for one in self._running():
            one.task.clock(self.now_ms)
        self._settle()
        self._end_input(1)
        for stage in range(self.plan.stages):
            actors = [
                one.index for one in self.plan.operators if one.stage == stage and one.actor is not None
            ]
            self._end_input(2 + 2 * stage)
            self._rise(actors, 0)
            turn = 1
            while self._rise(actors, turn):
                turn += 1
            self._end_input(3 + 2 * stage)

    def _end_input(self, phase: int) -> None:
        for one in self._running():
            one.end_input(phase)
        self._settle()

    def _rise(self, actors: list[int], turn: int) -> bool:
        """Raise actors for this time: first to their horizon, then as in the reference run. Returns whether any rose."""
        rose = False
        for one in self._running():
            for actor in actors:
                noted = self._ends.rises.setdefault((one.partition, actor), [self._ends.horizons[actor]])
                to_ms = noted[turn] if turn < len(noted) else None
                if one.task.finish(actor, to_ms):
                    rose = True
                    if self._schedule.is_reference and turn:
                        noted.append(one.task.watermarks.of_operator[actor])
                rose = rose or (to_ms is not None and turn + 1 < len(noted))
                drain(one.task)
        self._settle()
        return rose

    def _running(self) -> list[Partition]:
        return [one for one in self._partitions if one is not None]

    def _outcome(self) -> Outcome:
        found = outcome_of(self.plan, self._log, self._stores)
        for one in self._running():
            one.close()
        return found


def _bring_idle(task: Task, one: InputPlan) -> None:
    drain(task)
    task.idle(one.index)


def _with_idleness(plan: Plan, schedule: Schedule) -> Plan:
    """The plan without idleness by the clock. A schedule with silences keeps ``idle_after``."""
    if schedule.silences:
        return plan
    inputs = (one if one.broadcast else replace(one, idle_after_ms=NEVER) for one in plan.inputs)
    return replace(plan, inputs=tuple(inputs))
