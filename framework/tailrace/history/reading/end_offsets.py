"""The limits at which a part of history ends: the checks for replay, rebuild and explore.

    the app does not read the topic, or it has no such partition      refused
    the log has deleted the offset                                    refused
    no partition that it is given for has so many records             refused: less would be run than was asked for
    only some of these partitions have so many (``TOPIC=OFFSET``)     the others end where they end
    the log has it, but the service's last commit is before it        noted: along the tape the task ends there
    the same, and the task has read records of a hidden topic that    refused along the tape: nothing else would keep
    other tasks had forwarded from behind the limit                   these records out

A task that begins with a snapshot cannot end before it. So a limit of any kind that the task has passed there is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.delivery import own_inputs
from tailrace.core.engine.describe_rows import instant
from tailrace.core.engine.replay import Limits
from tailrace.core.engine.watermarks import Watermarks
from tailrace.core.errors import OptionError
from tailrace.core.suggestions import did_you_mean
from tailrace.log.interface import Log
from tailrace.state.snapshots import Snapshot


def check_end_offsets(plan: Plan, log: Log, offsets: Mapping[str, Mapping[int, int]]) -> None:
    """Check end offsets, given by topic and partition. Raises OptionError."""
    inputs = [one.name for one in plan.inputs]
    known = log.topics()
    for topic, given in offsets.items():
        if topic not in inputs:
            raise OptionError(
                f"the app {plan.app!r} does not read {topic!r}",
                hint=did_you_mean(topic, inputs, f"It reads {', '.join(inputs)}."),
            )
        for number in given:
            if number >= plan.partitions:
                raise OptionError(
                    f"{topic!r} has no partition {number}", hint=f"It has 0 to {plan.partitions - 1}."
                )
        if topic in known and known[topic].partitions == plan.partitions:
            ends = {number: log.end_offset(topic, number) for number in given}
            for number, offset in given.items():
                start = log.start_offset(topic, number)
                reached = any(ends[one] >= offset for one, other in given.items() if other == offset)
                if offset < start or not reached:
                    raise OptionError(
                        f"offset {offset} of {topic!r} partition {number} is outside the log, "
                        f"which holds {start} to {ends[number]}",
                        hint="Name an offset that is there, or the end.",
                    )


def check_after_beginning(
    plan: Plan,
    limits: Limits,
    number: int,
    snapshot: Snapshot | None,
    cut: tape.Cut | None,
    *,
    asked: bool = False,
) -> None:
    """Refuse limits that a task has passed in the snapshot that it begins with, at ``cut``.
    ``asked``: the snapshot was requested. Otherwise the tape begins with it. Raises OptionError.
    """
    if snapshot is None or cut is None:
        return
    marks = Watermarks(plan)
    marks.resume(cut)
    limit = limits.of(number)
    passed = [
        f"{name} at {cut.positions[name]}, after the limit {offset}"
        for name, offset in sorted(limit.offsets.items())
        if offset < cut.positions.get(name, 0)
    ]
    if limit.watermark_ms is not None and limit.watermark_ms <= marks.of_first_level:
        passed.append(
            f"the watermark at {instant(marks.of_first_level)}, at or after the limit {instant(limit.watermark_ms)}"
        )
    if passed:
        raise OptionError(
            f"partition {number} begins with the snapshot {snapshot.manifest.id}, which stands after the limit: {'; '.join(passed)}",
            hint="Name a limit after the snapshot, or begin with an earlier snapshot."
            if asked
            else "Name a limit after the snapshot. The tape has no history before it; a rebuild in canonical order "
            "(--order canonical) has.",
        )


def check_forwarded(plan: Plan, limits: Limits, cuts: Mapping[int, tape.Cut]) -> None:
    """Refuse offset limits along the tape that would mix two points of history in a task, by a topic with ``repartition=True``.

    A task that reaches no limit runs to its last commit, with all that other tasks have forwarded to it, also from behind
    the limit. ``cuts`` are the last cuts of all tasks. Raises OptionError.
    """
    if limits.watermark_ms is not None:
        return
    inputs = {one.name: one for one in plan.inputs}
    for name, ends in sorted(limits.offsets.items()):
        if not inputs[name].repartitioned:
            continue
        hidden = inputs[name].routes[0].name
        if not any(cuts[one].positions.get(name, 0) > offset for one, offset in ends.items() if one in cuts):
            continue
        for number, cut in sorted(cuts.items()):
            of = limits.of(number).offsets
            if name in of and hidden not in of and not _is_reached(of, cut):
                raise OptionError(
                    f"partition {number} does not reach offset {of[name]} of {name!r}, so nothing limits it: it would run to its "
                    f"last commit, with records that other partitions forwarded from behind the limit (in {hidden!r})",
                    hint=f"Limit the hidden topic too (--until-offset {hidden}=OFFSET), or rebuild in canonical order "
                    "(--order canonical), which forwards only what is before the limit.",
                )


def behind_last_commit(plan: Plan, limits: Limits, number: int, cut: tape.Cut) -> Iterator[str]:
    """The note for a partition in which no offset limit is reached, because the service's last commit is before all of them."""
    ends = limits.of(number).offsets
    if not ends or _is_reached(ends, cut):
        return
    if limits.watermark_ms is None:
        named = ", ".join(
            f"{name} ends at {cut.positions.get(name, 0)} instead of {offset}"
            for name, offset in sorted(ends.items())
        )
        sent = (
            "; it runs to this commit, with all that other partitions had sent to it"
            if own_inputs(plan)
            else ""
        )
        yield f"the last commit of partition {number} is before the offset limit: {named}{sent}"


def _is_reached(offsets: Mapping[str, int], cut: tape.Cut) -> bool:
    return any(offset <= cut.positions.get(name, 0) for name, offset in offsets.items())
