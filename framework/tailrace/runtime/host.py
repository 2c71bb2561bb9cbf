"""A process of a service: the host of its tasks, from its start until it leaves.

============  =======================================================================  ==================================
step          what happens                                                             if it fails
============  =======================================================================  ==================================
``_open``     the log is opened                                                        the process ends
``_prepare``  options, topics and moves are checked, once for all processes        the process ends
``_join``     tasks are claimed, or the app's group is joined                          the process ends; its tasks are free
``_begin``    companions begin; the first tasks come, and begin with a snapshot        the worker leaves
the worker    restores, slices and commits; ``_between_turns`` tasks come and go       a task waits, or the worker leaves
leaving       a last commit; companions close; tasks, state folders and log are freed  the first error is raised
============  =======================================================================  ==================================

A service with several processes has a host in each. On the embedded log a ``supervisor`` prepares, and starts a process for each
share of the tasks; its ``Link`` is a companion there. Elsewhere the group of the app moves the tasks. The host does not know which
log it runs on.
"""

from __future__ import annotations

import gc
import logging
import time
from collections import Counter
from collections.abc import Collection, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial

from tailrace.core.declare.plan import Plan
from tailrace.core.errors import FencedError, LogUnavailableError
from tailrace.history.provenance.moves import check_lives_here
from tailrace.history.reading.generations import drop_older, folder_of, located
from tailrace.history.reading.upgrades import Upgrade, check_version, last_upgrade
from tailrace.history.snapshots.start_from_snapshot import all_have_begun, start_from
from tailrace.history.status.last_failure import note_failure
from tailrace.log.interface import Reader, StoredLog
from tailrace.log.opening import open_log
from tailrace.log.tasks import AppTasks, Tasks
from tailrace.processes.network_guard import watch_network
from tailrace.processes.signals import stop_signals
from tailrace.runtime import tracing
from tailrace.runtime.automatic_snapshots import AutomaticSnapshots
from tailrace.runtime.bounded import BoundedRun, await_alone
from tailrace.runtime.clocks import WallClock, monotonic_ms
from tailrace.runtime.companions import Companion, Companions
from tailrace.runtime.dead_letter_monitor import Kind
from tailrace.runtime.handler_watch import HandlerWatch
from tailrace.runtime.housekeeping import Housekeeping
from tailrace.runtime.measuring import SAMPLE_S, Measuring
from tailrace.runtime.options import ServiceOptions
from tailrace.runtime.preparing import prepare
from tailrace.runtime.reports import Reporting
from tailrace.runtime.snapshot_start import begin_all, snapshot_start
from tailrace.runtime.standbys import Standbys
from tailrace.runtime.states import States
from tailrace.runtime.task_notes import TaskNotes, committed_versions
from tailrace.runtime.upgrading import UpgradeWatch, await_upgrade, noting_failures
from tailrace.runtime.worker import Worker, WorkerHooks, system_clock

_log = logging.getLogger("tailrace.service")

_STORE_EVERY_WHERE_TASKS_MOVE = 5
_JOIN_S = 0.05
_LEAVE_S = 5.0
"""For how long a process that is to leave waits for a log that does not answer, in each of the few steps of leaving."""


