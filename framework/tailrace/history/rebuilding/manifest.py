"""The manifest of a rebuilt snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tailrace.core.declare.plan import Plan
from tailrace.core.engine.delivery import own_inputs
from tailrace.core.errors import TailraceError
from tailrace.core.values.keys import KeyCodec
from tailrace.history.reading.last_reads import last_reads
from tailrace.history.reading.left_inputs import abandoned_before
from tailrace.history.reading.named_keys import named_keys
from tailrace.history.rebuilding.job import Job
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.rebuilding.results import TaskResult
from tailrace.processes.environment import environment
from tailrace.state.snapshots import Manifest, TaskEntry


def manifest_of(job: Job, past: HistorySource, tasks: Sequence[TaskResult], notes: Sequence[str]) -> Manifest:
    """The manifest of a snapshot. If it holds all of a moment of the log, the manifest has this moment."""
    request = job.request
    whole = not (request.limited or request.keys)
    ends = job.ends if whole else {}
    if not whole and job.delivers_sends:  # all tasks run as one: no record of the app to itself is in flight
        ends = {name: job.ends[name] for name in own_inputs(past.plan) if name in job.ends}
    return Manifest(
        id=job.snapshot,
        app=job.app,
        version=job.version,
        partitions=job.partitions,
        created_ms=job.created_ms,
        kind="incremental" if request.to.incremental else "full",
        parent=job.base if request.to.incremental else None,
        name=request.to.name,
        source=job.order,
        environment=environment(),
        position=job.position if whole else None,
        ends=ends,
        keys=request.keys,
        as_of_ms=request.as_of_ms,
        tasks=tuple(_entry(one, job, past) for one in tasks),
        notes=tuple(notes),
    )


def _entry(result: TaskResult, job: Job, past: HistorySource) -> TaskEntry:
    cut, state = result.cut or b"", result.state
    left = abandoned_before(past.beginning(job, result.partition), cut) if cut else {}
    return TaskEntry(
        result.partition,
        cut,
        result.changelog_position,
        state.schema,
        state.files,
        last_reads(past.log, result.partition, cut, left),
        state.waiting,
        left,
    )


def notes_of_part(job: Job, plan: Plan, tasks: Sequence[TaskResult]) -> Iterator[str]:
    """Notes about what a snapshot does not hold: other keys, or messages at a limit."""
    keys = job.request.keys
    if keys:
        yield f"it holds {_named(keys)} only"
    if missing := _without_state(plan, keys, tasks):
        yield f"there is no state of {_named(missing)}"
    if job.request.limited and not job.delivers_sends and plan.has_messages:
        yield "messages that were under way where it stops are not in it"


def _named(keys: Sequence[str]) -> str:
    return f"the key{'' if len(keys) == 1 else 's'} {', '.join(keys)}"


def _without_state(plan: Plan, keys: Sequence[str], results: Sequence[TaskResult]) -> list[str]:
    """The requested keys for which no actor has a row."""
    found = {key for result in results for key in result.state.named_keys}
    codecs = [one.key_codec for one in plan.actors]
    return [
        text
        for text in keys
        if not any(
            _encoded(codec, key) in found for key in named_keys(plan, (text,)).keys for codec in codecs
        )
    ]


def _encoded(codec: KeyCodec, key: Any) -> bytes | None:
    """The bytes of a key; None if the codec does not accept it."""
    try:
        return codec.encode(key)
    except (TailraceError, TypeError, ValueError):
        return None
