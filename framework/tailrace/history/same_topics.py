"""Whether the topics of a log are still those that a task has read.

Theory. Positions count from the beginning of a topic. Where topics can be deleted and created again with the same name (Kafka), a
position in the old topic also fits the new one, if that is long enough: the task would continue in the middle of other records, and
miss those before. So each commit notes the ids of the task's inputs and of its tape, in a header of the cut in the changelog. The
cut is never lost before the positions in it are, as offsets of a consumer group would be. A start compares.

    the last cut has                          the start
    no ids                                    is accepted: an older version wrote it, or the log has no ids
    ids of another log                        is accepted: the history was moved here
    the same id of each topic                 is accepted
    another id of an input, or of the tape    is refused

An input that the app reads no more may be declared again later, and continues where it was left. So the ids of such topics are kept with
each further cut, in a note of their own.

The changelog itself cannot tell. A changelog without a commit beside a tape that has some was deleted, or has lost its end: that
is refused, too. The id is no part of the cut: it belongs to the log, and the same history in another log has the same cuts.

A reader of history looks at the last cuts of all tasks, and does not begin if a topic was replaced. One that was
left counts if the app declares it again: a replay would read it. Topics may also be replaced while it
reads. So it compares again at its end, before its result counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tailrace.core.declare.plan import InputPlan, Plan
from tailrace.core.errors import CorruptStateError, TopicReplacedError
from tailrace.core.records import Headers, InputRecord
from tailrace.history.changelog import last_cut
from tailrace.history.cut_notes import LEFT_TOPICS, note_header, note_in, note_of
from tailrace.history.stretches import first
from tailrace.log.interface import KnowsTopicIds, Log, TopicIds, TopicPartition

_NOTE = "topics"


def noted_topics(plan: Plan, log: Log) -> Headers:
    """The headers of the cuts of a task: which topics its positions are of. Empty, if the log has no ids.

    Asks the log once; its writers refuse to commit from then on if one of the app's topics has another id.
    """
    if not isinstance(log, KnowsTopicIds):
        return ()
    known = log.topics()
    log.topic_ids(name for name in (plan.changelog_topic, *plan.outputs) if name in known)
    read = (*(one.name for one in plan.inputs), plan.tape_topic)
    return note_header(_NOTE, log.topic_ids(name for name in read if name in known))


def check_topics(plan: Plan, partition: int, last: InputRecord | None, noted: Headers) -> None:
    """Compare the topics of the last cut of a task with those that are there now.

    Raises:
        TopicReplacedError: One of them was deleted and created again since.
    """
    before, now = _all_noted(last), note_in(noted, _NOTE, TopicIds)
    if before is None or now is None or before.log != now.log:
        return
    for topic in _changed(before, now):
        raise TopicReplacedError(
            f"the topic was deleted and created again since the app {plan.app!r} last committed. "
            + (
                "Its history cannot be replayed from the new one"
                if topic == plan.tape_topic
                else "The positions of the app are those of the old one"
            ),
            topic=topic,
            partition=partition,
            hint="Restore the old topic from a copy, if there is one, with its app's topics. To begin again with the new topic, "
            "run the app under another name, or delete all of the app's own topics and its consumer group, too.",
        )


def left_topics_header(last: InputRecord | None, noted: Headers, left: Iterable[str]) -> Headers:
    """The header of the cuts of a task that has left these inputs. ``last`` and ``noted`` are those of ``check_topics``."""
    before, now = _all_noted(last), note_in(noted, _NOTE, TopicIds)
    if before is None or now is None or before.log != now.log:
        return ()
    kept = {name: before.of[name] for name in left if name in before.of}
    return note_header(LEFT_TOPICS, TopicIds(now.log, kept)) if kept else ()


def current_topics_header(log: KnowsTopicIds, left: Iterable[str]) -> Headers:
    """The same for topics of a log on which no cut has noted their ids yet."""
    return note_header(LEFT_TOPICS, log.topic_ids(left, watched=False))


def _all_noted(last: InputRecord | None) -> TopicIds | None:
    """The topics of the last cut of a task, with those that it has left before."""
    found, left = note_of(last, _NOTE, TopicIds), note_of(last, LEFT_TOPICS, TopicIds)
    if found is None or left is None or found.log != left.log:
        return found
    return TopicIds(found.log, {**left.of, **found.of})


def check_history(app: str, log: Log, inputs: Iterable[InputPlan] = ()) -> None:
    """Compare the topics that all tasks of an app have read with those that are there now, for a reader of history. ``inputs``: those
    that the app declares, of which tasks may have left some before.

    Raises:
        TopicReplacedError: One of them was deleted and created again since.
    """
    for topic, partition in replaced_topics(app, log, (one.name for one in inputs)):
        raise TopicReplacedError(
            f"the topic was deleted and created again since the app {app!r} has read it. "
            + (
                "The tape of its history is gone, and the new one is of other commits"
                if topic == f"{app}.tape"
                else "Its history has read other records than those that are at the same offsets now"
            ),
            topic=topic,
            partition=partition,
            hint="Restore the old topic from a copy, or go back to an archive or a snapshot that was made before. `tailrace rebuild --order "
            "canonical` runs the app on what is there now, as if it had never run.",
        )


def ids_of(topics: Iterable[str], log: Log) -> TopicIds | None:
    """The ids of topics; None if the log has no ids."""
    return log.topic_ids(topics) if isinstance(log, KnowsTopicIds) else None


def check_ids(noted: TopicIds | None, log: Log) -> None:
    """Compare the ids of topics with those that ``ids_of`` gave in another process.

    Raises:
        TopicReplacedError: One of them was deleted and created again since.
    """
    now = None if noted is None else ids_of(noted.of, log)
    if noted is None or now is None:
        return
    for topic in _changed(noted, now):
        raise TopicReplacedError(
            "the topic was deleted and created again since its history began to be read",
            topic=topic,
            hint="Nothing was published. Restore the old topic from a copy; or begin again with what is there now (--restart).",
        )


def check_unchanged(log: Log) -> None:
    """Check that the topics whose ids were asked for are still the same, at the end of a reading.

    Raises:
        TopicReplacedError: One of them was deleted and created again meanwhile.
    """
    if isinstance(log, KnowsTopicIds):
        log.check_topic_ids()


def replaced_topics(app: str, log: Log, inputs: Iterable[str] = ()) -> Iterator[tuple[str, int]]:
    """The topics that were deleted and created again since tasks of an app have read them, each with the partition of a task. Topics that
    tasks have left count if they are among the ``inputs``.
    """
    changelog, known, declared = f"{app}.changelog", log.topics(), set(inputs)
    if not isinstance(log, KnowsTopicIds) or changelog not in known:
        return
    found: set[str] = set()
    for number in range(log.partitions(changelog)):
        last = last_cut(log, TopicPartition(changelog, number))
        before, reading = _all_noted(last), note_of(last, _NOTE, TopicIds)
        relevant = declared if reading is None else declared | reading.of.keys()
        names = [] if before is None else [name for name in before.of if name in known and name in relevant]
        now = log.topic_ids(names) if names else None
        if before is None or now is None or before.log != now.log:
            continue
        for topic in _changed(before, now):
            if topic not in found:
                found.add(topic)
                yield topic, number


def check_changelog(plan: Plan, log: Log, partition: int) -> None:
    """Check that a task without a commit in its changelog has none on its tape either.

    Raises:
        CorruptStateError: It has.
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


def _changed(before: TopicIds, now: TopicIds) -> Iterator[str]:
    """The topics that have another id than before. One that is not there now has none."""
    return (topic for topic, id_ in before.of.items() if now.of.get(topic, id_) != id_)