class Host:
    """See the head of this file. ``companions`` go along with those that the options ask for.

    ``share`` are the tasks of a process of a supervisor, which has prepared the service, reports, and stops it. None: this process
    is alone, or the log moves the tasks.
    """

    log: StoredLog
    tasks: Tasks
    states: States
    worker: Worker
    _companions: Companions

    def __init__(
        self,
        options: ServiceOptions,
        plan: Plan,
        companions: Sequence[Companion] = (),
        share: Collection[int] | None = None,
    ) -> None:
        self.options = options
        self.plan = plan
        self.share = share
        self.stopped = False
        """Whether it is to leave before the end of its input: it was asked to, or it has failed."""
        self._more = companions
        self._reporting = Reporting()
        sample_s = 1.0 if options.http is None else SAMPLE_S
        self.measuring: Measuring | None = None
        """What is measured, if the service answers over HTTP."""
        self.watch = HandlerWatch(
            plan.app, options.handler_warning_ms / 1_000, options.grace_ms / 1_000, sample_s
        )

    def run(self) -> Counter[Kind]:
        """Live, until the end of the input, SIGTERM or Ctrl-C. Returns the dead letters of the run, by kind.
        Raises TailraceError: it could not start, or could not continue.
        """
        # A slice makes many objects, and hardly a cycle: to look for cycles less often saves a seventh of the processor.
        gc.set_threshold(100_000, 50, 100)
        watch_network()
        with self.watch, self.joined(), stop_signals(self.stop, interrupts=self.share is None):
            self.watch.begin(self.worker.at_work)
            self._live()
        if self.share is None:
            _log.info("left", extra={"app": self.plan.app})
        return self._reporting.letters

    def stop(self) -> None:
        """Let the process leave after the present slice. May be called from a signal handler."""
        self.watch.leave()
        if (handler := self.worker.at_work()) is not None and not self.stopped:
            with suppress(RuntimeError):  # the signal may have interrupted another line of the log
                _log.warning(
                    "%s runs: the service leaves when the handler has returned, at the latest %g s after the signal. A second Ctrl-C "
                    "ends it at once; the next start then repeats what was not committed",
                    handler,
                    self.options.grace_ms / 1_000,
                    extra={"app": self.plan.app, **handler.fields()},
                )
        self.stopped = True
        self.worker.stop()
        self.log.limit_patience(_LEAVE_S)

    @property
    def has_ended(self) -> bool:
        """Whether a bounded run has come to its end in this process alone."""
        return self.options.is_bounded and self.share is None and not self.stopped

    # --- before it has tasks

    @contextmanager
    def joined(self) -> Generator[None]:
        """Open, prepare and join. Inside the block there is a worker; at the end tasks, state folders and log are freed."""
        with ExitStack() as leaving:
            self._open(leaving)
            with noting_failures(self.options, self.plan, self.log):
                self._prepare()
                self._join(leaving)
            yield

    def _open(self, leaving: ExitStack) -> None:
        options = self.options
        create = options.create_topics and self.share is None
        self.log = open_log(options.log, replace(options.log_options, group=self.plan.app), create=create)
        leaving.callback(self.log.close)
        if self.share is None:
            self.options = self._await_turn()
        self.plan = located(self.plan, self.log)

    def _await_turn(self) -> ServiceOptions:
        """The options, once this version may run."""
        return await_upgrade(self.options, self.plan, self.log)

    def check_version(self) -> Upgrade | None:
        """Check that this version may run, by the last upgrade, which is returned. Raises ReplacedVersionError."""
        found = last_upgrade(self.log, self.plan.app)
        check_version(self.plan, found)
        return found

    def _check_may_run(self) -> None:
        check_lives_here(self.log, self.plan.app)
        self.check_version()

    def _prepare(self) -> None:
        if self.share is not None:
            return
        prepare(self.log, self.options, self.plan)
        if self.options.is_bounded and self.log.moves_tasks:
            await_alone(self.log, self.plan.app)

    def _join(self, leaving: ExitStack) -> None:
        options, plan, log = self.options, self.plan, self.log
        count = len(self.share or range(plan.partitions))
        store_every = options.store_every or (_STORE_EVERY_WHERE_TASKS_MOVE if log.moves_tasks else 1)
        self.states = States(
            folder_of(options.state / plan.app, plan), plan.app, store_every, count, options.memory_mib
        )
        tasks = AppTasks(plan.app, plan.tape_topic, plan.partitions, self.share)
        self.tasks = log.join(tasks, self._assigned, self._revoked)
        leaving.callback(self.tasks.close)
        self._check_may_run()
        drop_older(options.state / plan.app, plan)
        self._notes = None
        if log.moves_tasks:
            committed = partial(committed_versions, plan, log)
            self._notes = TaskNotes(
                plan,
                self.tasks,
                downgrade=options.downgrade,
                change_inputs=options.change_inputs,
                committed=committed,
            )
        self._start = snapshot_start(options, plan, log)
        self._companions = Companions(self._invited(), plan.app)
        self.worker = self._employed(count)

    def _invited(self) -> list[Companion]:
        """The companions, in the order in which they look."""
        options = self.options
        found: list[Companion] = [*self._more, UpgradeWatch()]
        if options.standbys and self._notes is not None:
            found.append(
                Standbys(
                    self.plan,
                    self.log,
                    options.standbys,
                    self.tasks,
                    open_state=self.states.take,
                    owners=self._notes.owners,
                    clock=system_clock,
                )
            )
        if options.http is not None:
            self.measuring = measuring = Measuring(self.watch)
            found.append(measuring)
            if self.share is None:  # otherwise the supervisor answers
                from tailrace.runtime.http_answers import HttpAnswers  # noqa: PLC0415  # an extra's packages

                found.append(HttpAnswers(options.http, measuring.seen, self.plan))
        if self.plan.tracing and tracing.is_wanted():
            found.append(tracing.Tracing())
        found.append(Housekeeping(self.log, options.log_options, options.log_format, options.look_s))
        if options.snapshots is not None:
            found.append(
                AutomaticSnapshots(
                    options.app, options.log, options.log_options, options.snapshots, options.log_format
                )
            )
        if self.share is None:
            if options.is_bounded:
                found.append(BoundedRun())
            found.append(self._reporting)
        return found

    def _employed(self, tasks: int) -> Worker:
        """The worker. It has no tasks yet."""
        hooks = WorkerHooks(
            check_owned=self.tasks.check,
            begin=self._begin_task,
            between_turns=self._between_turns,
            committed=self._companions.on_committed,
        )
        return Worker(
            self.plan,
            self.log,
            (),
            self.states.take,
            settings=self.options.worker_settings(tasks, tasks_move=self.log.moves_tasks),
            hooks=hooks,
            clock=WallClock(),
            elapsed=monotonic_ms,
            reader=self._live_reader(),
        )

    def _live_reader(self) -> Reader:
        return self.log.live_reader()

    # --- its life with tasks

    def _live(self) -> None:
        try:
            self.worker.live(self._begin)
        except BaseException as error:
            self.stopped = True
            if isinstance(error, Exception):
                self.log.limit_patience(_LEAVE_S)
                note_failure(self.log, self.plan.app, error)
            raise
        finally:
            self._companions.close()
        self._companions.raise_failure()

    def _begin(self) -> None:
        """Wait for the first tasks, and bring them to the snapshot that the app starts with."""
        self._companions.begin(self)
        while not self.tasks.joined and self._wait(0):
            if not self.tasks.joined:
                time.sleep(_JOIN_S)
        # A move or an upgrade that began meanwhile may not have seen this process.
        self._check_may_run()
        if self._start is not None:
            all_begun = partial(all_have_begun, self.plan, self.log, self._start)
            begin_all(self._begin_task, all_begun, self.tasks.owned, self._wait)

    def _begin_task(self, number: int) -> None:
        """Called with a task that is owned, before it is restored."""
        # A process that was suspended, or cut off, while the app moved joins its group again.
        self._check_may_run()
        if self._notes is not None:
            self._notes.take(number)
        if self._start is not None:
            now_ms, check = system_clock(), self.tasks.check
            done = start_from(self.plan, number, self.log, self._start, now_ms, check)
            extra = {"app": self.plan.app, "partition": number, "snapshot": self._start.snapshot.manifest.id}
            _log.info("start from a snapshot: %s", done, extra=extra)

    def _between_turns(self) -> None:
        self.tasks.look()
        self._companions.look()

    def _wait(self, pause_s: float) -> bool:
        """Look, and pause. Returns False if the process is to leave."""
        self._between_turns()
        if pause_s and not self.worker.stopping:
            time.sleep(pause_s)
        return not self.worker.stopping

    def _assigned(self, numbers: Collection[int]) -> None:
        self._companions.assigned(numbers)
        self.worker.assign(numbers)
        if self.log.moves_tasks:
            _log.info("tasks were given to this process", extra=self._about(numbers))

    def _revoked(self, numbers: Collection[int], may_commit: bool) -> None:
        with suppress(LogUnavailableError, FencedError):  # logged; the next owner does the work
            self.worker.give_back(numbers, may_commit=may_commit)
        _log.info("tasks were given back", extra={**self._about(numbers), "committed": may_commit})

    def _about(self, numbers: Collection[int]) -> dict[str, object]:
        return {"app": self.plan.app, "partitions": sorted(numbers)}
