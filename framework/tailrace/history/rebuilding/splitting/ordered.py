"""The shards of a partition whose operators are all ordered: each reads the whole partition, once.

The theory is in ``core.engine.key_split.ordered_shard``.
"""

from __future__ import annotations

from tailrace.core.counting import counted
from tailrace.core.engine import tape
from tailrace.core.engine.intake import refill
from tailrace.core.engine.key_split.chunks import Overview, gained
from tailrace.core.engine.key_split.ordered_shard import OrderedShardReplay, OrderedShardTask, failed_units
from tailrace.core.engine.task import Task
from tailrace.core.errors import UnsplittableError
from tailrace.core.storage import Store
from tailrace.history.reading.beginnings import Beginning
from tailrace.history.reading.driving import Step, TapeSink, drive_along_tape
from tailrace.history.rebuilding.splitting.part import OTHER_CODE, Dealing, Emitted, Part


def look_at_tape(part: Part, end: tape.Cut, begun: Beginning) -> Dealing:
    """What replaces the first pass: no record has to be read. Raises UnsplittableError."""
    assert part.target is not None
    failed_units(part.plan, part.past.tapes(part.number, end.tape))
    totals = gained(tape.Totals() if begun.decoded is None else begun.decoded.totals, end.totals)
    if totals.refused:
        raise UnsplittableError(f"{counted(totals.refused, 'record')} of it did not decode")
    overview = Overview(part.job.split, end.lineage, begun.cut, part.target, totals, 0, totals.for_others)
    return Dealing([], [totals.records] * part.job.split, overview, whole=True)


def run_ordered(
    part: Part, store: Store, dealing: Dealing, begun: Beginning, emitted: Emitted
) -> OrderedShardTask:
    """Run a shard of a task whose operators are ordered: it reads the whole partition."""
    overview, stop = dealing.overview, tape.decode_cut(dealing.overview.cut).tape
    task = OrderedShardTask(
        part.plan,
        part.number,
        part.unit.shard,
        overview.shards,
        store,
        begun.cut,
        lineage=overview.lineage,
        skips=failed_units(part.plan, part.past.tapes(part.number, stop)),
        settings=part.settings,
    )
    source = part.result.work.phases.reading(part.past.source(part.number))
    refill(task, source)
    replay = OrderedShardReplay(task, source, any_environment=part.job.request.failures.any_environment)
    sink = _OrderedSink(store, part, emitted, dealing.records[part.unit.shard])
    drive_along_tape(replay, part.past.tapes(part.number, stop), stop, sink)
    return task


class _OrderedSink(TapeSink):
    """Takes the outputs and the state of a shard along the tape."""

    settles = False

    def __init__(self, store: Store, part: Part, emitted: Emitted, of: int) -> None:
        super().__init__(store)
        self._part, self._emitted, self._of = part, emitted, of

    def other_code(self, version: str, /) -> None:
        """See ``TapeSink.other_code``."""
        raise UnsplittableError(OTHER_CODE.format(version))

    def take(self, task: Task, _step: Step, /) -> None:
        """See ``TapeSink.take``."""
        assert isinstance(task, OrderedShardTask)
        if self._emitted.any:
            self._emitted.write(task.take_ordered())
        else:
            task.discard_outputs()

    def step_done(self, task: Task, _step: Step, /) -> None:
        """See ``TapeSink.step_done``."""
        part = self._part
        part.result.work.commits += part.unit.shard == 0
        part.work.report(part.unit.name, task.totals.records, self._of)
