"""The topics that an app has read: whether they are still those, and where tasks have left inputs. Theory: see ``judging``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from tailrace.core.declare.plan import InputPlan, Plan
from tailrace.core.engine import tape
from tailrace.core.errors import OtherHistoryError
from tailrace.core.names import tape_of
from tailrace.core.records import Headers, InputRecord, RecordMark
from tailrace.history.provenance.judging import does, judge_read
from tailrace.history.reading.changelog import last_cut
from tailrace.history.reading.generations import changelog_in
from tailrace.log.interface import Log, TopicPartition
from tailrace.state.contents import Contents
from tailrace.state.provenance import Abandoned, Provenance, provenance_of
from tailrace.state.snapshots import TaskEntry

_Noted: TypeAlias = tuple[bytes, dict[TopicPartition, int]]
"""A note of the log, and the positions that it was made of."""


def note_positions(plan: Plan, log: Log, partition: int, positions: Mapping[str, int]) -> bytes:
    """What the log notes for a cut. ``positions``: by input, up to where the cut has all records."""
    places = {TopicPartition(name, partition): position for name, position in positions.items()}
    return log.note({**places, TopicPartition(plan.tape_topic, partition): 0})


def resumed(plan: Plan, log: Log, partition: int, last: InputRecord | None) -> dict[str, int]:
    """By declared input that a task has ever read: where to continue. ``last`` is the record of its last cut.
    Raises OtherHistoryError: one of them, or the tape, was deleted and created again since.
    """
    known = log.topics()
    declared = {one.name for one in plan.inputs if one.name in known}
    notes = _noted(plan.app, partition, last, {*declared, plan.tape_topic}, declared)
    return {
        place.topic: at for place, at in _resumed(plan.app, log, notes).items() if place.topic in declared
    }


def check_history(app: str, log: Log, inputs: Iterable[InputPlan] = ()) -> None:
    """Check the topics that tasks of an app have read, and those of its ``inputs`` that they have left.
    Raises OtherHistoryError: one of them was deleted and created again since.
    """
    _resumed(app, log, _history(app, log, {one.name for one in inputs}))


def replaced_topics(app: str, log: Log, inputs: Iterable[str] = ()) -> list[str]:
    """The topics that were deleted and created again since tasks of an app have read them.
    Topics that tasks have left count if they are among the ``inputs``.
    """
    found: dict[str, None] = {}
    for note, positions in _history(app, log, set(inputs)):
        found |= {
            place.topic: None for place, at in positions.items() if not _is_same(log, note, {place: at})
        }
    return list(found)


def note_of_topics(log: Log, topics: Iterable[str]) -> bytes:
    """What the log notes of the topics that a reader of history begins to read."""
    return log.note(_beginnings(topics))


def check_same_topics(log: Log, note: bytes, topics: Iterable[str]) -> None:
    """Check that the topics are still those of a note of ``note_of_topics``, maybe of another process.
    Raises OtherHistoryError: one of them was deleted and created again since.
    """
    try:
        log.resume(note, _beginnings(topics))
    except OtherHistoryError as error:
        raise OtherHistoryError(
            "the topic was deleted and created again since its history began to be read",
            why="topic",
            topic=error.topic,
            hint="Nothing was published. Restore the old topic from a copy; or begin again with what is there now (rebuild --restart).",
        ) from error


def positions_read(last: InputRecord | None) -> dict[str, int]:
    """By input that a task has ever read: where it stands, or has left it. ``last`` is the record of its last cut."""
    reads = {} if last is None else tape.decode_cut(last.value or b"").positions
    return {name: one.position for name, one in provenance_of(last).abandoned.items()} | reads


def abandoned_inputs(
    plan: Plan, log: Log, ends: Sequence[int | None] | None = None
) -> dict[int, dict[str, int]]:
    """By task, where it has left inputs that are still the same topics, as of its last cut below an offset of the changelog (default:
    all). An input that is declared again counts, too, until the task has committed.
    """
    found, declared = dict[int, dict[str, int]](), {one.name for one in plan.inputs}
    for number in range(plan.partitions):
        last = last_cut(
            log, TopicPartition(plan.changelog_topic, number), None if ends is None else ends[number]
        )
        reads = {} if last is None else tape.decode_cut(last.value or b"").positions
        stands = positions_read(last).items()
        found[number] = {name: at for name, at in stands if name not in declared or name not in reads}
    names = {name for one in found.values() for name in one} & log.topics().keys()
    there = names.difference(replaced_topics(plan.app, log, names)) if names else names
    return {number: {name: at for name, at in one.items() if name in there} for number, one in found.items()}


def abandoned_positions(entry: TaskEntry, log: Log) -> dict[str, int]:
    """An entry's positions in abandoned inputs, without topics where the log lacks the records read."""
    known, number = log.topics(), entry.partition

    def is_there(name: str, at: int) -> bool:
        if name not in known or number >= known[name].partitions or at > log.end_offset(name, number):
            return False
        read = entry.provenance.read.get(name)
        return does("input of snapshot", judge_read(log, name, number, read)) == "take"

    left = entry.provenance.abandoned
    return {name: one.position for name, one in left.items() if is_there(name, one.position)}


