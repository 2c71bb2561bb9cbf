"""Restores a task, from its transactional id to a task that can continue. This file has the order of the steps.

Theory. The log is the truth. A store is a copy of the changelog up to some position, for a faster start. Each step depends on
the one before:

    1  take the transactional id over         earlier owners are fenced and their open transactions aborted, so that only
                                              this owner writes this partition of the changelog from here on
    2  read the *uncommitted* end             no commit of an earlier owner is after it; the topics must be those of the
                                              last cut before it (``history.provenance``)
    3  read the changelog, committed only,    from the store's position; offsets have gaps, so the position ends this
       until position >= that end             step, not the last record
    4  take the last cut read                 the store's own if the changelog had no more; it decides the offsets
    5  compare the rows, the group's          they were committed together, so they are equal, or expired or deleted; the
       offsets and the end of the tape        number and digest of all rows are those that the cut notes, or the changelog
       with it                                has lost some (``state.contents``)
    6  check that the inputs continue there   records deleted unread by retention are an error, or skipped on request; so is
                                              an input that lost its end (``history.provenance``)

The store's cut has three parts: its changelog position, the core's cut, and the time when it was last at the
changelog's end. While step 3 is at work there is a fourth: the last cut in the changelog, which step 3 reads
*toward*. The time matters because compaction drops deletions after a while: a store that was away for longer
would keep deleted rows, so it is emptied and filled again.

A position alone does not prove that a store is a copy of *this* changelog: a log that has lost its end, was restored from a
backup, or created again, has other records at the same offsets. So the log must have the commit that the store stands at, and
the one that it was being read toward (see ``history.provenance``). A store of another history is emptied and filled from
the log, and a warning names both identities. The log decides even if it has fewer commits than the store, or none.
Only if it has no cut although the group has committed offsets, the store is left as it is: step 5 would refuse the start, and the
state would be gone.

While rows are being applied, the store is between two commits. This is safe: no task runs on it before step 5, and a restore
that was killed or stopped here resumes from the position written with the last batch.

A restore may take long, so it is driven in *steps* of one batch: between two steps other tasks of the process
work, and it can be stopped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TypeAlias, TypeVar

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.errors import (
    KEPT_ELSEWHERE,
    CorruptStateError,
    FencedError,
    LogUnavailableError,
    OffsetGoneError,
    OtherHistoryError,
    StateFolderError,
)
from tailrace.core.names import transactional_id
from tailrace.core.records import InputRecord, RecordMark
from tailrace.core.storage import Store
from tailrace.history.provenance.judging import check_tape_end, does, judge, judge_read
from tailrace.history.provenance.topics import CutHeaders, positions_read, resumed
from tailrace.history.reading.changelog import (
    MOVED,
    beginning,
    behind_last_cut,
    changes,
    check_contents,
    check_whole,
    last_cut,
)
from tailrace.history.reading.replayable import MAY_BE_EMPTY
from tailrace.log.interface import Log, Reader, TopicPartition, Writer
from tailrace.runtime.clocks import Clock
from tailrace.runtime.first_positions import first_positions, inputs_read
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.task_notes import versions_after
from tailrace.state.store_cut import FORMAT, UNFINISHED, StoreCut, decode_store_cut

_log = logging.getLogger("tailrace.restore")

_WAIT_S = 0.1
_NAP_S = 0.005
_COUNTED_S = 0.5
"""The most that counts as waiting between two questions."""
_EVERYTHING = (b"\x01", b"\xff")
"""Start and stop of a scan of all rows."""

_R = TypeVar("_R")
Steps: TypeAlias = Generator[bool, None, "Restored"]
"""A restore under way. Each step yields whether it has made progress; if not, the log gives nothing at the moment."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A task that may take its next step: its transactional id is held, and its store equals the changelog."""

    writer: Writer
    cut: bytes | None
    """The core's cut; None if nothing was ever committed."""
    positions: Mapping[str, int]
    """Where to begin in the inputs that the cut does not know."""
    stepped_over: Mapping[str, int]
    """Positions to continue at in inputs of the cut whose next records the log has deleted."""
    cut_headers: CutHeaders
    passed: Mapping[str, int]
    """By input, where to continue behind offsets without a record; see ``commit_notes``."""


