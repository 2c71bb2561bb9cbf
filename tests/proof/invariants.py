"""Invariants of an app's log and stores, checked after every step: the laws as far as they show outside.

The observer is a reader like any other: it sees what is committed and nothing else. It reads on from where it
stood, so looking after every step costs no more than looking once.

    every commit      is one cut and one tape record; cuts never go back in position, watermark, clock or
                      count
    every output      bears its task and running number: in a partition they ascend, none is there twice, none
                      is past what the last cut says, and once no open transaction hides any more, none is
                      missing
    offsets           of the group are those of the last cut
    a store           stands at a cut that was committed, never past it
"""

from __future__ import annotations

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.records import InputRecord
from tailrace.core.storage import Store
from tailrace.history.reading.app_history import origin_of
from tailrace.log.interface import TopicPartition
from tailrace.state.store_cut import decode_store_cut
from tailrace.testing.exploring.driving import LawBrokenError
from tailrace.testing.memory_log import MemoryLog

_ALL = 1 << 60


class CommitObserver:
    """Watches the committed part of a log, for one app. ``look`` after every step."""

    def __init__(self, plan: Plan, log: MemoryLog) -> None:
        self.plan = plan
        self.commits = 0
        """How many commits have been seen."""
        self.outputs: list[list[tuple[str, InputRecord]]] = [[] for _ in range(plan.partitions)]
        """What was emitted, by the partition that emitted it, in the order of its numbers: topic and record.

        It ends before an output that another task's open transaction still hides.
        """
        self.cuts: list[tape.Cut | None] = [None] * plan.partitions
        """The last cut of every task."""
        self._log = log
        self._app = plan.app.encode()
        self._known: list[set[bytes]] = [set() for _ in range(plan.partitions)]
        """Every cut that was committed, by partition."""
        self._tapes = [0] * plan.partitions
        self._early: list[dict[int, tuple[str, InputRecord]]] = [{} for _ in range(plan.partitions)]
        """Outputs with one before them that is still hidden."""
        self._last: dict[tuple[str, int, int], int] = {}
        """The last number seen of a task in a partition of a topic."""
        topics = {*plan.outputs, plan.dead_letters_topic}
        topics.add(plan.inbox_topic)
        self._topics = sorted(topics)
        own = (plan.changelog_topic, plan.tape_topic, *self._topics)
        self._reader = log.reader(
            {TopicPartition(name, number): 0 for name in own for number in range(log.partitions(name))}
        )

    def look(self) -> None:
        """Read what has been committed since the last look, and check it. Raises LawBrokenError."""
        for number in range(self.plan.partitions):
            self._look_at_tape(number)
            self._look_at_changelog(number)
        self._look_at_outputs()
        for number, cut in enumerate(self.cuts):
            self._look_at_offsets(number, cut)
            emitted = 0 if cut is None else cut.totals.outputs
            past = [one for one in (len(self.outputs[number]) - 1, *self._early[number]) if one >= emitted]
            if past:
                raise _broken(
                    f"task {number} has committed {emitted} outputs, a reader sees number {max(past)}"
                )

    def look_for_gaps(self) -> None:
        """Check that nothing committed is missing. Call it when no transaction is open."""
        for number, cut in enumerate(self.cuts):
            emitted = 0 if cut is None else cut.totals.outputs
            if len(self.outputs[number]) != emitted:
                raise _broken(
                    f"task {number} has committed {emitted} outputs, but number {len(self.outputs[number])} "
                    "is missing"
                )

    def look_at_store(self, number: int, store: Store) -> None:
        """Check that a store of a partition is not ahead of the log."""
        if store.cut is None:
            return
        held = decode_store_cut(store.cut)
        end = self._log.end_offset(self.plan.changelog_topic, number)
        if held.changelog_position > end:
            raise _broken(f"the store of task {number} stands past the end of the changelog")
        if held.core is not None and held.core not in self._known[number]:
            raise _broken(f"the store of task {number} stands at a cut that was never committed")

    def _fetch(self, topic: str, number: int) -> list[InputRecord]:
        return self._reader.fetch(topic, number, _ALL).records

    def _look_at_tape(self, number: int) -> None:
        for record in self._fetch(self.plan.tape_topic, number):
            found = tape.decode_tape(record.value or b"")
            if found.number != self._tapes[number]:
                raise _broken(f"task {number} has tape record {found.number} after {self._tapes[number] - 1}")
            self._tapes[number] += 1

    def _look_at_changelog(self, number: int) -> None:
        for record in self._fetch(self.plan.changelog_topic, number):
            if record.key != rows.CUT_ROW:
                continue
            after = tape.decode_cut(record.value or b"")
            before = self.cuts[number]
            check_cuts(before, after, f"task {number}")
            self.cuts[number] = after
            self._known[number].add(record.value or b"")
            self.commits += 1
        last = self.cuts[number]
        if self._tapes[number] != (0 if last is None else last.tape):
            raise _broken(f"task {number} has {self._tapes[number]} tape records at the cut {last}")

    def _look_at_outputs(self) -> None:
        for topic in self._topics:
            for partition in range(self._log.partitions(topic)):
                for record in self._fetch(topic, partition):
                    origin = origin_of(record, self._app)
                    if origin is not None:
                        self._see(topic, partition, *origin, record)
        for seen, early in zip(self.outputs, self._early, strict=True):
            while (following := early.pop(len(seen), None)) is not None:
                seen.append(following)

    def _see(self, topic: str, partition: int, task: int, number: int, record: InputRecord) -> None:
        if number < len(self.outputs[task]) or number in self._early[task]:
            raise _broken(f"output {number} of task {task} is there twice, the second time in {topic}")
        last = self._last.get((topic, partition, task), -1)
        if number < last:
            raise _broken(
                f"output {number} of task {task} stands behind {last} in {topic} partition {partition}"
            )
        self._last[topic, partition, task] = number
        self._early[task][number] = (topic, record)

    def _look_at_offsets(self, number: int, cut: tape.Cut | None) -> None:
        places = [TopicPartition(one.name, number) for one in self.plan.inputs]
        offsets = self._log.committed_offsets(self.plan.app, places)
        for place, offset in offsets.items():
            known = None if cut is None else cut.offsets[place.topic]
            if known != offset:
                raise _broken(f"the group stands at {offset} in {place}, the cut at {known}")


def check_cuts(before: tape.Cut | None, after: tape.Cut, whose: str) -> None:
    """Check one cut against the one before: nothing goes back, and no commit is missing between them."""
    if before is None:
        if after.tape != 1:
            raise _broken(f"{whose}: its first cut is number {after.tape}")
        return
    if before.tape + 1 != after.tape:
        raise _broken(f"{whose}: cut {after.tape} follows cut {before.tape}")
    if before.lineage != after.lineage:
        raise _broken(f"{whose}: its lineage has changed")
    pairs = {
        "the watermark": (before.watermark, after.watermark),
        "the clock": (before.now, after.now),
        **{f"the position in {n}": (p, after.positions[n]) for n, p in before.positions.items()},
        **{f"the watermark of {n}": (w, after.watermarks[n]) for n, w in before.watermarks.items()},
        **{n: (getattr(before.totals, n), getattr(after.totals, n)) for n in tape.Totals.__struct_fields__},
    }
    for name, (was, is_) in pairs.items():
        if is_ < was:
            raise _broken(f"{whose}: {name} went back from {was} to {is_}")


def _broken(what: str) -> LawBrokenError:
    return LawBrokenError(what)
