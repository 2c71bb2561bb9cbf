"""Restores a task, from its transactional id to a task that can continue. This file has the order of the steps.

Theory. The log is the truth. A store is a copy of the changelog up to some position, for a faster start. Each step depends on
the one before:

    1  take the transactional id over         earlier owners are fenced and their open transactions aborted, so that only
                                              this owner writes this partition of the changelog from here on
    2  read the *uncommitted* end             no commit of an earlier owner is after it
    3  read the changelog, committed only,    from the store's position; offsets have gaps, so the position ends this
       until position >= that end             step, not the last record
    4  take the last cut read                 the store's own if the changelog had no more; it decides the offsets
    5  compare the group's offsets with it    they were committed together, so they are equal or expired
    6  check that the inputs continue there   records deleted unread by retention are an error, or skipped on request

The store's cut has three parts: its changelog position, the core's cut, and the time when it was last at the changelog's end.
While step 3 is at work there is a fourth: the last cut in the changelog, which step 3 reads *toward*. The time matters because
compaction drops deletions after a while: a store that was away for longer would keep deleted rows, so it is emptied and filled
again.

A position alone does not prove that a store is a copy of *this* changelog: a log that has lost its end, was restored from a
backup, or created again, has other records at the same offsets. So the log must have the commit that the store stands at, and
the one that it was being read toward (see ``history.commit_identity``). A store of another history is emptied and filled from
the log, and a warning names both identities. The log decides even if it has fewer commits than the store, or none.
Only if it has no cut although the group has committed offsets, the store is left as it is: step 5 would refuse the start, and the
state would be gone.

While rows are being applied, the store is between two commits. This is safe: no task runs on it before step 5, and a restore
that was killed or stopped here resumes from the position written with the last batch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

import msgspec

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.errors import (
    FencedError,
    ForeignStateError,
    LogUnavailableError,
    OffsetGoneError,
    OffsetsDisagreeError,
    RecordsLostError,
)
from tailrace.core.records import InputRecord
from tailrace.core.storage import Store
from tailrace.history.changelog import changes, last_cut
from tailrace.history.commit_identity import standing
from tailrace.log.interface import Log, Reader, TopicPartition, Writer
from tailrace.runtime.first_positions import first_positions
from tailrace.state.store_cut import FORMAT, UNFINISHED, StoreCut, decode_store_cut

_log = logging.getLogger("tailrace.restore")

_WAIT_S = 0.1
_NAP_S = 0.005
_WITHOUT_CHANGELOG = (
    "The state cannot be restored from this changelog. If a copy of the state folder of this task is left that has read further, "
    "put it back. Otherwise rebuild the state from the inputs (`tailrace rebuild`), and start from the result, or from a snapshot, "
    "under another name (--from-snapshot, --as)."
)
_EVERYTHING = (b"\x01", b"\xff")
"""Start and stop of a scan of all rows: they begin with a letter."""

Clock: TypeAlias = Callable[[], int]
"""Gives the present instant in milliseconds since the epoch."""


class _StoppedError(Exception):
    """The restore must not continue."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A task that may take its next step: its transactional id is held, and its store equals the changelog.

    This is where a live task *continues*. For the beginning of its history see ``history.beginnings``.
    """

    writer: Writer
    cut: bytes | None
    """The core's cut; None if nothing was ever committed."""
    changelog_position: int
    positions: Mapping[str, int]
    """Where to begin in the inputs that the cut does not know."""
    stepped_over: Mapping[str, int]
    """Positions to continue at in inputs of the cut whose next records the log has deleted."""
    records_applied: int


