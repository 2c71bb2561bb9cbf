"""Options that limit a command: to offsets, to an event time, to a clock reading of the service."""

from __future__ import annotations

import re
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

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> EndOffset:
        """Parse the topic, the partition and the offset."""
        if isinstance(value, EndOffset):
            return value
        found = self._form.fullmatch(str(value))
        if found is None:
            self.fail(
                f"{value!r} is not an offset of a topic; write departures:0=1234 for one partition, "
                "departures=1234 for all.",
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


class GivenLimits(NamedTuple):
    """The limits from the command line, before the app is known."""

    offsets: tuple[EndOffset, ...]
    until_ms: int | None
    clock_ms: int | None

    def of(self, plan: Plan) -> Limits:
        """The limits for an app. An offset for one partition overrides an offset for all.

        Raises:
            click.BadParameter: An offset is of a topic or partition that the app does not read.
        """
        inputs = [one.name for one in plan.inputs]
        ends: dict[str, dict[int, int]] = {}
        for topic, partition, offset in sorted(self.offsets, key=lambda one: one.partition is not None):
            if topic not in inputs:
                said = f"{plan.app!r} does not read {topic!r}, but {', '.join(inputs)}"
                meant = did_you_mean(topic, inputs)
                raise click.BadParameter(f"{said}. {meant}".rstrip(), param_hint="--until-offset")
            if partition is not None and partition >= plan.partitions:
                raise click.BadParameter(
                    f"{topic!r} has no partition {partition}, but 0 to {plan.partitions - 1}",
                    param_hint="--until-offset",
                )
            numbers = range(plan.partitions) if partition is None else [partition]
            ends.setdefault(topic, {}).update(dict.fromkeys(numbers, offset))
        return Limits(ends, self.until_ms, self.clock_ms)


limit_options = packed(
    "limits",
    GivenLimits,
    click.option(
        "--until-offset",
        "offsets",
        type=EndOffsetType(),
        metavar="TOPIC[:PARTITION]=OFFSET",
        multiple=True,
        help="Stop an input before this offset, in one partition or in all; may be repeated.",
    ),
    click.option(
        "--until",
        "until_ms",
        type=TimeType(),
        metavar="TIME",
        help="Stop a task as soon as its watermark reaches this event time.",
    ),
    click.option(
        "--until-clock",
        "clock_ms",
        type=TimeType(),
        metavar="TIME",
        help="Stop a task before the service's clock passed this time.",
    ),
)
