"""The types that a durable value may have, and how a value is made equal to its decoded encoding.

Two checks are made. At definition: may the type of a field be stored (``check_durable``)? When a handler
returns: does the field's value equal the value that a restart would read (``make_sealer``, ``normaliser``)?
For a *fixed-point* type a test of the value is enough. Any other value is replaced by its decoded encoding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from enum import Flag
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

import msgspec
from msgspec import inspect

from tailrace.core.errors import DefinitionError, DurableTypeError, DurableValueError, UnfitValueError
from tailrace.core.values.codec import ValueCodec
from tailrace.core.values.guards import NoGuardError, Scope, is_plain_frozen, struct_class
from tailrace.core.values.misread import INSTEAD, misread

CODEC_ERRORS: Final = (msgspec.MsgspecError, OverflowError, UnicodeEncodeError, RecursionError, TypeError)
"""Errors of encoding or strictly decoding a value of the wrong type, for ``except``; see ``explain``."""

_PATH = re.compile(r"`\$\.([^.`\[]+)")
_A_STRUCT = "Make it a msgspec.Struct."
_NO_SET = "Its order differs between processes: use dict[K, None], or tr.MapState[K, None]."
_NO_OMISSION = (
    "It omits a default by object identity, so equal values may have different bytes: remove the option."
)
_NO_FORBIDDING = "Rows may have fields of an older declaration: remove the option."
_REFUSED: dict[type[inspect.Type], str] = {
    inspect.AnyType: "Declare what it holds: a msgspec.Struct, or a union of the types that occur.",
    inspect.ByteArrayType: "Use bytes.",
    inspect.CustomType: _A_STRUCT,
    inspect.DataclassType: _A_STRUCT,
    inspect.ExtType: _A_STRUCT,
    inspect.FrozenSetType: _NO_SET,
    inspect.MemoryViewType: "Use bytes.",
    inspect.RawType: "Use bytes, or the type that the value would be decoded to.",
    inspect.SetType: _NO_SET,
    inspect.TypedDictType: _A_STRUCT,
}
_SCALARS = (
    inspect.NoneType,
    inspect.BoolType,
    inspect.IntType,
    inspect.StrType,
    inspect.BytesType,
    inspect.DateTimeType,
    inspect.TimeType,
    inspect.DateType,
    inspect.TimeDeltaType,
    inspect.UUIDType,
    inspect.DecimalType,
    inspect.EnumType,
    inspect.LiteralType,
)
_GROUPS = (inspect.UnionType, inspect.TupleType)


def spell(declared: Any) -> str:
    """A type as its annotation is written: ``dict[str, int]``, ``Plane | None``."""
    if get_origin(declared) is None and not isinstance(declared, UnionType):
        name: str | None = getattr(declared, "__qualname__", None)
        if name is not None:
            return name
    origin: Any = get_origin(declared)
    args = get_args(declared)
    if origin in (Union, UnionType):
        return " | ".join("None" if one is NoneType else spell(one) for one in args)
    if isinstance(origin, type) and args and not any(isinstance(one, list) for one in args):
        room = "tr." if origin.__module__.startswith("tailrace.library.") else ""
        inner = ("..." if one is ... else "None" if one is NoneType else spell(one) for one in args)
        return f"{room}{origin.__qualname__}[{', '.join(inner)}]"
    return str(declared).replace("typing.", "")


def check_durable(declared: Any, *, owner: str, field: str) -> None:
    """Raise DurableTypeError, with a hint, unless values of the type can be stored and read back unchanged.

    Durable are: None, bool, int (64 bits), float, str, bytes, datetime, date, time, timedelta, Decimal, UUID,
    enums of str or int, Literal, list, dict, tuple and NamedTuple of durable types, msgspec structs with
    durable fields, and unions of them whose members msgspec can distinguish.
    """
    if why := misread(declared, []):
        raise DurableTypeError(
            f"{spell(declared)} cannot be stored: {why}", owner=owner, field=field, hint=INSTEAD
        )
    try:
        node = inspect.type_info(declared)
    except (TypeError, NameError, NotImplementedError, ValueError) as error:
        raise DurableTypeError(
            f"{spell(declared)} cannot be stored: {error}",
            owner=owner,
            field=field,
            hint="Declare one type that msgspec can decode, with names that are visible in this module.",
        ) from error
    for part in parts_of(node, set()):
        why, hint = _objection(part)
        if hint:
            spelled = spell(declared)
            it_is_that = why == f"it contains {spelled.partition('[')[0]}"
            what = f"{spelled} cannot be stored" + ("" if it_is_that else f": {why}")
            raise DurableTypeError(what, owner=owner, field=field, hint=hint)


def check_emitted(declared: Any, *, topic: str) -> None:
    """Raise DefinitionError if the bytes of an event may depend on more than its value.

    The bytes of outputs are compared between runs. A set is written in an order that differs between
    processes. A struct with ``omit_defaults`` omits a field that holds the same object as its default, but
    not an equal value that was read back from the store.
    """
    for part in parts_of(inspect.type_info(declared), set()):
        why, hint = _objection(part)
        if isinstance(part, inspect.SetType | inspect.FrozenSetType) or hint == _NO_OMISSION:
            raise DefinitionError(
                f"events of type {spell(declared)} cannot be emitted to {topic!r}: {why}",
                hint=_NO_OMISSION
                if hint == _NO_OMISSION
                else "Its order differs between processes: use a sorted list.",
            )


def _objection(part: inspect.Type) -> tuple[str, str]:
    """The reason why a type with this part is not durable, and the hint. Empty if the part is durable."""
    refused = _REFUSED.get(type(part))
    if refused is not None:
        return f"it contains {_spell_node(part)}", refused
    match part:
        case inspect.EnumType() if issubclass(part.cls, Flag):
            return f"{spell(part.cls)} is a Flag", "Store an int, or one bool per flag."
        case inspect.DictType():
            for key in parts_of(part.key_type, set()):
                if not isinstance(key, (*_SCALARS, *_GROUPS)):
                    return (
                        f"a dict's key cannot be {_spell_node(key)}",
                        "Use str, int, bytes, a date or time, Decimal, UUID, an enum, or a tuple of these.",
                    )
        case inspect.StructType() if struct_class(part).__struct_config__.omit_defaults:
            return f"{spell(struct_class(part))} has omit_defaults", _NO_OMISSION
        case inspect.StructType() if part.forbid_unknown_fields:
            return f"{spell(struct_class(part))} has forbid_unknown_fields", _NO_FORBIDDING
        case _:
            pass
    return "", ""


def parts_of(node: inspect.Type, seen: set[type]) -> Iterator[inspect.Type]:
    """A type and all of its parts, each class once."""
    inner: Iterable[inspect.Type] = ()
    match node:
        case inspect.Metadata():
            yield from parts_of(node.type, seen)
            return
        case inspect.UnionType():
            inner = node.types
        case inspect.CollectionType():
            inner = [node.item_type]
        case inspect.TupleType():
            inner = node.item_types
        case inspect.DictType():
            inner = [node.key_type, node.value_type]
        case (
            inspect.StructType()
            | inspect.NamedTupleType()
            | inspect.DataclassType()
            | inspect.TypedDictType()
        ) if node.cls not in seen:
            seen.add(node.cls)
            inner = [field.type for field in node.fields]
        case _:
            pass
    yield node
    for one in inner:
        yield from parts_of(one, seen)


def _spell_node(node: inspect.Type) -> str:
    cls = getattr(node, "cls", None)
    if cls is not None:
        return spell(cls)
    name = type(node).__name__.removesuffix("Type")
    return name if name in ("Any", "Raw", "Ext") else name.lower()


def is_fixed_point(declared: Any) -> bool:
    """Whether a sealed value of the type stays indistinguishable from its decoded encoding.

    True for all scalars and for tuples and frozen structs of them. Such values are kept without encoding
    them. The exceptions are in ``guards``.
    """
    return _guard_of(Scope(), declared, "v")[1]


def is_immutable(declared: Any) -> bool:
    """Whether a value of the type, and all of its parts, cannot change, so that it may be encoded later.

    False for a type for which this is not known. Raises TypeError for a type that msgspec cannot use at all.
    """
    return all(
        is_plain_frozen(struct_class(part))
        if isinstance(part, inspect.StructType)
        else isinstance(
            part, (*_SCALARS, *_GROUPS, inspect.FloatType, inspect.NamedTupleType, inspect.VarTupleType)
        )
        for part in parts_of(inspect.type_info(declared), set())
    )


def normaliser(declared: Any, *, owner: str = "", field: str = "") -> Callable[[Any], Any]:
    """A function that checks one map value or list item and returns the value to keep.

    For a fixed-point type that is the value as a restart would read it: the value itself if it is settled,
    else its lossless conversion (an int to a float, a datetime to UTC). For other types only the outermost
    type is checked, and the codec must settle the value. DurableValueError: a value of another type.
    """
    scope = Scope()
    guard, _ = _guard_of(scope, declared, "v")
    scope.constants["settle"] = _Settler(owner, field, declared)
    return _compiled("check", f"def check(v):\n return v if {guard} else settle(None, v)\n", scope)


def make_sealer(fields: Sequence[tuple[str, Any]]) -> Callable[[Any], None]:
    """Compile the check of an instance's ``(attribute, type)`` fields, to be called when a handler returns.

    Sets converted values in place (see ``normaliser``). Raises DurableValueError for a field that has no value
    and DurableValueError for a value that is not of its type; both name class, field and fix. The content of
    a field without a fixed point is left to the codec. About 30 ns per plain field.
    """
    scope = Scope()
    lines: list[str] = []
    for attribute, declared in fields:
        guard, _ = _guard_of(scope, declared, f"(v := o.{attribute})")
        settle = scope.constant(_Settler("", attribute, declared))
        lines.append(f"  if not ({guard}): o.{attribute} = {settle}(o, v)")
    scope.constants["unset"] = _unset
    scope.constants["names"] = [attribute for attribute, _ in fields]
    body = "\n".join(lines) or "  pass"
    source = f"def seal(o):\n try:\n{body}\n except AttributeError as error:\n  unset(o, names, error)\n"
    return _compiled("seal", source, scope)


def _guard_of(scope: Scope, declared: Any, first: str) -> tuple[str, bool]:
    """The expression that is true for a settled value, and whether it checks all of the value."""
    node = inspect.type_info(declared)
    try:
        return scope.guard(node, first, "v"), True
    except NoGuardError:
        pass
    try:
        return scope.outline(node, first, "v"), False
    except NoGuardError:
        return f"({first}, False)[1]", False


def _compiled(name: str, source: str, scope: Scope) -> Callable[[Any], Any]:
    namespace = scope.constants
    # The source consists of field names (identifiers) and constants only, as in the standard library's
    # dataclasses.
    exec(compile("".join(scope.functions) + source, f"<tailrace {name}>", "exec"), namespace)  # noqa: S102
    function: Callable[[Any], Any] = namespace[name]
    return function


def _unset(instance: object, names: Sequence[str], error: AttributeError) -> None:
    for name in names:
        if not hasattr(instance, name):
            raise _unset_field(type(instance), name) from None
    raise error


def _unset_field(owner: type, name: str) -> DurableValueError:
    return DurableValueError(
        "the field has no value",
        owner=spell(owner),
        field=name,
        hint="Give it a default, or set it in every handler that may be a key's first.",
    )


class _Settler:
    """The slow path of a seal: called with a value that its guard refused."""

    def __init__(self, owner: str, field: str, declared: Any) -> None:
        self._owner = owner
        self._field = field
        self._declared = declared
        self._codec = ValueCodec[Any](declared)

    def __call__(self, instance: object, value: Any) -> Any:
        owner = spell(type(instance)) if instance is not None else self._owner
        if value.__class__ in (set, frozenset):
            raise self._refused(owner, value, "the order of a set differs between processes")
        try:
            if isinstance(value, datetime) and value.tzinfo is not None:
                value = value.astimezone(UTC)
            settled = self._codec.settle(value)[1]
        except CODEC_ERRORS as error:
            raise self._refused(owner, value, str(error), refusal(error)) from error
        if _is_another(settled, value):
            kind = UnfitValueError if type(value) is int else None  # beyond 2**53, as a float
            raise self._refused(owner, value, f"a restart would read {settled!r}", kind)
        return settled

    def _refused(
        self,
        owner: str,
        value: object,
        why: str,
        error: type[DurableValueError | UnfitValueError] | None = None,
    ) -> DurableValueError | UnfitValueError:
        kind, declared = spell(type(value)), spell(self._declared)
        what = "does not fit" if error is UnfitValueError else "is not of"
        return (error or DurableValueError)(
            f"the value {shortened(value)} of type {kind} {what} the declared type {declared}: {why}",
            owner=owner or None,
            field=self._field or None,
            hint="Convert it before you store it, or declare the field with the type that it holds.",
        )


def _is_another(settled: object, value: object) -> bool:
    """Whether storing changed the value, and not only its form."""
    if isinstance(value, msgspec.Struct) or isinstance(settled, msgspec.Struct):
        return type(settled) is not type(value)
    if isinstance(value, tuple | list | dict):
        return False
    # A NaN is unequal to itself, and so is its canonical form.
    if isinstance(value, float) and value != value:
        return settled == settled
    # A local time with a fold is unequal to every other time, itself included.
    return not isinstance(value, datetime) and settled != value


def refusal(error: Exception) -> type[DurableValueError | UnfitValueError]:
    """The class of the error for a value that the codec refused with ``error``, one of CODEC_ERRORS: UnfitValueError if its type is right."""
    unfit = isinstance(error, (OverflowError, RecursionError, UnicodeEncodeError))
    text = str(error)  # of ``Meta(ge=0)``: Expected `int` >= 0
    return (
        UnfitValueError
        if unfit or (text.startswith("Expected") and ", got" not in text)
        else DurableValueError
    )


def shortened(value: object) -> str:
    """A value for a message, shortened."""
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def explain(error: Exception, owner: type, value: object = None) -> DurableValueError | UnfitValueError:
    """The error for a user whose instance of ``owner`` could not be encoded, or not be decoded again.

    ``error`` is one of CODEC_ERRORS, or the AttributeError of an unset field. ``value`` is the instance, if
    available: msgspec does not name the field that it could not encode, so each field is tried.
    """
    field: str | None = None
    path = _PATH.search(str(error))
    if path is not None:
        field = _attribute(owner, path.group(1))
    elif value is not None:
        for name in getattr(owner, "__struct_fields__", ()):
            if not hasattr(value, name):
                return _unset_field(owner, name)
            try:
                msgspec.msgpack.encode(getattr(value, name))
            except CODEC_ERRORS:
                field = name
                break
    return refusal(error)(
        f"a value cannot be stored as its declared type: {error}",
        owner=spell(owner),
        field=field,
        hint="Convert it before you store it, or declare the type that the field holds.",
    )


def _attribute(owner: type, encoded: str) -> str:
    names: tuple[str, ...] = getattr(owner, "__struct_fields__", ())
    written: tuple[str, ...] = getattr(owner, "__struct_encode_fields__", ())
    return names[written.index(encoded)] if encoded in written else encoded
