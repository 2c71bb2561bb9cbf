"""The steps of an upgrade, from the rebuild beside to the new version that runs.

Theory. Each step is done once, and a command that was killed continues at the first one that is not done. What is done is
durable outside of the command: in the log (see ``history.reading.upgrades``), and as snapshots with names::

    step                                             noted by                          killed before the next step
    1  begun     new processes wait                  the log                           old runs
    2  before    a snapshot of old                   ``upgrade-ID-before``             old runs
    3  round     rebuild new, then catch up, until   ``upgrade-ID-N``, one for each    old runs; the round is resumed (see
                 the rest is small; each time, its   round, and the changelog of new;  ``rebuilding.driver``, ``generation``)
                 rows are written; what old has      ``upgrade-ID-near``
                 changed meanwhile
    4  fenced    old processes commit and end        the log                           nobody runs
    5  last      when nobody owns a task: in         ``upgrade-ID-last``               nobody runs
                 stages, old handles its
                 messages; the last round, to the    and the changelog of new
                 end, and its rows
    6  kept      the state of old at that end        ``upgrade-ID``                    nobody runs
    7  verified  both stand at one moment            nothing: it is compared again     nobody runs
    8  ready                                         the log                           new processes run: the state is in their
                                                                                       changelog; that of old is closed
    9  done      all tasks have begun with it        the log                           new runs

New is another version, so its rounds go in stages, each from the snapshot of the round before: 5 costs what has happened since
then, and to read and write the rows once; 6 what has happened since ``near``. If operators feed each other there are no stages, and
new follows the tape: that ends at the first result that is not the one of old.

Up to 7 it can be given up: old runs, and nothing of it was changed. If 5 to 7 fail, it is given up by itself. From 8 on the
way back is a *rollback*: an upgrade to old whose first round begins with the state that was kept. That one stands at the
same moment as the state of new that has replaced it, so the tape since then follows it as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from tailrace.core.errors import TailraceError, TaskOwnedError
from tailrace.core.names import changelog_of, transactional_id
from tailrace.history.reading.upgrades import Upgrade, UpgradeStep, note_upgrade
from tailrace.history.rebuilding.engines import Where
from tailrace.history.rebuilding.report import RebuildReport
from tailrace.history.rebuilding.request import Destination, Execution, Order, Request, Source
from tailrace.lab.upgrade.generation import close_generation
from tailrace.lab.versions import About, Version
from tailrace.log.interface import StoredLog, Writer
from tailrace.state.snapshots import Manifest, Place, Snapshots

T = TypeVar("T")
Say = Callable[[str], None]
_SMALL_S = 1.0
"""A round that takes no longer is small enough to be the last but one."""
_ROUNDS = 10
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

    def request(self, order: Order, base: tuple[str, str] | None, name: str | None = None) -> Request:
        """A rebuild of new; ``base``: from the snapshot of this URI and id."""
        source = (
            Source(log=self.place) if base is None else Source(log=self.place, base=base[0], base_id=base[1])
        )
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
        self._snapshots = Snapshots(sides.uri, self._app)
        self.report = UpgradeReport(app=self._app, old=upgrade.old, new=upgrade.new)

    def run(self) -> UpgradeReport:
        """All steps that are not done. Raises what a rebuild raises, and SnapshotMismatchError."""
        steps: list[UpgradeStep] = ["begun", "fenced", "ready", "done"]
        at = steps.index(self._upgrade.step)
        if at == 0:
            self._note("begun")
            self._old("keep", str, uri=self._sides.kept_uri, name=self._named("before"))
            self._reached("before")
            self._catch_up()
            self._old("keep", str, uri=self._sides.kept_uri, name=self._named("near"))
            self._note("fenced")
        if at <= 1:
            try:
                self._cut_over()
            except TailraceError:
                self.give_up()
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
        before_s = float("inf")
        for _ in range(_ROUNDS):
            begun_s, made = time.monotonic(), self._made()
            self._round(self._named(len(made)), made)
            self._write_state()
            took_s = time.monotonic() - begun_s
            if made and (took_s < _SMALL_S or took_s > before_s / 2):
                return
            before_s = took_s

    def _round(self, name: str, made: Sequence[Manifest]) -> None:
        """Rebuild from the last round that was ``made`` to the present, unless this one was."""
        if any(one.name == name for one in made):
            return
        self._say(f"{name}: rebuilding the state of version {self._upgrade.new!r}")
        if made:
            order: Order = "stages" if made[-1].source == "stages" else "tape"
            # A small state is quicker without further processes.
            is_small = (
                sum(file.rows for one in made for task in one.tasks for file in task.files) <= _ROWS_IN_MEMORY
            )
            self._rebuild(order, (self._sides.uri, made[-1].id), name, is_small=is_small)
        elif not self._upgrade.rollback:
            self._rebuild("auto", None, name)
        else:
            assert self._before is not None
            uri, kept = self._sides.kept_uri, self._before.kept
            base = uri, self._new("kept_beginning", str, uri=uri, kept=kept, name=self._named("from"))
            self._rebuild("auto", base, name)
        self._reached("round")

    def _write_state(self) -> None:
        """Write what the last round has changed into the changelog of new. Raises FencedError: another command has taken over."""
        note_upgrade(self._writer, self._app, self._upgrade)
        given = {"snapshot": self._made()[-1].id, "generation": self._upgrade.generation}
        self._new("write_generation", int, **given)
        self._reached("written")

    def _rebuild(
        self, order: Order, base: tuple[str, str] | None, name: str, *, is_small: bool = False
    ) -> None:
        request, where = self._sides.request(order, base, name), self._sides.where
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
        made, last = self._made(), self._named("last")
        if made[-1].source == "stages" and self._sides.old_is.own and made[-1].name != last:
            self._old("drain", type(None), reference=self._sides.old.place.reference)
        self._round(last, made)
        self._write_state()
        self._reached("last")
        state = self._made()[-1].id
        kept = self._old("keep", str, uri=self._sides.kept_uri, name=f"upgrade-{self._upgrade.id}")
        self._reached("kept")
        timers = self._sides.old_is.timers or self._sides.new_is.timers
        self._new("verify", type(None), snapshot=state, timers=timers)
        self._reached("verified")
        self._upgrade = replace(self._upgrade, snapshot=state, kept=kept)
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
        self._new("await_begun", type(None), snapshot=self._upgrade.snapshot)
        if self.report.stopped_s:
            self.report.stopped_s += time.monotonic()
