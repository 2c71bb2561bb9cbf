"""An app as a service on Kafka: one process, which shares the tasks with all other processes of the app through the consumer group.

Every process is started in the same way, on any machine. The group gives each some of the tasks, and moves them when one comes or
goes (``log.kafka.membership``). A bounded run (``--until-end``) is for one process alone, since the end of input moves through all
tasks of an app together.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from functools import partial

from tailrace.core.declare.plan import Plan
from tailrace.core.errors import FencedError, LogUnavailableError, OptionError, UsageError
from tailrace.core.storage import Store
from tailrace.history.reading.residence import check_lives_here
from tailrace.history.retirement import retire_rebuilds
from tailrace.history.status.owners import Owners
from tailrace.history.topics.topic_plan import check_topics
from tailrace.log.kafka import KafkaLog
from tailrace.log.options import LogOptions
from tailrace.processes.signals import stop_signals
from tailrace.runtime.announcing import announce
from tailrace.runtime.automatic_snapshots import AutomaticSnapshots
from tailrace.runtime.dead_letter_monitor import Kind
from tailrace.runtime.kafka_start import begin_all, check_commit_interval, check_snapshot_named
from tailrace.runtime.service import (
    Reporting,
    ServiceOptions,
    States,
    beginning,
    check_copy,
    end_phase,
    original_of,
    prepare_log,
    run_worker,
    tune_collector,
    worker_settings,
)
from tailrace.runtime.standbys import Standbys
from tailrace.runtime.task_notes import TaskNotes, committed_versions
from tailrace.runtime.worker import Worker, system_clock

_log = logging.getLogger("tailrace.service")
_JOIN_S = 0.05
_LOOK_S = 1.0
_STORE_EVERY = 5
"""Number of commits after which the state folders are written, unless it is given."""
_LEAVE_S = 5.0
"""For how long a process that is to leave waits for brokers that do not answer, in each of the few steps of leaving."""
_ALONE_S = 60.0
"""For how long a bounded run waits for tasks of processes that have died: longer than the default of session.timeout.ms."""


def serve_on_kafka(options: ServiceOptions, plan: Plan) -> Counter[Kind]:
    """Run an app in this process until its end, SIGTERM or Ctrl-C. Returns the dead letters of the run, by kind.

    Raises:
        OptionError: An option is given that is not available on Kafka.
        TailraceError: It could not start, or could not continue.
    """
    if options.workers > 1:
        raise OptionError(
            "--workers is not for Kafka",
            hint="Start the service several times: the processes share the tasks.",
        )
    check_snapshot_named(options)
    tune_collector()
    with ExitStack() as closing:
        log = KafkaLog(
            options.kafka,
            LogOptions(
                max_record_bytes=options.log_options.max_record_bytes,
                group=plan.app,
                new_topics=options.new_topics,
            ),
        )
        closing.callback(log.close)
        check_commit_interval(options.commit_interval_ms, log.transaction_timeout_ms)
        check_topics(plan, log, options.app)
        original = original_of(options)
        if original:
            check_copy(plan, log, original)
        prepare_log(
            log, plan, create_declared=options.create_topics, begins_with_log=not options.from_snapshot
        )
        retire_rebuilds(plan, log)
        # Asked at the start only: librdkafka 2.16 ends the process if the coordinator of a group restarts while it describes the group.
        owners = Owners(log)
        announce(plan, log, owners.is_owned, original)
        # Of a static member, the group may still have the run before.
        if options.until_end and not log.is_static_member:
            _await_alone(plan.app, lambda: bool(owners.members(plan.app)))
        states = States(
            options.state / plan.app,
            plan.app,
            options.store_every or _STORE_EVERY,
            plan.partitions,
            options.memory_mib,
        )
        closing.callback(states.close)

        def given(numbers: Collection[int]) -> None:
            standbys.release(numbers)
            worker.assign(numbers)
            _log.info("tasks were given to this process", extra=about(numbers))

        def taken(numbers: Collection[int], may_commit: bool) -> None:
            with suppress(LogUnavailableError, FencedError):  # logged; the next owner does the work
                worker.give_back(numbers, may_commit=may_commit)
            _log.info("tasks were given back", extra={**about(numbers), "committed": may_commit})

        def about(numbers: Collection[int]) -> dict[str, object]:
            return {"app": plan.app, "partitions": sorted(numbers)}

        member = log.join(plan.app, plan.tape_topic, given=given, taken=taken)
        closing.callback(member.close)
        notes = TaskNotes(
            plan,
            member,
            downgrade=options.downgrade,
            change_inputs=options.change_inputs,
            committed=partial(committed_versions, plan, log),
        )
        standbys = Standbys(
            plan,
            log,
            options.standbys,
            open_state=states.take,
            owners=notes.owners,
            member_id=lambda: member.member_id,
            owned=member.owned,
            clock=system_clock,
        )
        closing.callback(standbys.close)
        start = beginning(options, plan, log, member.check)

        def begin(number: int, store: Store) -> None:
            # A process that was suspended, or cut off, while the app moved was no member then, and joins its group again.
            check_lives_here(log, plan.app)
            notes.take(number)
            if start is not None:
                start.begin(number, store)

        worker = Worker(
            plan,
            log,
            (),
            states.take,
            settings=worker_settings(options, plan.partitions),
            bounded=options.until_end,
            change_inputs=options.change_inputs,
            check_owned=member.check,
            begin=begin,
            shared=True,
            reader=log.reader({}, live=True),
        )
        reporting = Reporting(worker, options, log.reader({}, live=True))
        last_alone_s = time.monotonic()
        snapshots = None
        if options.snapshots is not None:
            snapshots = AutomaticSnapshots(
                options.app, options.kafka, None, options.snapshots, options.log_format
            )
            closing.callback(snapshots.close)

        def steer() -> None:
            nonlocal last_alone_s
            member.look()
            is_alone = len(member.owned) == plan.partitions
            if is_alone:
                last_alone_s = time.monotonic()
            standbys.look()
            if snapshots is not None and 0 in member.owned:
                snapshots.look()
            if options.until_end and worker.quiet:
                if is_alone:
                    end_phase(worker)
                elif time.monotonic() - last_alone_s > _ALONE_S:
                    raise _not_alone(plan.app)
            reporting.look()

        def join() -> None:
            while not member.joined and not worker.stopping:
                member.look()
                time.sleep(_JOIN_S)
            check_lives_here(log, plan.app)  # a move that began meanwhile may not have seen this process
            if start is not None:
                begin_all(
                    begin,
                    start.all_begun,
                    lambda: member.owned,
                    states.take,
                    member.look,
                    lambda: worker.stopping,
                )

        def stop() -> None:
            worker.stop()
            log.hurry(_LEAVE_S)

        with stop_signals(stop):
            try:
                run_worker(worker, steer, join)
            finally:
                letters = reporting.finish()
    _log.info("left", extra={"app": plan.app})
    return letters


def _await_alone(app: str, others: Callable[[], bool]) -> None:
    """Wait until the group has no other process. Joining would take tasks from a service that is to continue."""
    deadline_s = time.monotonic() + _ALONE_S
    if others():
        _log.warning(
            "another process of the app runs, and --until-end is for one process alone: this one waits for it to end",
            extra={"app": app, "wait_s": _ALONE_S},
        )
    while others():
        if time.monotonic() > deadline_s:
            raise _not_alone(app)
        time.sleep(_LOOK_S)


def _not_alone(app: str) -> UsageError:
    return UsageError(
        f"another process of {app!r} runs, and --until-end is for one process alone",
        hint="Stop the other one, or run without --until-end.",
    )
