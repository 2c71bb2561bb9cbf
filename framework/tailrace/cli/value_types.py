"""Types of option values: durations, times, and positions in topics."""

from __future__ import annotations

from typing import Any, NamedTuple

import click

from tailrace.core.durations import duration, parsed_instant
from tailrace.core.errors import TailraceError


class DurationType(click.ParamType):
    """A duration such as 500ms, 1h or 7d, of at least ``least_ms``. Its value is in milliseconds."""

    name = "duration"

    def __init__(self, least_ms: int = 0) -> None:
        self._least_ms = least_ms

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the duration into milliseconds."""
        try:
            found = duration(value)
        except TailraceError as error:
            said = error.args[0]
            self.fail(f"{said}. Write for example 500ms, 1s, 30m, 1h30m or 7d.", param, ctx)
        if found < self._least_ms:
            self.fail(f"it must be at least {self._least_ms}ms.", param, ctx)
        return found


class TimeType(click.ParamType):
    """An instant: ``2013-01-01``, ``2013-01-01T05:17:00Z``, ``1357017420000ms``. Its value is in ms."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the instant into milliseconds since 1970."""
        if isinstance(value, int):
            return value
        text = str(value)
        try:
            return parsed_instant(text)
        except (ValueError, TailraceError):
            self.fail(
                f"{text!r} is not a time; write 2013-01-01, 2013-01-01T05:17:00Z or 1357017420000ms.",
                param,
                ctx,
            )


class TopicPosition(NamedTuple):
    """Where to start or stop in a topic: at an offset of each partition, or at a time."""

    offset: int | None = None
    time_ms: int | None = None


class TopicPositionType(TimeType):
    """An offset (``17``), or a time."""

    name = "offset|time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> TopicPosition:
        """Parse the position."""
        if isinstance(value, TopicPosition):
            return value
        text = str(value)
        if text.isascii() and text.isdecimal():
            return TopicPosition(offset=int(text))
        return TopicPosition(time_ms=super().convert(text, param, ctx))
