"""Actors: the classes whose instances live one per key and whose fields are durable.

An actor is a msgspec struct. ``ActorMeta`` reads its class body: annotations become fields (``fields``),
decorated methods become handlers (``handlers``), and a mistake is refused at once. An annotation that names
something defined further down is resolved when the app is planned.

An instance also has slots that are not fields and are never encoded. The task that loads the instance sets
them: its key, its place in the task's tables, its collections and timers, and undeclared fields of its row.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

import msgspec

from tailrace.core.declare.annotations import Scope, read_annotations
from tailrace.core.declare.components import Component, expand
from tailrace.core.declare.fields import (
    MUTABLE,
    CollectionAttribute,
    Field,
    FieldSpec,
    TtlAttribute,
    declare,
    field,
    struct_default,
)
from tailrace.core.declare.handlers import Handler, MessageRole, QueryRole, TimerRole, agree, roles_of
from tailrace.core.declare.migrations import Migration, read_migrations
from tailrace.core.declare.plan import ActorBase
from tailrace.core.declare.topic import ORDERS, Order, Topic
from tailrace.core.declare.topic_declaration import one_of
from tailrace.core.errors import DefinitionError
from tailrace.core.values.types import spell

_REFUSED_METHODS = {
    "__init__": "Give fields defaults, or tr.field(default_factory=...): the framework creates instances, "
    "and loads them without calling a constructor.",
    "__post_init__": "No method runs when an instance is loaded. Set fields in the first event's handler.",
    "__new__": "Give fields defaults; the framework creates instances.",
    "__setattr__": "Write a method that sets the field, and call that.",
    "__delattr__": "Set the field to its default instead.",
    "__getattr__": "Write a method or a property with a name of its own.",
    "__getattribute__": "Write a method or a property with a name of its own.",
    "__slots__": "Declare a durable field instead: name: type = default.",
    "__del__": "The cache loads and drops instances at any time. Use ctx.clear() and timers for cleaning up.",
}
_DECLARATION = "_tr_declaration"
_KIND_NAMES = {"value": "a plain field", "map": "a MapState", "list": "a ListState"}


@dataclass(slots=True)
class Declaration:
    """What a class body and its bases declare. ``resolved`` is True once every annotation is checked."""

    fields: tuple[Field, ...] = ()
    handlers: tuple[Handler, ...] = ()
    migrations: tuple[Migration, ...] = ()
    resolved: bool = False
    order: str | None = None
    """In which order it handles its events: ``"event-time"`` or ``"arrival"``."""
    components: dict[str, Component] = dataclasses.field(default_factory=dict)
    """Its composite fields, by attribute."""
    operator: str = ""
    """For an actor that is an operator of the library: what it does. Its stored state belongs to that."""
    parameters: tuple[Any, ...] = ()
    """The type variables that a generic base class still has; its annotations are resolved where a subclass gives types for them."""

    @property
    def meaning(self) -> dict[str, str]:
        """What stored parts mean: by composite field; under "" that of the operator."""
        of_fields = {attr: one.spec for attr, one in self.components.items() if one.spec}
        return {"": self.operator, **of_fields} if self.operator else of_fields

    def opened(self, instance: Any, fired_ms: int) -> dict[str, int]:
        """What is open in an instance whose event-time timers have fired up to an instant, by name (see ``add_operator``)."""
        found: dict[str, int] = {}
        if self.operator and hasattr(instance, "opened"):
            found |= instance.opened(instance, fired_ms)
        for attr, one in self.components.items():
            found |= {f"{attr}.{name}": n for name, n in one.opened(instance, fired_ms).items()}
        return found

    def of_kind(self, kind: str) -> list[Field]:
        """The fields of one kind, in their order of declaration, which is the order of their numbers."""
        return [one for one in self.fields if one.kind == kind]

    def with_ttl(self) -> list[Field]:
        """The plain fields with a time to live, in the order of their numbers."""
        return [one for one in self.of_kind("value") if one.ttl_ms is not None]


if TYPE_CHECKING:
    # For type checkers, a class with attributes: users make no instances. If a checker saw a msgspec struct, which is
    # an implementation detail, fields with a default would have to come last, and ``order=`` would have to be a bool.
    class ActorMeta(type):
        """See below."""

        def __new__(
            mcls, name: str, bases: tuple[type, ...], body: dict[str, Any], /, *, order: Order | None = ...
        ) -> Any:
            """See below."""
            ...

    class Actor(ActorBase, metaclass=ActorMeta):
        """See below."""

        def __init__(self, **fields: Any) -> None:
            """For tests of what an actor refuses."""

else:

    class ActorMeta(msgspec.StructMeta):
        """Reads an actor's class body. Raises DefinitionError or DurableTypeError for a mistake in it."""

        def __new__(mcls, name: str, bases: tuple[type, ...], body: dict[str, Any], **options: Any) -> Any:
            """Make the class."""
            if not any(isinstance(base, ActorMeta) for base in bases):
                cls = super().__new__(mcls, name, bases, body, kw_only=True, gc=False)
                type.__setattr__(cls, _DECLARATION, Declaration(resolved=True))
                return cls
            order = options.pop("order", None)
            read_annotations(body)
            components = expand(name, body, field, len(_inherited_components(bases)))
            _check_body(name, bases, body, options)
            if order is not None:
                one_of(name, "order", order, ORDERS)
            scope = Scope.of_caller(1)
            fields = _read_fields(name, bases, body, scope)
            _place_collections(name, fields, body)
            cls = super().__new__(mcls, name, bases, body, kw_only=True, gc=False)
            _place_ttls(cls, fields)
            type.__setattr__(
                cls,
                _DECLARATION,
                Declaration(
                    fields,
                    _read_handlers(cls, scope),
                    read_migrations(cls, scope),
                    order=order or _inherited_order(bases),
                    components=_inherited_components(bases) | components,
                    parameters=getattr(cls, "__parameters__", ()),
                ),
            )
            resolve(cls, last_call=False)
            return cls

    class Actor(ActorBase, msgspec.Struct, metaclass=ActorMeta):
        """The base of all actors. A subclass declares durable fields and handlers.

        ::

            @app.actor
            class Aircraft(tr.Actor):
                legs: int = 0  # a plain field: loaded and stored with the instance
                minutes_late: tr.MapState[str, int]  # a map: each entry is stored by itself

                @tr.process(departures)
                def departed(self, event: Departure, ctx: tr.Context[str]) -> None:
                    self.legs += 1

        There is one instance per key. Tailrace creates and loads instances, so an actor has no constructor. A
        handler may read, assign and change fields in place; all of that is durable. If it raises, everything
        it did is undone. It must not keep ``self``, or anything mutable from it, for later.

        ``class Aircraft(tr.Actor, order="event-time")`` handles the events of all its inputs in the order of (event
        time, input in order of declaration, offset), each once the actor's watermark has passed it, and its
        event-time timers between them at their instants, after the events of the same time. Its results depend on
        the set of its events alone, except for late ones. ``order="arrival"`` handles each event as it arrives, at
        once. An actor with two or more inputs must say which; with one input the default is ``"arrival"``. See
        ``docs/event-time.md``.

        An instance whose fields are all at their defaults, without timers and entries, is not stored. The
        types of fields are those that come back from storage unchanged: numbers, text, bytes, dates, enums,
        structs, lists, dicts, tuples and unions of them, but no sets, no ``Any`` and no plain classes.
        """


