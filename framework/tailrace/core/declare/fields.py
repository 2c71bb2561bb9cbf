"""The fields of an actor: the declarations in a class body, and the attributes made from them.

Plain annotations are fields of the struct. ``MapState`` and ``ListState`` are not: their entries are stored
one by one, and the class has an attribute that finds them. A plain field with a time to live has an attribute
that reports assignments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, TypedDict, TypeVar, Unpack, get_args, overload

import msgspec

from tailrace.core import rows
from tailrace.core.declare.annotations import Scope
from tailrace.core.durations import declared_duration
from tailrace.core.errors import DefinitionError, DurableTypeError, UsageError
from tailrace.core.handling.collections import ListState, MapState
from tailrace.core.suggestions import did_you_mean
from tailrace.core.values.map_keys import map_key_codec_for
from tailrace.core.values.types import check_durable

T = TypeVar("T")

Kind = Literal["value", "map", "list"]
_NOTHING: Final[Any] = object()
MUTABLE: Final[tuple[type[Any], ...]] = (list, dict, set, bytearray)
"""Built-in collections that instances must not share."""
_TUPLE: Final[type[Any]] = tuple
_DOMAINS = {"event": rows.EVENT_TIME, "processing": rows.PROCESSING_TIME}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FieldSpec:
    """The arguments of ``field()``."""

    default: Any = _NOTHING
    default_factory: Any = _NOTHING
    name: str | None = None
    ttl: Any = None
    ttl_time: str = "event"

    def __repr__(self) -> str:
        return "tr.field(...)"

    @property
    def has_default(self) -> bool:
        """Whether a new instance has a value for the field."""
        return self.default is not _NOTHING or self.default_factory is not _NOTHING


class FieldOptions(TypedDict, total=False):
    """The options of ``field()`` beside the default."""

    name: str | None
    ttl: Any
    ttl_time: Literal["event", "processing"]


@overload
def field(*, default: T, **options: Unpack[FieldOptions]) -> T: ...
@overload
def field(
    *, default_factory: type[dict[Any, Any]] | type[list[Any]], **options: Unpack[FieldOptions]
) -> Any: ...
@overload
def field(*, default_factory: Callable[[], T], **options: Unpack[FieldOptions]) -> T: ...
@overload
def field(**options: Unpack[FieldOptions]) -> Any: ...
def field(
    *,
    default: Any = _NOTHING,
    default_factory: Any = _NOTHING,
    name: str | None = None,
    ttl: Any = None,
    ttl_time: str = "event",
) -> Any:
    """Options of an actor's field beyond its annotation: ``count: int = tr.field(default=0, ttl="1h")``.

    - ``default``, ``default_factory``: the value of a new instance, or a function that gives it. A field
      without either is required: the first handler of an instance must set it.
    - ``name``: the name that the field is stored under (default: the attribute's). Keep it when the attribute
      is renamed.
    - ``ttl``: time to live, a duration such as ``"1h"``, a timedelta, or milliseconds, at most 100000 days.
      It counts from the last write or change. Then a plain field has its default again, and an entry of a map
      is removed. A list has no TTL.
    - ``ttl_time``: ``"event"`` (the default: by the watermark) or ``"processing"`` (by the clock).

    Raises:
        DefinitionError: The options do not fit the field. Raised when the class is defined.
    """
    return FieldSpec(default, default_factory, name, ttl, ttl_time)


@dataclass(slots=True)
class Field:
    """A declared field. ``scope`` is None once ``annotation`` is resolved and checked.

    ``body`` holds the annotations of its class. msgspec reads them there, and looks names up in its module.
    """

    owner: str
    attr: str
    name: str
    kind: Kind
    annotation: Any
    required: bool
    ttl_ms: int | None
    ttl_domain: int
    scope: Scope | None
    body: dict[str, Any]

    @property
    def where(self) -> str:
        """The field as a message names it."""
        return f"{self.owner}.{self.attr}"

    @property
    def types(self) -> tuple[Any, ...]:
        """The types in the brackets of a map or list."""
        return get_args(self.annotation)

    def resolve(self, *, last_call: bool) -> bool:
        """Resolve the annotation and check that its types are durable. Returns whether all names are known.

        With ``last_call`` a name that is still not known is a DefinitionError.
        """
        if self.scope is None:
            return True
        if not last_call and not self.scope.knows([self.annotation]):
            return False
        self.annotation = self.scope.resolve_now(self.annotation, self.where)
        self._check()
        if self.kind == "value":
            self.body[self.attr] = self.annotation
        self.scope = None
        return True

    def _check(self) -> None:
        if self.kind == "value":
            check_durable(self.annotation, owner=self.owner, field=self.attr)
            return
        wanted, shape = (2, "tr.MapState[str, int]") if self.kind == "map" else (1, "tr.ListState[int]")
        if len(self.types) != wanted:
            raise DefinitionError(
                f"{self.where} is annotated without the types that it holds",
                hint=f"Annotate it like {shape}.",
            )
        check_durable(self.types[-1], owner=self.owner, field=self.attr)
        if self.kind == "map":
            try:
                map_key_codec_for(self.types[0])
            except DefinitionError as error:
                raise DurableTypeError(
                    error.what, owner=self.owner, field=self.attr, hint=error.hint
                ) from None


def kind_of(annotation: Any, scope: Scope) -> Kind | None:
    """The kind of field that an annotation declares, ignoring its brackets. None for a class variable."""
    head = scope.head(annotation)
    if head is ClassVar:
        return None
    return "map" if head is MapState else "list" if head is ListState else "value"


def declare(
    owner: str, attr: str, body: dict[str, Any], scope: Scope, default: Any, *, has_default: bool
) -> Field | None:
    """The field that a line of a class body declares, or None for a class variable.

    ``body`` has its annotation; ``default`` is what the line assigns, if ``has_default``.
    """
    annotation = body[attr]
    kind = kind_of(annotation, scope)
    if kind is None:
        return None
    where = f"{owner}.{attr}"
    if attr.startswith(("_tr_", "__")):
        raise DefinitionError(
            f"{where}: names that begin with '_tr_' or '__' are reserved for the framework",
            hint="Rename the field.",
        )
    spec = default if isinstance(default, FieldSpec) else FieldSpec()
    has_default = spec.has_default if isinstance(default, FieldSpec) else has_default
    if kind != "value" and has_default:
        shape = "MapState" if kind == "map" else "ListState"
        raise DefinitionError(
            f"{where} is a {shape} with a default", hint="Remove the default: the collection begins empty."
        )
    if spec.default is not _NOTHING and spec.default_factory is not _NOTHING:
        raise DefinitionError(f"{where} has a default and a default_factory", hint="Keep one of them.")
    name = attr if spec.name is None else spec.name
    if not name or "\0" in name or name.startswith("_tr_"):
        raise DefinitionError(
            f"{where} has name={name!r}, which is not a valid name",
            hint="Give it another name=: not empty, without a null character, and not beginning with '_tr_'.",
        )
    ttl_ms = None
    if spec.ttl is not None:
        ttl_ms = declared_duration(where, "ttl", spec.ttl, "Give a longer ttl, or leave it out.")
    if spec.ttl_time not in _DOMAINS:
        raise DefinitionError(
            f"{where} has ttl_time={spec.ttl_time!r}",
            hint=did_you_mean(spec.ttl_time, _DOMAINS, 'Write ttl_time="event" or "processing".'),
        )
    if ttl_ms is not None and kind == "value" and not has_default:
        raise DefinitionError(
            f"{where} has a time to live but no default",
            hint="Give it a default: its value after it has expired.",
        )
    if ttl_ms is not None and kind == "list":
        raise DefinitionError(
            f"{where} is a ListState with a time to live, but items in the middle of a list cannot expire",
            hint="Use a MapState with times as keys, or pop items from the start of the list.",
        )
    required = kind == "value" and not has_default
    return Field(owner, attr, name, kind, annotation, required, ttl_ms, _DOMAINS[spec.ttl_time], scope, body)


def struct_default(where: str, default: Any) -> Any:
    """The default of a plain field in the form that msgspec takes."""
    if isinstance(default, FieldSpec):
        if default.default_factory is not _NOTHING:
            return msgspec.field(default_factory=default.default_factory, name=default.name)
        if default.default is _NOTHING:
            return msgspec.field(name=default.name)
        return msgspec.field(default=_safe(where, default.default), name=default.name)
    return _safe(where, default)


def _safe(where: str, default: Any) -> Any:
    is_empty = default.__class__ in MUTABLE and not default  # msgspec makes a new one for each instance
    if _is_mutable(default) and not is_empty:
        raise DefinitionError(
            f"{where} has the default {default!r}, which all instances would share",
            hint=f"Write tr.field(default_factory=lambda: {default!r}).",
        )
    return default


def _is_mutable(default: Any) -> bool:
    if isinstance(default, _TUPLE):
        return any(_is_mutable(item) for item in default)
    if isinstance(default, msgspec.Struct):
        return not default.__struct_config__.frozen or any(
            _is_mutable(v) for v in msgspec.structs.astuple(default)
        )
    return isinstance(default, MUTABLE)


@dataclass(frozen=True, slots=True, eq=False)
class CollectionAttribute:
    """The class attribute of a ``MapState`` or ``ListState`` field: finds the entries of an instance."""

    _where: str
    _kind: Kind
    _index: int

    def __get__(self, instance: Any, owner: type[Any]) -> Any:
        if instance is None:
            return self
        try:
            parts = instance._tr_parts
        except AttributeError:
            raise UsageError(
                f"{self._where} was used on an instance that was not loaded by a task",
                hint="The framework creates actors. In a test, send events with the harness.",
            ) from None
        return parts.map(self._index) if self._kind == "map" else parts.list(self._index)

    def __set__(self, instance: Any, value: Any) -> None:
        raise UsageError(
            f"{self._where} was assigned to, but a collection cannot be replaced: its entries are stored one "
            "by one",
            hint="Change its entries (self.x[key] = value, .append(value)), or call its clear().",
        )


class TtlAttribute:
    """The attribute of a plain field with a TTL: the struct's own, which also records assignments."""

    __slots__ = ("_delete", "_get", "_index", "_set", "member")

    def __init__(self, member: Any, index: int) -> None:
        self.member = member
        self._get = member.__get__
        self._set = member.__set__
        self._delete = member.__delete__
        self._index = index

    def __get__(self, instance: Any, owner: type[Any]) -> Any:
        return self if instance is None else self._get(instance, owner)

    def __set__(self, instance: Any, value: Any) -> None:
        self._set(instance, value)
        parts = getattr(instance, "_tr_parts", None)
        if parts is not None:
            parts.ttl_written(self._index)

    def __delete__(self, instance: Any) -> None:
        self._delete(instance)
