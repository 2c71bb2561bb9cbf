"""The context of a checked run: it reads again what a handler has written, as the readers will."""

from __future__ import annotations

from datetime import datetime
from typing import Any, overload

from typing_extensions import TypeVar

from tailrace.core.declare.context import Context
from tailrace.core.declare.plan import ActorBase
from tailrace.core.declare.topic import Stream, Topic
from tailrace.core.errors import EmittedTypeError
from tailrace.core.values.event_values import change_of

K = TypeVar("K", default=Any)
E = TypeVar("E")


class CheckedContext(Context[K]):
    """Refuses an event or a message whose readers would get another one. msgspec does not check what a struct is made of."""

    __slots__ = ()

    @overload
    def emit(self, to: Topic[E, Any], event: E, *, at: int | datetime | None = None) -> None: ...
    @overload
    def emit(self, to: Stream[E], event: E) -> None: ...
    def emit(self, to: Any, event: Any, *surplus: Any, **at: Any) -> None:
        """As ``Context.emit``; raises EmittedTypeError for what its readers would not get."""
        super().emit(to, event, *surplus, **at)
        if not to.is_stream:
            to.codec.check(event)

    def send(self, actor: type[ActorBase], key: Any, message: Any) -> None:
        """As ``Context.send``; raises EmittedTypeError for what its receiver would not get."""
        super().send(actor, key, message)
        plan = self._plan.actor_of(actor)
        codec = plan.messages[plan.message_names[message.__class__]]
        change = change_of(message, codec.encode, codec.decode, json=False)
        if change is not None:
            raise EmittedTypeError(
                f"a message of type {type(message).__name__} to {plan.name} cannot be sent as it is: {change}",
                field=change.path or None,
                hint="Convert it before it is sent, or declare the field with the type that it holds.",
            )