A = TypeVar("A", bound=Actor)


def declaration_of(cls: type[Any]) -> Declaration:
    """What an actor class declares."""
    declaration: Declaration = getattr(cls, _DECLARATION)
    return declaration


def resolve(cls: type[Any], *, last_call: bool) -> None:
    """Look up the annotations that are not yet resolved, and check what can be checked.

    With ``last_call`` everything has to be known, else DefinitionError is raised.
    """
    declaration = declaration_of(cls)
    if declaration.resolved:
        return
    if declaration.parameters:
        if last_call:
            raise DefinitionError(
                f"{cls.__name__} is generic in {', '.join(map(str, declaration.parameters))}, so it cannot be an actor of an app",
                hint=f"Derive one from it that says which types these are: class Mine({cls.__name__}[...]).",
            )
        return
    done = [one.resolve(last_call=last_call) for one in declaration.fields]
    done += [one.resolve(last_call=last_call) for one in declaration.handlers]
    done += [one.resolve(last_call=last_call) for one in declaration.migrations]
    _check_handlers(cls, declaration.handlers)
    declaration.resolved = all(done)


def _check_body(name: str, bases: tuple[type, ...], body: dict[str, Any], options: dict[str, Any]) -> None:
    if options:
        raise DefinitionError(
            f"{name} is declared with {', '.join(f'{key}={value!r}' for key, value in options.items())}",
            hint="Leave it out: the only class option is order=. The stable name is given to "
            "@app.actor(name=...).",
        )
    for attr, hint in _REFUSED_METHODS.items():
        if attr in body:
            raise DefinitionError(f"{name} defines {attr}, which an actor cannot have", hint=hint)
    actors = [base for base in bases if isinstance(base, ActorMeta)]
    if len(actors) > 1:
        raise DefinitionError(
            f"{name} has {len(actors)} actors as bases: {', '.join(base.__name__ for base in actors)}",
            hint="Keep one. Share methods through a plain class with __slots__ = ().",
        )
    for base in bases:
        if not isinstance(base, ActorMeta) and base.__dictoffset__:
            raise DefinitionError(
                f"{name} inherits from {base.__name__}, whose instances have a __dict__, which is not stored",
                hint=f"Add __slots__ = () to {base.__name__}.",
            )
    annotated = body["__annotations__"]
    for attr, value in body.items():
        if isinstance(value, FieldSpec) and attr not in annotated:
            raise DefinitionError(f"{name}.{attr} has no type", hint=f"Write {attr}: type = tr.field(...).")
        if isinstance(value, MUTABLE) and attr not in annotated and not attr.startswith("__"):
            raise DefinitionError(
                f"{name}.{attr} is a class attribute that all instances would share, not a durable field",
                hint=f"Annotate it ({attr}: {type(value).__name__}[...] = ...), or make a constant of it: a "
                "tuple.",
            )


