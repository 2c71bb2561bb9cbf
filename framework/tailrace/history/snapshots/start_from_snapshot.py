"""Starting a task from a snapshot: its state becomes that of the snapshot, and it continues from there.

Theory. The log stays the truth. If a snapshot is part of the task's own history, the log has all of it, and nothing is done.
If not, the start is an event of that history: it is *committed*.

    the changelog has        and the snapshot is                     then
    no cut                   any that fits the app, and has read     the task is seeded with it
                             the log's records (``provenance``)
    a cut with a base        that base, or any without replacing     nothing: the start was done before
    a cut                    of this history, at the cut or before   nothing: the state is restored from the log
    a cut                    of another history, at a commit that    refused, unless the snapshot should replace the state
                             the log does not have, edited, or       and is at the same moment (see
                             rebuilt by other code                   ``comparing.cut_differences``): then it is seeded
    the snapshot's rows,     that one                                the same, without rows; what is replaced is in the
    by an upgrade                                                    changelog before

To *seed* is one transaction of the task's own id, which fences the previous owner of that id. It contains the
rows of the snapshot that the changelog does not have, deletions of all others, the messages in flight, the cut, the input offsets, and a
tape record that names the snapshot as the *base* of what follows. So a restore, a replay and the next
snapshot need only the log and that snapshot, and a crash leaves all of the transaction or none. A second
start with the same order finds the snapshot's id in the cut.

A worker that was suspended between its check and taking the id over may find that another has seeded the task
and continued. So it checks again once it has the id: from then on no other worker can commit.

Every task must be seeded before another seeded task sends it a message: otherwise the messages in flight
would come after that message. So no task takes a record before all have begun (``all_have_begun``); and all
begin with the same snapshot, even if a newer one appears meanwhile (``open_start``).

Counts, watermarks, lineage and timers are those of the snapshot. Under another name of the app its outputs
are those of another writer, in addition to the outputs of the old one. A replaced state numbers its outputs
from the last one in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial

import msgspec

from tailrace.core import rows
from tailrace.core.counting import counted
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.redriven import redriven_in
from tailrace.core.errors import (
    FencedError,
    SnapshotMismatchError,
    SnapshotUnavailableError,
    UnknownSnapshotError,
    UnknownTopicError,
)
from tailrace.core.names import inbox_of, transactional_id
from tailrace.core.records import InputRecord, Output
from tailrace.history.dead_letters.letters import dead_letters
from tailrace.history.dead_letters.redriving import closed_letters
from tailrace.history.provenance.judging import does, judge, new_nonce
from tailrace.history.provenance.topics import abandoned_here, abandoned_positions, read_topics
from tailrace.history.reading.app_history import AppHistory, Committed
from tailrace.history.reading.beginnings import base_name, begun_cut, check_whole, rows_of
from tailrace.history.reading.changelog import last_cut
from tailrace.history.reading.generations import at_generation, located
from tailrace.history.reading.stretches import scan
from tailrace.history.snapshots.input_positions import InputPositions, batched
from tailrace.history.snapshots.same_moment import check_same_moment
from tailrace.log.interface import Log, TopicPartition, Writer
from tailrace.processes.environment import timezones_version
from tailrace.state.contents import Contents
from tailrace.state.provenance import Provenance, provenance_of
from tailrace.state.snapshots import Snapshot, Snapshots, TaskEntry, which_where

_log = logging.getLogger("tailrace.starting")


@dataclass(frozen=True, slots=True)
class Start:
    """An order to start an app from a snapshot, with which its tasks' histories then begin."""

    snapshot: Snapshot
    name: str
    """The snapshot's name on the tape (``base_name``)."""
    replace: bool = False
    """Replace a state that has another history."""
    replaced: int | None = None
    """After an upgrade (``lab.upgrade``): the generation of the changelog with the state that is replaced. The present one has the rows of
    the snapshot, and they were compared: only cuts are to be compared.
    """
    timezones: str = ""
    """The version of the local time zone data, for the tape."""


