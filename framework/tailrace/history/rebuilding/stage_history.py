"""What the task of a partition reads in a stage: its records from outside, and those that the app has sent itself.

Theory. What an app sends to itself is an effect of its code, so the recorded copies are not read: the records come from the files of
earlier stages (``sends``). Of what the log has in these topics, the following counts, in its place among them::

    others have written it             yes
    it was in flight at the base       yes, as no stage of this rebuild sends it again
    it was redriven                    after all others, for operators that have not handled its original: ``redriven_history``

Along with the records there are the watermarks that other services have published, each at the
position from which on it holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, islice

import msgspec

from tailrace.core.counting import counted
from tailrace.core.declare.plan import InputPlan, Plan
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine import tape
from tailrace.core.engine.input_lane import PartitionHistory, Stand
from tailrace.core.engine.redriven import redriven_in
from tailrace.core.engine.stages import Stages, own_inputs
from tailrace.core.engine.task import Task
from tailrace.core.errors import ReplayDivergedError
from tailrace.core.names import is_own, redriven_of
from tailrace.core.records import InputRecord
from tailrace.core.unit_ids import BEYOND, RecordIds
from tailrace.history.reading.app_history import origin_of
from tailrace.history.reading.beginnings import Beginning
from tailrace.history.reading.upstream_watermarks import Upstream
from tailrace.history.rebuilding.job import Job, Unit
from tailrace.history.rebuilding.past import HistorySource, asked_snapshot
from tailrace.history.rebuilding.redriven_history import RedrivenHistory
from tailrace.history.rebuilding.results import Phases
from tailrace.history.rebuilding.sends import (
    Sent,
    SentFile,
    channel_of,
    merged,
    sent_in,
    sent_of,
    sorted_apart,
)
from tailrace.history.rebuilding.work_folder import WorkFolder
from tailrace.log.publications import Heard
from tailrace.state.snapshots import FileInfo

_READ_AT_ONCE = 10_000


class Made(msgspec.Struct):
    """What a unit has made for later stages."""

    cut: bytes
    by_actor: list[tuple[bytes, tuple[FileInfo, ...]]]
    """The files of the snapshot, by the first row of the actor whose rows they have."""
    in_flight: tuple[FileInfo, ...]
    """Those of messages in flight."""
    sent: list[SentFile]
    published: dict[str, int | None]
    """By topic and channel, the watermark up to which it has sent everything; None: it holds no reader back."""
    stood: dict[str, int | None]
    """The same as if no source was idle."""
    again: int
    """Number of records that an earlier stage has counted, too."""


decode_made = msgspec.msgpack.Decoder(Made).decode


def inner_inputs(plan: Plan) -> dict[str, InputPlan]:
    """The inputs whose records come from earlier stages, by name. The inbox is one of them in any app: there may be redriven records."""
    return own_inputs(plan) | {one.name: one for one in plan.inputs if one.is_inbox}


def made_in(job: Job, work: WorkFolder, stage: int, partition: int) -> Made:
    """What a unit of an earlier stage has made."""
    found = work.result(Unit(job=job, kind="stage", partition=partition, stage=stage).name)
    if found is None:
        raise ReplayDivergedError(
            f"stage {stage} of partition {partition} has not been run", hint="Run the rebuild again."
        )
    return decode_made(found.made)


class StageHistory:
    """The history of one partition in one stage. ``stages``: of the whole plan."""

    def __init__(
        self,
        unit: Unit,
        past: HistorySource,
        work: WorkFolder,
        attempt: str,
        stages: Stages,
        begun: Beginning,
    ) -> None:
        self._unit, self._job, self._past, self._work = unit, unit.job, past, work
        self._attempt, self._stages, self._begun = attempt, stages, begun
        self._number, self._stage, self._plan = unit.partition, unit.stage, past.plan
        self.own = inner_inputs(past.plan)
        self._ids = {name: RecordIds(name, unit.partition, past.plan.app) for name in self.own}
        self._before = [
            made_in(unit.job, work, stage, number)
            for stage in range(unit.stage)
            for number in range(unit.job.partitions)
        ]
        here = stages.here(unit.stage)
        self._names = frozenset(past.plan.operators[one].name for one in here)
        self._channels = stages.channels(unit.stage)
        inbox = past.plan.inbox_topic
        self.of_others = Counter[str]()
        """By topic that the app writes, the number of records of others."""
        self.read = [one.name for one in past.plan.inputs if one.name == inbox or {*one.touches} & here]
        """The inputs of the stage."""

    def positions(self) -> dict[str, int]:
        """Where the task begins in inputs that the app writes: they have numbers of their own."""
        return dict.fromkeys(self.own, BEYOND)

    def of(self, task: Task, phases: Phases) -> PartitionHistory:
        """What the task reads. Adds the time of reading to ``phases``."""
        job, plan, number = self._job, self._plan, self._number
        ends = {name: job.ends[name][number] for name in self.read if name in job.ends}
        outside = {name: end for name, end in ends.items() if name not in self.own}
        upstream = dict(_published(self._past, number, outside))
        redriven = RedrivenHistory(
            job, self._past, number, task, self._begun, self._names, is_first=self._stage == 0
        )
        others = _Others(job, self._past, number, self._begun, redriven)
        read: dict[str, Iterator[InputRecord]] = {}
        last: tuple[int, int] | None = None
        late: Iterator[InputRecord] = iter(())
        for name, to in self.own.items():
            if name not in self.read:
                continue
            names = self._channels if to.is_inbox else [name]
            places = {(of, number) for of in names}
            files = [one for made in self._before for one in made.sent if one.to in places]
            ends[name] = BEYOND + sum(one.count for one in files) + others.most(name)
            read[name] = self._merged(to, files, others)
            if to.is_inbox and (most := others.in_log_at_most(name)):
                last = ends[name], ends[name] + most
                late = redriven.after(ends[name], others.in_log(name))
            for of in names:
                upstream[of] = [(ends[name], mark) for mark in self._last_marks(of)]
        source = self._past.source(number)

        def of_source(name: str, start: int, stop: int) -> Sequence[InputRecord]:
            if name in read:
                is_late = name == plan.inbox_topic and last is not None and start >= last[0]
                return list(islice(late if is_late else read[name], stop - start))
            return source(name, start, stop)

        return PartitionHistory(
            phases.reading(of_source),
            ends,
            upstream,
            sent=[*read],
            again=[
                one
                for one in self.read
                if one not in self.own and min(self._stages.reads(one), default=self._stage) < self._stage
            ],
            redriven=last,
            first_ms={name: some[number] for name, some in job.first_ms.items()},
            stand=self._stand(),
            clock_ms=max([job.end_clock_ms, *(tape.decode_cut(one.cut).now for one in self._before)]),
        )

    def _merged(self, to: InputPlan, files: Sequence[SentFile], others: _Others) -> Iterator[InputRecord]:
        """What earlier stages have sent to an input, and others."""
        apart = sorted_apart(
            self._work, f"{self._unit.name}-{self._attempt}-{to.index}", self._others(to, others)
        )
        return merged([*(sent_in(self._work, one.name) for one in files), *apart], BEYOND)

    def _last_marks(self, name: str) -> list[int | None]:
        """What the writers of a topic or channel publish when they are done."""
        marks = [at for made in self._before if (at := made.published.get(name)) is not None]
        stood = [at for made in self._before if (at := made.stood.get(name)) is not None]
        return [min(marks)] if marks else [max(stood, default=NO_WATERMARK), None]

    def _stand(self) -> Stand | None:
        found = self._job.stand_of(self._number)
        if found is None:
            return None
        here, operators = self._stages.here(self._stage), self._plan.operators
        names = {one: operators[one].name for one in sorted(here)}
        return Stand(
            {one: found.marks[name] for one, name in names.items() if name in found.marks}, found.clock_ms
        )

    def _is_for_here(self, channel: str) -> bool:
        """Whether messages of a channel are for an actor of this stage. Those for none that the app has are refused in the first."""
        if self._stage == 0 and channel not in self._plan.sources[len(self._plan.inputs) :]:
            return True
        return channel in self._channels

    def notes(self) -> Iterator[str]:
        """Notes about what has been read."""
        for name, count in sorted((+self.of_others).items()):
            yield (
                f"{counted(count, 'record')} of others in {name} partition {self._number}, which the app writes itself, "
                f"{'is' if count == 1 else 'are'} taken in the order of event time: none is late here"
            )

    def _others(self, to: InputPlan, others: _Others) -> Iterator[Sent]:
        """The records of an own input that no stage sends, for the operators of this one."""
        for record, time_ms in others.records(to.name):
            is_addressed = redriven_in(record.headers) is not None
            if to.is_inbox and not is_addressed and not self._is_for_here(channel_of(to, record.value)):
                continue
            self.of_others[to.name] += not to.is_inbox and origin_of(record, self._plan.app.encode()) is None
            sent = sent_of(to, record, self._ids[to.name].tail_of(record))
            yield sent if time_ms is None else (NO_WATERMARK, *sent[1:])


class _Others:
    """The records in one partition of own inputs that no stage sends: see the theory above."""

    def __init__(
        self, job: Job, past: HistorySource, number: int, begun: Beginning, redriven: RedrivenHistory
    ) -> None:
        plan = past.plan
        self._plan, self._app, self._number, self._job = plan, plan.app.encode(), number, job
        self._read, self._redriven = past.source(number), redriven
        self._begins = {**begun.positions, **(tape.decode_cut(begun.cut).positions if begun.cut else {})}
        self._base = asked_snapshot(job)
        self._unread: set[str] = set()
        """Inputs that nobody else writes. Without a base, none of their records counts."""
        self._ends: dict[str, int] = {}
        """Ends of the inputs at the base: earlier records were in flight there."""
        self._sent: dict[int, int] = {}
        """By partition: the number of outputs that its task had made at the base."""
        inputs = inner_inputs(plan)
        if self._base is None:
            kept = {plan.inbox_topic} if redriven_of(plan.app) in past.log.topics() else set[str]()
            self._unread = {name for name in inputs if is_own(name, plan.app)} - kept
            return
        manifest = self._base.manifest
        self._ends = {name: of[number] for name, of in manifest.ends.items() if name in inputs}
        cuts = {one.partition: tape.decode_cut(one.cut) for one in manifest.tasks if one.cut}
        for one in manifest.tasks if manifest.source != "stages" else ():
            if one.waiting is not None:  # see ``in_flight``: not all records below the ends were sent by then
                self._sent[one.partition] = cuts[one.partition].totals.outputs if one.cut else 0

    @property
    def _holds_flight(self) -> bool:
        return self._base is not None and self._base.manifest.source == "stages"

    def _range(self, name: str) -> tuple[int, int]:
        end = self._job.ends[name][self._number] if name in self._job.ends else 0
        start = self._begins.get(name, 0)
        return (end, end) if name in self._unread else (min(start, end), end)

    def in_log_at_most(self, name: str) -> int:
        """The log has no more of them than this."""
        start, end = self._range(name)
        return end - start

    def most(self, name: str) -> int:
        """There are no more of them than this."""
        return self.in_log_at_most(name) + sum(1 for _ in self._in_base(name))

    def _in_base(self, name: str) -> Iterator[InputRecord]:
        """What was in flight at the base, if that has it as messages."""
        holds = self._holds_flight and name == self._plan.inbox_topic
        return iter(self._base.messages(self._number)) if holds and self._base is not None else iter(())

    def records(self, name: str) -> Iterator[tuple[InputRecord, int | None]]:
        """The records, without those that come after all others; with the event time of one that is addressed."""
        for record in self._in_base(name):
            yield from self._redriven.in_flight(record)
        for record in self.in_log(name):
            if name != self._plan.inbox_topic or redriven_in(record.headers) is None:
                yield record, None
            else:
                yield from self._redriven.in_flight(record)

    def in_log(self, name: str) -> Iterator[InputRecord]:
        """The records that the log has, redriven ones included."""
        start, end = self._range(name)
        for at in range(start, end, _READ_AT_ONCE):
            for record in self._read(name, at, min(at + _READ_AT_ONCE, end)):
                if not self._is_sent(name, record):
                    yield record

    def _is_sent(self, name: str, record: InputRecord) -> bool:
        """Whether a stage of this rebuild sends a record, or has sent it before the base."""
        sender = origin_of(record, self._app)
        if record.offset < self._ends.get(name, 0) and not self._holds_flight:
            return sender is not None and sender[0] in self._sent and sender[1] >= self._sent[sender[0]]
        return sender is not None


def _published(
    past: HistorySource, number: int, ends: dict[str, int]
) -> Iterator[tuple[str, list[tuple[int, int | None]]]]:
    """By source, the published watermarks of its writers, by position. None: they hold no reader back."""
    log, plan = past.log, past.plan
    upstream = Upstream(plan, log)
    for index, sources in upstream.inputs.items():
        name = plan.inputs[index].name
        if name not in ends:
            continue
        found: dict[int, list[tuple[int, int | None]]] = {source: [] for source in sources}
        before: dict[int, int | str] = {}
        seen: dict[str, int | None] = {}
        start = log.start_offset(name, number)
        of = past.one_commit_log.published_in(name, number)
        for at, group in groupby(of, key=lambda one: max(start, one.position)):
            if at > ends[name]:
                break
            news = Heard()
            for one in group:
                news.add(one.name, one.watermark_ms)
            for source, mark in upstream.take(index, news.news(seen)).items():
                if mark != before.get(source, NO_WATERMARK):
                    before[source] = mark
                    found[source] += _marks_at(at, mark, upstream.last_ms(source))
        for source, marks in found.items():
            yield plan.sources[source], marks


def _marks_at(at: int, mark: int | str, last_ms: int) -> list[tuple[int, int | None]]:
    if isinstance(mark, int):
        return [(at, mark)]
    return [(at, last_ms), (at, None)]
