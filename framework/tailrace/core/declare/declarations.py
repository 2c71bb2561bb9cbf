"""The declarations of an app, by name. The planner makes the plan from them."""

from __future__ import annotations

from typing import Any

from tailrace.core.declare.actor import Actor, ActorMeta
from tailrace.core.declare.handlers import Handler
from tailrace.core.declare.plan import Plan
from tailrace.core.declare.topic import Edge, OnError, Stream, Topic
from tailrace.core.errors import DefinitionError

Declared = Edge[Any, Any] | type[Actor] | str
"""An item of ``emits=``: a topic, stream, actor class, or the stable name of an actor declared later."""


class Declarations:
    """The declarations of an app; ``App`` collects them, and the planner reads them."""

    name: str
    partitions: int
    version: str
    on_error: OnError
    topics: dict[str, Topic[Any, Any]]
    streams: dict[str, Stream[Any, Any]]
    actors: dict[str, ActorMeta]
    functions: dict[str, Handler]
    orders: dict[str, str]
    # Of actors and functions that have ``emits=``, even if it is empty.
    emits: dict[str, tuple[Declared, ...]]
    _plan: Plan | None

    def _free(self, name: str, kind: str) -> None:
        if name in self.topics or name in self.streams:
            raise DefinitionError(
                f"another topic or stream has the name of the {kind} {name!r}",
                hint="Choose another name, or import the one that is declared.",
            )
