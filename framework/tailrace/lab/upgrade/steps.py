"""The steps of an upgrade, from the rebuild beside to the new version that runs.

Theory. Each step is done once, and a command that was killed continues at the first one that is not done. What is done is
durable outside of the command: in the log (see ``history.reading.upgrades``), and as snapshots with names::

    step                                             noted by                          killed before the next step
    1  begun     new processes wait                  the log                           old runs
    2  round     old is kept at a cut, outside of    ``upgrade-ID-N`` of each, one     old runs; the round is resumed (see
                 drains; new is brought to it, and   for each round, and the           ``rebuilding.driver``, ``generation``)
                 its rows are written; both are      changelog of new
                 compared. Until the rest is small
    3  fenced    old processes commit and end        the log                           nobody runs
    4  last      when nobody owns a task: old ends   ``upgrade-ID-last`` of each,      nobody runs
                 its drains and, if new goes in      and the changelog of new
                 stages, handles its messages;
                 then a round
    5  ready                                         the log                           new processes run: the state is in their
                                                                                       changelog; that of old is closed
    6  done      all tasks have begun with it        the log                           new runs

A round: ``kept``, ``round``, ``written``, ``verified``. Those before 3 rehearse 4: a mismatch is found while old runs. Only messages
under way between old's tasks are not compared before 4. Two mismatches may pass by themselves, at a later cut; the third one is raised.

New is another version, so its rounds go in stages, each from the snapshot of the round before: 4 costs what has happened since
then, and to read and write the rows once. If operators feed each other there are no stages, and
new follows the tape: that ends at the first result that is not the one of old.

Up to 4 it can be given up: old runs, and nothing of it was changed. If 4 fails, it is given up by itself. From 5 on the
way back is a *rollback*: an upgrade to old whose first round begins with the state that was kept. That one stands at the
same moment as the state of new that has replaced it, so the tape since then follows it as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from tailrace.core.errors import SnapshotMismatchError, TailraceError, TaskOwnedError
from tailrace.core.names import changelog_of, transactional_id
from tailrace.history.reading.upgrades import Upgrade, UpgradeStep, note_upgrade
from tailrace.history.rebuilding.engines import Where
from tailrace.history.rebuilding.report import RebuildReport
from tailrace.history.rebuilding.request import Destination, Execution, Order, Request, Source
from tailrace.history.status.last_failure import failures_end
from tailrace.lab.upgrade.generation import close_generation
from tailrace.lab.upgrade.tasks import SnapshotAt
from tailrace.lab.versions import About, Version
from tailrace.log.interface import Ends, StoredLog, Writer
from tailrace.state.snapshots import Manifest, Place, Snapshots

T = TypeVar("T")
Say = Callable[[str], None]
_SMALL_S = 1.0
"""A round that takes no longer is small enough to be the last but one."""
_MISMATCHES = 3
_ROWS_IN_MEMORY = 500_000
_NAP_S = 0.05
_TELL_S = 15.0


class UpgradeReport(msgspec.Struct, kw_only=True):
    """What an upgrade has done. ``done``: False if it was done before."""

    app: str
    old: str
    new: str
    done: bool = False
    order: str = ""
    rounds: int = 0
    rows: int = 0
    stopped_s: float = 0.0
    """From the end of the last process of old until all tasks had begun with the new state."""


class Sides(NamedTuple):
    """The processes of both versions and their descriptions, the log, and where snapshots go."""

    old: Version
    new: Version
    old_is: About
    new_is: About
    log: StoredLog
    place: str
    uri: str
    where: Where
    """Of the first round, which may be made by Spark."""

    @property
    def kept_uri(self) -> str:
        """Where the states of old are."""
        return (Place.at(self.uri) / "kept").uri

    def request(
        self, order: Order, base: SnapshotAt | None, name: str | None = None, ends: Ends | None = None
    ) -> Request:
        """A rebuild of new from a snapshot."""
        source = Source(log=self.place, ends=ends)
        if base is not None:
            source = replace(source, base=base[0], base_id=base[1])
        to = Destination(uri=self.uri, name=name)
        return Request(app=self.new.place.reference, source=source, to=to, order=order)

    def advance(self, request: Request, where: Where) -> RebuildReport:
        """Do a rebuild of new."""
        return self.new.ask("advance", RebuildReport, request=request, where=where)


class Steps:
    """See the head of this file. ``reached`` is called with the name of each step when it is done."""

    def __init__(
        self, sides: Sides, upgrade: Upgrade, before: Upgrade | None, writer: Writer, say: Say, reached: Say
    ) -> None:
        self._sides, self._upgrade, self._before = sides, upgrade, before
        self._writer, self._say, self._reached = writer, say, reached
        self._app, self._log = sides.old_is.app, sides.log
        self._snapshots, self._kept = Snapshots(sides.uri, self._app), Snapshots(sides.kept_uri, self._app)
        self._failed_from = failures_end(self._log, self._app)
        """Before new may begin: see ``failures_since``."""
        self.report = UpgradeReport(app=self._app, old=upgrade.old, new=upgrade.new)

    def run(self) -> UpgradeReport:
        """All steps that are not done. Raises what a rebuild raises, SnapshotMismatchError, and WorkerLostError."""
        steps: list[UpgradeStep] = ["begun", "fenced", "ready", "done"]
        at = steps.index(self._upgrade.step)
        if at == 0:
            self._note("begun")
            self._catch_up()
            self._note("fenced")
        if at <= 1:
            try:
                self._cut_over()
            except TailraceError as error:
                self.give_up()
                again = f"The upgrade was given up. Start version {self._upgrade.old!r} again: it continues where it was."
                error.hint = f"{again} {error.hint or ''}".rstrip()
                raise
        self._await_new()
        self._note("done")
        given = {"uri": self._sides.uri, "snapshot": self._upgrade.snapshot}
        self.report.rows = self._sides.new.ask("counted_rows", int, **given)
        self.report.done = True
        return self.report

    def give_up(self) -> None:
        """Let old run. After a rollback that is given up, the upgrade before it is the last one again."""
        found = self._before or replace(self._upgrade, step="given up")
        note_upgrade(self._writer, self._app, found)

    def _note(self, step: UpgradeStep) -> None:
        self._upgrade = replace(self._upgrade, step=step)
        note_upgrade(self._writer, self._app, self._upgrade)
        self._reached(step)

    def _named(self, what: object) -> str:
        return f"upgrade-{self._upgrade.id}-{what}"

    def _old(self, task: str, answer: type[T], **given: object) -> T:
        return self._sides.old.ask(task, answer, log=self._sides.place, **given)

    def _new(self, task: str, answer: type[T], **given: object) -> T:
        return self._sides.new.ask(task, answer, log=self._sides.place, **{"uri": self._sides.uri, **given})

    def _made(self) -> list[Manifest]:
        """The snapshots of the rounds."""
        return [one for one in self._snapshots.list() if (one.name or "").startswith(self._named(""))]

    def _catch_up(self) -> None:
        """Rounds until one is small, or not much shorter than the one before."""
        before_s, mismatches = float("inf"), 0
        while True:
            begun_s, made = time.monotonic(), self._made()
            kept = self._round(str(len(made)))
            try:
                self._verify(kept, under_way=[*self._sides.old_is.own, *self._sides.new_is.own])
            except SnapshotMismatchError as error:
                mismatches += 1
                if mismatches == _MISMATCHES:
                    raise
                self._say(f"{error.what}. Comparing at the next cut")
                continue
            took_s = time.monotonic() - begun_s
            if made and (took_s < _SMALL_S or took_s > before_s / 2):
                return
            before_s = took_s

    def _round(self, which: str, reached: str = "round") -> SnapshotAt:
        """Keep old at a cut, and bring new to it, from the last round; what was done before is used. Returns the state of old."""
        name, made, uri = self._named(which), self._made(), self._sides.kept_uri
        kept = uri, self._old("keep", str, uri=uri, name=name)
        self._reached("kept")
        if all(one.name != name for one in made):
            self._say(f"{name}: rebuilding the state of version {self._upgrade.new!r}")
            manifest = self._kept.open(kept[1]).manifest
            self._rebuild(made, name, Ends(0, manifest.ends))
            self._reached(reached)
        self._write_state()
        return kept

    def _verify(self, kept: SnapshotAt, under_way: Sequence[str] = ()) -> None:
        """Compare the last round with the state of old. Raises SnapshotMismatchError."""
        given = {"made": (self._sides.uri, self._made()[-1].id), "old": kept, "under_way": under_way}
        timers = self._sides.old_is.timers or self._sides.new_is.timers
        self._sides.new.ask("verify", type(None), timers=timers, **given)
        self._reached("verified")

    def _write_state(self) -> None:
        """Write what the last round has changed into the changelog of new. Raises FencedError: another command has taken over."""
        note_upgrade(self._writer, self._app, self._upgrade)
        given = {"snapshot": self._made()[-1].id, "generation": self._upgrade.generation}
        self._new("write_generation", int, **given)
        self._reached("written")

    def _rebuild(self, made: Sequence[Manifest], name: str, ends: Ends) -> None:
        """Rebuild new from the last round that was ``made`` to ``ends``."""
        order: Order = "auto"
        base, where, is_small = None, self._sides.where, False
        if made:
            order, base = "stages" if made[-1].source == "stages" else "tape", (self._sides.uri, made[-1].id)
            # A small state is quicker without further processes.
            rows = sum(file.rows for one in made for task in one.tasks for file in task.files)
            is_small = rows <= _ROWS_IN_MEMORY
        elif self._upgrade.rollback:
            assert self._before is not None
            uri, kept = self._sides.kept_uri, self._before.kept
            base = uri, self._new("kept_beginning", str, uri=uri, kept=kept, name=self._named("from"))
        request = self._sides.request(order, base, name, ends)
        if base is not None:  # a session of Spark takes longer to start than the round
            where = Where(workers=where.workers)
        if is_small:
            request, where = replace(request, execution=Execution(store="memory")), Where(workers=1)
        report = self._sides.advance(request, where)
        self.report.rounds += 1
        self.report.order = report.order

    def _cut_over(self) -> None:
        """From the end of old to the state with which new begins."""
        self._say(f"waiting until the processes of version {self._upgrade.old!r} have ended")
        self._await_nobody()
        self.report.stopped_s = -time.monotonic()
        if not any(one.name == self._named("last") for one in self._kept.list()):
            messages = self._made()[-1].source == "stages" and bool(self._sides.old_is.own)
            self._old("drain", type(None), reference=self._sides.old.place.reference, messages=messages)
        kept = self._round("last", "last")
        self._verify(kept)
        self._upgrade = replace(self._upgrade, snapshot=self._made()[-1].id, kept=kept[1])
        self._failed_from = failures_end(self._log, self._app)
        self._note("ready")

    def _await_nobody(self) -> None:
        """Wait until nobody owns a task. What a killed process has left open is aborted."""
        numbers, tell_at_s = range(self._sides.old_is.partitions), time.monotonic() + _TELL_S
        while True:
            try:
                with self._log.reserve(self._app, numbers):
                    for number in numbers:
                        self._log.writer(transactional_id(self._app, number)).close()
                    return
            except TaskOwnedError as error:
                if time.monotonic() > tell_at_s:
                    self._say(
                        f"still waiting: {error.what}. If it is not of version {self._upgrade.old!r}, end it"
                    )
                    tell_at_s += _TELL_S
                time.sleep(_NAP_S)

    def _await_new(self) -> None:
        old, new = (changelog_of(self._app, one) for one in (self._upgrade.before, self._upgrade.generation))
        close_generation(self._log, old, new)
        self._say(f"waiting for processes of version {self._upgrade.new!r}: start them, if none waits yet")
        given = {"snapshot": self._upgrade.snapshot, "failed_from": self._failed_from}
        self._new("await_begun", type(None), **given)
        if self.report.stopped_s:
            self.report.stopped_s += time.monotonic()