def _inherited_components(bases: tuple[type, ...]) -> dict[str, Component]:
    inherited = [declaration_of(base).components for base in bases if isinstance(base, ActorMeta)]
    return inherited[0] if inherited else {}


def _inherited_order(bases: tuple[type, ...]) -> str | None:
    return next((declaration_of(base).order for base in bases if isinstance(base, ActorMeta)), None)


def _read_fields(name: str, bases: tuple[type, ...], body: dict[str, Any], scope: Scope) -> tuple[Field, ...]:
    """The fields of the bases and of the body. Leaves only the fields for msgspec in the body."""
    inherited: list[Field] = []
    for base in bases:
        if isinstance(base, ActorMeta):
            inherited.extend(declaration_of(base).fields)
    annotations: dict[str, Any] = dict(body["__annotations__"])
    fields = {one.attr: one for one in _with_types(name, inherited, bases, body, annotations)}
    for attr in list(body["__annotations__"]):
        default = body.get(attr)
        one = declare(name, attr, annotations, scope, default, has_default=attr in body)
        if one is None:
            continue
        _check_clash(name, one, default, bases, fields)
        fields[attr] = one
        if one.kind != "value":
            del annotations[attr]
            body.pop(attr, None)
        elif attr in body:
            body[attr] = struct_default(one.where, default)
    body["__annotations__"] = annotations
    for attr in body:
        if attr in fields and attr not in annotations and fields[attr].owner != name:
            raise DefinitionError(
                f"{name}.{attr} hides a field of {fields[attr].owner}",
                hint=f"Annotate it to give it another default ({attr}: type = ...), or rename it.",
            )
    stored: dict[str, str] = {}
    for one in fields.values():
        if one.name in stored:
            raise DefinitionError(
                f"{name}.{one.attr} and {name}.{stored[one.name]} are both stored as {one.name!r}",
                hint="Give one of them another tr.field(name=...).",
            )
        stored[one.name] = one.attr
    return tuple(fields.values())


def _with_types(
    owner: str,
    inherited: list[Field],
    bases: tuple[type, ...],
    body: dict[str, Any],
    annotations: dict[str, Any],
) -> list[Field]:
    """The inherited fields, those of a generic base with the types that this class gives for its type variables.

    Such a plain field is declared again, so that msgspec knows its type.
    """
    generic: list[Any] = [
        one for one in bases if isinstance(one, ActorMeta) and declaration_of(one).parameters
    ]
    if not generic:
        return inherited
    base = generic[0]
    given = [get_args(one) for one in body.get("__orig_bases__", ()) if get_origin(one) is base]
    if not given:
        raise DefinitionError(
            f"{owner} inherits from {base.__name__}, which is generic, and does not say for which types",
            hint=f"Write class {owner}({base.__name__}[...]).",
        )
    types: dict[Any, Any] = dict(zip(declaration_of(base).parameters, given[0], strict=False))
    structs = {one.name: one for one in msgspec.structs.fields(base)}
    found: list[Field] = []
    for one in inherited:
        if one.scope is None:
            found.append(one)
            continue
        declared = one.scope.resolve_now(one.annotation, one.where)
        concrete: Any = types.get(declared, declared)
        if inner := getattr(concrete, "__parameters__", ()):
            concrete = concrete[tuple(types.get(each, each) for each in inner)]
        found.append(dataclasses.replace(one, owner=owner, annotation=concrete, body=annotations))
        if one.kind == "value" and one.attr not in annotations:
            known = structs[one.attr]
            annotations[one.attr] = concrete
            default: Any = {"default": known.default, "default_factory": known.default_factory}
            body[one.attr] = msgspec.field(name=one.name, **default)
    return found


def _check_clash(
    name: str, one: Field, default: Any, bases: tuple[type, ...], fields: dict[str, Field]
) -> None:
    inherited = next((getattr(base, one.attr) for base in bases if hasattr(base, one.attr)), None)
    if isinstance(default, (FunctionType, property, staticmethod, classmethod)) or (
        one.attr not in fields and isinstance(inherited, (FunctionType, property))
    ):
        raise DefinitionError(f"{name}.{one.attr} is a field and a method", hint="Rename one of them.")
    before = fields.get(one.attr)
    if before is not None and before.kind != one.kind:
        raise DefinitionError(
            f"{name}.{one.attr} is {_KIND_NAMES[one.kind]}, but {_KIND_NAMES[before.kind]} in {before.owner}",
            hint="Rename it.",
        )


