"""Gathering: one event of each input makes a case, which ends when all are there, or some time after the first of them.

Events are handled in the order of event time. The first event of a key opens a case, with a timer for its end; an event at this
very instant still belongs to it. Of several events of one input in a case, the first one counts, and the others are counted.
What comes after the end opens a new case.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from tailrace.core.declare.app import App
from tailrace.core.declare.handlers import process
from tailrace.core.declare.topic import Edge, Stream
from tailrace.core.durations import declared_duration, spelled
from tailrace.core.errors import DefinitionError
from tailrace.library.operators import add_operator, handler, opened, result_stream, timer
from tailrace.library.pairs import Duration, Inputs, Late

P = TypeVar("P")
TIMER = "over"


class Gathered(msgspec.Struct, Generic[P], frozen=True):
    """A case: one event of each input of ``App.gather``, or None for an input that had none.

    ``since`` is the event time of the first of them, ``repeated`` the number of further events of each input, which
    were left out. Its key is ``ctx.key``, its event time ``ctx.event_time``.
    """

    parts: P
    since: int
    repeated: tuple[int, ...]

    @property
    def is_complete(self) -> bool:
        """Whether no part is missing."""
        parts: Any = self.parts
        return None not in parts


def add_gather(
    app: App, name: str, edges: tuple[Edge[Any, Any], ...], within: Duration, late: Late
) -> Stream[Any, Any]:
    """Add the operator of ``App.gather``; see there."""
    within_ms = declared_duration(f"the operator {name!r}", "within", within)
    if len(edges) < 2 or within_ms == 0:
        raise DefinitionError(
            f"the operator {name!r} gathers {len(edges)} inputs within {within!r}",
            hint='Give two inputs or more, and how long a case is open at most: within="7d".',
        )
    inputs, several = Inputs(app, name, edges, late), range(len(edges))
    attrs, nothing = [f"part_{at}" for at in several], (0,) * len(edges)
    types: Any = tuple(type_ | None for type_ in inputs.types)
    result: Any = Gathered
    stream = result_stream(app, name, result[tuple.__class_getitem__(types)], *edges)

    def finish(actor: Any, ctx: Any) -> None:
        parts = tuple([getattr(actor, attr) for attr in attrs])
        ctx.emit(stream, Gathered(parts, actor.since, actor.repeated or nothing))
        reset(actor)

    def reset(actor: Any, _: Any = None) -> None:
        for attr in attrs:
            setattr(actor, attr, None)
        actor.since, actor.repeated, actor.missing = 0, (), 0

    def taker(at: int) -> Any:
        attr, edge, take_late = attrs[at], edges[at], inputs.late[at]

        def take(actor: Any, event: Any, ctx: Any) -> None:
            if ctx.is_late:
                take_late(event, ctx)
                return
            if not actor.missing:
                actor.since, actor.missing = ctx.event_time, len(edges)
                ctx.set_timer(ctx.event_time + within_ms, TIMER)
            if getattr(actor, attr) is None:
                setattr(actor, attr, event)
                actor.missing -= 1
                if not actor.missing:
                    finish(actor, ctx)
                    ctx.cancel_timer(TIMER)
            else:
                counts = actor.repeated or nothing
                actor.repeated = (*counts[:at], counts[at] + 1, *counts[at + 1 :])
                ctx.metrics.count(f"{name}.repeated.{edge.name}")

        return take

    body: dict[str, Any] = {
        "__annotations__": {
            **dict(zip(attrs, types, strict=True)),
            "since": int,
            "repeated": tuple[int, ...],
            "missing": int,
        },
        **dict.fromkeys(attrs),
        "since": 0,
        "repeated": (),
        "missing": 0,
        "over": timer(finish, TIMER, reset),
        "opened": opened(lambda actor, _: {"cases": int(actor.missing > 0)}),
    }
    for at, edge in enumerate(edges):
        body[f"take_{at}"] = handler(taker(at), process(edge))
    what = f"gather: {len(edges)} within {spelled(within_ms)}, {inputs.named}"
    add_operator(app, name, what, body, emits=(stream, *inputs.late_topics), order="event-time")
    return stream
