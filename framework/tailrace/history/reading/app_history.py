"""The past of an app in the log: its tape, its last cut, its inputs and its outputs. Read-only.

The service may be running meanwhile. Every read of a partition ends at the cut that is read first.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from typing import TypeAlias

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.replay import Source
from tailrace.core.errors import InputsChangedError, SnapshotMismatchError, UnknownTopicError
from tailrace.core.names import apps_in
from tailrace.core.records import InputRecord, Output
from tailrace.core.suggestions import did_you_mean
from tailrace.core.unit_ids import origin_in
from tailrace.history.reading.changelog import beginning, fold, last_cut
from tailrace.history.reading.generations import located
from tailrace.history.reading.stretches import batches, scan, source
from tailrace.history.reading.tape_records import tape_records
from tailrace.log.interface import Ends, Log, TopicPartition
from tailrace.state import MemoryStore

_log = logging.getLogger("tailrace.service")
_DRAIN_S = 30.0
"""For so long a cut outside of drains is waited for."""
_NAP_S = 0.1

Origin: TypeAlias = tuple[int, int]
"""The origin of an output: the partition that emitted it, and its running number there."""


def origin_of(record: InputRecord, app: bytes) -> Origin | None:
    """The origin in the header of an output; None for a record that no task of ``app`` has written."""
    origin = origin_in(record.headers)
    return None if origin is None or origin[0] != app else origin[1:]


@dataclass(frozen=True, slots=True)
class Committed:
    """The last commit of a partition: its cut, and the position after it in the changelog. No cut: none yet."""

    cut: bytes | None
    position: int
    rows: MemoryStore | None = None
    """The rows of the folded changelog, if they were requested; without those of the index."""


@dataclass(slots=True)
class Emitted:
    """The outputs of a partition as hashes, by their running numbers; 0 for one that was not found."""

    hashes: array[int] = field(default_factory=lambda: array("q"))
    twice: dict[int, str] = field(default_factory=dict[int, str])
    """Numbers that were found more than once, and their topic."""


class AppHistory:
    """The past of an app in a log; ``plan`` is located there. With ``has_run=False`` the app need not have run.
    Raises UnknownTopicError or InputsChangedError.
    """

    def __init__(self, plan: Plan, log: Log, *, has_run: bool = True) -> None:
        self.plan = plan = located(plan, log)
        self.log = log
        known = log.topics()
        for name in (plan.tape_topic, plan.changelog_topic):
            if name not in known:
                if not has_run:
                    continue
                raise UnknownTopicError(
                    f"the log has no topic {name!r}: the app {plan.app!r} has never run on it",
                    hint=did_you_mean(
                        plan.app, apps_in(known), "Look at the path of the log, and at the app's name."
                    ),
                )
            if known[name].partitions != plan.partitions:
                raise InputsChangedError(
                    f"the app {plan.app!r} has {plan.partitions} partitions, and ran with {known[name].partitions}",
                    hint=f"Declare partitions={known[name].partitions}, or give the app with another number another name.",
                )

    def committed(self, partition: int, *, with_rows: bool = False, end: int | None = None) -> Committed:
        """The last cut of a partition below the offset ``end`` of its changelog; with the rows of the changelog.
        Raises OffsetGoneError: the log has deleted some of these rows.
        """
        place = TopicPartition(self.plan.changelog_topic, partition)
        if with_rows:
            changed, cut, position, _ = fold(self.log, place, beginning(self.log, place), end)
            kept = MemoryStore()
            kept.write(changed, b"")
            return Committed(cut, position, kept)
        found = last_cut(self.log, place, end)
        if found is None:
            return Committed(None, self.log.start_offset(*place))
        return Committed(found.value, found.offset + 1)

    def last_commits(self, ends: Callable[[], Ends], *, outside_drains: bool) -> tuple[Ends, list[Committed]]:
        """The ends of topics at a consistent cut, and the last commits of all tasks there; none if ``ends`` lacks the changelog.
        ``outside_drains``: one at which no task is within a drain. It is waited for; SnapshotMismatchError: in vain.
        """
        until_s, is_told = time.monotonic() + _DRAIN_S, not outside_drains
        while True:
            cut = ends()
            changelogs = cut.offsets.get(self.plan.changelog_topic, ())
            found = [self.committed(number, end=end) for number, end in enumerate(changelogs)]
            within = [at for at, one in enumerate(found) if one.cut and tape.decode_cut(one.cut).within_drain]
            if not within or not outside_drains:
                return cut, found
            said = f"the last commit of {self.plan.app!r} partition {within[0]} fell between two timers or events of one step"
            if time.monotonic() > until_s:
                raise SnapshotMismatchError(
                    f"{said}: other code cannot continue there",
                    hint="If the app is stopped, run the version that ran once with --until-end. If it works through many timers, wait "
                    "for that.",
                )
            if not is_told:
                _log.warning("%s: waiting for its next commits", said, extra={"app": self.plan.app})
                is_told = True
            time.sleep(_NAP_S)

    def tapes(self, partition: int, stop: int) -> Iterator[tape.TapeRecord]:
        """The tape of a partition that the log still has, up to record number ``stop`` (exclusive)."""
        place = TopicPartition(self.plan.tape_topic, partition)
        for decoded in tape_records(place, scan(self.log, *place)):
            if decoded.number >= stop:
                return
            yield decoded

    def source(self, partition: int) -> Source:
        """A function that reads one partition of any input, by offsets; see ``stretches.source``."""
        return source(self.log, partition)

    def output_counts(self, partitions: Collection[int]) -> dict[int, int]:
        """The number of outputs of partitions up to their last cuts."""
        cuts = {number: self.committed(number).cut for number in partitions}
        return {number: tape.decode_cut(cut).totals.outputs if cut else 0 for number, cut in cuts.items()}

    def emitted(
        self, counts: Mapping[int, int], others: Counter[str] | None = None
    ) -> tuple[dict[int, Emitted], frozenset[str]]:
        """The first outputs of partitions, so many of each, from one read of all topics that the app writes to; and the topics
        of which the log may have deleted some. ``others`` counts the records of other writers in tables.
        """
        found, app = {number: Emitted() for number in counts}, self.plan.app.encode()
        tables = self.plan.tables if others is not None else ()
        for place in self._output_places():
            topic = place.topic
            for records in batches(self.log, *place):
                for _, timestamp_ms, key, value, headers in records:
                    name, task, number = origin_in(headers) or (b"", 0, 0)
                    if name != app and others is not None and topic in tables:
                        others[topic] += 1
                    if name != app or number >= counts.get(task, 0):
                        continue
                    one, hashes = found[task], found[task].hashes
                    if number >= len(hashes):
                        hashes.extend(repeat(0, number + 1 - len(hashes)))
                    if hashes[number]:
                        one.twice.setdefault(number, topic)
                    hashes[number] = hash((topic, key, value, timestamp_ms, headers)) or 1
        return found, self._outputs_in_part()

    def outputs(self, wanted: Mapping[int, Collection[int]]) -> dict[int, dict[int, Output]]:
        """Outputs by the partition that emitted them and their numbers, without those that are not found."""
        found: dict[int, dict[int, Output]] = defaultdict(dict)
        app = self.plan.app.encode()
        for place in self._output_places() if any(wanted.values()) else ():
            for record in scan(self.log, *place):
                origin = origin_of(record, app)
                if origin is not None and origin[1] in wanted.get(origin[0], ()):
                    found[origin[0]][origin[1]] = Output(
                        place.topic, record.key, record.value, record.timestamp_ms, record.headers
                    )
        return found

    def _outputs_in_part(self) -> frozenset[str]:
        """The topics that the app writes to from which the log may have deleted records."""
        known = self.log.topics()
        return frozenset(
            place.topic
            for place in self._output_places()
            if self.log.start_offset(*place) or known[place.topic].compacted
        )

    def _output_places(self) -> Iterator[TopicPartition]:
        plan = self.plan
        names = [*plan.outputs, plan.dead_letters_topic, plan.inbox_topic]
        known = self.log.topics()
        for name in dict.fromkeys(names):
            if name in known:
                for number in range(known[name].partitions):
                    yield TopicPartition(name, number)


def hash_of(output: Output) -> int:
    """A hash of all fields of an output, as of a tuple; never 0. It is valid within one process only."""
    return hash(output) or 1
