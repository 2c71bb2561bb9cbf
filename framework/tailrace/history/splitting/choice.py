"""Whether a rebuild splits its partitions by key, and into how many shards.

Theory. In one piece, a partition is one unit, so the largest partition bounds the time of a rebuild with any number of
workers. Split, a partition takes a first pass and a merge, each in one process, and shards that run in parallel. With n
records in the largest partition, N in all, W workers, and h seconds for an event with its handlers:

    in one piece    h * max(n, N / W)
    split           2f * max(n, N / W) + (h + f) * N / W + the start of three rounds of units

``f`` is the cost of an event in the first pass; the merge and the second decoding in a shard cost about as much. So a split is
never faster with one worker, nor if the partitions keep all workers busy, nor for trivial handlers, which cost no more than
the first pass. ``h`` is measured: a sample of the largest partition is replayed, and its result is dropped. If the rebuild stops
at a limit, only the records before it count: their number is read from the tape. A limit by watermark counts to the end of its
commit.

The choice does not change the result: the bytes are the same (see ``core.engine.key_split``). It is settled with the job, so a
resumed rebuild keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import process_time
from typing import NamedTuple

from tailrace.core.engine import tape
from tailrace.core.engine.replay import Limit, Limits
from tailrace.core.engine.timers import FOREVER
from tailrace.core.errors import TailraceError
from tailrace.history.rebuilding.job import Job
from tailrace.history.rebuilding.output_watermarks import marks_wanted
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.replay.replaying import ReplayOptions, replay

FIRST_PASS_S = 3.5e-6
"""Per event, by ``make bench`` (case ``split``). Only its ratio to the time of the handlers counts, which is measured."""
ROUNDS_S = 3.0
"""The time to start three rounds of units."""
WORTH_IT = 0.7
"""A split must take less than this part of the time in one piece, since the estimate is rough."""
FEWEST = 100_000
"""Least number of records in the largest partition for an estimate."""
SAMPLE = 10_000
MOST_SHARDS = 32


class Choice(NamedTuple):
    """The number of shards of each partition, and the reason as text for the report."""

    shards: int
    why: str


def choose(records: Sequence[int], workers: int, event_s: Callable[[int], float | None]) -> Choice | None:
    """Choose for partitions with ``records`` records each; None if no split is considered.

    ``event_s`` measures the seconds that an event of a partition takes with its handlers; None if they cannot be measured.
    """
    largest, total = max(records, default=0), sum(records)
    if workers == 1 or largest < FEWEST or total > largest * workers:
        return None
    handled_s = event_s(records.index(largest))
    if handled_s is None:
        return None
    whole_s = handled_s * largest
    split_s = 2 * FIRST_PASS_S * largest + (handled_s + FIRST_PASS_S) * total / workers + ROUNDS_S
    if split_s >= WORTH_IT * whole_s:
        return None
    shards = min(workers, MOST_SHARDS)
    return Choice(
        shards,
        f"each partition was split into {shards} shards: one partition has {largest:,} of {total:,} records, an event takes "
        f"{handled_s * 1e6:.0f} us, so {workers} workers need about {split_s:,.0f} s instead of {whole_s:,.0f} s",
    )


def choose_for(job: Job, past: HistorySource, workers: int) -> Choice | None:
    """Choose for a rebuild along the tape; None for one that begins with a snapshot, whose state must be loaded first.

    If the sample fails, the choice is one shard: if the error matters, the rebuild itself reports it.
    """
    cuts = [None if one.cut is None else tape.decode_cut(one.cut) for one in job.targets]
    if job.base is not None or any(cut is not None and cut.base for cut in cuts):
        return None
    records = [0 if cut is None else _records(job, past, number, cut) for number, cut in enumerate(cuts)]
    try:
        return choose(records, workers, lambda partition: _measured(job, past, partition))
    except TailraceError as error:
        return Choice(1, f"it was not split: a sample of its events could not be replayed: {error.what}")


def _records(job: Job, past: HistorySource, partition: int, cut: tape.Cut) -> int:
    """The number of records that a partition takes up to its limit."""
    limit, records = job.request.limit(partition), cut.totals.records
    if limit is None:
        return records
    taken, now_ms = 0, 0
    names, positions = list[str](), list[int]()
    for record in past.tapes(partition, cut.tape):
        causes = list(tape.causes_of(record.causes))
        if record.inputs is not None:  # the first record after a start tells where the task stood at its end
            names, positions, now_ms = record.inputs, list(record.positions or ()), record.now or 0
            for code, *said in causes:
                if code == tape.RUN:
                    positions[said[0]] -= said[1]
                elif code == tape.CLOCK:
                    now_ms -= said[0]
        for code, *said in causes:
            if code == tape.CLOCK:
                now_ms += said[0]
                if limit.clock_ms is not None and now_ms > limit.clock_ms:
                    return min(taken, records)
            elif code == tape.RUN:
                number, count = said
                room = max(0, limit.offsets.get(names[number], FOREVER) - positions[number])
                taken, positions[number] = taken + min(count, room), positions[number] + count
                if room < count:
                    return min(taken, records)
        if limit.watermark_ms is not None and record.watermark >= limit.watermark_ms:
            break
    return min(taken, records)


def _measured(job: Job, past: HistorySource, partition: int) -> float | None:
    """Seconds of CPU time per event; None if the sample has no event. Raises the errors of ``replay``."""
    request = job.request
    begun, limit = past.beginning(job, partition), request.limit(partition) or Limit()
    target = job.targets[partition].cut
    ends = {} if target is None else tape.decode_cut(target).positions
    stops = {
        name: {partition: min(begun.positions.get(name, 0) + SAMPLE, end, limit.offsets.get(name, end))}
        for name, end in ends.items()
    }
    options = ReplayOptions(
        partitions=[partition],
        limits=Limits(stops, limit.watermark_ms, limit.clock_ms),
        any_environment=request.failures.any_environment,
        settings=request.execution.variant.settings(),
    )
    begun_s = process_time()
    replayed = replay(past.plan, past.one_commit_log, options).records
    return (process_time() - begun_s) / replayed if replayed else None


def whole_because(job: Job) -> str:
    """The reason why the partitions of a job cannot be split, as text for the report; empty if they can be."""
    request = job.request
    if job.together:
        return "all partitions are taken as one"
    if marks_wanted(job) and job.order == "canonical":
        return "without a tape, outputs that go to topics are made in one piece"
    if job.finish:
        return "the end of input goes through a partition in one piece"
    for wanted, what in (
        (request.keys, "of some keys"),
        (request.failures.on_error != "stop", "that may write dead letters"),
        (request.source.after_deleted, "that continues without deleted records"),
        (request.failures.lenient, "that is compared with another"),
        (request.failures.retry_failed and job.order == "tape", "that runs again what had failed"),
    ):
        if wanted:
            return f"a rebuild {what} is done in one piece for each partition"
    return ""
