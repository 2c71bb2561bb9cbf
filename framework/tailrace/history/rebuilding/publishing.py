"""Publishes the outputs of a rebuild: as files named by a manifest that is written last, or as records in
topics, each once.

Outputs go into topics mark by mark (see ``output_watermarks``), in transactions of the tasks' publishers.
Each transaction carries the watermark and the task's progress. So a driver that is killed and run again
continues after the last transaction, and readers of the topics find the watermarks that a live service would
have published. Each topic has the name of the service's topic with a suffix: the service's own topics, and
their readers, are not affected.

Only one rebuild may write to these topics: the last one that has asked for their transactional id. It asks
before it looks whether the topics are empty, and checks that it still has the id after it has registered its
publishers. So of two rebuilds, the later one finds the publishers of the earlier one, or the earlier one
finds that it was replaced, before it has written a record.

A finished rebuild will not run again, and it notes this when all marks are published. It does not retire by
itself: an app that reads these topics is rebuilt over them as over the service's own, to the same state, and
would find other watermarks at their end. The first live service that reads or writes them retires the
rebuild, as described in ``retirement``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby, islice
from operator import attrgetter

import msgspec
from msgspec.structs import replace

from tailrace.core.declare.plan import Plan
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine.watermarks import published_by
from tailrace.core.errors import FencedError, StateInUseError, TopicMismatchError
from tailrace.core.names import transactional_id
from tailrace.core.records import CHANNEL
from tailrace.history.rebuilding.job import Job
from tailrace.history.rebuilding.output_files import PARQUET, outputs_folder, read_outputs
from tailrace.history.rebuilding.output_watermarks import TOPIC, decode_marks, marks_wanted, turns
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.rebuilding.request import Request
from tailrace.history.rebuilding.results import OutputFile, OutputFiles, TaskResult
from tailrace.history.retirement import REBUILD, finished_note
from tailrace.log.interface import Log, TopicPartition, TopicSettings, Writer
from tailrace.log.opening import open_log
from tailrace.state.snapshots import Place

MANIFEST = "outputs.json"


class OutputsManifest(msgspec.Struct, frozen=True):
    """The files of a folder of outputs that count. The folder may also have files of failed attempts."""

    app: str
    snapshot: str
    """The snapshot of the same rebuild."""
    files: tuple[OutputFile, ...]


def topics_of(plan: Plan) -> list[str]:
    """The declared topics that an app writes to, and its dead letters. Messages stay within the app."""
    return [*(name for name in plan.outputs if name in plan.written), plan.dead_letters_topic]


def check_topics(request: Request, past: HistorySource) -> None:
    """Refuse output topics that are not empty.

    Raises:
        TopicMismatchError: An output topic is not empty.
    """
    if request.to.outputs.startswith(TOPIC):
        _check_empty(request, past.plan, past.log)


def _check_empty(request: Request, plan: Plan, log: Log) -> None:
    known = log.topics()
    for name in (f"{one}{request.to.outputs.removeprefix(TOPIC)}" for one in topics_of(plan)):
        if name in known and any(log.end_offset(name, number) for number in range(known[name].partitions)):
            raise TopicMismatchError(
                "the topic that the outputs of the rebuild are to go to is not empty",
                topic=name,
                hint="Choose another suffix.",
            )


def publish_outputs(job: Job, plan: Plan, results: Sequence[TaskResult]) -> None:
    """Publish the outputs at the requested place."""
    if job.request.to.outputs.startswith(PARQUET):
        _publish_files(job, tuple(one for result in results for one in result.outputs.files))
    elif marks_wanted(job):
        _append(job, plan, results)


def _publish_files(job: Job, files: tuple[OutputFile, ...]) -> None:
    folder = Place.at(outputs_folder(job))
    folder.make()
    named = {one.name for one in files}
    # Files of failed units, and of a driver that was killed while it wrote the manifest.
    unfinished = ("outputs-", f".{MANIFEST}.")
    for entry in folder.entries():
        if entry.name.startswith(unfinished) and entry.name not in named:
            (folder / entry.name).remove()
    manifest = OutputsManifest(job.app, job.snapshot, files)
    (folder / MANIFEST).write(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")


def _append(job: Job, plan: Plan, results: Sequence[TaskResult]) -> None:
    suffix = job.request.to.outputs.removeprefix(TOPIC)
    with ExitStack() as closing:
        log = open_log(job.request.source.log)
        closing.callback(log.close)
        holder = log.writer(_holder_id(plan, suffix))
        closing.callback(holder.close)
        known = log.topics()
        for name in topics_of(plan):
            settings = known.get(name, TopicSettings(plan.partitions))
            log.create_topic(f"{name}{suffix}", TopicSettings(settings.partitions, settings.compacted))
        tasks = [_Task(job, plan, log, one.partition, one.outputs) for one in results]
        for task in tasks:
            closing.callback(task.close)
        if all(task.done is None for task in tasks):
            # The topics were empty when the job was settled, but another rebuild may have written to them
            # since.
            _check_empty(job.request, plan, log)
            _check_unpublished(log, plan, suffix)
        for task in tasks:  # register all publishers before the first one publishes anything
            task.begin()
        _check_holds(holder, job, plan, suffix)
        for turn in turns(plan, log, {task.partition: task.marks for task in tasks}):
            tasks[turn.partition].publish(turn.place)
        for task in tasks:
            task.finish()


def _holder_id(plan: Plan, suffix: str) -> str:
    """The name under which one rebuild holds the output topics."""
    return f"{REBUILD}{plan.app}{suffix}"


def _check_unpublished(log: Log, plan: Plan, suffix: str) -> None:
    """Refuse topics with publishers of another rebuild. A driver that resumes has published before."""
    topics = {f"{name}{suffix}" for name in topics_of(plan)}
    for topic, publisher in log.publications():
        if topic in topics and publisher.startswith(REBUILD):
            raise TopicMismatchError(
                f"another rebuild has begun to write the topic that the outputs are to go to: {publisher!r}",
                topic=topic,
                hint="Choose another suffix.",
            )


def _check_holds(holder: Writer, job: Job, plan: Plan, suffix: str) -> None:
    """Check that no other rebuild has asked for these topics since.

    Raises:
        StateInUseError: One has.
    """
    place = TopicPartition(f"{plan.dead_letters_topic}{suffix}", 0)
    try:
        holder.commit({place: 0}, _holder_id(plan, suffix))
    except FencedError as error:
        raise _in_use(job, plan, suffix) from error


def _in_use(job: Job, plan: Plan, suffix: str) -> StateInUseError:
    return StateInUseError(
        f"another rebuild of the app {plan.app!r} is writing to the topics with the suffix {suffix!r}",
        path=job.request.source.log,
        hint="Choose another suffix.",
    )


class _Task:
    """Publishes a task's outputs. ``done``: number of marks published; None: publisher not registered yet."""

    def __init__(self, job: Job, plan: Plan, log: Log, number: int, outputs: OutputFiles) -> None:
        self.partition = number
        self._plan, self._suffix = plan, job.request.to.outputs.removeprefix(TOPIC)
        self._wanted = frozenset(topics_of(plan))
        self._group = f"{REBUILD}{job.snapshot}"
        self._place = TopicPartition(f"{plan.dead_letters_topic}{self._suffix}", number)
        of = sum(one.rows for one in outputs.files)
        marks = decode_marks(outputs.marks)
        self.marks = [replace(one, rows=min(one.rows, of)) for one in marks[:-1]]
        self.marks += [replace(one, rows=of) for one in marks[-1:]]
        name = transactional_id(self._group, number)
        self._writer = log.writer(name)
        self._published = {topic: mark for (topic, by), mark in log.publications().items() if by == name}
        self.done = log.committed_offsets(self._group, [self._place]).get(self._place)
        self._rows = self.marks[self.done - 1].rows if self.done else 0
        self._outputs = (
            output
            for one in outputs.files
            for _, output in read_outputs(Place.at(outputs_folder(job)) / one.name, self._rows)
        )

    def begin(self) -> None:
        """Register the publisher. It holds all readers back until its first mark."""
        if self.done is None and self._published:
            raise TopicMismatchError(
                f"how far this rebuild has published the outputs of partition {self.partition} is not known "
                "any more: Kafka deletes the offsets "
                "of a group that is not used for a while (offsets.retention.minutes)",
                topic=self._place.topic,
                hint="Delete the topics with this suffix, or choose another suffix, and publish again.",
            )
        if self.done is None:
            nothing = published_by(
                self._plan.published, {one.index: NO_WATERMARK for one in self._plan.operators}
            )
            self._commit(0, {name: mark for name, mark in nothing.items() if CHANNEL not in name})

    def publish(self, place: int) -> None:
        """Publish mark number ``place``, and the outputs up to it, unless this was done before."""
        assert self.done is not None
        if place < self.done:
            return
        mark = self.marks[place]
        emitted = list(islice(self._outputs, mark.rows - self._rows))
        self._rows = mark.rows
        made = [
            one._replace(topic=f"{one.topic}{self._suffix}") for one in emitted if one.topic in self._wanted
        ]
        letters = f"{self._plan.dead_letters_topic}{self._suffix}"
        for topic, some in groupby(made, key=attrgetter("topic")):
            self._writer.append(some, self.partition if topic == letters else None)
        published = dict(mark.published)
        for name, left_ms in mark.left.items():
            before_ms = self._published.get(f"{name}{self._suffix}")
            if before_ms is not None and before_ms < left_ms:
                published[name] = left_ms  # like a service: readers apply it before this task releases them
        self._commit(place + 1, published)

    def finish(self) -> None:
        """Record that everything is published."""
        self._writer.commit(*finished_note(self._published, self._group, self.partition))

    def _commit(self, done: int, watermarks: Mapping[str, int | None]) -> None:
        named = {f"{name}{self._suffix}": watermark for name, watermark in watermarks.items()}
        self._writer.commit({self._place: done}, self._group, named)
        self._published |= named
        self.done = done

    def close(self) -> None:
        """Close the publisher."""
        self._writer.close()
