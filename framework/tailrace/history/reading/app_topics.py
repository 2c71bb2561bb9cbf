"""The topics of a plan. Internal topics are created; those that the app reads and writes must match the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tailrace.core.declare.plan import Plan
from tailrace.core.errors import TopicMismatchError
from tailrace.core.names import FORWARDED, apps_in, is_changelog_of, own_topics_of
from tailrace.core.records import CHANNEL
from tailrace.history.reading.stretches import first
from tailrace.log.admin import NeededTopic, Role
from tailrace.log.interface import Log, TopicPartition, TopicSettings


def internal_topics(plan: Plan) -> dict[str, TopicSettings]:
    """The app's internal topics, by name: changelog, tape, dead letters, inbox."""
    return {
        plan.changelog_topic: TopicSettings(plan.partitions, compacted=True),
        plan.tape_topic: TopicSettings(plan.partitions),
        plan.dead_letters_topic: TopicSettings(plan.partitions),
        plan.inbox_topic: TopicSettings(plan.partitions),
    }


def needed_topics(plan: Plan) -> list[NeededTopic]:
    """All topics that an app needs on any log: its internal ones, then those that it declares."""
    own = internal_topics(plan)
    roles: tuple[Role, ...] = ("changelog", "tape", "dead-letters", "inbox")
    found = [NeededTopic(name, role, one) for role, (name, one) in zip(roles, own.items(), strict=True)]
    repartition = plan.forwarded
    inputs = {one.name for one in plan.inputs} - own.keys()
    tables = {one.name for one in plan.topics.values() if one.is_table}
    keyless = {one.name for one in plan.topics.values() if one.key_of is None}
    for name in dict.fromkeys((*(one.name for one in plan.inputs), *plan.outputs)):
        if name in repartition:
            found.append(NeededTopic(name, "repartition", TopicSettings(plan.partitions)))
        elif name in inputs:
            role: Role = "in-app" if name in plan.written else "input"
            settings = TopicSettings(plan.partitions, name in tables)
            found.append(NeededTopic(name, role, settings, is_keyless=name in keyless))
        elif name not in own:
            declared = plan.topics[name].partitions if name in plan.topics else None
            settings = TopicSettings(declared or plan.partitions, name in tables)
            found.append(NeededTopic(name, "output", settings, is_keyless=name in keyless))
    return found


def followed_topics(plan: Plan) -> list[str]:
    """The topics whose watermarks an app publishes or reads. Some logs keep these in topics beside them."""
    published = [one.name.partition(CHANNEL)[0] for one in plan.published]
    read = [one.name for one in plan.inputs if one.watermark == "upstream"]
    return sorted({*published, *read})


def topics_left_by(
    app: str, topics: Iterable[str], beside: Callable[[str], Iterable[str]] = lambda _topic: ()
) -> list[str]:
    """The internal topics of an app among all topics of a log, by name: its code may not exist any more.
    ``beside`` returns the topics that go with one (``Admin.watermark_topics``).
    """
    known = set(topics)
    # The name of another app may begin with the name of this one. Then its topics do, too.
    others = tuple(f"{one}." for one in apps_in(known) if one.startswith(f"{app}."))
    own = own_topics_of(app)
    own |= {
        one
        for one in known
        if is_changelog_of(app, one)
        or (one.startswith(f"{app}.") and one.endswith(FORWARDED) and not one.startswith(others))
    }
    own |= {name for one in own for name in beside(one)}
    return sorted(own & known)


def topics_of(plan: Plan, log: Log) -> list[str]:
    """The topics of the log that an app reads and writes, and its internal topics."""
    known = log.topics()
    names = (*(one.name for one in plan.inputs), *plan.outputs, *internal_topics(plan))
    return [name for name in dict.fromkeys(names) if name in known]


def oldest_ms(log: Log, place: TopicPartition) -> int | None:
    """The timestamp of the oldest record that is left; None if none is."""
    found = first(log, *place)
    return None if found is None else found.timestamp_ms


def prepare_topics(log: Log, plan: Plan, *, create_declared: bool = False) -> None:
    """Create the app's internal topics, and check the declared ones. ``create_declared`` creates those too.
    Raises UnknownTopicError or TopicMismatchError.
    """
    own = internal_topics(plan)
    for name, settings in own.items():
        log.create_topic(name, settings)
    known = log.topics()
    for name, role, settings, *_ in needed_topics(plan):
        if name in own:
            continue
        if create_declared and name not in known:
            log.create_topic(name, settings)
        found = log.partitions(name)
        if role != "output" and found != plan.partitions:
            raise TopicMismatchError(
                f"the input has {found} partitions, the app {plan.app!r} has {plan.partitions}",
                topic=name,
                hint=f"Task p reads partition p of every input: give the app partitions={found}, or copy the topic into one "
                f"with {plan.partitions} partitions (docs/kafka.md, 'Another number of partitions').",
            )
    log.admin.follow(followed_topics(plan))
