"""The history that the task of a partition reads in canonical order.

Theory. Along with the records there are the watermarks that other services have published: they are read at
every hundredth offset.

If the rebuild delivers what the app sends to itself, the recorded copies are not read. Of the records in own
inputs, these count::

    others have written it            in its place
    it was in flight at the base      as if others had written it: no task of this rebuild sends it again
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

from tailrace.core.declare.plan import Plan
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine import tape
from tailrace.core.engine.delivery import own_inputs
from tailrace.core.engine.input_lane import PartitionHistory, RecordOrigin
from tailrace.core.engine.replay import Source
from tailrace.core.engine.rounds import NotInRoundsError
from tailrace.core.engine.task import Task
from tailrace.core.errors import SnapshotMismatchError
from tailrace.core.names import is_own, redriven_of
from tailrace.core.records import InputRecord
from tailrace.history.reading.app_history import origin_of
from tailrace.history.reading.upstream_watermarks import Upstream
from tailrace.history.rebuilding.job import Job
from tailrace.history.rebuilding.past import HistorySource, asked_snapshot
from tailrace.history.rebuilding.redriven_history import RedrivenHistory
from tailrace.history.rebuilding.results import Phases
from tailrace.state.snapshots import Snapshot

_LOOK_EVERY = 100
"""Number of offsets between two reads of published watermarks."""
_READ_AT_ONCE = 10_000


def history_of(
    job: Job, past: HistorySource, number: int, task: Task, base: bytes | None, phases: Phases
) -> PartitionHistory:
    """The history of one partition, which the ``task`` begins with the cut ``base``. Adds the time of reading to ``phases``."""
    plan = past.plan
    ends = {one.name: job.ends[one.name][number] for one in plan.inputs if one.name in job.ends}
    own = own_inputs(plan) if job.delivers_sends else {}
    published = dict(_published(past, number, {name: end for name, end in ends.items() if name not in own}))
    read = RedrivenHistory(job, past, number, task, base).read
    if not own:
        return PartitionHistory(phases.reading(read), ends, published)
    delivered = OwnInputs(job, past, number, read)
    ends |= {name: 0 for name in own if name not in ends}
    return PartitionHistory(phases.reading(delivered.read), ends, published, delivered.origin)


class OwnInputs:
    """The records in one partition of inputs that the rebuild delivers itself: see the theory above."""

    def __init__(self, job: Job, past: HistorySource, number: int, read: Source) -> None:
        plan = past.plan
        self._plan, self._app, self._read = plan, plan.app.encode(), read
        inputs, base = own_inputs(plan), asked_snapshot(job)
        self._unread: set[str] = set()
        """Inputs that nobody else writes. Without a base, none of their records counts."""
        self._ends: dict[str, int] = {}
        """Ends of the inputs at the base: earlier records were in flight there."""
        self._sent: dict[int, int] = {}
        """By partition: the number of outputs that its task had made at the base."""
        if base is None:
            kept = {plan.inbox_topic} if redriven_of(plan.app) in past.log.topics() else set[str]()
            self._unread = {name for name in inputs if is_own(name, plan.app)} - kept
            return
        _check_senders(plan, base)
        self._ends = {name: of[number] for name, of in base.manifest.ends.items() if name in inputs}
        cuts = {one.partition: tape.decode_cut(one.cut) for one in base.manifest.tasks if one.cut}
        for one in base.manifest.tasks:
            if one.waiting is not None:  # see ``in_flight``: not all records below the ends were sent by then
                self._sent[one.partition] = cuts[one.partition].totals.outputs if one.cut else 0

    def read(self, name: str, start: int, stop: int) -> Sequence[InputRecord]:
        """See ``Source``."""
        return () if name in self._unread or start >= stop else self._read(name, start, stop)

    def check_sent(self, name: str, end: int) -> None:
        """Check that the app has sent all records of an input. Raises NotInRoundsError."""
        for start in range(0, end, _READ_AT_ONCE):
            if any(
                self.origin(name, one) != "sent"
                for one in self.read(name, start, min(start + _READ_AT_ONCE, end))
            ):
                raise NotInRoundsError(
                    f"{name!r} has records that others have written, or that were redriven"
                )

    def origin(self, name: str, record: InputRecord) -> RecordOrigin:
        """The origin of a record."""
        sender, in_flight = origin_of(record, self._app), record.offset < self._ends.get(name, 0)
        if in_flight:
            later = sender is not None and sender[0] in self._sent and sender[1] >= self._sent[sender[0]]
            return "sent" if later else "others"
        return "others" if sender is None else "sent"


def _check_senders(plan: Plan, base: Snapshot) -> None:
    """Refuse messages under way to an ordered operator whose place among the others is not known."""
    for name, one in own_inputs(plan).items() if base.manifest.reshaped else ():
        for actor in (plan.operators[route.operator] for route in one.routes):
            if actor.ordered:
                raise SnapshotMismatchError(
                    f"{base.manifest.id} was made by `tailrace reshape`: messages that were under way then have lost their sender, "
                    f"which decides on their place in {name!r}, and {actor.name} handles it in event-time order",
                    hint="Rebuild along the tape (--order tape), or from a later snapshot of the service.",
                )


def _published(
    past: HistorySource, number: int, ends: dict[str, int]
) -> Iterator[tuple[str, list[tuple[int, int | None]]]]:
    """By source, the published watermarks of its writers, by position. None: they hold no reader back."""
    log, plan = past.log, past.plan
    with closing(log.reader({})) as reader:
        upstream = Upstream(plan, number, log, reader)
        for index, sources in upstream.inputs.items():
            name = plan.inputs[index].name
            if name not in ends:
                continue
            found: dict[int, list[tuple[int, int | None]]] = {source: [] for source in sources}
            before: dict[int, int | str] = {}
            at = log.start_offset(name, number)
            reader.seek(name, number, at)
            while True:
                for source, mark in upstream.news(index).items():
                    if mark != before.get(source, NO_WATERMARK):
                        before[source] = mark
                        found[source] += _marks_at(at, mark, upstream.last_ms(source))
                if at >= ends[name]:
                    break
                stop = min((at // _LOOK_EVERY + 1) * _LOOK_EVERY, ends[name])
                while at < stop:
                    after = reader.fetch(name, number, stop - at).next_offset
                    if after == at:
                        break
                    at = after
                if at < stop:
                    break
            for source, marks in found.items():
                yield plan.sources[source], marks


def _marks_at(at: int, mark: int | str, last_ms: int) -> list[tuple[int, int | None]]:
    if isinstance(mark, int):
        return [(at, mark)]
    return [(at, last_ms), (at, None)]
