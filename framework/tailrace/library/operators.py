"""How the library adds an operator to an app: an actor with a stable name, and the stream or topic of its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import inspect

from tailrace.core import rows
from tailrace.core.declare.actor import Actor, ActorMeta, declaration_of
from tailrace.core.declare.app import App
from tailrace.core.declare.handlers import ProcessRole, TimerRole, add_role, check_edges
from tailrace.core.declare.topic import Edge, Order, Stream, Topic
from tailrace.core.declare.topic_declaration import legal_name
from tailrace.core.errors import DefinitionError
from tailrace.core.values.guards import struct_class
from tailrace.core.values.types import parts_of, spell

Body = Mapping[str, Any]
"""The body of an actor class: its fields, with ``__annotations__``, and its decorated handlers."""
_CHANGING: Final = (inspect.ListType, inspect.DictType, inspect.SetType, inspect.ByteArrayType)


def result_stream(app: App, name: str, type: Any, *inputs: Edge[Any, Any]) -> Stream[Any, Any]:
    """The stream of an operator's results: with its name, and the key of its inputs.

    Raises DefinitionError if the name is taken or not allowed, or if the inputs are no edges with keys of one type.
    """
    key_type = key_type_of(name, *inputs)
    legal_name(name, "an operator", limit=120)
    stream = app.stream(name, type, key_type=key_type)
    stream.key_names = inputs[0].key_names
    return stream


def key_type_of(name: str, *inputs: Edge[Any, Any]) -> Any:
    """The type of the keys of all inputs. DefinitionError if they differ, or are not known."""
    check_edges(inputs, f"the operator {name!r}")
    for edge in inputs:
        if isinstance(edge, Topic) and edge.key_of is None:
            raise DefinitionError(
                f"the operator {name!r} takes {edge.name!r}, which has no key",
                hint="Declare the topic with key=, or mark a field of its type: tr.Key[str].",
            )
        if edge.key_type is Any:
            raise DefinitionError(
                f"the operator {name!r} takes {edge.name!r}, whose keys have no declared type",
                hint=f"Declare it: app.stream({edge.name!r}, {edge.type_name}, key_type=str).",
            )
        if edge.key_type != inputs[0].key_type:
            raise DefinitionError(
                f"the operator {name!r} takes {inputs[0].name!r} with keys of type {spell(inputs[0].key_type)} and "
                f"{edge.name!r} with keys of type {spell(edge.key_type)}",
                hint="Give both the same key: re-key one of them with an @app.process function that emits to a topic.",
            )
        if is_mixed(edge.key_names, inputs[0].key_names):
            raise DefinitionError(
                f"the operator {name!r} takes {inputs[0].name!r} with the key {', '.join(inputs[0].key_names)} and {edge.name!r} with "
                f"{', '.join(edge.key_names)}",
                hint="Give both the same key, in the same order.",
            )
    return inputs[0].key_type


def is_mixed(some: Sequence[str], others: Sequence[str]) -> bool:
    """Whether a part of one key has the name of another part of the other."""
    return any(name in others and others.index(name) != at for at, name in enumerate(some))


def add_operator(
    app: App,
    name: str,
    what: str,
    body: Body,
    *,
    emits: tuple[Edge[Any, Any], ...],
    order: Order | None = None,
) -> type[Actor]:
    """Add an actor with this stable name and class body to an app.

    ``what`` says in one line what it computes, with all that its stored state depends on: "window: tumbling 1h, mean". It is shown by
    ``tailrace graph`` and stored with the state, which another ``what`` does not read. ``opened`` in the body, made by the function of this name, says what
    is open in an instance, for ``tailrace status --stored``.
    """
    cls: Any = ActorMeta(name, (Actor,), {"__module__": __name__, "__qualname__": name, **body}, order=order)
    declared = declaration_of(cls)
    declared.operator = what
    roles = [role for one in declared.handlers for role in one.roles if isinstance(role, ProcessRole)]
    for edge in [edge for role in roles for edge in role.edges]:
        if edge in emits:
            raise DefinitionError(
                f"the operator {name!r} writes to {edge.name!r}, its own input: it would take the same event again and again",
                hint="Give another topic.",
            )
        if isinstance(edge, Topic) and edge.is_table and declared.fields:
            raise DefinitionError(
                f"the operator {name!r} takes the table {edge.name!r}: each new value of a key would count again",
                hint="Take a topic that keeps every event, or an actor that stores the newest value.",
            )
    added: type[Actor] = app.actor(name=name, emits=emits)(cls)
    return added


def handler(function: Callable[..., None], decorator: Callable[[Any], Any]) -> Any:
    """A function of the library as a handler: without annotations, which the app could not look up."""
    function.__annotations__ = {}
    return decorator(function)


def timer(
    function: Callable[..., None], name: str, failed: Callable[..., None], domain: int = rows.EVENT_TIME
) -> Any:
    """A function as the handler of a timer. ``failed`` is called in its place when it has failed: it sets the timer again."""
    function.__annotations__ = {}
    return add_role(function, "@tr.on_timer", TimerRole(domain, name, failed=failed))


def opened(counts: Callable[[Any, int], Mapping[str, int]]) -> Any:
    """The function ``opened`` of a body: of an instance and the instant up to which its timers have fired, what is open by name."""
    return staticmethod(counts)


def unchanging(what: str, held: Any) -> None:
    """Refuse what is kept, by its type, if it can change in place: other handlers of an event, windows and keys share it."""
    try:
        parts = list(parts_of(inspect.type_info(held), set()))
    except (TypeError, NameError):
        return  # it is refused where it is stored
    for part in parts:
        if isinstance(part, inspect.StructType):
            changes, why = (
                not struct_class(part).__struct_config__.frozen,
                f": {spell(part.cls)} is not frozen",
            )
        else:
            changes, why = isinstance(part, _CHANGING), ""
        if changes:
            raise DefinitionError(
                f"{what} has the type {spell(held)}, which can change in place{why}",
                hint="Take structs with frozen=True, and tuples instead of lists and dicts.",
            )
