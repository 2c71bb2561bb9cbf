"""Outputs of a rebuild made visible: files named by a manifest that comes last, or records in topics, each once.

Into topics they go partition by partition, in transactions; each notes with itself how far it has come. So a driver that
is killed on the way goes on behind what is there. A topic is that of the service with a suffix: what others read of the
service's own topics is not touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.errors import TopicMismatchError
from tailrace.core.records import Output
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import TopicPartition, TopicSettings
from tailrace.runtime.rebuilding.job import Job, OutputFile, Request, UnitResult
from tailrace.runtime.rebuilding.outputs import PARQUET, TOPIC, outputs_folder
from tailrace.runtime.rebuilding.past import Past
from tailrace.state.snapshots import Place
from tailrace.state.snapshots.arrow import parquet

MANIFEST = "outputs.json"
_AT_ONCE = 20_000


class OutputsManifest(msgspec.Struct, frozen=True):
    """Which files of a folder of outputs count: there may be others, of attempts that failed."""

    app: str
    snapshot: str
    """The snapshot that was made in the same rebuild."""
    files: tuple[OutputFile, ...]


def topics_of(plan: Plan) -> list[str]:
    """The topics that an app writes to, without its inbox: messages stay within the app."""
    names = dict.fromkeys([*plan.outputs, plan.dead_letters_topic])
    return [name for name in names if name != plan.inbox_topic]


def check_topics(request: Request, past: Past) -> None:
    """Refuse topics that hold something already.

    Raises:
        TopicMismatchError: One of them does.
    """
    if not request.outputs.startswith(TOPIC):
        return
    known, log = past.log.topics(), past.log
    for name in (f"{one}{request.outputs.removeprefix(TOPIC)}" for one in topics_of(past.plan)):
        if name in known and any(log.end_offset(name, number) for number in range(known[name].partitions)):
            raise TopicMismatchError(
                "the topic that the outputs of the rebuild are to go to is not empty",
                topic=name,
                mend="Choose another suffix.",
            )


def publish_outputs(job: Job, plan: Plan, results: Sequence[UnitResult]) -> None:
    """Make the outputs visible, where they were asked for."""
    files = tuple(one for result in results for one in result.outputs)
    if job.request.outputs.startswith(PARQUET):
        _publish_files(job, files)
    elif job.request.outputs.startswith(TOPIC):
        _append(job, plan, files)


def _publish_files(job: Job, files: tuple[OutputFile, ...]) -> None:
    folder = Place.at(outputs_folder(job))
    folder.make()
    named = {one.name for one in files}
    for entry in folder.entries():
        if entry.name.startswith("outputs-") and entry.name not in named:
            (folder / entry.name).remove()
    manifest = OutputsManifest(job.app, job.snapshot, files)
    (folder / MANIFEST).write(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")


def _append(job: Job, plan: Plan, files: Sequence[OutputFile]) -> None:
    suffix, group = job.request.outputs.removeprefix(TOPIC), f"rebuild-{job.snapshot}"
    log = EmbeddedLog(Path(job.request.log), create=False)
    try:
        known, wanted = log.topics(), topics_of(plan)
        for name in wanted:
            settings = known.get(name, TopicSettings(plan.partitions))
            log.create_topic(f"{name}{suffix}", TopicSettings(settings.partitions, settings.compacted))
        writer = log.writer(group)
        try:
            for file in files:
                place = TopicPartition(plan.tape_topic, file.partition)
                done = log.committed_offsets(group, [place]).get(place, 0)
                for after, outputs in _read(outputs_folder(job), file.name, done):
                    made = [
                        one._replace(topic=f"{one.topic}{suffix}") for one in outputs if one.topic in wanted
                    ]
                    for topic, some in groupby(made, key=lambda one: one.topic):
                        to = file.partition if topic == f"{plan.dead_letters_topic}{suffix}" else None
                        writer.append(some, to)
                    writer.commit({place: after}, group)
        finally:
            writer.close()
    finally:
        log.close()


def _read(folder: str, name: str, done: int) -> Iterator[tuple[int, list[Output]]]:
    """Outputs from the number ``done`` on, in batches, each with the number behind it."""
    with (Place.at(folder) / name).open() as stream:
        for batch in parquet.ParquetFile(stream).iter_batches(_AT_ONCE):
            columns = [batch.column(column) for column in ("number", "topic", "key", "value", "headers")]
            times: list[int] = batch.column("timestamp").cast("int64").to_pylist()
            found = [
                Output(topic, key, value, time_ms, tuple((one["key"], one["value"]) for one in headers))
                for (number, topic, key, value, headers), time_ms in zip(
                    zip(*(column.to_pylist() for column in columns), strict=True), times, strict=True
                )
                if number >= done
            ]
            if found:
                yield columns[0][-1].as_py() + 1, found
