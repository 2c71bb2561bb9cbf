"""An app as a service on the embedded log: its options, and a worker put together from them.

``serve`` is a service in this process; ``supervisor`` spreads one over several.
"""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tailrace.core.declare.plan import Plan
from tailrace.core.engine.task import TaskSettings
from tailrace.core.errors import (
    HandlerError,
    InputsChangedError,
    StateInUseError,
    TailraceError,
    TaskOwnedError,
    UnknownTopicError,
    UsageError,
)
from tailrace.core.storage import Store
from tailrace.core.suggestions import did_you_mean
from tailrace.history.reading.app_topics import internal_topics, prepare_topics
from tailrace.history.reading.residence import check_lives_here
from tailrace.history.retirement import retire_rebuilds
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import Log, Reader
from tailrace.log.options import LogOptions, NewTopics
from tailrace.processes.app_loading import find_app
from tailrace.processes.environment import timezones_version
from tailrace.processes.logs import LogFormat
from tailrace.processes.signals import stop_signals
from tailrace.processes.task_ownership import LEASE_S, TaskOwnership, is_owned
from tailrace.runtime.announcing import announce
from tailrace.runtime.automatic_snapshots import AutomaticSnapshots, SnapshotSchedule
from tailrace.runtime.dead_letter_monitor import DeadLetterMonitor, Kind
from tailrace.runtime.first_positions import note_first_positions
from tailrace.runtime.housekeeping import LOOK_S, Housekeeping
from tailrace.runtime.memory_shares import DEFAULT_MIB, shares_of
from tailrace.runtime.progress import ProgressLog, last_phase
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerSettings, system_clock
from tailrace.state import OverlayStore, StateIdentity, StateMemory
from tailrace.state.damaged import open_or_set_aside

if TYPE_CHECKING:
    from tailrace.history.snapshots.start_from_snapshot import Start

_log = logging.getLogger("tailrace.service")


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """The options of a service. Can be pickled."""

    app: str
    """``package.module:app``."""
    log: Path
    state: Path
    """The folder with one folder per task: ``<app>/<partition>``."""
    workers: int = 1
    commit_interval_ms: int = 1_000
    until_end: bool = False
    """Stop when all inputs have been read to their end and all of their consequences are done."""
    drop_state: frozenset[str] = frozenset()
    """Actors and collections that are no longer declared, and whose state is deleted."""
    change_inputs: bool = False
    after_deleted: bool = False
    """Continue without records of the inputs that the log deleted before they were read."""
    from_snapshot: str = ""
    """``URI`` or ``URI#snapshot``: where an app that has no state yet begins; see ``history.snapshots.start_from_snapshot``."""
    replace_state: bool = False
    """The snapshot replaces the existing state of the app."""
    create_topics: bool = False
    """Create the log and the declared topics if they do not exist."""
    log_options: LogOptions = field(default_factory=LogOptions)
    log_format: LogFormat = "auto"
    lease_s: float = LEASE_S
    look_s: float = LOOK_S
    """Interval of the checks whether the log must be cleaned."""
    snapshots: SnapshotSchedule | None = None
    """Interval and location of automatic snapshots, if any."""
    kafka: str = ""
    """The URL of a Kafka cluster to run on, instead of ``log``: see ``kafka_service``."""
    store_every: int | None = None
    """Number of commits after which the state folders are written; None: each commit, on Kafka each fifth."""
    memory_mib: int = DEFAULT_MIB
    """Memory for the state of a process, see ``memory_shares``."""
    standbys: int = 0
    """On Kafka: number of standbys of each task, see ``standbys``."""
    downgrade: bool = False
    """On Kafka: take tasks of a version over that has replaced this one, see ``task_notes``."""
    new_topics: NewTopics | None = None
    """Replication of the topics that are created there."""
    declared: frozenset[str] | None = None
    """What the app declares in the process that starts the others; see ``supervisor``."""