def _place_collections(name: str, fields: tuple[Field, ...], body: dict[str, Any]) -> None:
    # Every class gets its own attributes, since a subclass may number its collections differently.
    for kind in ("map", "list"):
        for index, one in enumerate(one for one in fields if one.kind == kind):
            body[one.attr] = CollectionAttribute(f"{name}.{one.attr}", kind, index)


def _place_ttls(cls: type[Any], fields: tuple[Field, ...]) -> None:
    number = 0
    for one in fields:
        if one.kind == "value" and one.ttl_ms is not None:
            member = getattr(cls, one.attr)
            if isinstance(member, TtlAttribute):
                member = member.member
            type.__setattr__(cls, one.attr, TtlAttribute(member, number))
            number += 1


def _read_handlers(cls: type[Any], scope: Scope) -> tuple[Handler, ...]:
    """The handlers of a class, by the names of their methods: its own, and those of its bases."""
    found: dict[str, Handler] = {}
    for owner in reversed(cls.__mro__):
        known: dict[str, Handler] = {}
        if isinstance(owner, ActorMeta) and owner is not cls:
            known = {one.method: one for one in declaration_of(owner).handlers}
        for attr, value in vars(owner).items():
            roles = roles_of(value)
            if not roles:
                if attr in found:
                    raise DefinitionError(
                        f"{owner.__name__}.{attr} replaces the handler {found[attr].where}, but is not a "
                        "handler",
                        hint="Decorate it too, or give it another name.",
                    )
                continue
            where = f"{owner.__name__}.{attr}"
            found[attr] = known.get(attr) or Handler(
                where, attr, value, roles, scope.for_function(value, vars(owner))
            )
            for edge in found[attr].edges:
                if isinstance(edge, Topic) and edge.key_of is None:
                    raise DefinitionError(
                        f"{where} takes {edge.name!r}, which has no key, so no instance can be found",
                        hint="Declare the topic with key=, or take it with an @app.process function that emits to a "
                        "topic with a key.",
                    )
    return tuple(found[attr] for attr in sorted(found))


def _check_handlers(cls: type[Any], handlers: tuple[Handler, ...]) -> None:
    """Refuse two handlers for the same topic, timers or messages, and handlers whose keys differ."""
    taken: dict[object, Handler] = {}

    def take(what: object, shown: str, by: Handler) -> None:
        other = taken.setdefault(what, by)
        if other is not by:
            raise DefinitionError(
                f"{cls.__name__}: the methods {other.method!r} and {by.method!r} both take {shown}",
                hint="Keep one of them, and let it do the work of both.",
            )

    for handler in handlers:
        for edge in handler.edges:
            kind = "deletions of" if handler.deletes else "the stream" if edge.is_stream else "the topic"
            take((edge, handler.deletes), f"{kind} {edge.name!r}", handler)
        for role in handler.roles:
            if isinstance(role, TimerRole):
                domain = "processing-time" if role.domain else "event-time"
                family = f"timers named {role.family!r}" if role.family else "timers without a name"
                take(role, f"{domain} {family}", handler)
            elif isinstance(role, MessageRole):
                for member in handler.message_types:
                    take(("message", member), f"messages of type {spell(member)}", handler)
                    stable = role.name or member.__name__
                    take(("message name", stable), f"messages named {stable!r}", handler)
    _key_type(cls, handlers)


def _key_type(cls: type[Any], handlers: tuple[Handler, ...]) -> Any:
    """The type of an actor's key, by its topics or else by its contexts. Any if neither declares it."""
    key_types = [
        (bytes if isinstance(edge, Topic) and edge.settings.broadcast else edge.key_type, repr(edge.name))
        for h in handlers
        for edge in h.edges
    ]
    key_types += [(h.key_type, h.where) for h in handlers if not isinstance(h.roles[0], QueryRole)]
    first: tuple[Any, str] = (Any, "")
    for key_type, where in key_types:
        if first[0] is Any:
            first = key_type, where
        elif not agree(key_type, first[0]):
            raise DefinitionError(
                f"{cls.__name__} would have keys of two types: {spell(first[0])} ({first[1]}) "
                f"and {spell(key_type)} ({where})",
                hint="All inputs of an actor have keys of one type: re-key one of them with an @app.process "
                "function.",
            )
    return first[0]


def key_type_of_actor(cls: type[Any]) -> Any:
    """The type of the actor's key, or Any if it is not declared."""
    return _key_type(cls, declaration_of(cls).handlers)
