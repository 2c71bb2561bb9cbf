"""Which topics and streams handlers may emit to, and which actors they may send messages to.

The targets come from static analysis of the handlers' bytecode (``analysis``) and, where the code hides them, from
``emits=`` in the declarations. The analysis returns a superset:

- A handler that calls ``ctx.emit``, directly or through other functions, may emit to every topic that the code it reaches
  names. A handler that never emits may name topics without effect.
- An actor counts as a target only if its class reaches ``ctx.send``. If the class in some ``ctx.send`` is unknown, every
  actor that the code names counts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from inspect import CO_VARARGS
from types import FunctionType
from typing import Any

from tailrace.core.declare.actor import ActorMeta, declaration_of
from tailrace.core.declare.analysis.bytecode import run
from tailrace.core.declare.analysis.flow import Flow, package_of
from tailrace.core.declare.analysis.frames import Call, Frame, reached
from tailrace.core.declare.analysis.values import CONTEXT, NO_VALUES, Objects
from tailrace.core.declare.declarations import Declarations, Declared
from tailrace.core.declare.handlers import MessageRole, place_of
from tailrace.core.declare.topic import Edge, Stream, Topic
from tailrace.core.errors import DefinitionError


@dataclass(frozen=True)
class Emissions:
    """The possible targets of some handlers.

    ``edges``: topics and streams they may emit to. ``actors``: actor classes they may send to. ``hidden``: the places
    whose target is unknown, for messages: ``"Order.paid, line 12: ctx.emit(TOPICS[kind], ...)"``.
    """

    edges: frozenset[Edge[Any, Any]]
    actors: frozenset[type[Any]]
    hidden: tuple[str, ...] = ()


def emissions_of(
    calls: Iterable[Callable[..., Any]],
    cls: type[Any] | None,
    topics: Iterable[Topic[Any, Any]],
    streams: Iterable[Stream[Any]],
    actors: Iterable[type[Any]],
) -> Emissions:
    """Find which of these topics and streams some handlers may emit to, and which of these actors they may send to.

    ``cls`` is the actor class that the handlers are methods of, or None for functions.
    """
    calls = list(calls)
    functions = [call for call in calls if isinstance(call, FunctionType)]
    edges = frozenset[Edge[Any, Any]]((*topics, *streams))
    objects = Objects(edges)
    owners = () if cls is None else cls.__mro__
    homes = {package_of(one) for one in (*functions, *owners)} - {
        "tailrace",
        "msgspec",
        *sys.stdlib_module_names,
    }
    flow = Flow(objects, homes, run)
    first = () if cls is None else (frozenset((objects.instance(cls),)),)
    roots: list[Frame] = []
    for function in functions:
        code = function.__code__
        between = 1 if code.co_flags & CO_VARARGS else max(0, code.co_argcount - len(first) - 1)
        roots.append(flow.begin(function, Call((*first, *[NO_VALUES] * between, frozenset((CONTEXT,))))))
    flow.finish()
    named: set[object] = set()
    sent: set[object] = set()
    hidden = {(place_of(call), 0, "it is not written in Python") for call in calls if call not in functions}
    for root in roots:
        frames = list(reached(root))
        names = {one for frame in frames for one in frame.effects.named}
        if any(frame.effects.emits for frame in frames):
            named |= names
        if any(frame.effects.sends_unseen for frame in frames):
            sent |= names
        sent.update(*(frame.effects.sent for frame in frames))
        if flow.is_cut:
            hidden.add((root.place, root.code.co_firstlineno, "it calls more code than is read"))
        hidden |= {(frame.place, line, text) for frame in frames for line, text in frame.effects.hidden}
    return Emissions(
        frozenset(edge for edge in edges if edge in named),
        frozenset(actor for actor in actors if actor in sent),
        tuple(f"{place}, line {line}: {text}" for place, line, text in sorted(hidden)),
    )


def check_emits(given: Any, where: str) -> tuple[Declared, ...]:
    """Check the argument ``emits=``. Names of actors are resolved later, by ``declared_emissions``."""
    if not isinstance(given, (list, tuple)):
        raise DefinitionError(
            f"{where} has emits={_spelled(given)}, which is not a list",
            hint=f"Write emits=[{_spelled(given)}]."
            if isinstance(given, Edge | ActorMeta | str)
            else "Write emits=[...] with topics, streams and actors.",
        )
    items: Any = given  # pyright: ignore[reportUnknownVariableType]  # the elements are checked below
    listed = tuple[Any, ...](items)
    for one in listed:
        if isinstance(one, ActorMeta):
            _check_taker(one, where)
        elif not isinstance(one, Edge | str):
            raise DefinitionError(
                f"{where} has {_spelled(one)} in its emits=, which is not a topic, stream or actor",
                hint="List actor classes, and topics and streams as app.topic and app.stream returned them.",
            )
        if sum(one is other or one == other for other in listed) > 1:
            raise DefinitionError(f"{where} has {_spelled(one)} twice in its emits=", hint="List it once.")
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


def _actor_of(app: Declarations, given: Any, where: str) -> type[Any]:
    cls = app.actors.get(given) if isinstance(given, str) else given
    if isinstance(given, str) and (given in app.topics or given in app.streams):
        raise DefinitionError(
            f"{where} has {given!r} in its emits=, the name of a topic or stream",
            hint="List the topic or stream itself, as app.topic or app.stream returned it.",
        )
    if cls is None or cls not in app.actors.values():
        raise DefinitionError(
            f"{where} has {_spelled(given)} in its emits=, which is not an actor of the app {app.name!r}",
            hint=f"Its actors: {', '.join(sorted(app.actors)) or 'none'}. Decorate the class with @app.actor.",
        )
    _check_taker(cls, where)
    return cls


def _check_taker(cls: ActorMeta, where: str) -> None:
    if not any(isinstance(one.roles[0], MessageRole) for one in declaration_of(cls).handlers):
        raise DefinitionError(
            f"{where} has {cls.__name__} in its emits=, which takes no messages",
            hint=f"Leave it out, or give {cls.__name__} a method with @tr.on_message.",
        )


def _spelled(given: Any) -> str:
    if isinstance(given, Edge):
        return given.name
    return given.__name__ if isinstance(given, type) else repr(given)
