"""Run a task again along its tape.

Theory. The tape holds the causes, the log holds the records, the code holds the rest. A replay feeds a task the same
causes in the same order; after each tape record it must stand where the first run stood when it committed, in the
middle of a drain if it was there. The totals and watermarks that the tape notes are held against the replay's own, and
the first difference is an error that says which commit it was.

A replay never decides anything: not the order of inputs (the tape's runs), not whether an input is idle, not whether a
failing handler is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tailrace.core import tape
from tailrace.core.errors import EnvironmentMismatchError, ReplayDivergedError
from tailrace.core.records import InputRecord
from tailrace.core.task import Task
from tailrace.core.timers import FOREVER

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
    task.follow(skips, record.totals.fired)
    codes = iter(record.causes)
    _drain(task, record)
    for code in codes:
        if code == tape.RUN:
            number, count = next(codes), next(codes)
            _run(task, record, numbers[names[number]], count, source)
        elif code == tape.CLOCK:
            task.clock(task.now + next(codes))
        elif code == tape.IDLE:
            task.idle(numbers[names[next(codes)]])
            next(codes)
        elif code == tape.UPSTREAM:
            number = numbers[names[next(codes)]]
            task.upstream(number, task.watermark_of(number) + next(codes))
        elif code == tape.ENDED:
            task.ended(numbers[names[next(codes)]])
        elif code == tape.FINISH:
            task.finish()
        _drain(task, record)
    task.follow({}, FOREVER)
    _check_end(task, record)


def _run(task: Task, record: tape.TapeRecord, number: int, count: int, source: Source) -> None:
    name = task.plan.inputs[number].name
    start = task.positions[name]
    heads = task.decode(number, source(name, start, start + count))
    taken = 0
    while taken < len(heads):
        taken = task.run(number, heads, taken)
        _drain(task, record)
        if task.draining and taken < len(heads):
            raise ReplayDivergedError(
                f"replay of {name} has fired {task.totals.fired} timers with records still to come; "
                "the first run fired no more than that in this commit"
            )
    task.skip_to(number, start + count)


def _drain(task: Task, record: tape.TapeRecord) -> None:
    """Drain until done, or until as many have fired as at the commit."""
    while task.draining and task.totals.fired < record.totals.fired:
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
