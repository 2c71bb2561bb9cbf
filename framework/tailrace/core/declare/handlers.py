"""The decorators that make methods handlers, and the checks of a handler's form.

Each decorator is typed so that a wrong handler is a type error. The same is checked here, for users without a
type checker. The form of a method (its parameters, not async, not a generator) is checked when it is
decorated, its annotations when its class is created.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import Any, ClassVar, TypeVar, get_args, overload

from tailrace.core import rows
from tailrace.core.declare.annotations import Scope, accepts, annotations_of, members_of, parameters_of
from tailrace.core.declare.context import Context
from tailrace.core.declare.topic import Edge, Table
from tailrace.core.errors import DefinitionError
from tailrace.core.values.key_paths import plain_key
from tailrace.core.values.types import check_durable, spell

S = TypeVar("S")
K = TypeVar("K")
M = TypeVar("M")
E1 = TypeVar("E1")
E2 = TypeVar("E2")
E3 = TypeVar("E3")
E4 = TypeVar("E4")
Q = TypeVar("Q", bound=Callable[..., Any])

Handles = Callable[[S, E1, Context[K]], None]
"""A handler of events of type E1."""
Fires = Callable[[S, Context[K]], None]
"""A timer's handler."""
FiresWith = Callable[[S, M, Context[K]], None]
"""A handler of timers with a payload of type M."""

_ROLES = "__tailrace_roles__"


@dataclass(frozen=True, slots=True)
class ProcessRole:
    """Takes the events of topics or streams."""

    edges: tuple[Edge[Any, Any], ...]


@dataclass(frozen=True, slots=True)
class DeleteRole:
    """Handles the deletions of keys in tables."""

    edges: tuple[Table[Any, Any], ...]


@dataclass(frozen=True, slots=True)
class TimerRole:
    """Handles the timers of a family in one time domain."""

    domain: int
    family: str
    unless_ended: bool = False
    """Whether its timers leave event time where it is at the end of input."""
    payload: Any = field(default=None, compare=False)
    """The type of their payload; None without one."""
    failed: Any = field(default=None, compare=False)
    """Called in place of the handler when a timer of it has failed and is a dead letter; None: nothing is."""


@dataclass(frozen=True, slots=True)
class MessageRole:
    """Takes messages of a type, under the given name or the type's."""

    name: str | None


@dataclass(frozen=True, slots=True)
class QueryRole:
    """Answers queries from committed state."""


@dataclass(frozen=True, slots=True)
class ResultRole:
    """Takes the results of a composite field; see ``components``."""

    component: Any


Role = ProcessRole | DeleteRole | TimerRole | MessageRole | QueryRole | ResultRole


