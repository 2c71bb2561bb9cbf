"""Migrations: functions of an actor's class that turn what an earlier version has stored into what the present one stores.

Theory. A migration is a function ``(key, old) -> new`` without effects. The annotation of ``old`` says what it takes::

    of=            it takes and gives                      the rest of the key
    nothing        two structs: of plain fields by their   stays: fields that the first struct does not name, maps, lists,
                   stored names                            timers
    "days"         a value of this map, or list            keys of a map, places in a list and expiries stay
    "timers:late"  the payload of a timer of this family   names and times stay; without a payload, it takes None

The migrations of a class are a *chain* in the order in which they are written; those from the same versions follow one another.
What is stored notes the last version that it has been migrated from: its *mark*, "" if none; new state has that of the code. Those
behind the mark are due; without a mark, those from the version that wrote the state on. No versions are put in order or guessed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, TypeVar

import msgspec

from tailrace.core.declare.annotations import Scope, annotations_of, parameters_of
from tailrace.core.declare.handlers import agree, check_shape, place_of
from tailrace.core.errors import DefinitionError
from tailrace.core.values.key_paths import plain_key
from tailrace.core.values.type_schemas import ActorSchema
from tailrace.core.values.types import check_durable, spell

M = TypeVar("M", bound=Callable[[Any, Any], Any])

_MARK: Final = "__tailrace_migration__"


@dataclass(slots=True)
class Migration:
    """A decorated function. ``scope`` is None once its annotations are resolved and checked."""

    where: str
    call: Callable[[Any, Any], Any]
    versions: tuple[str, ...]
    of: str
    scope: Scope | None
    key: Any = Any
    old: Any = Any
    new: Any = Any
    takes: tuple[str, ...] = ()
    """The stored names of the plain fields that it takes; and ``gives``."""
    gives: tuple[str, ...] = ()

    def resolve(self, *, last_call: bool) -> bool:
        """See ``Handler.resolve``."""
        if self.scope is None:
            return True
        given = annotations_of(self.call)
        if not last_call and not self.scope.knows(given.values()):
            return False
        hints = {name: self.scope.resolve_now(one, f"{self.where}, {name}") for name, one in given.items()}
        key, old = parameters_of(self.call)
        self.key = plain_key(hints.get(key, Any))
        for name in (old, "return"):
            if name not in hints or (not self.of and not _is_of_fields(hints[name])):
                raise DefinitionError(
                    f"{self.where} does not declare {name!r} as a struct of fields",
                    hint="Annotate it with a msgspec.Struct that has the stored names of plain fields, without array_like, tag "
                    "and omit_defaults; or give of=, for values of a map or a list and payloads of timers.",
                )
            check_durable(hints[name], owner=self.where, field=name)
        self.old, self.new = hints[old], hints["return"]
        if not self.of:
            self.takes, self.gives = self.old.__struct_encode_fields__, self.new.__struct_encode_fields__
        self.scope = None
        return True

    def __str__(self) -> str:
        what = f"values of {self.of}" if self.of else f"{', '.join(self.takes)} to {', '.join(self.gives)}"
        return f"{self.where.rpartition('.')[2]}, from version {' or '.join(self.versions)}: {what}"


def _is_of_fields(declared: Any) -> bool:
    if not isinstance(declared, type) or not issubclass(declared, msgspec.Struct):
        return False
    config = declared.__struct_config__
    return not (config.array_like or config.omit_defaults or config.tag is not None)


def migrates(*, from_version: str | tuple[str, ...], of: str = "") -> Callable[[M], M]:
    """Make a static method of an actor a migration: it turns stored values of an earlier version into those of the next one.

    ::

        class Cents(msgspec.Struct):
            total: int


        class Euros(msgspec.Struct):
            total: float


        @app.actor
        class Customer(tr.Actor):
            total: float = 0.0

            @staticmethod
            @tr.migrates(from_version="1")
            def euros(key: str, old: Cents) -> Euros:
                return Euros(old.total / 100)

    It is called with the key and a struct of plain fields by their stored names, and returns a struct of the fields that replace
    them. All else that the key has stays. ``of="days"`` is for the values of a map or a list, ``of="timers:late"`` for the
    payloads of timers, by the name as in ``--drop-state``: then both types may be any that can be stored.

    ``from_version`` is the ``App(version=)`` that wrote the old form, or a tuple of all that did. Several migrations are a chain in
    the order of the class: each takes what the one before returns. ``tailrace snapshot migrate`` applies them. A key without
    stored values is not migrated: it reads the defaults.

    Raises:
        DefinitionError: The function does not take ``(key, old)``, or a type is not declared or not a struct of fields.
        DurableTypeError: A type cannot be stored and read back unchanged.
    """
    versions: tuple[Any, ...] = from_version if isinstance(from_version, tuple) else (from_version,)
    if not versions or not all(isinstance(one, str) and one for one in versions):
        raise DefinitionError(
            f"from_version={from_version!r} names no version",
            hint='Write from_version="1", the version= of the app that wrote the state.',
        )

    def decorate(function: M) -> M:
        plain = getattr(function, "__func__", function)
        check_shape(plain, "@tr.migrates", ("key", "old"))
        setattr(plain, _MARK, (versions, of))
        return function

    return decorate


def read_migrations(cls: type[Any], scope: Scope) -> tuple[Migration, ...]:
    """The migrations of a class: those of its bases, then its own in their order."""
    found: dict[str, Migration] = {}
    for owner in reversed(cls.__mro__):
        for attr, value in vars(owner).items():
            plain = getattr(value, "__func__", value)
            marked = getattr(plain, _MARK, None) if inspect.isfunction(plain) else None
            if marked is None:
                continue
            if not isinstance(value, staticmethod):
                raise DefinitionError(
                    f"{place_of(plain)} is a migration, and not static",
                    hint="Write @staticmethod above @tr.migrates.",
                )
            versions, of = marked
            names = scope.for_function(plain, vars(owner))
            found[attr] = Migration(f"{owner.__name__}.{attr}", plain, versions, of, names)
    return tuple(found.values())


def check_migrations(found: tuple[Migration, ...], schema: ActorSchema, key: Any, version: str) -> None:
    """Check that a chain ends in what the actor declares. Raises DefinitionError."""
    named = [one for versions, _ in groupby(one.versions for one in found) for one in versions]
    if len({*named}) < len(named):
        raise DefinitionError(
            f"the migrations of {found[0].where.partition('.')[0]} are from versions that overlap: {', '.join(named)}",
            hint="Write those from the same versions one after the other, with the same from_version.",
        )
    plain = {one.name for one in schema.fields if one.kind == "value"}
    others = {one.name for one in (*schema.fields, *schema.payloads)} - plain
    there: dict[str, Migration] = {}
    for one in found:
        wrong = (
            f"is from version {version!r}, which is that of the app"
            if version in one.versions
            else f"takes keys of type {spell(one.key)}, those of the actor are {spell(key)}"
            if not agree(one.key, key)
            else f"is of={one.of!r}, but maps, lists and payloads are: {', '.join(sorted(others)) or 'none'}"
            if one.of and one.of not in others
            else None
        )
        if wrong:
            raise DefinitionError(f"{one.where} {wrong}")
        there = {name: by for name, by in there.items() if name not in one.takes}
        there |= dict.fromkeys(one.gives, one)
    for name in sorted(there.keys() - plain):
        raise DefinitionError(
            f"{there[name].where} gives {name!r}, which is no plain field of the actor",
            hint="Declare it, or let a later migration take it.",
        )
