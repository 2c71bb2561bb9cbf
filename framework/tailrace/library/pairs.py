"""What the joins share: their results, which inputs they take, what becomes of late events, and the order at one instant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from tailrace.core.declare.app import App
from tailrace.core.declare.topic import Edge, Topic
from tailrace.core.durations import declared_duration
from tailrace.core.errors import DefinitionError
from tailrace.library.operators import key_type_of, unchanging
from tailrace.library.sides import Side
from tailrace.library.windowed import operators, refuse_revised, refuse_taken_late, type_of

L = TypeVar("L")
R = TypeVar("R")

How: TypeAlias = Literal["inner", "left", "right", "full"]
Duration: TypeAlias = str | int | timedelta
Within: TypeAlias = Duration | tuple[Duration, Duration]
Late: TypeAlias = Topic[Any, Any] | Sequence[Topic[Any, Any] | None] | None
"""One topic for the late events of all inputs, or one for each input (None: they are counted only)."""
TakeLate: TypeAlias = Callable[[Any, Any], None]
"""Called with a late event and the context."""


class Pair(msgspec.Struct, Generic[L, R], frozen=True, gc=False):
    """The result of a join: an event of the left input and one of the right input, or None where there is none.

    Its key is ``ctx.key``, its event time ``ctx.event_time``.
    """

    left: L
    right: R


class Inputs:
    """The inputs of a join, checked. Raises DefinitionError if they cannot be joined."""

    def __init__(self, app: App, where: str, edges: Sequence[Edge[Any, Any]], late: Late) -> None:
        key_type_of(where, *edges)
        self.where, self.edges, self._topics = (
            where,
            edges,
            {topic: place for place, topic in enumerate(app.topics)},
        )
        self.named = "of " + ", ".join(edge.name for edge in edges)
        """Their names, in their order: state of the left input is not read for the right one."""
        self.types = [self._type_of(app, edge) for edge in edges]
        """The types of their events."""
        topics = [late] * len(edges) if late is None or isinstance(late, Topic) else list(late)
        if len(topics) != len(edges):
            raise DefinitionError(
                f"the operator {where!r} has {len(edges)} inputs and late= {len(topics)} topics",
                hint="Give one topic for all, or one for each input, in their order.",
            )
        self.late = [self._late(edge, topic) for edge, topic in zip(edges, topics, strict=True)]
        """By input, what takes its late events."""
        self.late_topics = tuple(dict.fromkeys(one for one in topics if one is not None))

    def _type_of(self, app: App, edge: Edge[Any, Any]) -> Any:
        if self.edges.count(edge) > 1:
            raise DefinitionError(
                f"the operator {self.where!r} takes {edge.name!r} twice",
                hint="Let an @app.process function emit its events to a stream, and join with that.",
            )
        if isinstance(edge, Topic):
            settings = edge.settings
            what = (
                "is a table"
                if edge.is_table
                else "is broadcast"
                if settings.broadcast
                else "has watermark=False"
            )
            if edge.is_table or settings.broadcast or settings.watermark == "none":
                raise DefinitionError(
                    f"the operator {self.where!r} takes {edge.name!r}, which {what}: its events have no place in the order of "
                    "event time",
                    hint="Take a topic that keeps every event, with a short idle_after= if events are rare. app.lookup looks up "
                    "in a broadcast topic.",
                )
        refuse_revised(f"the operator {self.where!r}", app, edge)
        if isinstance(edge, Topic) or edge.name not in operators(app):
            unchanging(f"the input {edge.name!r} of the operator {self.where!r}", edge.type)
        return type_of(app, edge)

    def _late(self, edge: Edge[Any, Any], topic: Topic[Any, Any] | None) -> TakeLate:
        if topic is None:
            return lambda _, ctx: ctx.count_late()
        given: Any = topic
        if not isinstance(given, Topic) or not edge.types <= topic.types:
            raise DefinitionError(
                f"the late events of {edge.name!r} in {self.where!r} are {edge.type_name}, and late= is {topic!r}",
                hint="Give a topic of that type. If the inputs have different types, give one for each: late=(one, other).",
            )
        refuse_taken_late(f"the operator {self.where!r}", edge)
        return lambda event, ctx: ctx.emit(topic, event)

    def is_before(self, one: int, other: int) -> bool:
        """Whether of two events of one time, that of the input ``one`` is handled first in any case.

        So it is if both are topics, and it is declared first. An event of a stream comes when its sender handles its own.
        """
        a, b = self.edges[one], self.edges[other]
        return (
            isinstance(a, Topic)
            and isinstance(b, Topic)
            and self._topics.get(a.name, 0) < self._topics.get(b.name, 0)
        )


def left_of(event: Any, other: Any) -> Pair[Any, Any]:
    """The pair of a left event."""
    return Pair(event, other)


def right_of(event: Any, other: Any) -> Pair[Any, Any]:
    """The pair of a right event."""
    return Pair(other, event)


def fields_of(*sides: Side | None) -> dict[str, Any]:
    """The fields of an actor with these sides, as they are in its body."""
    body: dict[str, Any] = {"__annotations__": {}}
    for side in sides:
        if side is not None:
            body["__annotations__"] |= side.annotations
            body |= side.defaults
    return body


def counts_of(*sides: tuple[Edge[Any, Any], Side | None]) -> Callable[[Any, int], dict[str, int]]:
    """How many events of each input an instance keeps."""
    return lambda actor, _: {edge.name: side.count(actor) for edge, side in sides if side is not None}


def one_of_hows(where: str, how: str) -> None:
    """Raise DefinitionError if there is no such join."""
    if how not in ("inner", "left", "right", "full"):
        raise DefinitionError(
            f"the operator {where!r} has how={how!r}", hint='Write "inner", "left", "right" or "full".'
        )


def pair_type(types: Sequence[Any], how: str) -> Any:
    """The type of the results: a side may be None only where ``how`` makes it so."""
    left: Any = types[0] | None if how in ("right", "full") else types[0]
    right: Any = types[1] | None if how in ("left", "full") else types[1]
    pair: Any = Pair
    return pair[left, right]


def span_ms(where: str, value: Any) -> int:
    """A bound of ``within`` in milliseconds: a duration, which may begin with a minus. Raises DefinitionError."""
    sign = 1
    if isinstance(value, str) and value.startswith("-"):
        sign, value = -1, value[1:]
    elif isinstance(value, int | timedelta) and abs(value) != value:
        sign, value = -1, -value
    return sign * declared_duration(where, "within", value)
