"""Which topics and streams handlers may emit to, and which actors they may send messages to.

The targets are those that the handlers' code refers to (``references``) or, where the declaration has
``emits=``, exactly those. What is found is a superset:

- A handler whose code names ``emit`` may emit to every topic and stream that it refers to; one whose code names
  ``delete``, to every table. If it does not, topics have no effect.
- In the same way, a handler whose code names ``send`` may send to every actor that it refers to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from tailrace.core.declare.actor import ActorMeta, declaration_of
from tailrace.core.declare.declarations import Declarations, Declared
from tailrace.core.declare.handlers import MessageRole
from tailrace.core.declare.references import References
from tailrace.core.declare.topic import Edge, Stream, Topic
from tailrace.core.errors import DefinitionError


@dataclass(frozen=True)
class Emissions:
    """The possible targets of some handlers: topics and streams, and the actors that they may send to."""

    edges: frozenset[Edge[Any, Any]]
    actors: frozenset[type[Any]]


def emissions_of(
    calls: Iterable[Callable[..., Any]],
    cls: type[Any] | None,
    topics: Iterable[Topic[Any, Any]],
    streams: Iterable[Stream[Any, Any]],
    actors: Iterable[type[Any]],
) -> Emissions:
    """Find which of these topics and streams handlers may emit to, and which actors they may send to.

    ``cls`` is the actor class that the handlers are methods of, or None for functions.
    """
    found = [References(call, cls) for call in calls if isinstance(call, FunctionType)]
    edges = {
        edge
        for one in found
        for edge in one.edges
        if "emit" in one.names or (edge.is_table and "delete" in one.names)
    }
    sent = {actor for one in found if "send" in one.names for actor in one.actors}
    return Emissions(frozenset(edges.intersection((*topics, *streams))), frozenset(sent.intersection(actors)))


def check_emits(emits: Any, where: str) -> tuple[Declared, ...]:
    """Check the argument ``emits=``. Names of actors are resolved later, by ``declared_emissions``."""
    if not isinstance(emits, (list, tuple)):
        raise DefinitionError(
            f"{where} has emits={_spelled(emits)}, which is not a list",
            hint="Write emits=[...] with topics, streams and actors.",
        )
    items: Any = emits  # pyright: ignore[reportUnknownVariableType]  # the elements are checked below
    listed = tuple[Any, ...](items)
    for one in listed:
        if not isinstance(one, Edge | ActorMeta | str):
            raise DefinitionError(
                f"{where} has {_spelled(one)} in its emits=, which is not a topic, stream or actor",
                hint="List actor classes, and topics and streams as app.topic and app.stream returned them.",
            )
    return listed


def declared_emissions(app: Declarations) -> dict[str, Emissions]:
    """Resolve ``emits=`` of every actor and function that has it, by stable name.

    Raises DefinitionError for an actor that the app does not have.
    """
    found: dict[str, Emissions] = {}
    for name, listed in app.emits.items():
        where = app.actors[name].__name__ if name in app.actors else app.functions[name].where
        actors = frozenset(_actor_of(app, one, where) for one in listed if not isinstance(one, Edge))
        found[name] = Emissions(frozenset(one for one in listed if isinstance(one, Edge)), actors)
    return found


def _actor_of(app: Declarations, value: Any, where: str) -> type[Any]:
    cls: type[Any] | None = app.actors.get(value) if isinstance(value, str) else value
    if cls is None or cls not in app.actors.values():
        raise DefinitionError(
            f"{where} has {_spelled(value)} in its emits=, which is not an actor of the app {app.name!r}",
            hint=f"Its actors: {', '.join(sorted(app.actors)) or 'none'}. Decorate the class with "
            "@app.actor.",
        )
    if not any(isinstance(one.roles[0], MessageRole) for one in declaration_of(cls).handlers):
        raise DefinitionError(
            f"{where} has {cls.__name__} in its emits=, which takes no messages",
            hint=f"Leave it out, or give {cls.__name__} a method with @tr.on_message.",
        )
    return cls


def _spelled(value: Any) -> str:
    if isinstance(value, Edge):
        return value.name
    return value.__name__ if isinstance(value, type) else repr(value)
