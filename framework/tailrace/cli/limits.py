"""Options that limit a command: to offsets, to an event time."""

from __future__ import annotations

from typing import NamedTuple

import click

from tailrace.cli.arguments import packed
from tailrace.cli.value_types import EndOffset, EndOffsetType, TimeType
from tailrace.core.declare.plan import Plan
from tailrace.core.engine.replay import Limits
from tailrace.core.suggestions import did_you_mean


class GivenLimits(NamedTuple):
    """The limits from the command line, before the app is known."""

    offsets: tuple[EndOffset, ...]
    until_ms: int | None

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
        return Limits(ends, self.until_ms)


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
)
