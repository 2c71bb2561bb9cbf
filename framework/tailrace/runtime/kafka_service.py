"""An app as a service on Kafka: one process, which shares the tasks with all other processes of the app through the consumer group.

Every process is started in the same way, on any machine. The group gives each some of the tasks, and moves them when one comes or
goes (``log.kafka.membership``). A bounded run (``--until-end``) is for one process alone, since the end of input moves through all
tasks of an app together.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Collection
from contextlib import ExitStack, suppress

from tailrace.core.declare.plan import Plan
from tailrace.core.engine.task import TaskSettings
from tailrace.core.errors import FencedError, LogUnavailableError, UsageError
from tailrace.log.kafka import KafkaLog, KafkaOptions
from tailrace.processes.environment import timezones_version
from tailrace.processes.signals import stop_signals
from tailrace.runtime.announcing import announce
from tailrace.runtime.dead_letter_monitor import DeadLetterMonitor, Kind
from tailrace.runtime.progress import ProgressLog, last_phase
from tailrace.runtime.service import (
    BOUNDED_PATIENCE_MS,
    CACHE_BYTES,
    ServiceOptions,
    States,
    prepare_log,
    run_worker,
    tune_collector,
)
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerSettings, system_clock

_log = logging.getLogger("tailrace.service")
_JOIN_S = 0.05
_ALONE_S = 60.0
"""For how long a bounded run waits for tasks of processes that have died: longer than the default of session.timeout.ms."""


def serve_on_kafka(options: ServiceOptions, plan: Plan) -> Counter[Kind]:
    """Run an app in this process until its end, SIGTERM or Ctrl-C. Returns the dead letters of the run, by kind.

    Raises:
        UsageError: An option is given that is not there on Kafka.
        TailraceError: It could not start, or could not continue.
    """
    _check(options)
    tune_collector()
    terminal = sys.stderr if sys.stderr.isatty() and options.log_format != "json" else None
    with ExitStack() as closing:
        log = KafkaLog(
            options.kafka, KafkaOptions(max_record_bytes=options.log_options.max_record_bytes, group=plan.app)
        )
        closing.callback(log.close)
        prepare_log(log, plan, create_declared=options.create_topics, begins_with_log=True)
        announce(plan, log, lambda _publisher: None)
        states = States(options.state / plan.app, plan.app)
        closing.callback(states.close)
        settings = WorkerSettings(
            partition=PartitionSettings(
                commit_interval_ms=options.commit_interval_ms,
                ahead_patience_ms=BOUNDED_PATIENCE_MS if options.until_end else None,
                after_deleted=options.after_deleted,
                drop=options.drop_state,
                task=TaskSettings(cache_bytes=CACHE_BYTES // plan.partitions, timezones=timezones_version()),
            )
        )

        def given(numbers: Collection[int]) -> None:
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
        worker = Worker(
            plan,
            log,
            (),
            states.take,
            settings=settings,
            bounded=options.until_end,
            change_inputs=options.change_inputs,
            check_owned=member.check,
            shared=True,
            reader=log.reader({}, live=True),
        )
        progress = ProgressLog(plan.app, terminal)
        monitor = DeadLetterMonitor(log, plan.app)
        begun_s = told_s = time.monotonic()

        def steer() -> None:
            nonlocal told_s
            member.look()
            now_s = time.monotonic()
            if options.until_end and worker.quiet:
                if len(member.owned) == plan.partitions:
                    if worker.phase == last_phase(plan):
                        worker.stop()
                    else:
                        worker.advance()
                elif now_s - begun_s > _ALONE_S:
                    raise UsageError(
                        f"another process of {plan.app!r} runs, and --until-end is for one process alone",
                        hint="Stop the other one, or run without --until-end.",
                    )
            if now_s - told_s >= 1.0:
                told_s = now_s
                progress.report(worker.status(), now_s - begun_s, system_clock())
                monitor.look()

        with stop_signals(worker.stop):
            try:
                while not member.joined and not worker.stopping:
                    member.look()
                    time.sleep(_JOIN_S)
                run_worker(worker, steer)
            finally:
                progress.clear()
                letters = monitor.finish()
    _log.info("left", extra={"app": plan.app})
    return letters


def _check(options: ServiceOptions) -> None:
    """Refuse what is for the embedded log."""
    refused = [
        ("--workers", options.workers > 1, "Start the service several times: the processes share the tasks."),
        ("--from-snapshot", bool(options.from_snapshot), "Leave it out."),
        ("--snapshots", options.snapshots is not None, "Leave it out."),
        ("--as", "@" in options.app, "Leave it out."),
    ]
    for option, is_given, hint in refused:
        if is_given:
            raise UsageError(f"{option} is not supported on Kafka yet", hint=hint)