class ChangelogEnd:
    """The end of a changelog when it was asked for, open transactions included."""

    def __init__(self, log: Log, changelog: TopicPartition) -> None:
        self._log = log
        self._changelog = changelog
        self.offset = log.end_offset(*changelog)

    @cached_property
    def last_cut(self) -> InputRecord | None:
        """The record of the last cut before it; None if there is none. Read when it is first needed."""
        return last_cut(self._log, self._changelog, self.offset)


@dataclass(frozen=True, slots=True)
class Restore:
    """How one task is restored."""

    plan: Plan
    partition: int
    log: Log
    reader: Reader
    store: Store
    clock: Clock
    settings: PartitionSettings = field(default_factory=PartitionSettings)
    check_owned: Callable[[], None] = lambda: None
    """Called right before the take-over, which fences the current owner. May raise."""

    @property
    def transactional_id(self) -> str:
        """The id whose holder owns the task."""
        return transactional_id(self.plan.app, self.partition)

    @property
    def changelog(self) -> TopicPartition:
        """The task's partition of the changelog."""
        return TopicPartition(self.plan.changelog_topic, self.partition)

    def steps(self) -> Steps:
        """Restore. Closing it stops the restore, and gives the id back.

        Raises:
            FencedError: Another worker took the task over meanwhile.
            StateFolderError: The store is of another app or task.
            OtherHistoryError: A topic was replaced; or rows, the tape's end or the group's offsets are not those of the last cut; or
                an input has lost its end.
            CorruptStateError: The changelog has records that no task has written.
            OffsetGoneError: The changelog has lost records that the store has not seen; or an input has lost some that the task
                has not read.
            LogUnavailableError: The log did not answer; nothing is lost, try again.
        """
        self.check_owned()
        writer = self.log.writer(self.transactional_id)
        begun_ms, end = self.clock(), self.end()
        try:
            last = end.last_cut
            headers = CutHeaders(self.plan, self.log, last, versions_after(self.plan, last))
            passed = resumed(self.plan, self.log, last)
            before = yield from self.held(end, begun_ms)
            after, applied = yield from self._catch_up(before, end, begun_ms)
            left = positions_read(last)
            with self._unless_taken_over(end):
                check_contents(self.changelog, () if last is None else last.headers, after.contents)
                positions = self._check_offsets(after.core, left)
                check_tape_end(self.plan, self.log, self.partition, after.core)
            over = self._step_over(after.core, positions, passed)
            over |= self._lost_ends(left, headers.read)
            headers.read = {name: read for name, read in headers.read.items() if name not in over}
            passed = {name: at for name, at in passed.items() if name not in over}
        except (Exception, GeneratorExit):
            writer.close()
            raise
        _log.log(
            logging.INFO if applied else logging.DEBUG,
            "the state is restored",
            extra={"app": self.plan.app, "partition": self.partition, "applied": applied},
        )
        return Restored(writer, after.core, positions | over, over, headers, passed)

    # --- step 3 and 4: the changelog

    def end(self) -> ChangelogEnd:
        """The end of the changelog now."""
        return ChangelogEnd(self.log, self.changelog)

    def oldest(self) -> int:
        """The offset that an empty store begins at. Raises OffsetGoneError."""
        return beginning(self.log, self.changelog)

    def last_cut(self) -> InputRecord | None:
        """The record of the last cut; None if there is none."""
        return last_cut(self.log, self.changelog)

    def count_whole(self, records: list[InputRecord]) -> int:
        """The number of records that belong to whole commits. Raises StateMovedError: nothing more comes here."""
        if records and records[-1].key == MOVED:
            changes(self.changelog, records)
        return behind_last_cut(records)

    def held(self, end: ChangelogEnd, now_ms: int) -> Generator[bool, None, StoreCut]:
        """What the store says of itself, checked."""
        data = self.store.cut
        if data is None:
            return StoreCut(FORMAT, self.oldest(), now_ms, None)
        held = decode_store_cut(data)
        if held.core is not None:
            cut = tape.decode_cut(held.core)
            if (cut.app, cut.partition) != (self.plan.app, self.partition):
                raise StateFolderError(
                    f"the state belongs to app {cut.app!r}, partition {cut.partition}; "
                    f"it was opened for app {self.plan.app!r}, partition {self.partition}",
                    path=None if (path := getattr(self.store, "path", None)) is None else str(path),
                    hint="Give every task a folder of its own.",
                )
        why = None
        if held.changelog_position != UNFINISHED:
            why = self._not_of_this_history(held, end)
            if why is None:
                return held
        if end.last_cut is None:
            self._check_offsets(None, {})
        if why is not None:
            _log.warning(
                "the state folder stands after a commit that this log does not have: %s. The log has lost its end since (for "
                "example, it is a restored backup), or it is another log. The state is emptied and restored from the log",
                why,
                extra={"app": self.plan.app, "partition": self.partition},
            )
        return (yield from self.emptied(now_ms))

    def _not_of_this_history(self, held: StoreCut, end: ChangelogEnd) -> str | None:
        """Why the store cannot be shown to be a copy of this changelog; None if it is one."""
        newest = None if held.core is None else end.last_cut
        for data in (held.core, held.toward):
            # The usual case after a restart, and of a standby: it stands at the last cut of the log. Asking the tape takes longer.
            if data is not None and (newest is None or data != newest.value):
                found = judge(self.plan, self.log, self.partition, tape.decode_cut(data))
                if does("store", found) != "take":
                    return found.why
        if held.changelog_position > end.offset:
            return f"it is at position {held.changelog_position} of the changelog, which ends at {end.offset}"
        return None

    def _catch_up(
        self, held: StoreCut, end: ChangelogEnd, begun_ms: int
    ) -> Generator[bool, None, tuple[StoreCut, int]]:
        """Apply the changelog up to its end; the store's new cut, and how many records it took."""
        reader, (topic, partition) = self.reader, self.changelog
        reader.seek(topic, partition, held.changelog_position)
        applied, waited_s, asked_s = 0, 0.0, time.monotonic()
        position = held.changelog_position
        last = end.last_cut if position < end.offset else None
        try:
            while position < end.offset:
                records, next_offset, _, _ = reader.fetch(topic, partition, self.settings.restore_batch)
                if not records and next_offset == position:
                    # Time in which nobody has asked does not count: other tasks may have worked in between.
                    now_s = time.monotonic()
                    waited_s, asked_s = waited_s + min(now_s - asked_s, _COUNTED_S), now_s
                    if waited_s >= self.settings.restore_patience_s:
                        raise LogUnavailableError(
                            f"{topic!r} partition {partition} gave nothing for {waited_s:.0f} s at offset {position}, though "
                            f"it ends at {end.offset}",
                            hint="Look at the log. The task is restored when the log answers again.",
                        )
                    yield False
                    continue
                waited_s, asked_s = 0.0, time.monotonic()
                position = next_offset
                if not records:
                    yield True
                    continue
                if applied == 0 and self.may_have_missed(held.at_end_ms, begun_ms):
                    # Deletions that this store has not seen may be gone from the changelog.
                    held = yield from self.emptied(begun_ms)
                    position = held.changelog_position
                    reader.seek(topic, partition, position)
                    continue
                check_whole(self.changelog, records, last)
                held = self.apply(records, held, position, None if last is None else last.value)
                applied += len(records)
                yield True
        finally:
            reader.forget(topic, partition)
        caught_up = StoreCut(FORMAT, position, begun_ms, held.core, contents=held.contents)
        if applied or held.toward is not None:
            self.store.write({}, caught_up.encode())
        return caught_up, applied

    def may_have_missed(self, at_end_ms: int, now_ms: int) -> bool:
        """Whether compaction may have dropped deletions that a store has not seen which was at the changelog's end then.

        A time in the future is that of another clock: the more they differ, the less is known.
        """
        return abs(now_ms - at_end_ms) > self.settings.deletions_kept_ms // 2

    def is_replaced(self) -> bool:
        """Whether the store may be a copy of something else by now. Asked at each step of a standby."""
        return False

    def apply(
        self, records: list[InputRecord], held: StoreCut, position: int, toward: bytes | None
    ) -> StoreCut:
        """Write a stretch of the changelog up to a position, and its index rows, to the store that held ``held``. Returns its cut."""
        changed = changes(self.changelog, records)
        core = changed.pop(rows.CUT_ROW, held.core)
        names = list(changed)
        before = self.store.get_many(names)
        index = rows.index_changes(zip(names, before, changed.values(), strict=True), self.store.get)
        contents = held.contents.applied(changed, before)
        now = StoreCut(FORMAT, position, held.at_end_ms, core, toward, contents)
        self.store.write(changed | index, now.encode())
        return now

    def emptied(self, now_ms: int) -> Generator[bool, None, StoreCut]:
        """Empty the store, batch by batch. A kill on the way is harmless: ``UNFINISHED`` marks the store."""
        oldest = self.oldest()
        emptying = StoreCut(FORMAT, UNFINISHED, now_ms, None).encode()
        start, stop = _EVERYTHING
        while batch := [row for row, _ in islice(self.store.scan(start, stop), self.settings.restore_batch)]:
            self.store.write(dict.fromkeys(batch), emptying)
            yield True
        empty = StoreCut(FORMAT, oldest, now_ms, None)
        self.store.write({}, empty.encode())
        return empty

    # --- step 5: the inputs

    @contextmanager
    def _unless_taken_over(self, end: ChangelogEnd) -> Generator[None]:
        """Raise what is found to be wrong, unless another worker has committed while it was read: then nothing is."""
        try:
            yield
        except (CorruptStateError, OtherHistoryError):
            if self.end().offset == end.offset:
                raise
            raise FencedError(
                f"{self.transactional_id!r} was taken over by another worker while it was being restored here",
                hint="Stop this task. Its new owner continues from the last commit.",
            ) from None

    def _check_offsets(self, core: bytes | None, left: Mapping[str, int]) -> dict[str, int]:
        """Compare the group's offsets with the cut. Returns where to begin in inputs that the cut does not have."""
        known = {} if core is None else tape.decode_cut(core).offsets
        places = {one.name: TopicPartition(one.name, self.partition) for one in self.plan.inputs}
        committed = self.log.committed_offsets(self.plan.app, places.values())
        never_read = places.keys() - known.keys() - left.keys()
        first = self._first_positions(
            [place for name, place in places.items() if name in never_read and place not in committed]
        )
        begin: dict[str, int] = {}
        for name, place in places.items():
            offset = committed.get(place)
            if name in known:
                if offset is not None and offset != known[name]:
                    self._disagree(name, offset, known[name])
            elif offset is None:
                begin[name] = left[name] if name in left else first[place]
            elif core is None:
                self._disagree(name, offset, None)
            else:
                # An input that was left out for a while, or one that another program of this group has read before.
                begin[name] = offset
        return begin

    def _first_positions(self, places: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Where to begin in inputs that the task has never read. What was noted of them may have expired."""
        noted = first_positions(self.plan, self.log, places)
        unknown = [place for place in places if place not in noted]
        read = inputs_read(self.plan, self.log) if unknown else set[str]()
        return {
            **noted,
            **{place: 0 if place.topic in read else self.log.start_offset(*place) for place in unknown},
        }

    def _step_over(
        self, core: bytes | None, begin: Mapping[str, int], passed: Mapping[str, int]
    ) -> dict[str, int]:
        """By input, the oldest offset that is left, where that is behind what the task is to read next."""
        positions = {**begin, **({} if core is None else tape.decode_cut(core).positions)}
        found: dict[str, int] = {}
        said: list[str] = []
        for one in self.plan.inputs:
            start = self.log.start_offset(one.name, self.partition)
            if (position := max(positions[one.name], passed.get(one.name, 0))) < start:
                found[one.name] = start
                said.append(f"{position} to {start - 1} of {one.name!r}")
        if not found:
            return found
        gone, name = " and ".join(said), next(iter(found))
        if not self.settings.after_deleted:
            raise OffsetGoneError(
                f"the log has deleted offsets {gone} partition {self.partition} before the app "
                f"{self.plan.app!r} read them",
                topic=name,
                partition=self.partition,
                offset=positions[name],
                hint=f"{MAY_BE_EMPTY}To continue without them, run the app once with --after-deleted. "
                f"To have them, rebuild from {KEPT_ELSEWHERE} with --order stages, and start from "
                "the result under another name (--as, --from-snapshot).",
            )
        _log.warning(
            "the app continues without offsets %s partition %d, which the log deleted before they were read",
            gone,
            self.partition,
            extra={"app": self.plan.app, "partition": self.partition, "positions": found},
        )
        return found

    def _lost_ends(self, positions: Mapping[str, int], read: Mapping[str, RecordMark]) -> dict[str, int]:
        """By input that has lost its end since it was read: where to continue. ``positions`` are those of all inputs ever read."""
        found: dict[str, int] = {}
        for one in self.plan.inputs:
            name, mark = one.name, read.get(one.name)
            if mark is None or name not in positions:
                continue
            answer = judge_read(self.log, name, self.partition, mark)
            if does("input", answer) == "take":
                continue
            if not self.settings.after_deleted:
                raise OtherHistoryError(
                    f"{name!r} partition {self.partition} {answer.why}, and the app {self.plan.app!r} has read it up to {mark.offset}: "
                    "the log has lost its end since (an unclean leader election, a restored backup), or was created again",
                    why="record",
                    topic=name,
                    partition=self.partition,
                    offset=mark.offset,
                    hint="What was read and is lost is still in the state. Restore the topic from a copy. Or rebuild the state from "
                    "what is there now (--order stages), and start from the result under another name (--as, --from-snapshot). Or "
                    "run the app once with --after-deleted: it keeps its state and continues behind the offsets that it has read, "
                    "without the records that have taken their place.",
                )
            found[name] = min(positions[name], self.log.end_offset(name, self.partition))
            _log.warning(
                "the app keeps the effects of records that %r partition %d has lost: the topic %s. It continues at offset %d, without "
                "the records before it that have taken their place",
                name,
                self.partition,
                answer.why,
                found[name],
                extra={"app": self.plan.app, "partition": self.partition},
            )
        return found

    def _disagree(self, name: str, of_group: int, of_cut: int | None) -> None:
        rebuild = (
            "Restore the log from a copy; or rebuild the state from the log, and start the app from the result under another name (--as, "
            "--from-snapshot)."
        )
        raise OtherHistoryError(
            f"for {name!r} partition {self.partition} the group {self.plan.app!r} has offset {of_group}, and the changelog "
            f"{self.plan.changelog_topic!r} has {'no commit at all' if of_cut is None else f'offset {of_cut}'}",
            why="offsets",
            hint="Both are always committed together. The group is behind, as if another program had reset its offsets: if it is not "
            "ahead in any partition, delete the group (kafka-consumer-groups.sh --delete), and start the app again: it continues from its "
            f"changelog. {rebuild}"
            if of_cut is not None and of_group < of_cut
            else "Both are always committed together. The group is ahead: the changelog has lost commits, or another program commits "
            f"offsets as this group. Keep the group: without it the lost work is repeated, and its outputs come twice. {rebuild}",
        )


def finished(steps: Generator[bool, None, _R]) -> _R:
    """Take all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: _R = done.value
            return found


def await_log(reader: Reader) -> None:
    """Wait a moment for the log to give more."""
    if reader.wait(_WAIT_S):
        time.sleep(_NAP_S)  # there may be records of other partitions that share the reader
