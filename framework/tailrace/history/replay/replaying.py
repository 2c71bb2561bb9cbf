"""Replay of an app: rebuilds its state from the log along the tape, and compares it with the first run's.

The replay compares, byte by byte:

    state       every row, with the rows of the folded changelog, and with a state folder if one is given
    the cut     positions, watermarks, idle inputs, counts
    outputs     topic, key, value, timestamp and headers of each, by the number that its task gave it

Partitions are replayed one after the other. The replay writes only to its own store. The service may be
running meanwhile: a partition is replayed up to its last commit at the moment when its replay begins.

Any code may be replayed whose results equal what is recorded. The replay of a partition ends at the first commit that differs
from its tape. If the replay compares, this is reported, with the outputs of the commit key by key, and the other partitions
follow; otherwise it is an error.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import closing, contextmanager
from typing import TypeAlias

from tailrace.core.counting import counted
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.replay import Limits
from tailrace.core.storage import Store
from tailrace.history.comparing.outputs import OutputComparison
from tailrace.history.comparing.replayed_state import LiveState
from tailrace.history.provenance.topics import check_history, check_same_topics, note_of_topics
from tailrace.history.reading.app_history import AppHistory, Committed
from tailrace.history.reading.app_topics import topics_of
from tailrace.history.reading.beginnings import taped_beginning
from tailrace.history.reading.replayable import check_after_beginning
from tailrace.history.replay.partition_replay import PartitionReplay
from tailrace.history.replay.report import ReplayOptions, ReplayReport, ReplayStatus
from tailrace.log.interface import OneCommitLog
from tailrace.processes.network_guard import network_refused
from tailrace.state import MemoryStore

LiveStates: TypeAlias = Callable[[int], Sequence[LiveState]]


def replay(
    plan: Plan,
    log: OneCommitLog,
    options: ReplayOptions | None = None,
    *,
    open_store: Callable[[int], Store] | None = None,
    live: LiveStates | None = None,
    on_progress: Callable[[ReplayStatus], None] | None = None,
) -> ReplayReport:
    """Replay an app. ``open_store`` opens an empty store of a partition (default: in memory), closed at its end.

    ``live`` returns states to compare a partition with, besides the changelog's. ``on_progress`` is called at
    every commit.

    Raises:
        ReplayDivergedError: A result differs, and the replay does not compare.
        EnvironmentMismatchError: Python, msgspec or tzdata are not those of the first run.
        InputsChangedError: The app has other inputs, or another number of partitions, than in the first run.
        OffsetGoneError: The log has lost records that the replay needs.
        LogUnavailableError: The log may have compacted the changelog while it was read to be compared.
        UnknownTopicError: The app has never run on this log.
        OtherHistoryError: An input or the tape was deleted and created again.
    """
    options, history, report = options or ReplayOptions(), AppHistory(plan, log), ReplayReport()
    topics = topics_of(history.plan, log)
    noted = note_of_topics(log, topics)
    check_history(plan.app, log, plan.inputs)
    numbers = range(plan.partitions) if options.partitions is None else sorted(options.partitions)
    if options.limits.any:
        _check_limits(history, options.limits, numbers)
    begun_s = time.perf_counter()
    with network_refused(), seldom_collected():
        comparisons = _output_comparisons(history, numbers, options, report)
        for number in numbers:
            committed = _committed(history, log, number, options)
            with closing(MemoryStore() if open_store is None else open_store(number)) as store:
                states = live(number) if live is not None and options.compare else ()
                compared = states, comparisons.get(number)
                PartitionReplay(
                    history, number, committed, store, options, report, *compared, on_progress
                ).run()
    check_same_topics(log, noted)
    if options.compare:
        _note_comparisons(options, report)
    report.seconds = time.perf_counter() - begun_s
    return report


def _output_comparisons(
    history: AppHistory, numbers: Collection[int], options: ReplayOptions, report: ReplayReport
) -> dict[int, OutputComparison]:
    """The comparisons of outputs. The cuts are read first: all outputs up to them are then in the log."""
    if not options.compare or options.keys is not None:
        return {}
    counts = history.output_counts(numbers)
    others = Counter[str]()
    outputs_of, in_part = history.emitted(counts, others)
    for table, count in sorted(others.items()):
        report.note(
            f"the table {table!r} has {counted(count, 'record')} of other writers, which replace values of the app"
        )
    return {
        number: OutputComparison(history.plan, number, emitted, counts[number], in_part)
        for number, emitted in outputs_of.items()
    }


def _committed(history: AppHistory, log: OneCommitLog, number: int, options: ReplayOptions) -> Committed:
    """The last commit of a partition, with its rows if they are compared."""
    if not options.compare or options.limits.any:
        return history.committed(number)
    with log.compaction_paused([history.plan.changelog_topic]):
        return history.committed(number, with_rows=True)


def _check_limits(history: AppHistory, limits: Limits, numbers: Collection[int]) -> None:
    """Refuse limits that the replay of these partitions could not keep, before it begins."""
    for number in numbers:
        found = history.committed(number).cut
        cut = None if found is None else tape.decode_cut(found)
        if cut is not None and cut.base:
            begun = taped_beginning(history, number, cut)
            check_after_beginning(history.plan, limits, number, begun.snapshot, begun.decoded)


def _note_comparisons(options: ReplayOptions, report: ReplayReport) -> None:
    if options.limits.any:
        report.note("state is not compared: what it was where the replay stopped is not kept")
    if options.keys is not None:
        report.note("outputs are not compared: only those of all keys together are numbered")
    else:
        report.compared.append("outputs")


@contextmanager
def seldom_collected() -> Generator[None]:
    """Make Python's garbage collection less frequent, while many small objects are created that stay."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], 100_000) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
