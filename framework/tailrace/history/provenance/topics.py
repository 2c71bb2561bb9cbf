"""The topics that an app has read: whether they are still those, and where tasks have left inputs. Theory: see ``judging``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from tailrace.core.declare.plan import InputPlan, Plan
from tailrace.core.engine import tape
from tailrace.core.errors import KEPT_ELSEWHERE, OtherHistoryError
from tailrace.core.records import Headers, InputRecord, RecordMark
from tailrace.history.provenance.judging import does, judge_read
from tailrace.history.reading.changelog import last_cut
from tailrace.history.reading.generations import changelog_in
from tailrace.log.interface import Log, TopicPartition
from tailrace.log.same_topics import check_same, replaced
from tailrace.state.contents import Contents
from tailrace.state.provenance import Abandoned, Provenance, ReadTopic, provenance_of
from tailrace.state.snapshots import TaskEntry

_decode_ids = msgspec.json.Decoder(dict[str, str]).decode


def read_topics(plan: Plan, log: Log, positions: Mapping[str, int]) -> dict[str, ReadTopic]:
    """The topics of a cut. ``positions``: by input, up to where the cut has all records."""
    ids = log.watch([*positions, plan.tape_topic])
    return {name: ReadTopic(id_, positions.get(name, 0)) for name, id_ in ids.items()}


def resumed(plan: Plan, log: Log, last: InputRecord | None) -> dict[str, int]:
    """By declared input that a task has ever read, and that the log gives an id: where to continue. ``last`` is the record of its last cut.
    Raises OtherHistoryError: one of them, or the tape, was deleted and created again since.
    """
    declared = {one.name for one in plan.inputs}
    noted, found = _noted(last, {*declared, plan.tape_topic}), dict[str, int]()
    now = log.topic_ids(noted)
    _check(plan.app, replaced(noted, now))
    said, positions = provenance_of(last).topics, positions_read(last)
    for name in declared & noted.keys():
        passed = said[name].passed if name in said and now.get(name) == noted[name] else 0
        found[name] = max(positions[name], passed)
    return found


def check_history(app: str, log: Log, inputs: Iterable[InputPlan] = ()) -> None:
    """Check the topics that tasks of an app have read, and those of its ``inputs`` that they have left.
    Raises OtherHistoryError: one of them was deleted and created again since.
    """
    _check(app, replaced_topics(app, log, (one.name for one in inputs)))


def replaced_topics(app: str, log: Log, inputs: Iterable[str] = ()) -> list[str]:
    """The topics that were deleted and created again since tasks of an app have read them.
    Topics that tasks have left count if they are among the ``inputs``.
    """
    changelog, wanted, found = changelog_in(log, app), set(inputs), dict[str, None]()
    for number in range(log.partitions(changelog)) if changelog in log.topics() else ():
        last = last_cut(log, TopicPartition(changelog, number))
        noted = _noted(last, wanted | provenance_of(last).topics.keys())
        found |= dict.fromkeys(replaced(noted, log.topic_ids(noted)))
    return list(found)


def note_of_topics(log: Log, topics: Iterable[str]) -> bytes:
    """What a reader of history notes of the topics that it begins to read."""
    return msgspec.json.encode(log.watch(topics), order="sorted")


def check_same_topics(log: Log, note: bytes) -> None:
    """Check that topics are still those of a note of ``note_of_topics``, maybe of another process.
    Raises OtherHistoryError: one of them was deleted and created again since.
    """
    check_same(log, _decode_ids(note) if note else {})


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
        return does("input", judge_read(log, name, number, read)) == "take"

    left = entry.provenance.abandoned
    return {name: one.position for name, one in left.items() if is_there(name, one.position)}


def abandoned_here(log: Log, left: Mapping[str, int]) -> dict[str, Abandoned]:
    """Positions where inputs were left, on a log that they are new to."""
    ids = log.watch(left)
    return {name: Abandoned(at, ids.get(name, "")) for name, at in left.items()}


class CutHeaders:
    """What goes with the cuts of a task that continues from the cut ``last``. ``versions``: those that have committed it, this one last.

    From here on, commits are refused if a topic that the task reads or writes is deleted and created again.
    """

    def __init__(self, plan: Plan, log: Log, last: InputRecord | None, versions: Sequence[str]) -> None:
        before, inputs = provenance_of(last), {one.name for one in plan.inputs}
        used = {*plan.outputs, plan.changelog_topic, plan.tape_topic, *inputs}
        self._ids, self._tape = log.watch(used & log.topics().keys()), plan.tape_topic
        self.has_notes = bool(self._ids)
        """Whether the log gives its topics ids, so that they are noted."""
        self.read: Mapping[str, RecordMark] = before.read
        """By input, the mark of the last record that the commits so far have read."""
        left = dict(before.abandoned)
        for name, at in ({} if last is None else tape.decode_cut(last.value or b"").positions).items():
            topic = before.topics.get(name, ReadTopic(""))
            left[name] = Abandoned(max(at, topic.passed), topic.id)
        self._abandoned = {name: one for name, one in left.items() if name not in inputs}
        self._versions = tuple(versions) if self.has_notes else ()

    def of(self, positions: Mapping[str, int], read: Mapping[str, RecordMark], rows: Contents) -> Headers:
        """The headers of a cut. ``positions``: by input, up to where it has no record that is not in the cut."""
        ends = {**positions, self._tape: 0} if self.has_notes else {}
        topics = {name: ReadTopic(self._ids[name], at) for name, at in ends.items() if name in self._ids}
        return Provenance(topics, {**read}, self._abandoned, rows, self._versions).headers


def _noted(last: InputRecord | None, wanted: Collection[str]) -> dict[str, str]:
    """The ids of those wanted topics that a task reads by its last cut, or has left."""
    said = provenance_of(last)
    left = {name: one.topic for name, one in said.abandoned.items()}
    return {
        name: id_
        for name, id_ in {**left, **{name: one.id for name, one in said.topics.items()}}.items()
        if id_ and name in wanted
    }


def _check(app: str, gone: Iterable[str]) -> None:
    for topic in gone:
        raise OtherHistoryError(
            f"the topic was deleted and created again since the app {app!r} has read it. The positions of the app, and its history, are "
            "those of the old one",
            why="topic",
            topic=topic,
            hint=f"Restore the old topic from a copy, if there is one, with the app's own topics; or go back to {KEPT_ELSEWHERE} or a snapshot that "
            "was made before. To begin again with the new topic, run the app under another name, or delete all of its own topics and its "
            "consumer group, too. `tailrace rebuild --order stages` runs it on what is there now.",
        )
