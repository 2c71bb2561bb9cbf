"""The context of a checked run: it reads back each event that a handler emits, as its readers will."""

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
    """Refuses events and messages whose readers would get a different value.

    msgspec does not check the values of a struct.
    """

    __slots__ = ()

    @overload
    def emit(self, to: Topic[E, Any], event: E, *, at: int | datetime | None = None) -> None: ...
    @overload
    def emit(self, to: Stream[E, Any], event: E, *, at: int | datetime | None = None) -> None: ...
    def emit(self, to: Any, event: Any, *surplus: Any, **at: Any) -> None:
        """Like ``Context.emit``; raises EmittedTypeError if readers would get a different value."""
        super().emit(to, event, *surplus, **at)
        if not to.is_stream:
            to.codec.check(event)

    def send(self, actor: type[ActorBase], key: Any, message: Any) -> None:
        """Like ``Context.send``; raises EmittedTypeError if the receiver would get a different value."""
        super().send(actor, key, message)
        plan = self._plan.actor_of(actor)
        codec = plan.messages[plan.message_names[message.__class__]]
        change = change_of(message, codec.encode, codec.decode, json=False)
        if change is not None:
            raise EmittedTypeError(
                f"a message of type {type(message).__name__} to {plan.name} cannot be sent as it is: "
                f"{change}",
                field=change.path or None,
                hint="Convert it before it is sent, or declare the field with the type that it holds.",
            )
