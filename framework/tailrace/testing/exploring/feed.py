"""The records of an app's inputs: the part of a history that is the same in every schedule.

The log fixes only the order within a partition, so a feed has no order between partitions. It leaves out what
the app writes itself, as each run writes that again, and redriven records, as each run handles their originals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from heapq import merge
from itertools import accumulate, islice
from typing import NamedTuple

from tailrace.core.declare.plan import InputPlan, Plan
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine.input_decoder import InputDecoder
from tailrace.core.errors import FROM_THE_FUTURE, TopicMismatchError
from tailrace.core.records import InputRecord, Output, Refused
from tailrace.core.values.partitioner import partition_of
from tailrace.history.reading.app_history import origin_of
from tailrace.history.reading.stretches import scan
from tailrace.log.interface import Log, TopicPartition
from tailrace.testing.inputs import written_topics

_LATER = 1 << 62
"""Later than any event time."""


class Fed(NamedTuple):
    """A record of the feed, with its offset in the log and its own event time (None if it has none)."""

    record: InputRecord
    time_ms: int | None


@dataclass(frozen=True)
class Feed:
    """Records of each input partition, in order. Each partition of each input from outside has an entry."""

    places: Mapping[TopicPartition, tuple[Fed, ...]]
    from_the_future: int = 0
    """Number of records that were left out because their event time is too far ahead of the clock."""

    @cached_property
    def count(self) -> int:
        """Number of records."""
        return sum(map(len, self.places.values()))

    @cached_property
    def last_ms(self) -> Mapping[str, int]:
        """The highest event time of each topic."""
        found: dict[str, int] = {}
        for place, fed in self.places.items():
            times = [one.time_ms for one in fed if one.time_ms is not None]
            found[place.topic] = max([found.get(place.topic, NO_WATERMARK), *times])
        return found

    @cached_property
    def clock_ms(self) -> int:
        """The highest timestamp of a record: every clock had reached it when all records were written."""
        return max((one.record.timestamp_ms for fed in self.places.values() for one in fed), default=0)

    @cached_property
    def rest_ms(self) -> Mapping[TopicPartition, tuple[int, ...]]:
        """By partition, the lowest event time of the records from each position on."""
        return {
            place: tuple(
                accumulate(
                    (_LATER if one.time_ms is None else one.time_ms for one in reversed(fed)),
                    min,
                    initial=_LATER,
                )
            )[::-1]
            for place, fed in self.places.items()
        }


def feed_of(plan: Plan, outputs: Iterable[Output]) -> Feed:
    """Build a feed from records in the order of appending. The key decides the partition."""
    places: dict[TopicPartition, list[InputRecord]] = {place: [] for place in _places(plan)}
    for topic, key, value, timestamp_ms, headers in outputs:
        records = places[TopicPartition(topic, partition_of(key or b"", plan.partitions))]
        records.append(InputRecord(len(records), timestamp_ms, key, value, headers))
    return Feed(
        {
            place: tuple(
                Fed(head[-1], head[1]) for head in _heads(plan, place).decode(records) if head[-1] is not None
            )
            for place, records in places.items()
        }
    )


def feed_of_log(plan: Plan, log: Log, *, most: int | None = None, clock_ms: int | None = None) -> Feed:
    """Read from a log what producers have appended to the inputs of an app, without what the app has written.

    The ``most`` records with the lowest event times are taken, so all inputs end at about the same event time; those of
    broadcast topics come before all others.
    Records that a service would refuse as from the future at ``clock_ms`` are left out.

    Raises:
        UnknownTopicError: The log does not have an input that the app does not write itself.
        TopicMismatchError: An input has another number of partitions than the app.
        OffsetGoneError: Retention deleted records before they were read.
    """
    app = plan.app.encode()
    read, ahead = _places_in(plan, log), list[InputRecord]()
    starts = {place: log.start_offset(*place) for place in read}
    tables = {one.name for one in plan.inputs if one.broadcast}

    def stream(place: TopicPartition) -> Iterator[tuple[int, TopicPartition, Fed]]:
        found = scan(log, *place, starts[place])
        reached_ms, heads = NO_WATERMARK, _heads(plan, place)
        for record in found:
            if origin_of(record, app) is None:
                _, time_ms, _, event, _ = heads.decode([record], clock_ms)[0]
                if type(event) is Refused and event.reason == FROM_THE_FUTURE:
                    ahead.append(record)
                    continue
                if time_ms is not None and place.topic not in tables:
                    reached_ms = max(reached_ms, time_ms)
                yield reached_ms, place, Fed(record, time_ms)

    places: dict[TopicPartition, list[Fed]] = {place: [] for place in _places(plan)}
    merged = merge(*map(stream, read), key=lambda found: found[0])
    for _, place, fed in islice(merged, most):
        places[place].append(fed)
    return Feed({place: tuple(found) for place, found in places.items()}, len(ahead))


def horizons(plan: Plan, feed: Feed) -> dict[int, int]:
    """By operator, the highest event time that can reach it: every run advances it to there before the end of
    input.

    In a schedule where inputs become idle, an operator gets further than in others. From this point on all
    runs agree.
    """
    writers = {one.name: one.writers for one in plan.published}
    found = {one.index: NO_WATERMARK for one in plan.operators}
    while True:
        before = dict(found)
        for one in plan.operators:
            for source in one.sources:
                name = plan.sources[source]
                marks = [found[writer] for writer in writers.get(name, ())]
                found[one.index] = max(found[one.index], feed.last_ms.get(name, NO_WATERMARK), *marks)
        if found == before:
            return found


def inputs_from_outside(plan: Plan) -> list[InputPlan]:
    """The inputs that producers append to. The app may also write some of them."""
    hidden = plan.forwarded
    return [one for one in plan.inputs if not one.is_inbox and one.name not in hidden]


def _places(plan: Plan) -> list[TopicPartition]:
    return [
        TopicPartition(one.name, number)
        for one in inputs_from_outside(plan)
        for number in range(plan.partitions)
    ]


def _places_in(plan: Plan, log: Log) -> list[TopicPartition]:
    """The feed's partitions in a log. Topics that only the app writes are created when it first runs."""
    known = log.topics()
    found = [
        place for place in _places(plan) if place.topic in known or place.topic not in written_topics(plan)
    ]
    for topic in dict.fromkeys(place.topic for place in found):
        partitions = log.partitions(topic)
        if partitions != plan.partitions:
            raise TopicMismatchError(
                f"the input has {partitions} partitions, the app {plan.app!r} has {plan.partitions}",
                topic=topic,
                hint="Give the app the input's number.",
            )
    return found


def _heads(plan: Plan, place: TopicPartition) -> InputDecoder:
    one = next(one for one in plan.inputs if one.name == place.topic)
    return InputDecoder(plan, one)