def serve(options: ServiceOptions, plan: Plan) -> Counter[Kind]:
    """Run an app in this process until its end, SIGTERM or Ctrl-C. Returns the dead letters of the run, by kind.

    Raises:
        TailraceError: It could not start, or could not continue.
    """
    tune_collector()
    prepare(options, plan)
    told = False

    def stop() -> None:
        nonlocal told
        told = True
        worker.stop()

    with ExitStack() as closing:
        worker, ownership, housekeeping = open_worker(options, plan, range(plan.partitions), closing)
        assert housekeeping is not None
        reporting = Reporting(worker, options)

        def steer() -> None:
            ownership.check()
            housekeeping.look()
            if worker.quiet and options.until_end:
                end_phase(worker)
            reporting.look()

        with stop_signals(stop):
            try:
                run_worker(worker, steer)
            finally:
                letters = reporting.finish()
            if options.until_end:
                housekeeping.finish(lambda: told)
    _log.info("left", extra={"app": plan.app})
    return letters


def tune_collector() -> None:
    """Let Python look for cycles less often: a slice makes many objects, and hardly a cycle.

    One commit of 100,000 events took a seventh less of the processor with it; what cycles there are wait for longer,
    but are found.
    """
    gc.set_threshold(100_000, 50, 100)


class Reporting:
    """What a service in one process logs of itself: its progress, and its dead letters. ``reader`` is for these, see
    ``DeadLetterMonitor``.
    """

    def __init__(self, worker: Worker, options: ServiceOptions, reader: Reader | None = None) -> None:
        app = worker.plan.app
        terminal = sys.stderr if sys.stderr.isatty() and options.log_format != "json" else None
        self._worker = worker
        self._progress = ProgressLog(app, terminal)
        self._letters = DeadLetterMonitor(worker.log, app, reader)
        self._begun_s = self._told_s = time.monotonic()

    def look(self) -> None:
        """Report, if a second has passed since the last report."""
        now_s = time.monotonic()
        if now_s - self._told_s < 1.0:
            return
        self._told_s = now_s
        self._progress.report(self._worker.status(), now_s - self._begun_s, system_clock())
        self._letters.look()

    def finish(self) -> Counter[Kind]:
        """Log the number of dead letters and return it by kind, once the worker has stopped."""
        self._progress.clear()
        return self._letters.finish()


def end_phase(worker: Worker) -> None:
    """Enter the next phase of a bounded run of one process, or stop after the last one."""
    if worker.phase == last_phase(worker.plan):
        worker.stop()
    else:
        worker.advance()


def worker_settings(options: ServiceOptions, tasks: int) -> WorkerSettings:
    """The settings of a worker that has up to this number of tasks."""
    return WorkerSettings(
        partition=PartitionSettings(
            commit_interval_ms=options.commit_interval_ms,
            after_deleted=options.after_deleted,
            drop=options.drop_state,
            task=TaskSettings(
                cache_bytes=shares_of(options.memory_mib).live_bytes // max(1, tasks),
                timezones=timezones_version(),
            ),
        )
    )


def run_worker(worker: Worker, steer: Callable[[], None], prepare: Callable[[], None] = lambda: None) -> None:
    """Prepare, start, run and leave. Always leaves, and raises the first error."""
    try:
        prepare()
        worker.start(steer)
        worker.run(steer)
    except Exception as failure:
        if isinstance(failure, HandlerError):
            # The message says where; only the trace says why, and it does not reach who reads the message.
            _log.error("a handler failed", exc_info=failure.__cause__, extra={"app": worker.plan.app})
        try:
            worker.leave()
        except TailraceError as error:
            _log.debug("while leaving: %s", error)
        raise
    worker.leave()


def open_worker(options: ServiceOptions, plan: Plan, numbers: Collection[int], closing: ExitStack) -> Opened:
    """A worker for some of an app's tasks, which it then owns. ``closing`` releases its resources."""
    log = EmbeddedLog(options.log, options.log_options, create=False)
    closing.callback(log.close)
    states = States(
        options.state / plan.app, plan.app, options.store_every or 1, len(numbers), options.memory_mib
    )
    closing.callback(states.close)
    ownership = _own(options, plan, numbers, states)
    closing.callback(ownership.release)
    check_lives_here(log, plan.app)
    log.check_owned = ownership.check
    start = beginning(options, plan, log, ownership.check)
    worker = Worker(
        plan,
        log,
        numbers,
        states.take,
        settings=worker_settings(options, len(numbers)),
        bounded=options.until_end,
        change_inputs=options.change_inputs,
        check_owned=ownership.check,
        begin=None if start is None else start.begin,
        all_begun=None if start is None else start.all_begun,
        is_owned=partial(is_owned, options.log),
    )
    if 0 not in numbers:
        return Opened(worker, ownership, None)
    snapshots = None
    if options.snapshots is not None:
        snapshots = AutomaticSnapshots(
            options.app, options.log, options.log_options, options.snapshots, options.log_format
        )
    housekeeping = Housekeeping(log, options.log_options, options.log_format, options.look_s, snapshots)
    closing.callback(housekeeping.close)
    return Opened(worker, ownership, housekeeping)


