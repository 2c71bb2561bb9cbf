"""The topics of a plan. The internal topics are created; the topics that the app reads and writes must match the plan."""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.core.declare.plan import Plan
from tailrace.core.errors import TopicMismatchError
from tailrace.log.interface import Log, TopicSettings

_TAPE = ".tape"


def internal_topics(plan: Plan) -> dict[str, TopicSettings]:
    """The app's internal topics, by name: changelog, tape, dead letters, inbox."""
    topics = {
        plan.changelog_topic: TopicSettings(plan.partitions, compacted=True),
        plan.tape_topic: TopicSettings(plan.partitions),
        plan.dead_letters_topic: TopicSettings(plan.partitions),
    }
    if plan.inbox_topic is not None:
        topics[plan.inbox_topic] = TopicSettings(plan.partitions)
    return topics


def apps_in(topics: Iterable[str]) -> list[str]:
    """The names of the apps that have run on a log with these topics."""
    return [name.removesuffix(_TAPE) for name in topics if name.endswith(_TAPE)]


def topics_of(plan: Plan, log: Log) -> list[str]:
    """The topics of the log that an app reads and writes, and its internal topics."""
    known = log.topics()
    names = (*(one.name for one in plan.inputs), *plan.outputs, *internal_topics(plan))
    return [name for name in dict.fromkeys(names) if name in known]


def prepare_topics(log: Log, plan: Plan, *, create_declared: bool = False) -> None:
    """Create the app's internal topics, and check the declared ones. ``create_declared`` creates those too.

    Raises:
        UnknownTopicError: A declared topic does not exist.
        TopicMismatchError: An input has another number of partitions than the app, or an internal topic has other settings.
    """
    own = internal_topics(plan)
    for name, settings in own.items():
        log.create_topic(name, settings)
    known = log.topics()
    inputs = [one.name for one in plan.inputs if one.name not in own]
    for name in (*inputs, *(name for name in plan.outputs if name not in own)):
        if create_declared and name not in known:
            declared = plan.topics[name].partitions if name in plan.topics and name not in inputs else None
            log.create_topic(name, TopicSettings(declared or plan.partitions))
        found = log.partitions(name)
        if name in inputs and found != plan.partitions:
            raise TopicMismatchError(
                f"the input has {found} partitions, the app {plan.app!r} has {plan.partitions}",
                topic=name,
                hint="Task p reads partition p of every input: give the app the input's number, or declare the topic "
                "with repartition=True.",
            )