@dataclass(slots=True)
class Handler:
    """A decorated method or function. ``scope`` is None once its annotations are resolved and checked."""

    PARAMETERS: ClassVar[dict[type[Role], tuple[str, ...]]] = {
        ProcessRole: ("event", "ctx"),
        DeleteRole: ("ctx",),
        TimerRole: ("ctx",),
        MessageRole: ("message", "ctx"),
        ResultRole: ("result", "ctx"),
    }

    where: str
    method: str
    call: Callable[..., Any]
    roles: tuple[Role, ...]
    scope: Scope | None
    takes_self: bool = True
    key_type: Any = Any
    """The key type in ``Context[...]``, or Any without one."""
    message_types: tuple[Any, ...] = field(default=())

    def resolve(self, *, last_call: bool) -> bool:
        """Resolve the annotations and check them. Returns whether all names are known.

        With ``last_call`` a name that is still not known is a DefinitionError.
        """
        scope = self.scope
        if scope is None or isinstance(self.roles[0], QueryRole):
            self.scope = None
            return True
        annotations = annotations_of(self.call)
        if not last_call and not scope.knows(annotations.values()):
            return False
        hints = {name: scope.resolve_now(a, f"{self.where}, {name}") for name, a in annotations.items()}
        names = list(parameters_of(self.call))[self.takes_self :]
        if hints.get("return") not in (None, type(None)):
            raise DefinitionError(
                f"{self.where} is declared to return {spell(hints['return'])}, but the return value is not "
                "used",
                hint="Emit it with ctx.emit(topic, event), and declare -> None.",
            )
        self._check_context(names[-1], hints.get(names[-1], Context))
        if isinstance(self.roles[0], ProcessRole) and names[0] in hints:
            self._check_event(hints[names[0]])
        elif isinstance(self.roles[0], MessageRole):
            self._check_message(names[0], hints)
        elif isinstance(self.roles[0], TimerRole):
            self._check_payloads(names[0], hints)
        elif isinstance(self.roles[0], ResultRole) and names[0] in hints:
            given = self.roles[0].component.result_type
            if not accepts(hints[names[0]], given):
                raise DefinitionError(
                    f"{self.where} takes {spell(hints[names[0]])}, but gets {spell(given)}",
                    hint=f"Declare {names[0]!r} with it.",
                )
        self.scope = None
        return True

    @property
    def deletes(self) -> bool:
        """Whether it takes deletions, and not events."""
        return isinstance(self.roles[0], DeleteRole)

    @property
    def edges(self) -> tuple[Edge[Any, Any], ...]:
        """The topics and streams that it takes."""
        takes = (ProcessRole, DeleteRole)
        return tuple(edge for role in self.roles if isinstance(role, takes) for edge in role.edges)

    def _check_context(self, name: str, hint: Any) -> None:
        if hint is Any or hint is object:
            return
        if hint is not Context and getattr(hint, "__origin__", None) is not Context:
            raise DefinitionError(
                f"the parameter {name!r} of {self.where} is the context, but is declared as {spell(hint)}",
                hint=f"Declare {name}: tr.Context[...], with the key's type in the brackets.",
            )
        self.key_type = plain_key(*(get_args(hint) or (Any,)))
        if isinstance(self.key_type, TypeVar):  # of a generic base class
            self.key_type = Any
        for edge in self.edges:
            if not agree(self.key_type, edge.key_type):
                raise DefinitionError(
                    f"{self.where} declares tr.Context[{spell(self.key_type)}], "
                    f"but the key of {edge.name!r} is {spell(edge.key_type)}",
                    hint=f"Declare {name}: tr.Context[{spell(edge.key_type)}].",
                )

    def _check_event(self, hint: Any) -> None:
        for edge in self.edges:
            if not accepts(hint, edge.type):
                raise DefinitionError(
                    f"{self.where} takes {spell(hint)}, but {edge.name!r} holds {spell(edge.type)}",
                    hint=f"Declare the event as {_union(e.type for e in self.edges)}, or take another topic.",
                )

    def _check_payloads(self, name: str, hints: dict[str, Any]) -> None:
        for role in self.roles:
            if isinstance(role, TimerRole) and role.payload is not None:
                if not isinstance(role.payload, type) or not accepts(hints.get(name, Any), role.payload):
                    raise DefinitionError(
                        f"{self.where} takes {spell(hints.get(name, Any))}, but payload= is {spell(role.payload)}",
                        hint=f"Give payload= a class, and declare {name!r} with it.",
                    )
                check_durable(role.payload, owner=self.where, field=name)

    def _check_message(self, name: str, hints: dict[str, Any]) -> None:
        if name not in hints:
            raise DefinitionError(
                f"{self.where} does not declare the type of its messages",
                hint=f"Annotate {name!r} with their type.",
            )
        self.message_types = members_of(hints[name])
        for member in self.message_types:
            if not isinstance(member, type) or get_args(member) or member is type(None):
                raise DefinitionError(
                    f"{self.where} takes messages of type {spell(member)}",
                    hint="The type of a message must be a class of its own: make it a msgspec.Struct.",
                )
            check_durable(member, owner=self.where, field=name)
        named = isinstance(self.roles[0], MessageRole) and self.roles[0].name is not None
        if named and len(self.message_types) > 1:
            raise DefinitionError(
                f"{self.where} gives one name to {len(self.message_types)} types of message",
                hint="Leave name= out, or write a method for each type.",
            )


def agree(a: Any, b: Any) -> bool:
    """Whether two key types may be those of one key; Any agrees with all."""
    return a is Any or b is Any or a == b


def roles_of(attribute: Any) -> tuple[Role, ...]:
    """The roles that decorators have given to a method; empty for any other attribute."""
    return getattr(attribute, _ROLES, ()) if isinstance(attribute, FunctionType) else ()


def place_of(function: Any) -> str:
    """A function as messages name it: class and method, without the module or the enclosing function."""
    return str(getattr(function, "__qualname__", function)).rpartition("<locals>.")[2]


def check_shape(function: Any, decorator: str, parameters: tuple[str, ...] | None) -> None:
    """Refuse a function without a handler's form. ``parameters``: the required ones; None allows any."""
    where = place_of(function)
    if not isinstance(function, FunctionType):
        inner = getattr(function, "__func__", None) or getattr(function, "fget", None) or function
        kind = type(function).__name__
        raise DefinitionError(
            f"{place_of(inner)} is a {kind}, which {decorator} cannot decorate",
            hint="Make it a plain function.",
        )
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise DefinitionError(
            f"{where} is async, but a handler runs to its end without waiting",
            hint="Write def instead of async def. A handler must not call other services.",
        )
    if inspect.isgeneratorfunction(function):
        raise DefinitionError(
            f"{where} is a generator, which would never run",
            hint="Call ctx.emit(topic, event) instead of yield.",
        )
    if parameters is None:
        return
    found = list(parameters_of(function).values())
    positional = [p for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) != len(found) or len(found) != len(parameters):
        raise DefinitionError(
            f"{where} takes ({', '.join(p.name for p in found)}), but is called with "
            f"({', '.join(parameters)})",
            hint=f"Write def {function.__name__}({', '.join(parameters)}).",
        )


