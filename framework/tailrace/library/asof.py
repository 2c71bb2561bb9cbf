"""The as-of join: each left event with the version that is valid at its time, the latest right event that is not later.

Events are handled in the order of event time, so the version is the right event that was handled last. Of one instant, right
events must go first. If the order of declaration does not see to that, left events are held until a timer of their instant,
which fires after all of its events. A version is forgotten by a timer ``keep`` after its time, which each new version moves;
that timer has the later name, so left events that are held until this very instant still have the version.

The lookup, of each event in the table of a broadcast topic, is here, too: it has no times.
"""

from __future__ import annotations

from typing import Any

from tailrace.core.declare.app import App
from tailrace.core.declare.broadcast import shared
from tailrace.core.declare.handlers import on_timer, process
from tailrace.core.declare.topic import Edge, Stream, Topic
from tailrace.core.declare.topic_declaration import value_reader
from tailrace.core.durations import declared_duration, spelled
from tailrace.core.errors import DefinitionError
from tailrace.core.values.types import spell
from tailrace.library.operators import add_operator, handler, opened, result_stream, timer
from tailrace.library.pairs import Duration, Inputs, Late, Pair, counts_of, fields_of, pair_type
from tailrace.library.sides import Side
from tailrace.library.windowed import pass_on, type_of

ANSWER, EXPIRE = "answer", "expire"


def add_asof(
    app: App, name: str, left: Edge[Any, Any], right: Edge[Any, Any], keep: Duration | None, late: Late
) -> Stream[Any, Any]:
    """Add the operator of ``App.asof``; see there."""
    keep_ms = None
    if keep is not None:
        instead = 'Say how long a version is valid at most ("1d"), or None: until the next one.'
        keep_ms = declared_duration(f"the operator {name!r}", "keep", keep, instead)
    inputs = Inputs(app, name, (left, right), late)
    held = None if inputs.is_before(1, 0) else Side("held", inputs.types[0], marked=True)
    stream = result_stream(app, name, pair_type(inputs.types, "left"), left, right)

    def take_left(actor: Any, event: Any, ctx: Any) -> None:
        if ctx.is_late:
            inputs.late[0](event, ctx)
        elif held is None:
            ctx.emit(stream, Pair(event, actor.version))
        elif held.add(actor, ctx.event_time, event, ctx.event_time):
            ctx.set_timer(ctx.event_time, ANSWER)

    def take_right(actor: Any, event: Any, ctx: Any) -> None:
        if ctx.is_late:
            inputs.late[1](event, ctx)
        else:
            actor.version = event
            if keep_ms is not None:
                ctx.set_timer(ctx.event_time + keep_ms, EXPIRE)

    def answer(actor: Any, ctx: Any) -> None:
        if held is not None:
            for one in held.free(actor, ctx.event_time):
                ctx.emit(stream, Pair(one, actor.version))

    def give_up(actor: Any, ctx: Any) -> None:
        if held is not None:
            held.free(actor, ctx.event_time)

    def expire(actor: Any, ctx: Any) -> None:
        del ctx
        actor.version = None

    body = fields_of(held)
    body["__annotations__"]["version"] = inputs.types[1] | None
    body |= {
        "version": None,
        "take_left": handler(take_left, process(left)),
        "take_right": handler(take_right, process(right)),
    }
    of_held = counts_of((left, held))
    body["opened"] = opened(
        lambda actor, at: of_held(actor, at) | {right.name: int(actor.version is not None)}
    )
    if held is not None:
        body["answer"] = timer(answer, ANSWER, give_up)
    if keep_ms is not None:
        body["expire"] = handler(expire, on_timer(EXPIRE))
    what = f"asof: keep {'all' if keep_ms is None else spelled(keep_ms)}, {inputs.named}"
    add_operator(app, name, what, body, emits=(stream, *inputs.late_topics), order="event-time")
    return stream


def add_lookup(
    app: App, name: str, edge: Edge[Any, Any], table: Topic[Any, Any], by: Any
) -> Stream[Any, Any]:
    """Add the operator of ``App.lookup``; see there."""
    where = f"the operator {name!r}"
    given: Any = table
    if not isinstance(given, Topic) or not given.settings.broadcast:
        raise DefinitionError(
            f"{where} looks up in {getattr(table, 'name', table)!r}, which is not a broadcast topic",
            hint="Declare it with app.topic(..., broadcast=True).",
        )
    field = shared(table)
    stream = result_stream(app, name, pair_type((type_of(app, edge), table.type), "left"), edge)
    pass_on(app, edge, stream)
    key_type, key_of = table.key_type, by
    if not callable(by):
        key_type, key_of = value_reader(where, edge.type, by, None, option="by", codec_for=lambda _: None)
    if key_type not in (table.key_type, table.key_type | None):
        raise DefinitionError(
            f"{where} has by={by!r} of type {spell(key_type)}, and the key of {table.name!r} is {spell(table.key_type)}",
            hint="Name a field with a key of that topic, or give a function of the event.",
        )

    def take(actor: Any, event: Any, ctx: Any) -> None:
        key = key_of(event)
        ctx.emit(stream, Pair(event, None if key is None else actor.table.get(key)))

    body = {"__annotations__": {"table": Any}, "table": field, "take": handler(take, process(edge))}
    add_operator(app, name, f"lookup in {table.name}", body, emits=(stream,))
    return stream