@dataclass(frozen=True, slots=True)
class Restore:
    """How one task is restored: ``run`` does it.

    ``deletions_kept_ms`` is how long the log's compaction keeps deletions (Kafka: ``delete.retention.ms``). Half of
    it is trusted. ``patience_s``: for how long the changelog may give nothing before that is an error. ``batch``: records
    of the changelog read and applied at once; between two batches ``may_go_on`` is asked.
    """

    plan: Plan
    partition: int
    log: Log
    reader: Reader
    store: Store
    clock: Clock
    deletions_kept_ms: int = 86_400_000
    patience_s: float = 60.0
    batch: int = 20_000
    may_go_on: Callable[[], bool] = lambda: True
    after_deleted: bool = False
    """Continue without records that the log deleted before they were read."""
    check_owned: Callable[[], None] = lambda: None
    """Called right before the take-over, which fences the current owner. May raise."""

    @property
    def transactional_id(self) -> str:
        """The id whose holder owns the task."""
        return f"{self.plan.app}-{self.partition}"

    @property
    def changelog(self) -> TopicPartition:
        """The task's partition of the changelog."""
        return TopicPartition(self.plan.changelog_topic, self.partition)

    def run(self) -> Restored | None:
        """Restore, in the order given at the head of this file. None if ``may_go_on`` returned False.

        Raises:
            FencedError: Another worker took the task over meanwhile.
            ForeignStateError: The store is of another app or task.
            OffsetsDisagreeError: The group's offsets are not those of the last cut.
            OffsetGoneError: The changelog has lost records that the store has not seen; or an input has lost some that the task
                has not read.
            LogUnavailableError: The log did not answer; nothing is lost, try again.
        """
        self.check_owned()
        writer = self.log.writer(self.transactional_id)
        begun_ms = self.clock()
        end = self.log.end_offset(*self.changelog)
        try:
            before = self._held(end, begun_ms)
            after, applied = self._catch_up(before, end, begun_ms)
            positions = self._check_offsets(after.core)
        except _StoppedError:
            writer.close()
            return None
        except OffsetsDisagreeError:
            if self.log.end_offset(*self.changelog) == end:
                raise
            # Another worker committed while the two were read: neither is wrong.
            raise FencedError(
                f"{self.transactional_id!r} was taken over by another worker while it was being restored here",
                hint="Stop this task. Its new owner continues from the last commit.",
            ) from None
        over = self._step_over(after.core, positions)
        return Restored(writer, after.core, after.changelog_position, positions | over, over, applied)

    # --- step 3 and 4: the changelog

    def _held(self, end: int, now_ms: int) -> StoreCut:
        """What the store says of itself, checked."""
        data = self.store.cut
        if data is None:
            return StoreCut(FORMAT, self.log.start_offset(*self.changelog), now_ms, None)
        held = decode_store_cut(data)
        if held.core is not None:
            cut = tape.decode_cut(held.core)
            if (cut.app, cut.partition) != (self.plan.app, self.partition):
                raise ForeignStateError(
                    f"the state belongs to app {cut.app!r}, partition {cut.partition}; "
                    f"it was opened for app {self.plan.app!r}, partition {self.partition}",
                    path=None if (path := getattr(self.store, "path", None)) is None else str(path),
                    hint="Give every task a folder of its own.",
                )
        why = None
        if held.changelog_position != UNFINISHED and held.format >= FORMAT:
            why = self._not_of_this_history(held, end)
            if why is None:
                return held
        if self._last_cut(end) is None:
            self._check_offsets(None)
        if why is not None:
            _log.warning(
                "the state folder stands after a commit that this log does not have: %s. The log has lost its end since (for "
                "example, it is a restored backup), or it is another log. The state is emptied and restored from the log",
                why,
                extra={"app": self.plan.app, "partition": self.partition},
            )
        return self._emptied(now_ms)

    def _not_of_this_history(self, held: StoreCut, end: int) -> str | None:
        """Why the store cannot be shown to be a copy of this changelog; None if it is one."""
        for data in (held.core, held.toward):
            if data is not None:
                found = standing(self.plan, self.log, self.partition, tape.decode_cut(data))
                if not found.in_log:
                    return found.why
        if held.changelog_position > end:
            return f"it is at position {held.changelog_position} of the changelog, which ends at {end}"
        return None

    def _catch_up(self, held: StoreCut, end: int, begun_ms: int) -> tuple[StoreCut, int]:
        """Apply the changelog up to ``end``; the store's new cut, and how many records it took."""
        reader, (topic, partition) = self.reader, self.changelog
        reader.seek(topic, partition, held.changelog_position)
        applied, waited_s = 0, 0.0
        position, core, complete_ms = held.changelog_position, held.core, held.at_end_ms
        toward = self._last_cut(end) if position < end else None
        try:
            while position < end:
                self._stop_if_asked()
                try:
                    records, next_offset, _, _ = reader.fetch(topic, partition, self.batch)
                except RecordsLostError as error:
                    error.hint = _WITHOUT_CHANGELOG
                    raise
                if not records and next_offset == position:
                    waited_s = self._wait(waited_s, position, end)
                    continue
                waited_s = 0.0
                position = next_offset
                if not records:
                    continue
                if applied == 0 and begun_ms - complete_ms > self.deletions_kept_ms // 2:
                    # Deletions that this store has not seen may be gone from the changelog.
                    held = self._emptied(begun_ms)
                    position, core, complete_ms = held.changelog_position, held.core, held.at_end_ms
                    reader.seek(topic, partition, position)
                    continue
                core = self._apply(records, StoreCut(FORMAT, position, complete_ms, core, toward))
                applied += len(records)
        finally:
            reader.forget(topic, partition)
        caught_up = StoreCut(FORMAT, position, begun_ms, core)
        if applied or held.toward is not None:
            self.store.write({}, caught_up.encode())
        return caught_up, applied

    def _wait(self, waited_s: float, position: int, end: int) -> float:
        if waited_s >= self.patience_s:
            raise LogUnavailableError(
                f"{self.plan.changelog_topic!r} partition {self.partition} gave nothing for {waited_s:.0f} s at "
                f"offset {position}, though it ends at {end}",
                hint="Look at the log. The task is restored when the log answers again.",
            )
        begun_s = time.monotonic()
        if self.reader.wait(_WAIT_S):
            time.sleep(_NAP_S)  # there may be records of other partitions that share the reader
        return waited_s + time.monotonic() - begun_s

    def _apply(self, records: list[InputRecord], cut: StoreCut) -> bytes | None:
        """Write a stretch of the changelog to the store, with the index rows that it leaves out. Returns the last cut of the
        task; ``cut`` has the one before.
        """
        changed = changes(self.changelog, records)
        core = changed.pop(rows.CUT_ROW, cut.core)
        names = list(changed)
        index: dict[bytes, bytes | None] = {}
        for name, old in zip(names, self.store.get_many(names), strict=True):
            index.update(rows.derived_index_rows(name, old, changed[name]))
        self.store.write(changed | index, msgspec.structs.replace(cut, core=core).encode())
        return core

    def _last_cut(self, end: int) -> bytes | None:
        """The last cut in the changelog; None if there is none."""
        try:
            last = last_cut(self.log, self.changelog, end)
        except RecordsLostError as error:
            error.hint = _WITHOUT_CHANGELOG
            raise
        return None if last is None else last.value

    def _emptied(self, now_ms: int) -> StoreCut:
        """Empty the store, batch by batch; one that is killed on the way is emptied further when it is found."""
        emptying = StoreCut(FORMAT, UNFINISHED, now_ms, None).encode()
        start, stop = _EVERYTHING
        while batch := [row for row, _ in islice(self.store.scan(start, stop), self.batch)]:
            self._stop_if_asked()
            self.store.write(dict.fromkeys(batch), emptying)
        empty = StoreCut(FORMAT, self.log.start_offset(*self.changelog), now_ms, None)
        self.store.write({}, empty.encode())
        return empty

    def _stop_if_asked(self) -> None:
        if not self.may_go_on():
            raise _StoppedError

    # --- step 5: the inputs

    def _check_offsets(self, core: bytes | None) -> dict[str, int]:
        """Compare the group's offsets with the cut. Returns the positions to begin at in inputs that the cut does not have."""
        known = {} if core is None else tape.decode_cut(core).positions
        places = {one.name: TopicPartition(one.name, self.partition) for one in self.plan.inputs}
        committed = self.log.committed_offsets(self.plan.app, places.values())
        first = first_positions(self.plan.app, self.log, places.values())
        begin: dict[str, int] = {}
        for name, place in places.items():
            offset = committed.get(place)
            if name in known:
                if offset is not None and offset != known[name]:
                    self._disagree(name, f"offset {offset}", f"offset {known[name]}")
            elif offset is None:
                begin[name] = first[place] if place in first else self.log.start_offset(*place)
            elif core is None:
                self._disagree(name, f"offset {offset}", "no commit at all")
            else:
                # An input that was left out for a while, or one that another program of this group has read before.
                begin[name] = offset
        return begin

    def _step_over(self, core: bytes | None, begin: Mapping[str, int]) -> dict[str, int]:
        """By input, the oldest offset that is left, where that is behind what the task is to read next."""
        positions = {**begin, **({} if core is None else tape.decode_cut(core).positions)}
        found: dict[str, int] = {}
        said: list[str] = []
        for one in self.plan.inputs:
            start = self.log.start_offset(one.name, self.partition)
            if (position := positions[one.name]) < start:
                found[one.name] = start
                said.append(f"{position} to {start - 1} of {one.name!r}")
        if not found:
            return found
        gone, name = " and ".join(said), next(iter(found))
        if not self.after_deleted:
            raise OffsetGoneError(
                f"the log has deleted offsets {gone} partition {self.partition} before the app "
                f"{self.plan.app!r} read them",
                topic=name,
                partition=self.partition,
                offset=positions[name],
                hint="To continue without them, run the app once with --after-deleted. If there is an archive of the log, rebuild with "
                "--archive and --order canonical, and start from the result under another name (--as, "
                "--from-snapshot).",
            )
        _log.warning(
            "the app continues without offsets %s partition %d, which the log deleted before they were read",
            gone,
            self.partition,
            extra={"app": self.plan.app, "partition": self.partition, "positions": found},
        )
        return found

    def _disagree(self, name: str, of_group: str, of_cut: str) -> None:
        raise OffsetsDisagreeError(
            f"for {name!r} partition {self.partition} the group {self.plan.app!r} has {of_group}, and the changelog "
            f"{self.plan.changelog_topic!r} has {of_cut}",
            hint="Both are always committed together: the log has lost commits of one of them, or another program commits offsets as "
            "this group. Restore the log from a copy; or rebuild the state from the log, and start the app from the result under "
            "another name (--as, --from-snapshot).",
        )