def add_role(function: Any, decorator: str, role: Role) -> Any:
    """Record a role on a method, after checking its form. Returns the method."""
    parameters = Handler.PARAMETERS.get(type(role))
    if isinstance(role, TimerRole) and role.payload is not None:
        parameters = ("payload", "ctx")
    check_shape(function, decorator, None if parameters is None else ("self", *parameters))
    roles = roles_of(function)
    if roles and (type(roles[0]) is not type(role) or isinstance(role, (MessageRole, QueryRole, ResultRole))):
        raise DefinitionError(
            f"{place_of(function)} has two decorators that call it with different arguments",
            hint="Write a method for each, and let both call a third one for what they share.",
        )
    setattr(function, _ROLES, (role, *roles))
    return function


def check_edges(edges: tuple[Any, ...], decorator: str) -> None:
    """Refuse arguments of ``process`` that are not topics or streams."""
    if not edges or isinstance(edges[0], FunctionType):
        what = f" on {place_of(edges[0])}" if edges else ""
        raise DefinitionError(
            f"{decorator}{what} names no topic",
            hint=f"Write {decorator}(topic) with the topics and streams that it takes.",
        )
    for edge in edges:
        if not isinstance(edge, Edge):
            hint = "Declare it first: topic = app.topic(name, Event, key=...)."
            if not isinstance(edge, (str, type)):
                hint += (
                    " If it is declared, a field of the class with the same name hides it: rename the field."
                )
            raise DefinitionError(
                f"{decorator} was given {edge!r}, which is not a topic or a stream", hint=hint
            )
    if len(set(edges)) < len(edges):
        raise DefinitionError(f"{decorator} names the same topic twice", hint="Name each topic once.")


def check_name(name: Any, what: str) -> str:
    """Refuse a family of timers, or a message, without a usable name."""
    if not isinstance(name, str) or not name or ":" in name or "\0" in name:
        raise DefinitionError(
            f"{what} cannot be named {name!r}",
            hint='Give it a name without ":". A timer set as "overdue:JFK" belongs to the family "overdue".',
        )
    return name


def _union(types: Iterable[Any]) -> str:
    return " | ".join(dict.fromkeys(spell(member) for type_ in types for member in members_of(type_)))


@overload
def process(a: Edge[E1, K], /) -> Callable[[Handles[S, E1, K]], Handles[S, E1, K]]: ...
@overload
def process(
    a: Edge[E1, K], b: Edge[E2, K], /
) -> Callable[[Handles[S, E1 | E2, K]], Handles[S, E1 | E2, K]]: ...
@overload
def process(
    a: Edge[E1, K], b: Edge[E2, K], c: Edge[E3, K], /
) -> Callable[[Handles[S, E1 | E2 | E3, K]], Handles[S, E1 | E2 | E3, K]]: ...
@overload
def process(
    a: Edge[E1, K], b: Edge[E2, K], c: Edge[E3, K], d: Edge[E4, K], /, *more: Edge[E4, K]
) -> Callable[[Handles[S, E1 | E2 | E3 | E4, K]], Handles[S, E1 | E2 | E3 | E4, K]]: ...
def process(*edges: Any) -> Any:
    """Make a method of an actor the handler of the events of one or several topics or streams.

    It is called as ``method(self, event, ctx)`` on the instance of the event's key, one event at a time. With
    several topics, annotate the event with the union of their types. With more than four, all topics from the
    fourth on share one type.

    Raises:
        DefinitionError: An argument is no topic or stream, or a method does not take ``(self, event, ctx)``.
    """
    check_edges(edges, "@tr.process")
    return partial(add_role, decorator="@tr.process", role=ProcessRole(edges))


def on_delete(*tables: Table[Any, K]) -> Callable[[Fires[S, K]], Fires[S, K]]:
    """Make a method ``(self, ctx)`` the handler of the deletions of keys in one or several tables.

    ``ctx.key`` is the deleted key, ``ctx.event_time`` the timestamp of the deletion's record. An actor without
    such a method, and a stateless function, do not see deletions. The state of the instance stays as it is: for
    a copy of the table, call ``ctx.clear()``.

    Raises:
        DefinitionError: An argument is no table, or the method does not take ``(self, ctx)``.
    """
    check_edges(tables, "@tr.on_delete")
    if plain := [edge.name for edge in tables if not edge.is_table]:
        raise DefinitionError(
            f"@tr.on_delete names {plain[0]!r}, which is not a table",
            hint="Only the keys of a table can be deleted: declare it with app.table.",
        )
    return partial(add_role, decorator="@tr.on_delete", role=DeleteRole(tables))