def noted_abandoned(log: Log, partition: int, left: Mapping[str, int]) -> dict[str, Abandoned]:
    """Positions where inputs were left, on a log that they are new to."""
    return {name: Abandoned(at, log.note({TopicPartition(name, partition): at})) for name, at in left.items()}


class CutHeaders:
    """What goes with the cuts of a task that continues from the cut ``last``. ``versions``: those that have committed it, this one last.

    From here on, commits are refused if a topic that the task reads or writes is deleted and created again.
    """

    def __init__(
        self, plan: Plan, log: Log, partition: int, last: InputRecord | None, versions: Sequence[str]
    ) -> None:
        self._plan, self._log, self._partition, before = plan, log, partition, provenance_of(last)
        known, inputs = log.topics(), {one.name for one in plan.inputs}
        used = {*plan.outputs, plan.changelog_topic, plan.tape_topic, *inputs}
        self.has_notes = bool(note_of_topics(log, used & known.keys()))
        """Whether the log wants notes."""
        self.read: Mapping[str, RecordMark] = before.read
        """By input, the mark of the last record that the commits so far have read."""
        reads = {} if last is None else tape.decode_cut(last.value or b"").positions
        left = {**before.abandoned, **{name: Abandoned(at, before.topics) for name, at in reads.items()}}
        self._abandoned = {name: one for name, one in left.items() if name not in inputs}
        self._versions = tuple(versions) if self.has_notes else ()

    def of(self, positions: Mapping[str, int], read: Mapping[str, RecordMark], rows: Contents) -> Headers:
        """The headers of a cut. ``positions``: by input, up to where it has no record that is not in the cut."""
        topics = note_positions(self._plan, self._log, self._partition, positions) if self.has_notes else b""
        return Provenance(topics, {**read}, self._abandoned, rows, self._versions).headers


def _history(app: str, log: Log, inputs: Collection[str]) -> Iterator[_Noted]:
    """The notes of all tasks of an app."""
    changelog, known = changelog_in(log, app), log.topics()
    for number in range(log.partitions(changelog)) if changelog in known else ():
        last = last_cut(log, TopicPartition(changelog, number))
        yield from _noted(app, number, last, known, [name for name in inputs if name in known])


def _noted(
    app: str, partition: int, last: InputRecord | None, topics: Collection[str], inputs: Collection[str]
) -> Iterator[_Noted]:
    """The notes with a task's last cut, and their positions: of ``topics`` that it reads, and of ``inputs`` that it has left."""
    said = provenance_of(last)
    if last is None or not said.topics:
        return
    positions = {**tape.decode_cut(last.value or b"").positions, tape_of(app): 0}
    yield (
        said.topics,
        {TopicPartition(name, partition): at for name, at in positions.items() if name in topics},
    )
    for name, one in said.abandoned.items():
        if name in inputs and name not in positions:
            yield one.topics, {TopicPartition(name, partition): one.position}


def _is_same(log: Log, note: bytes, positions: Mapping[TopicPartition, int]) -> bool:
    try:
        log.resume(note, positions)
    except OtherHistoryError:
        return False
    return True


def _beginnings(topics: Iterable[str]) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, 0): 0 for topic in topics}


def _resumed(app: str, log: Log, notes: Iterable[_Noted]) -> dict[TopicPartition, int]:
    """Where to continue from noted positions. Names the app whose history is refused."""
    found: dict[TopicPartition, int] = {}
    try:
        for note, positions in notes:
            found |= log.resume(note, positions)
    except OtherHistoryError as error:
        raise OtherHistoryError(
            f"the topic was deleted and created again since the app {app!r} has read it. The positions of the app, and its history, are "
            "those of the old one",
            why="topic",
            topic=error.topic,
            partition=error.partition,
            hint="Restore the old topic from a copy, if there is one, with the app's own topics; or go back to an archive or a snapshot that "
            "was made before. To begin again with the new topic, run the app under another name, or delete all of its own topics and its "
            "consumer group, too. `tailrace rebuild --order canonical` runs it on what is there now.",
        ) from error
    return found