def open_start(
    reference: str, app: str, plan: Plan, log: Log, *, replace: bool = False, replaced: int | None = None
) -> Start | None:
    """Open the snapshot of ``app`` that ``URI`` or ``URI#snapshot`` names (default: the latest).

    If tasks of ``plan``, which may be ``app`` under another name, have begun with a snapshot, that one is
    used, unless another should replace the state. Returns None if all have begun and that one is missing.
    Raises SnapshotError.
    """
    uri, which = which_where(reference)
    history = AppHistory(plan, log)
    cuts = [history.committed(number).cut for number in range(plan.partitions)]
    bases = {tape.decode_cut(cut).base for cut in cuts if cut is not None} - {""}
    if bases and not replace:
        which = min(bases)
    try:
        found = Snapshots(uri, app).open(which)
    except UnknownSnapshotError:
        if which not in bases or None in cuts:
            raise
        _log.warning(
            "the snapshot that the app was started from is not there any more: it continues with its own "
            "state",
            extra={"app": plan.app, "snapshot": which, "place": uri},
        )
        return None
    return Start(
        found, base_name(found, uri), replace=replace, replaced=replaced, timezones=timezones_version()
    )


def all_have_begun(plan: Plan, log: Log, start: Start) -> bool:
    """Whether every task of the snapshot has begun. Until then no task may take a record."""
    history = AppHistory(plan, log)
    return all(
        history.committed(task.partition).cut is not None
        for task in start.snapshot.manifest.tasks
        if task.cut
    )


def start_from(
    plan: Plan,
    number: int,
    log: Log,
    start: Start,
    now_ms: int,
    check_owned: Callable[[], None] = lambda: None,
) -> str:
    """Bring task ``number`` to the state of the snapshot, once. Returns what was done, as text.

    The task must be owned: seeding calls ``check_owned``, then fences the present holder of its id.
    Raises SnapshotMismatchError (it does not fit the app or the log), SnapshotError or FencedError.
    """
    return _Task(plan, number, log, start, now_ms, check_owned).run()


def _rows(history: AppHistory, number: int) -> Iterable[tuple[bytes, bytes]]:
    found = history.committed(number, with_rows=True).rows
    assert found is not None
    return found.rows()


