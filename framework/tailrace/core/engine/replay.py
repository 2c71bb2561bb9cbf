"""Run a task again along its tape.

Theory. The tape holds the causes, the log holds the records, the code holds the rest. A replay feeds a task the same
causes in the same order; after each tape record it must stand where the first run stood when it committed, in the
middle of a drain if it was there. The totals and watermarks that the tape notes are held against the replay's own, and
the first difference is an error that says which commit it was.

A replay never decides anything: not the order of inputs (the tape's runs), not whether an input is idle, not whether a
failing handler is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tailrace.core.engine import tape
from tailrace.core.engine.task import Task
from tailrace.core.engine.timers import FOREVER
from tailrace.core.errors import EnvironmentMismatchError, ReplayDivergedError
from tailrace.core.records import Headers, InputRecord

Source = Callable[[str, int, int], Sequence[InputRecord]]
"""Gives the records of an input (by name) from a first offset up to, without, a last one."""


def replay_record(
    task: Task, record: tape.TapeRecord, source: Source, *, any_environment: bool = False
) -> None:
    """Take a task through what one commit was caused by. The caller takes the outputs and the batch.

    ``task`` must be made with ``replaying=True`` and stand where the record begins. Raises ReplayDivergedError if it
    does not end where the first run ended, and EnvironmentMismatchError if the tape was written under another Python,
    msgspec or tzdata, unless ``any_environment``.
    """
    _check_start(task, record, any_environment)
    names = record.inputs or [one.name for one in task.plan.inputs]
    numbers = {one.name: one.index for one in task.plan.inputs}
    skips = {
        (skip.input if skip.input < 0 else numbers[names[skip.input]], skip.number): tuple(skip.headers)
        for skip in record.skips
    }
    causes = list(_causes(record.causes))
    # Only the last cause may have been left in the middle of its drain: whatever comes next came after it.
    task.follow(skips, FOREVER if causes else record.totals.fired)
    _drain(task, record, last=not causes)
    for at, (code, *said) in enumerate(causes, 1):
        last = at == len(causes)
        number = numbers[names[said[0]]] if said and code != tape.CLOCK else -1
        if code == tape.RUN:
            _run(task, record, skips, number, said[1], source, last=last)
            continue
        if last:
            task.follow(skips, record.totals.fired)
        if code == tape.CLOCK:
            task.clock(task.now + said[0])
        elif code == tape.IDLE:
            task.idle(number)
        elif code == tape.UPSTREAM:
            task.upstream(number, task.watermark_of(number) + said[1])
        elif code == tape.ENDED:
            task.ended(number)
        elif code == tape.FINISH:
            task.finish()
        _drain(task, record, last=last)
    task.follow({}, FOREVER)
    _check_end(task, record)


_ARGUMENTS = {tape.RUN: 2, tape.CLOCK: 1, tape.IDLE: 2, tape.UPSTREAM: 2, tape.ENDED: 1, tape.FINISH: 0}


def _causes(codes: Sequence[int]) -> Iterator[Sequence[int]]:
    """The flat list of a tape record, cause by cause: the code and what it says."""
    at = 0
    while at < len(codes):
        stop = at + 1 + _ARGUMENTS[codes[at]]
        yield codes[at:stop]
        at = stop


def _run(
    task: Task,
    record: tape.TapeRecord,
    skips: dict[tuple[int, int], Headers],
    number: int,
    count: int,
    source: Source,
    *,
    last: bool,
) -> None:
    name = task.plan.inputs[number].name
    start = task.positions[name]
    heads = task.decode(number, source(name, start, start + count))
    taken = 0
    # The same within a run: all records but the last of the last cause were drained to the end.
    for stop in (len(heads) - last, len(heads)):
        if last and stop == len(heads):
            task.follow(skips, record.totals.fired)
        while taken < stop:
            taken = task.run(number, heads[:stop], taken)
            _drain(task, record, last=last and stop == len(heads))
    task.skip_to(number, start + count)


def _drain(task: Task, record: tape.TapeRecord, *, last: bool) -> None:
    """Drain until done, or, after the last cause, until as many have fired as at the commit."""
    while task.draining and not (last and task.totals.fired >= record.totals.fired):
        task.drain()


def _check_start(task: Task, record: tape.TapeRecord, any_environment: bool) -> None:
    if record.number != task.tape_number:
        raise ReplayDivergedError(
            f"the tape goes on with record {record.number}, the replay stands at {task.tape_number}"
        )
    here = tape.environment(task.settings.timezones)
    if record.environment is not None and record.environment != here and not any_environment:
        raise EnvironmentMismatchError(
            f"the tape was written under {record.environment}, this is {here}",
            mend="Results may differ in floating point sums, time zones and hash order. "
            "Replay under the same versions, or say that any environment will do.",
        )


def _check_end(task: Task, record: tape.TapeRecord) -> None:
    totals = task.totals
    now = (
        totals.records,
        totals.fired,
        totals.outputs + task.waiting_outputs,
        totals.late,
        totals.refused,
        totals.failed,
    )
    then = record.totals
    was = (then.records, then.fired, then.outputs, then.late, then.refused, then.failed)
    if now != was or task.watermark != record.watermark:
        names = ("records", "fired", "outputs", "late", "refused", "failed")
        differing = ", ".join(
            f"{n}: {b} then, {a} now" for n, a, b in zip(names, now, was, strict=True) if a != b
        )
        if task.watermark != record.watermark:
            differing += f", watermark: {record.watermark} then, {task.watermark} now"
        raise ReplayDivergedError(
            f"commit {record.number} of app {task.plan.app!r} partition {task.partition} came out differently "
            f"({differing.strip(', ')})",
            mend="The code differs from the one that ran, or it depends on something that is not on the tape.",
        )
