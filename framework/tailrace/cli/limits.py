"""Options that limit a command: to offsets, to an event time, to a clock reading of the service."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import click

from tailrace.cli.arguments import TopicPosition, TopicPositionType, packed
from tailrace.core.declare.plan import Plan
from tailrace.core.engine.replay import Limits
from tailrace.core.suggestions import did_you_mean


class EndOffset(NamedTuple):
    """The first offset that is not read, in one partition of a topic or in all."""

    topic: str
    partition: int | None
    offset: int


class EndOffsetType(click.ParamType):
    """Where an input ends: ``departures:0=1234`` in one partition, ``departures=1234`` in all."""

    name = "topic[:partition]=offset"
    _form = re.compile(r"([^:=]+)(?::(\d+))?=(\d+)", re.ASCII)
    _old_form = re.compile(r"([^:=]+):(\d+):(\d+)", re.ASCII)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> EndOffset:
        """Parse the topic, the partition and the offset."""
        if isinstance(value, EndOffset):
            return value
        found = self._form.fullmatch(str(value)) or self._old_form.fullmatch(str(value))
        if found is None:
            self.fail(
                f"{value!r} is not an offset of a topic; write departures:0=1234 for one partition, departures=1234 for all.",
                param,
                ctx,
            )
        topic, partition, offset = found.groups()
        return EndOffset(topic, None if partition is None else int(partition), int(offset))


class TimeType(TopicPositionType):
    """An instant: ``2013-01-01``, ``2013-01-01T05:17:00Z``, ``1357017420000ms``."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the instant into milliseconds since the epoch."""
        if isinstance(value, int):
            return value
        try:
            place = super().convert(value, param, ctx)
        except click.BadParameter:
            place = TopicPosition()
        if place.time_ms is None:
            self.fail(
                f"{value!r} is not a time; write 2013-01-01, 2013-01-01T05:17:00Z or 1357017420000ms.",
                param,
                ctx,
            )
        return place.time_ms


until_offset_option = click.option(
    "--until-offset",
    "offsets",
    type=EndOffsetType(),
    metavar="TOPIC[:PARTITION]=OFFSET",
    multiple=True,
    help="Stop an input before this offset, in one partition or in all; may be repeated for other inputs and partitions.",
)
_until_option = click.option(
    "--until",
    "until_ms",
    type=TimeType(),
    metavar="TIME",
    help="Stop a task as soon as its watermark reaches this event time.",
)
_until_clock_option = click.option(
    "--until-clock",
    "clock_ms",
    type=TimeType(),
    metavar="TIME",
    help="Stop a task before the service's clock passed this time.",
)


class GivenLimits(NamedTuple):
    """The limits from the command line, before the app is known."""

    offsets: tuple[EndOffset, ...]
    until_ms: int | None
    clock_ms: int | None

    def of(self, plan: Plan) -> Limits:
        """The limits for an app.

        Raises:
            click.BadParameter: An offset is of a topic or partition that the app does not read.
        """
        inputs = [one.name for one in plan.inputs]
        ends = end_offsets(plan, inputs, self.offsets, lambda _: plan.partitions)
        return Limits(ends, self.until_ms, self.clock_ms)


limit_options = packed("limits", GivenLimits, until_offset_option, _until_option, _until_clock_option)


def end_offsets(
    plan: Plan, inputs: Collection[str], offsets: Iterable[EndOffset], partitions_of: Callable[[str], int]
) -> dict[str, dict[int, int]]:
    """The offsets by input and partition. An offset for one partition overrides an offset for all.

    Raises:
        click.BadParameter: The app does not read such a topic, or it has no such partition; or two offsets are given for it.
    """
    ends: dict[str, dict[int, int]] = {}
    given: dict[tuple[str, int | None], int] = {}
    for topic, partition, offset in sorted(offsets, key=lambda one: one.partition is not None):
        if topic not in inputs:
            hint = did_you_mean(topic, inputs)
            raise click.BadParameter(
                f"{plan.app!r} does not read {topic!r}, but {', '.join(inputs)}. {hint}".rstrip(),
                param_hint="--until-offset",
            )
        if given.setdefault((topic, partition), offset) != offset:
            where = "" if partition is None else f" partition {partition}"
            raise click.BadParameter(
                f"{topic!r}{where} is given twice, with the offsets {given[topic, partition]} and {offset}",
                param_hint="--until-offset",
            )
        count = partitions_of(topic)
        if partition is not None and partition >= count:
            raise click.BadParameter(
                f"{topic!r} has no partition {partition}, but 0 to {count - 1}", param_hint="--until-offset"
            )
        for number in range(count) if partition is None else (partition,):
            ends.setdefault(topic, {})[number] = offset
    return ends