class _Task:
    def __init__(
        self, plan: Plan, number: int, log: Log, start: Start, now_ms: int, check_owned: Callable[[], None]
    ) -> None:
        self._plan, self._number, self._log = located(plan, log), number, log
        self._check_owned = check_owned
        self._start, self._snapshot, self._now_ms = start, start.snapshot, now_ms
        self._id = start.snapshot.manifest.id
        self._entry = self._fitting_entry()
        self._inputs = InputPositions(plan, log, start.snapshot, number)

    def run(self) -> str:
        """See ``start_from``."""
        if not self._entry.cut:
            if self._start.replace:
                self._check_replaceable()
            if self._committed().cut is None:
                self._check_all_fit()
            return "it had not begun"
        self._cut = tape.decode_cut(self._entry.cut)
        committed = self._committed()
        if self._start.replaced is not None:
            return self._replace_old(self._start.replaced, committed)
        live = None if committed.cut is None else tape.decode_cut(committed.cut)
        if live is None:
            self._check_all_fit()
            self._warn_of_letters()
            self._seed(self._cut.tape, self._cut.totals, {}, committed)
            return "seeded"
        if live.base == self._id or (live.base and not self._start.replace):
            return f"nothing to do: the state already begins with snapshot {live.base}"
        why = ""
        if self._is_part_of(live):
            found = judge(self._plan, self._log, self._number, self._cut)
            if does("snapshot", found) == "take":
                return "nothing to do: the log has the history that it is a copy of"
            why = f": it stands at {found.why}"
        self._check_replaceable(why)
        folded = AppHistory(self._plan, self._log).committed(self._number, with_rows=True).rows
        assert folded is not None
        self._seed(live.tape, live.totals, dict(folded.rows()), committed)
        return "replaced"

    def _warn_of_letters(self) -> None:
        """Events that failed in another app before the snapshot are not in its state, and a redrive reaches that app only."""
        cut, log, app = self._cut, self._log, self._cut.app
        if app == self._plan.app or self._snapshot.manifest.source == "stages":
            return
        with suppress(UnknownTopicError):  # the other app has not run on this log
            closed, inbox = closed_letters(log, app), inbox_of(app)
            later = [
                redriven_in(one.headers)
                for one in scan(log, inbox, self._number, cut.positions.get(inbox, 0))
            ]
            along = [redriven_in(one.headers) for one in self._snapshot.messages(self._number)]
            again = {one.letter for one in later if one is not None and one not in along}
            missing = [
                one.id
                for one in dead_letters(log, app)
                if one.topic is not None
                and one.origin_partition == self._number
                and (one.origin_offset or 0) < cut.positions.get(one.topic, 0)
                and (one.id not in closed or one.id in again)
            ]
            if missing:
                _log.warning(
                    "%s of %r failed before the snapshot and are not in its state. A redrive of %r does not reach this app: to have "
                    "them here, redrive them there and start from a later snapshot",
                    counted(len(missing), "event"),
                    app,
                    app,
                    extra={"app": self._plan.app, "partition": self._number, "dead_letters": missing[:10]},
                )

    def _replace_old(self, replaced: int, committed: Committed) -> str:
        """Replace the state of the version before, after an upgrade: the rows are in the changelog already."""
        plan, log = self._plan, self._log
        here = last_cut(log, TopicPartition(plan.changelog_topic, self._number))
        if here is not None and tape.decode_cut(here.value or b"").base == self._id:
            return f"nothing to do: the state already begins with snapshot {self._id}"
        old = TopicPartition(at_generation(plan, replaced).changelog_topic, self._number)
        before = last_cut(log, old, of_replaced=True)
        lost = before is None and log.end_offset(plan.tape_topic, self._number) > 0
        if lost or provenance_of(here).snapshot != self._id:
            raise SnapshotMismatchError(
                f"{plan.changelog_topic!r} partition {self._number} does not have the rows of the snapshot {self._id}, or there is no "
                "state for it to replace",
                hint="Has another program written to it, or deleted records? Return with 'tailrace upgrade ... --rollback'.",
            )
        if before is None:  # the version before has not committed this task
            self._seed(self._cut.tape, self._cut.totals, None, committed)
            return "seeded"
        live = tape.decode_cut(before.value or b"")
        check_same_moment(plan, self._snapshot, self._number, live)
        self._seed(live.tape, live.totals, None, committed, before)
        return "replaced"

    def _committed(self) -> Committed:
        return AppHistory(self._plan, self._log).committed(self._number)

    # --- does it fit?

    def _fitting_entry(self) -> TaskEntry:
        check_whole(self._snapshot, self._plan)
        try:
            return self._snapshot.manifest.task(self._number)
        except KeyError:
            raise SnapshotMismatchError(
                f"the snapshot {self._id} holds nothing of partition {self._number}",
                hint="Start from a whole one.",
            ) from None

    def _check_all_fit(self) -> None:
        """Check that every task that has not begun can begin: no part of the app may begin alone."""
        plan, log = self._plan, self._log
        for number in range(plan.partitions):
            task = _Task(plan, number, log, self._start, self._now_ms, self._check_owned)
            if task._committed().cut is None:
                task._inputs.check()

    def _is_part_of(self, live: tape.Cut) -> bool:
        """Whether the snapshot is of the history that the changelog continues, if the log has that commit."""
        manifest, cut = self._snapshot.manifest, self._cut
        whole = manifest.source in ("live", "tape") and self._entry.changelog_position is not None
        return whole and (cut.app, cut.lineage, cut.base) == (live.app, live.lineage, live.base)

    def _check_replaceable(self, why: str = "") -> None:
        """Check that the state of all tasks can be replaced: all tasks need the same past."""
        app = self._plan.app
        if not self._start.replace:
            raise SnapshotMismatchError(
                f"the app {app!r} has a history of its own in this log, which the snapshot {self._id} is not "
                f"a part of{why}",
                hint="Leave --from-snapshot out to continue with what the log has. Or run it beside under another name (--as NAME), "
                "or say that the snapshot is to replace the state (--replace-state).",
            )
        history = AppHistory(self._plan, self._log)
        found = [history.committed(number).cut for number in range(self._plan.partitions)]
        cuts = [None if cut is None else tape.decode_cut(cut) for cut in found]
        if any(cut is not None and cut.base == self._id for cut in cuts):
            # The replacement has begun: replaced tasks may have committed since, and tasks without a state
            # may have begun.
            cuts = [
                cut if number == self._number and self._entry.cut else None for number, cut in enumerate(cuts)
            ]
        for number, live in enumerate(cuts):
            if live is not None:
                check_same_moment(self._plan, self._snapshot, number, live, partial(_rows, history, number))

    # --- a new beginning

    def _seed(
        self,
        number: int,
        totals: tape.Totals,
        before: Mapping[bytes, bytes] | None,
        seen: Committed,
        last: InputRecord | None = None,
    ) -> None:
        """Commit the snapshot as the task's state. ``before``: the rows that the changelog has now; None: those of the snapshot, and
        ``last`` is the last cut of the state that is replaced.
        """
        plan, log, partition = self._plan, self._log, self._number
        self._hold()
        self._check_owned()
        with closing(log.writer(transactional_id(plan.app, partition))) as writer:
            if self._committed() != seen:
                raise FencedError(
                    f"the task {plan.app}/{partition} was started by another while it was about to be "
                    "started here",
                    hint="Nothing is lost: start again, and it resumes at the last commit.",
                )
            positions = self._inputs.positions(writer, is_new=seen.cut is None)
            place = TopicPartition(plan.changelog_topic, partition)
            if before is not None and seen.cut is not None:
                last = last_cut(log, place)
            totals = msgspec.structs.replace(totals, outputs=max(totals.outputs, self._cut.totals.outputs))
            record = self._tape_record(number, positions, totals)
            cut = begun_cut(plan.app, self._snapshot.manifest, partition, record, self._id)
            contents = None if before is None else self._append_rows(writer, before)
            left = {} if last is not None else abandoned_positions(self._entry, log)
            read, replaced = self._entry.provenance.read, provenance_of(last)
            headers = Provenance(
                topics=read_topics(plan, log, positions),
                read={name: one for name, one in read.items() if name in positions or name in left},
                abandoned=replaced.abandoned if last is not None else abandoned_here(log, left),
                rows=contents,
                versions=replaced.versions,
            ).headers
            encoded = tape.encode(cut)
            writer.append(
                [Output(plan.changelog_topic, rows.CUT_ROW, encoded, self._now_ms, headers)], partition
            )
            writer.append([Output(plan.tape_topic, None, tape.encode(record), self._now_ms)], partition)
            writer.commit({TopicPartition(name, partition): at for name, at in cut.offsets.items()}, plan.app)

    def _hold(self) -> None:
        """Protect the snapshot from retention: a replay of this history needs it from now on."""
        if not self._snapshot.manifest.automatic:
            return
        try:
            self._snapshot.hold(self._plan.app)
        except SnapshotUnavailableError as error:
            _log.warning(
                "the snapshot is one of those that are deleted in time, and it could not be noted that a "
                "history begins with it: %s",
                error,
                extra={"app": self._plan.app, "snapshot": self._id},
            )

    def _tape_record(self, number: int, positions: Mapping[str, int], totals: tape.Totals) -> tape.TapeRecord:
        nonce = new_nonce()
        return tape.TapeRecord(
            tape.FORMAT,
            number,
            [],
            [],
            totals,
            self._cut.watermark,
            list(positions),
            list(positions.values()),
            self._cut.now,
            self._plan.version,
            tape.environment(self._start.timezones),
            self._start.name,
            identity=tape.identity_of(self._cut.identity, nonce, number),
            nonce=nonce,
            flight=self._inputs.flight,
        )

    def _append_rows(self, writer: Writer, before: Mapping[bytes, bytes]) -> Contents:
        """Append what makes the rows of the snapshot of those ``before``; returns their contents."""
        gone, contents = dict(before), Contents()
        for batch in batched(rows_of(self._snapshot, self._number)):
            self._append(writer, [one for one in batch if before.get(one[0]) != one[1]])
            contents = contents.applied(dict(batch))
            for row, _ in batch:
                gone.pop(row, None)
        self._append(writer, ((row, None) for row in gone))
        return contents

    def _append(self, writer: Writer, changed: Iterable[tuple[bytes, bytes | None]]) -> None:
        topic, now_ms = self._plan.changelog_topic, self._now_ms
        writer.append([Output(topic, row, value, now_ms) for row, value in changed], self._number)
