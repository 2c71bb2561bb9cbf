"""Which topics and streams handlers may emit to, and which actors they may send to, as far as their code shows.

The code is read and not run (``reading``), so it may be more than what they ever do, and it may be hidden from us: where
a topic comes out of an event, for example. A handler that calls nothing that emits may name topics without emitting to
them. One that does emit may emit to all that it names, however that comes about. An actor is sent to where the code that
gives it to ``ctx.send`` is seen; where one such place is hidden, any actor that is named may be meant.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from inspect import CO_VARARGS
from types import FunctionType
from typing import Any

from tailrace.core.declare.reading.bytecode import run
from tailrace.core.declare.reading.flow import Flow, package_of
from tailrace.core.declare.reading.frames import Call, Frame, reached
from tailrace.core.declare.reading.values import CONTEXT, NOTHING, Objects
from tailrace.core.declare.topic import Edge, Stream, Topic


@dataclass(frozen=True)
class Emissions:
    """Where events and messages may go.

    ``hidden`` are the places where the code does not show it, for people:
    ``"Order.paid, line 12: ctx.emit(TOPICS[kind], ...)"``.
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
    """What some handlers may emit to, of these topics and streams, and send to, of these actors.

    ``cls`` is the class whose methods they are, or None for functions.
    """
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
        roots.append(flow.begin(function, Call((*first, *[NOTHING] * between, frozenset((CONTEXT,))))))
    flow.finish()
    named: set[object] = set()
    sent: set[object] = set()
    hidden: set[tuple[str, int, str]] = set()
    for root in roots:
        frames = list(reached(root))
        names = {one for frame in frames for one in frame.does.named}
        if any(frame.does.emits for frame in frames):
            named |= names
        if any(frame.does.sends_unseen for frame in frames):
            sent |= names
        sent.update(*(frame.does.sent for frame in frames))
        hidden |= {(frame.place, line, text) for frame in frames for line, text in frame.does.hidden}
    return Emissions(
        frozenset(edge for edge in edges if edge in named),
        frozenset(actor for actor in actors if actor in sent),
        tuple(f"{place}, line {line}: {text}" for place, line, text in sorted(hidden)),
    )
