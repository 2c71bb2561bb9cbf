"""The offsets at which a part of history ends: one check for replay, rebuild and explore.

An offset belongs to the topic that is read. If an input is read from another topic (``--read``), it is an offset of that topic.

    the app does not read the topic, or it has no such partition      refused
    the log has deleted the offset                                    refused
    no partition that it is given for has so many records             refused: less would be run than was asked for
    only some of these partitions have so many (``TOPIC=OFFSET``)     the others end where they end
    the log has it, but the service's last commit is before it        noted: along the tape the task ends at this commit
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.replay import Limits
from tailrace.core.errors import UsageError
from tailrace.core.suggestions import did_you_mean
from tailrace.log.interface import Log


def check_end_offsets(plan: Plan, log: Log, offsets: Mapping[str, Mapping[int, int]]) -> None:
    """Check end offsets, given by topic and partition.

    Raises:
        UsageError: The app does not read such a topic, or the log does not have such a partition or offset.
    """
    inputs = [one.name for one in plan.inputs]
    known = log.topics()
    for topic, given in offsets.items():
        if topic not in inputs:
            raise UsageError(
                f"the app {plan.app!r} does not read {topic!r}",
                hint=read_instead(plan, topic)
                or did_you_mean(topic, inputs, f"It reads {', '.join(inputs)}."),
            )
        for number in given:
            if number >= plan.partitions:
                raise UsageError(
                    f"{topic!r} has no partition {number}", hint=f"It has 0 to {plan.partitions - 1}."
                )
        if topic in known and known[topic].partitions == plan.partitions:
            ends = {number: log.end_offset(topic, number) for number in given}
            for number, offset in given.items():
                start = log.start_offset(topic, number)
                reached = any(ends[one] >= offset for one, other in given.items() if other == offset)
                if offset < start or not reached:
                    raise UsageError(
                        f"offset {offset} of {topic!r} partition {number} is outside the log, "
                        f"which holds {start} to {ends[number]}",
                        hint="Name an offset that is there, or the end.",
                    )


def read_instead(plan: Plan, topic: str) -> str:
    """The hint for a declared topic in whose place the app reads another one; empty if there is none."""
    others = [one.name for one in plan.inputs if one.declared == topic != one.name]
    return f"It reads {others[0]!r} in its place: name an offset of {others[0]!r}." if others else ""


def behind_last_commit(limits: Limits, number: int, cut: tape.Cut) -> Iterator[str]:
    """The note for a partition in which no offset limit is reached, because the service's last commit is before all of them."""
    ends = {name: of[number] for name, of in limits.offsets.items() if number in of}
    if not ends or any(offset <= cut.positions.get(name, 0) for name, offset in ends.items()):
        return
    if limits.watermark_ms is None and limits.clock_ms is None:
        named = ", ".join(
            f"{name} ends at {cut.positions.get(name, 0)} instead of {offset}"
            for name, offset in sorted(ends.items())
        )
        yield f"the last commit of partition {number} is before the offset limit: {named}"