def with_snapshot_settled(options: ServiceOptions, plan: Plan) -> ServiceOptions:
    """The same with the snapshot to start from by its id, for processes that each look: it may not be the latest by then.

    Raises:
        SnapshotError: There is none, or it is damaged.
    """
    if not options.from_snapshot:
        return options
    with closing(EmbeddedLog(options.log, options.log_options, create=False)) as log:
        start = _start(options, plan, log)
    if start is None:
        return options
    from tailrace.state.snapshots import which_where  # noqa: PLC0415  # snapshots need an extra

    uri, _ = which_where(options.from_snapshot)
    return replace(options, from_snapshot=f"{uri}#{start.snapshot.manifest.id}")


def _start(options: ServiceOptions, plan: Plan, log: Log) -> Start | None:
    from tailrace.history.snapshots.start_from_snapshot import open_start  # noqa: PLC0415  # snapshots need an extra

    # Under another name it begins with the state of the app that it is another name of.
    original = find_app(options.app.partition("@")[0]).name
    return open_start(options.from_snapshot, original, plan, log, replace=options.replace_state)


class BeginningSteps(NamedTuple):
    """How the tasks of a service begin with a snapshot."""

    begin: Callable[[int, Store], None]
    """Brings a task to the snapshot that the app is to be started from."""
    all_begun: Callable[[], bool]
    """Whether all tasks were brought there."""


def beginning(
    options: ServiceOptions, plan: Plan, log: Log, check_owned: Callable[[], None]
) -> BeginningSteps | None:
    """How the tasks begin with the snapshot of ``--from-snapshot``; None: without one."""
    if not options.from_snapshot:
        return None
    from tailrace.history.snapshots.start_from_snapshot import all_have_begun, start_from  # noqa: PLC0415  # as above

    start = _start(options, plan, log)
    if start is None:
        return None

    def begin(number: int, store: Store) -> None:
        done = start_from(plan, number, log, store, start, system_clock(), check_owned)
        extra = {"app": plan.app, "partition": number, "snapshot": start.snapshot.manifest.id}
        _log.info("start from a snapshot: %s", done, extra=extra)

    return BeginningSteps(begin, partial(all_have_begun, plan, log, start))


def prepare(options: ServiceOptions, plan: Plan) -> None:
    """See that the log is there, and that its topics fit the app; say once what there is to say of it (``announcing``).

    Raises:
        InputsChangedError: The app was run with another number of partitions.
        UnknownTopicError, TopicMismatchError: A declared topic is not there, or an input has other partitions.
        LogUnavailableError: There is no log.
        AppMovedError: The app lives on another log.
    """
    log = EmbeddedLog(options.log, options.log_options, create=options.create_topics)
    try:
        original = original_of(options)
        if original:
            check_copy(plan, log, original)
        prepare_log(
            log,
            plan,
            create_declared=options.create_topics,
            begins_with_log=not options.from_snapshot,
        )
        retire_rebuilds(plan, log)
        announce(plan, log, partial(is_owned, options.log), original)
    finally:
        log.close()


def original_of(options: ServiceOptions) -> str:
    """The name of the app that runs under another name (``--as``); empty if it runs under its own."""
    return find_app(options.app.partition("@")[0]).name if "@" in options.app else ""


