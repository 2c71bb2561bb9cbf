"""The lookup of each event in the table of a broadcast topic."""

from __future__ import annotations

from typing import Any

from tailrace.core.declare.app import App
from tailrace.core.declare.broadcast import shared
from tailrace.core.declare.handlers import process
from tailrace.core.declare.topic import Edge, Stream, Topic
from tailrace.core.declare.topic_declaration import value_reader
from tailrace.core.errors import DefinitionError
from tailrace.core.values.types import spell
from tailrace.library.operators import add_operator, handler, result_stream
from tailrace.library.pairs import Pair, pair_type
from tailrace.library.windowed import type_of


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
    key_type, key_of = (table.key_type, by) if callable(by) else _reader(where, edge, by)
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


def _reader(where: str, edge: Edge[Any, Any], by: Any) -> tuple[Any, Any]:
    return value_reader(where, edge.type, by, None, option="by", codec_for=lambda _: None)
