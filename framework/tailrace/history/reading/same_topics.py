"""Whether the topics of a log are still those that an app has read.

Theory. With each cut goes the log's note of its positions and of the tape (``Log.note``). A start of a task, and a
reader of its history, ask the log to resume from it: the log refuses if a topic was deleted and created again since,
as positions mean other records there. The note of an input that was left is kept with its position.

A changelog without a commit beside a tape that has some was deleted, or has lost its end: that is refused, too.
Topics may also be replaced while history is read. So a reader notes them when it begins, and checks them at its end.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

from tailrace.core.declare.plan import InputPlan, Plan
from tailrace.core.engine import tape
from tailrace.core.errors import CorruptStateError, OtherHistoryError
from tailrace.core.names import tape_of
from tailrace.core.records import Headers, InputRecord
from tailrace.history.reading.changelog import last_cut
from tailrace.history.reading.cut_notes import NOTE, cut_header, header_of
from tailrace.history.reading.generations import changelog_in
from tailrace.history.reading.left_inputs import abandoned_with
from tailrace.history.reading.stretches import first
from tailrace.log.interface import Log, TopicPartition

_Noted: TypeAlias = tuple[bytes, dict[TopicPartition, int]]
"""A note of the log, and the positions that it was made of."""


def noted_header(plan: Plan, log: Log, partition: int, positions: Mapping[str, int]) -> Headers:
    """The header of a cut with the log's note. ``positions``: by input, up to where the cut has all records."""
    places = {TopicPartition(name, partition): position for name, position in positions.items()}
    return cut_header(NOTE, log.note({**places, TopicPartition(plan.tape_topic, partition): 0}))


def resumed(plan: Plan, log: Log, partition: int, last: InputRecord | None) -> dict[str, int]:
    """By declared input that a task has ever read: where to continue. ``last`` is the record of its last cut.
    Raises OtherHistoryError: one of them, or the tape, was deleted and created again since.
    """
    known = log.topics()
    declared = {one.name for one in plan.inputs if one.name in known}
    found: dict[str, int] = {}
    with _named(plan.app):
        for note, positions in _noted(plan.app, partition, last, {*declared, plan.tape_topic}, declared):
            found |= {place.topic: position for place, position in log.resume(note, positions).items()}
    found.pop(plan.tape_topic, None)
    return found


def check_history(app: str, log: Log, inputs: Iterable[InputPlan] = ()) -> None:
    """Check the topics that tasks of an app have read, and those of its ``inputs`` that they have left.
    Raises OtherHistoryError: one of them was deleted and created again since.
    """
    with _named(app):
        for note, positions in _history(app, log, {one.name for one in inputs}):
            log.resume(note, positions)


def replaced_topics(app: str, log: Log, inputs: Iterable[str] = ()) -> list[str]:
    """The topics that were deleted and created again since tasks of an app have read them.
    Topics that tasks have left count if they are among the ``inputs``.
    """
    found: dict[str, None] = {}
    for note, positions in _history(app, log, set(inputs)):
        if _is_replaced(log, note, positions):
            each = ({place: position} for place, position in positions.items())
            found |= {place.topic: None for one in each if _is_replaced(log, note, one) for place in one}
    return list(found)


def _is_replaced(log: Log, note: bytes, positions: Mapping[TopicPartition, int]) -> bool:
    try:
        log.resume(note, positions)
    except OtherHistoryError:
        return True
    return False


def still_there(app: str, log: Log, names: Iterable[str]) -> set[str]:
    """Those topics that the log has, and that are the same as when the tasks of the app have read them."""
    wanted = set(names) & set(log.topics())
    return wanted.difference(replaced_topics(app, log, wanted)) if wanted else wanted


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


def check_changelog(plan: Plan, log: Log, partition: int) -> None:
    """Check that a task without a commit in its changelog has none on its tape either.
    Raises CorruptStateError: it has.
    """
    topic = plan.tape_topic
    if log.start_offset(topic, partition) == log.end_offset(topic, partition):
        return
    if first(log, topic, partition) is not None:
        raise CorruptStateError(
            f"the changelog {plan.changelog_topic!r} has no commit of partition {partition}, and the tape {topic!r} has: the "
            "changelog was deleted, or has lost its records",
            hint="The state cannot be restored. Put the changelog back from a copy; or rebuild the state from the inputs (`tailrace "
            "rebuild`), and start from the result under another name (--from-snapshot, --as).",
        )


def _history(app: str, log: Log, inputs: Collection[str]) -> Iterator[_Noted]:
    """The notes of all tasks of an app."""
    changelog, known = changelog_in(log, app), log.topics()
    for number in range(log.partitions(changelog)) if changelog in known else ():
        last = last_cut(log, TopicPartition(changelog, number))
        yield from _noted(app, number, last, known, [name for name in inputs if name in known])


def _noted(
    app: str, partition: int, last: InputRecord | None, topics: Collection[str], inputs: Collection[str]
) -> Iterator[_Noted]:
    """The notes with a task's last cut: of ``topics`` that it reads, and of ``inputs`` that it has left."""
    note = header_of(last, NOTE, bytes)
    if last is None or note is None:
        return
    positions = {**tape.decode_cut(last.value or b"").positions, tape_of(app): 0}
    yield note, {TopicPartition(name, partition): at for name, at in positions.items() if name in topics}
    for name, one in abandoned_with(last).items():
        if name in inputs and name not in positions:
            yield one.note, {TopicPartition(name, partition): one.position}


def _beginnings(topics: Iterable[str]) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, 0): 0 for topic in topics}


@contextmanager
def _named(app: str) -> Generator[None]:
    """Name the app whose history is refused."""
    try:
        yield
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