def _timer(
    domain: int, decorator: str, name_or_method: Any, *, unless_ended: bool = False, payload: Any = None
) -> Any:
    if isinstance(name_or_method, FunctionType):
        return add_role(name_or_method, decorator, TimerRole(domain, ""))
    is_unnamed = name_or_method is None and (unless_ended or payload is not None)
    family = "" if is_unnamed else check_name(name_or_method, f"the timers of {decorator}")
    return partial(add_role, decorator=decorator, role=TimerRole(domain, family, unless_ended, payload))


@overload
def on_timer(method: Fires[S, K], /) -> Fires[S, K]: ...
@overload
def on_timer(family: str, /, *, unless_ended: bool = False) -> Callable[[Fires[S, K]], Fires[S, K]]: ...
@overload
def on_timer(*, unless_ended: bool) -> Callable[[Fires[S, K]], Fires[S, K]]: ...
@overload
def on_timer(
    family: str = ..., /, *, payload: type[M], unless_ended: bool = False
) -> Callable[[FiresWith[S, M, K]], FiresWith[S, M, K]]: ...
def on_timer(
    name_or_method: Any = None, /, *, unless_ended: bool = False, payload: type[Any] | None = None
) -> Any:
    """Make a method ``(self, ctx)`` the handler of event-time timers set with ``ctx.set_timer``.

    ``@tr.on_timer`` takes the timers without a name, ``@tr.on_timer("overdue")`` those named ``"overdue"``
    and ``"overdue:..."``. In the handler, ``ctx.event_time`` is the time that the timer was set to, and
    ``ctx.timer_name`` its full name. All events up to that time have been handled, except late ones. Pending
    timers are stored under the name, so the method may be renamed.

    With ``payload=Claim`` the handler is ``(self, payload, ctx)``, and each of its timers is set with a ``Claim``.

    ``unless_ended`` is for timers that their handler sets again without end, such as a heartbeat. When the
    inputs have ended for good, all other event-time timers fire. These fire only up to the last of the others
    and of what the watermark has reached, and later ones stay pending.

    Raises:
        DefinitionError: The name is empty or contains a colon, or the method does not take ``(self, ctx)``,
            or ``(self, payload, ctx)`` with a payload.
    """
    return _timer(rows.EVENT_TIME, "@tr.on_timer", name_or_method, unless_ended=unless_ended, payload=payload)


@overload
def on_processing_timer(method: Fires[S, K], /) -> Fires[S, K]: ...
@overload
def on_processing_timer(family: str, /) -> Callable[[Fires[S, K]], Fires[S, K]]: ...
@overload
def on_processing_timer(
    family: str = ..., /, *, payload: type[M]
) -> Callable[[FiresWith[S, M, K]], FiresWith[S, M, K]]: ...
def on_processing_timer(name_or_method: Any = None, /, *, payload: type[Any] | None = None) -> Any:
    """Like ``on_timer``, for timers set with ``ctx.set_processing_timer``."""
    return _timer(rows.PROCESSING_TIME, "@tr.on_processing_timer", name_or_method, payload=payload)


@overload
def on_message(method: Handles[S, M, K], /) -> Handles[S, M, K]: ...
@overload
def on_message(*, name: str) -> Callable[[Handles[S, M, K]], Handles[S, M, K]]: ...
def on_message(method: Any = None, /, *, name: str | None = None) -> Any:
    """Make a method ``(self, message, ctx)`` the handler of messages sent with ``ctx.send``.

    The annotation of ``message`` gives the type: a ``msgspec.Struct``, or a union of several. ``name`` is the
    name under which messages that are not yet delivered are stored (default: the name of their class). Keep
    it when the class is renamed.

    Raises:
        DefinitionError: ``message`` has no annotation, or a type that is not a class of its own.
        DurableTypeError: The message has a field that cannot be stored and read back unchanged.
    """
    role = MessageRole(None if name is None else check_name(name, "the messages of @tr.on_message"))
    decorate = partial(add_role, decorator="@tr.on_message", role=role)
    return decorate if method is None else decorate(method)


def query(method: Q, /) -> Q:
    """Make a method a query: it answers from the committed state of an instance, and only reads.

    It is called with the caller's arguments, in tests with ``h.query(Actor, key, "name", ...)``. A query that
    changes the instance raises QueryError, and the change is dropped.
    """
    return add_role(method, "@tr.query", QueryRole())  # type: ignore[no-any-return]  # the method itself
