"""Where a task that starts from a snapshot continues in its inputs.

Inputs of the app from outside continue at the positions of the snapshot, if this log has the records from
there on. The internal topics of the app (inbox, repartitioned topics) are other topics for a new task: what
was in flight to it has to be in the snapshot, and is appended.

A snapshot of stages has its own messages in flight, whose copies the log does not have: they wait in ordered operators for their turn.
They are appended to the inbox in a transaction before, as the cut names their offsets (``flight``). What a start that was killed in
between has left there is below the position of the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TypeVar

from tailrace.core import rows
from tailrace.core.counting import counted
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.redriven import redriven_in
from tailrace.core.errors import KEPT_ELSEWHERE, OffsetGoneError, OtherHistoryError, SnapshotMismatchError
from tailrace.core.names import is_own
from tailrace.core.records import Output
from tailrace.history.provenance.judging import check_reads
from tailrace.history.reading.beginnings import here
from tailrace.history.reading.replayable import MAY_BE_EMPTY
from tailrace.history.reading.stretches import scan
from tailrace.log.interface import Log, TopicPartition, Writer
from tailrace.state.snapshots import MESSAGES, Snapshot

BATCH = 20_000
T = TypeVar("T")


class InputPositions:
    """The inputs of one task. Its methods raise SnapshotMismatchError, OtherHistoryError or OffsetGoneError."""

    def __init__(self, plan: Plan, log: Log, snapshot: Snapshot, number: int) -> None:
        self._plan, self._log, self._snapshot, self._number = plan, log, snapshot, number
        self._manifest = snapshot.manifest
        self._entry = snapshot.manifest.task(number)
        self.flight: dict[str, tuple[int, int, int]] = {}
        """By ordered operator, what waits in it of the inbox, after ``positions``: see ``tape.Ordered.lows``."""

    def check(self) -> None:
        """Check that a task that has not begun can begin."""
        if self._entry.cut:
            self.positions(None, is_new=True)
        else:
            self._check_nothing_waits()

    def positions(self, writer: Writer | None, *, is_new: bool) -> dict[str, int]:
        """The position to continue from in each input. Messages in flight that this log lacks are appended.
        Without a writer this only checks that it can be done.

        For a task that ``is_new`` the log never has them: it is another log, or another app name.
        """
        declared = {one.name for one in self._plan.inputs}
        check_reads(self._plan, self._log, self._snapshot, self._number, declared)
        cut = tape.decode_cut(self._entry.cut)
        self._check_waiting(cut, is_new=is_new)
        found: dict[str, int] = {}
        for name, position in cut.positions.items():
            place = TopicPartition(here(name, cut.app, self._plan.app), self._number)
            if is_new and is_own(name, cut.app):
                found[place.topic] = self._bring_along(writer, name, place, position)
            else:
                found[place.topic] = self._in_log(place, position)
        if writer is not None and self._manifest.source == "stages":
            found |= self._let_wait(writer)
        return found

    def _check_waiting(self, cut: tape.Cut, *, is_new: bool) -> None:
        """Refuse a cut in which records wait for ordered actors that this log does not have."""
        for actor, ordered in cut.ordered.items():
            for name, (low, count, _) in ordered.lows.items():
                place = TopicPartition(here(name, cut.app, self._plan.app), self._number)
                kept = self._log.start_offset(*place) <= low < self._log.end_offset(*place)
                if (is_new and is_own(name, cut.app)) or not kept:
                    raise SnapshotMismatchError(
                        f"{counted(count, 'record')} of {name!r} partition {self._number} waited for their turn in "
                        f"{actor}, and this log does not have them: the snapshot {self._manifest.id} names them only",
                        hint="Use a snapshot of this history in this log (snapshot create, or rebuild --order tape), or one "
                        "in which nothing waits.",
                    )

    def _in_log(self, place: TopicPartition, position: int) -> int:
        """The position in an input, if the log has the records from there on."""
        which, start, end = self._manifest.id, self._log.start_offset(*place), self._log.end_offset(*place)
        if position > end:
            raise OtherHistoryError(
                f"the snapshot {which} stands at offset {position} of {place.topic!r} partition "
                f"{self._number}, which ends at {end}",
                why="record",
                hint="It belongs to another log.",
            )
        if position < start:
            raise OffsetGoneError(
                f"the snapshot {which} continues from an offset that retention has deleted; the first kept "
                f"is {start}",
                topic=place.topic,
                partition=self._number,
                offset=position,
                hint=f"{MAY_BE_EMPTY}Start from a newer snapshot, or rebuild from {KEPT_ELSEWHERE}.",
            )
        return position

    def _check_nothing_waits(self) -> None:
        """Refuse a snapshot with records that wait for a task, unless this log holds them."""
        for name, ends in self._manifest.ends.items():
            if not is_own(name, self._manifest.app):
                continue
            place = TopicPartition(here(name, self._manifest.app, self._plan.app), self._number)
            waiting = self._entry.waiting
            count = ends[self._number] if waiting is None else waiting.get(name, 0)
            if count and (place.topic != name or self._log.end_offset(*place) < ends[self._number]):
                raise SnapshotMismatchError(
                    f"{count:,} records wait in {name!r} partition {self._number} for a task that had not "
                    f"committed yet, and the snapshot {self._manifest.id} does not hold those",
                    hint="Take a snapshot when all tasks have committed.",
                )

    def _bring_along(self, writer: Writer | None, name: str, place: TopicPartition, position: int) -> int:
        """Append the records in flight in an internal topic. Returns the start offset of that topic."""
        which, ends, waiting = self._manifest.id, self._manifest.ends.get(name), self._entry.waiting
        is_inbox = place.topic == self._plan.inbox_topic
        is_known = self._manifest.source != "tape" or (is_inbox and not self._plan.has_messages)
        if ends is None and not is_known:
            raise SnapshotMismatchError(
                f"the snapshot {which} stands within the history of the app, and does not hold what was "
                f"under way there in {name!r}",
                hint="Rebuild one up to the last commit, without a limit.",
            )
        if waiting is not None:
            under_way = waiting.get(name, 0)
        else:
            under_way = 0 if ends is None else ends[self._number] - position
        held = sum(file.rows for file in self._entry.files if file.table == MESSAGES)
        if is_inbox and ends is not None and held != under_way:
            raise SnapshotMismatchError(
                f"{under_way:,} messages were under way in {name!r} partition {self._number}, and the "
                f"snapshot {which} holds {held:,} of them",
                hint="Start from another snapshot.",
            )
        if under_way > 0 and not is_inbox:
            raise SnapshotMismatchError(
                f"{under_way:,} records were under way in {name!r} partition {self._number}, and a snapshot "
                "does not hold those",
                hint="Take a snapshot when the app has handled what it has repartitioned, or start in place.",
            )
        if writer is not None and is_inbox and self._manifest.source != "stages":
            self._append_messages(writer)
        return self._log.start_offset(*place)

    def _let_wait(self, writer: Writer) -> dict[str, int]:
        """Append the messages in flight of a snapshot of stages, and find where they are. Returns the position behind them."""
        inbox, number = self._plan.inbox_topic, self._number
        if not any(file.table == MESSAGES for file in self._entry.files):
            return {}
        wanted = list(self._snapshot.messages(number))
        start = self._log.end_offset(inbox, number)
        self._append_messages(writer)
        end = writer.commit({}, self._plan.app)[TopicPartition(inbox, number)]
        found = list(scan(self._log, inbox, number, start, end))
        if [one[2:] for one in found] != [one[2:] for one in wanted]:
            raise SnapshotMismatchError(
                f"somebody else writes to {inbox!r} partition {number} while the task begins with the snapshot {self._manifest.id}",
                hint="Nothing is lost: start again when nothing is redriven.",
            )
        for record in found:
            redriven = redriven_in(record.headers)
            names = (
                (rows.decode_envelope(record.value or b"")[0],) if redriven is None else redriven.operators
            )
            for name in names:
                low, count, total = self.flight.get(name, (record.offset, 0, 0))
                self.flight[name] = low, count + 1, total + record.offset
        return {inbox: end}

    def _append_messages(self, writer: Writer) -> None:
        inbox = self._plan.inbox_topic
        for batch in batched(self._snapshot.messages(self._number)):
            again = [Output(inbox, one.key, one.value, one.timestamp_ms, one.headers) for one in batch]
            writer.append(again, self._number)


def batched(items: Iterator[T]) -> Iterator[list[T]]:
    """The items in lists of ``BATCH``."""
    while batch := list(islice(items, BATCH)):
        yield batch