def check_copy(plan: Plan, log: Log, original: str) -> None:
    """Refuse another name of an app that reads what it writes itself: each of the two would handle the other's events.

    Raises:
        UsageError: The original has a history on this log, and there is such a topic.
    """
    own = f"{plan.app}."
    shared = [one.name for one in plan.inputs if one.own and not one.name.startswith(own)]
    if shared and plan.app != original and f"{original}.tape" in log.topics():
        raise UsageError(
            f"{plan.app!r} is another name of {original!r}, and both would read what the other writes to "
            f"{' and '.join(map(repr, shared))}: each event would count twice in both",
            hint="Compare them on logs of their own, or with 'tailrace rebuild'; or have the code name such topics after the app.",
        )


def prepare_log(log: Log, plan: Plan, *, create_declared: bool, begins_with_log: bool = True) -> None:
    """``prepare`` for any log that is open."""
    check_lives_here(log, plan.app)
    known = log.topics()
    for name in internal_topics(plan):
        found = known.get(name)
        if found is not None and found.partitions != plan.partitions:
            raise InputsChangedError(
                f"the app {plan.app!r} has {plan.partitions} partitions, but was run before with {found.partitions}",
                hint=f"Its keys are spread over {found.partitions}, in the inputs and in its state. Give it "
                f"partitions={found.partitions} again, or give the app another name, which starts with an "
                "empty state.",
            )
    missing = sorted(
        {*(one.name for one in plan.inputs), *plan.outputs} - known.keys() - internal_topics(plan).keys()
    )
    for name in missing:
        with suppress(UnknownTopicError):
            log.partitions(name)  # one that exists may be hidden from this user
    if missing and not create_declared:
        others = known.keys() - {*(one.name for one in plan.inputs), *plan.outputs, *internal_topics(plan)}
        meant = [did_you_mean(name, others) for name in missing]
        raise UnknownTopicError(
            f"the log has no topic {' and no '.join(map(repr, missing))}, which the app {plan.app!r} declares",
            hint=" ".join(
                [
                    *filter(None, meant),
                    "Correct the names, start their writer first, or create them with --create-topics.",
                ]
            ),
        )
    prepare_topics(log, plan, create_declared=create_declared)
    note_first_positions(plan, log, told=begins_with_log)


class Opened(NamedTuple):
    """A worker, and what goes with it."""

    worker: Worker
    ownership: TaskOwnership
    housekeeping: Housekeeping | None
    """Of the app's processes only the one that owns partition 0 has it."""


class States:
    """The stores of a process, opened as they are asked for, or before.

    With ``store_every``, commits wait in memory until there are as many, or the share of one of ``tasks`` is full.
    """

    def __init__(
        self, folder: Path, app: str, store_every: int = 1, tasks: int = 1, memory_mib: int = DEFAULT_MIB
    ) -> None:
        shares = shares_of(memory_mib)
        self._folder = folder
        self._app = app
        self._memory = StateMemory(shares.folder_bytes)
        self._store_every = store_every
        self._waiting_bytes = shares.waiting_bytes // max(1, tasks)
        self._early: dict[int, Store] = {}

    def take(self, number: int) -> Store:
        """The store of a task. The caller must close it."""
        early = self._early.pop(number, None)
        if early is not None:
            return early
        store = open_or_set_aside(self._folder / str(number), StateIdentity(self._app, number), self._memory)
        if self._store_every == 1:
            return store
        return OverlayStore(store, self._store_every, self._waiting_bytes)

    def hold(self, numbers: Collection[int]) -> None:
        """Open the stores now, and keep them until they are taken."""
        for number in numbers:
            self._early[number] = self.take(number)

    def close(self) -> None:
        """Close those that nobody has taken."""
        while self._early:
            self._early.popitem()[1].close()


def _own(options: ServiceOptions, plan: Plan, numbers: Collection[int], states: States) -> TaskOwnership:
    """Own the tasks. Those of a stopped owner are only taken once it is sure that we have folders to work in.

    With folders of our own nothing needs to happen to it: it is fenced, and learns of it when it wakes. If it holds the
    ones that we were given, the operator must continue or end it.
    """
    try:
        return TaskOwnership(options.log, plan.app, numbers, lease_s=options.lease_s, from_stopped=False)
    except TaskOwnedError as error:
        try:
            states.hold(numbers)
        except StateInUseError:
            raise error from None
    return TaskOwnership(options.log, plan.app, numbers, lease_s=options.lease_s)
