"""Whether the readers of an event's record get an equal event: no value becomes null or a different value.

msgspec does not check the fields of a struct when it is created, and its JSON encoder writes ``null`` for nan
and infinities. So there are two checks. *Can JSON write every float?* is checked for each event of a JSON
topic (``json_writer``). *Does a reader get an equal event?* (``change_of``) requires decoding the record. It
is checked in checked runs, and where the first check could not decide:

=======================================  ===========================================
an event with                            its reader gets
=======================================  ===========================================
``nan``, ``inf`` in a JSON topic         ``None``, or it cannot decode the record
``2**53 + 1`` in a ``float`` field       ``2.0**53``
``"7"`` in an ``int`` field              nothing: it cannot decode the record
a subclass of a declared struct          the declared one, without the other fields
a ``time`` with the name of a zone       a time without a zone
=======================================  ===========================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, time
from math import isfinite
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from tailrace.core.values.canonical_nan import canonical, may_have_other_than_finite
from tailrace.core.values.types import CODEC_ERRORS, parts_of, shortened

_UNTYPED = (inspect.AnyType, inspect.CustomType, inspect.ExtType, inspect.RawType, inspect.TypedDictType)
"""Types without a declared content, or whose content cannot be compared."""
_EXACT = float(2**53)
"""Every int up to this has an equal float: a larger one in a plain field is compared with what a reader gets."""
_pack = msgspec.msgpack.Encoder().encode

Encode = Callable[[Any], bytes]


class Change(NamedTuple):
    """A value of an event, at ``path``, that its readers would not get, and the reason.

    ``lost``: it is a float that JSON cannot write. ``mistake``: it is not of the declared type.
    """

    path: str
    what: str
    lost: bool = False
    mistake: bool = False

    def __str__(self) -> str:
        return f"{self.path} {self.what}".strip()


def json_writer(declared: Any, encode: Encode, checked: Encode) -> Encode:
    """``encode``, or ``checked`` for an event that may hold a float that is not finite, or an int beyond 2**53 in a float field.

    It is ``encode`` itself for types without floats. A test of plain fields takes about 30 ns for each;
    otherwise the record is searched for null, and the event packed and searched if there is one.
    """
    if not _may_hold_floats(declared):
        return encode
    is_finite = _test_of_plain_floats(
        declared,
        f"((x := v.{{0}}) is None or {-_EXACT!r} <= x <= {_EXACT!r} or type(x) is float and x - x == 0)",
    )
    if is_finite is None:

        def write(event: Any) -> bytes:
            written = encode(event)
            return checked(event) if b"null" in written and _may_lose_a_float(event) else written

        return write

    def write_tested(event: Any) -> bytes:
        try:
            return encode(event) if is_finite(event) else checked(event)
        except (TypeError, AttributeError):
            return checked(event)

    return write_tested


def canonical_writer(declared: Any, encode: Encode) -> Encode:
    """``encode`` (of MessagePack) with one form of NaN, see ``canonical_nan``.

    It is ``encode`` itself for types without floats.
    """
    if not _may_hold_floats(declared):
        return encode
    has_no_nan = _test_of_plain_floats(declared, "(x := v.{0}) == x")
    if has_no_nan is None:
        return lambda value: canonical(encode(value))
    return lambda value: encode(value) if has_no_nan(value) else canonical(encode(value))


def _may_hold_floats(declared: Any) -> bool:
    return _has_part(inspect.type_info(declared), (inspect.FloatType, *_UNTYPED))


def _has_part(node: inspect.Type, kinds: tuple[type[inspect.Type], ...]) -> bool:
    return any(isinstance(part, kinds) for part in parts_of(node, set()))


def _test_of_plain_floats(declared: Any, test: str) -> Callable[[Any], bool] | None:
    """A test of all floats of a struct, compiled. None if it may have floats outside of its plain fields."""
    node = inspect.type_info(declared)
    if not isinstance(node, inspect.StructType | inspect.DataclassType) or _has_part(node, _UNTYPED):
        return None
    names: list[str] = []
    for field in node.fields:
        members = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
        if all(isinstance(one, inspect.FloatType | inspect.NoneType) for one in members):
            names.append(field.name)
        elif _has_part(field.type, (inspect.FloatType,)):
            return None
    # The source consists of field names (identifiers) only.
    tested: Callable[[Any], bool] = eval(f"lambda v: {' and '.join(map(test.format, names))}")  # noqa: S307
    return tested


def _may_lose_a_float(event: Any) -> bool:
    """Whether an event may hold nan or an infinity. Many events have a null because a field is None."""
    try:
        return may_have_other_than_finite(_pack(event))
    except CODEC_ERRORS:
        return True


def is_comparable(declared: Any) -> bool:
    """Whether a type declares all its content, so can be compared: msgspec chooses how to decode ``Any``."""
    return not _has_part(inspect.type_info(declared), _UNTYPED)


def change_of(
    event: Any, encode: Encode, decode: Callable[[bytes], Any], *, json: bool, compare: bool = True
) -> Change | None:
    """The first value that readers of the event's record would not get, or get as another, or None.

    ``json``: nan and infinities are lost. ``compare=False``: look only for these, see ``is_comparable``.
    """
    lost = not_finite(event) if json else None
    if lost is not None:
        return Change(lost[0].lstrip("."), f"is {lost[1]!r}, which JSON cannot write", lost=True)
    try:
        written = encode(event)
    except CODEC_ERRORS as error:
        return Change(
            _unwritable(event, encode).lstrip("."),
            f"cannot be written: {error}",
            mistake=isinstance(error, TypeError),
        )
    try:
        read = decode(written)
    except CODEC_ERRORS as error:
        return Change("", f"its readers could not decode it: {error}", mistake=True)
    return _difference(event, read, "") if compare else None


def not_finite(value: Any, path: str = "") -> tuple[str, float] | None:
    """The first float in a value that JSON cannot write, with its path; None if there is none."""
    if isinstance(value, float):
        return None if isfinite(value) else (path, value)
    for step, inner in inside(value):
        found = not_finite(inner, f"{path}{step}")
        if found is not None:
            return found
    return None


def _unwritable(value: Any, encode: Encode) -> str:
    """The path of the innermost value that cannot be encoded."""
    for step, inner in inside(value):
        try:
            encode(inner)
        except CODEC_ERRORS:
            return f"{step}{_unwritable(inner, encode)}"
    return ""


def inside(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a value, each with its step in the path."""
    if isinstance(value, msgspec.Struct):
        names: Iterable[str] = value.__struct_fields__
        yield from ((f".{name}", getattr(value, name)) for name in names if hasattr(value, name))
    elif is_dataclass(value) and not isinstance(value, type):
        yield from (
            (f".{one.name}", getattr(value, one.name)) for one in fields(value) if hasattr(value, one.name)
        )
    elif isinstance(value, dict):
        yield from ((f"[{key!r}]", inner) for key, inner in value.items())  # pyright: ignore[reportUnknownVariableType]  # any value
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"[{at}]", inner) for at, inner in enumerate(value))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  # any value


def _difference(old: Any, new: Any, path: str) -> Change | None:
    """The first place where the value that was read differs from the one that was written."""
    changed = Change(path.lstrip("."), f"is {shortened(old)}, and its readers would get {shortened(new)}")
    if isinstance(old, msgspec.Struct) or is_dataclass(old):
        if type(old) is not type(new):
            return changed
    elif isinstance(old, dict):
        return _of_dicts(old, new, path, changed)  # pyright: ignore[reportUnknownArgumentType]  # any value
    elif isinstance(old, (set, frozenset)):
        return None if old == new else changed
    elif isinstance(old, (list, tuple)):
        if not isinstance(new, (list, tuple)) or len(old) != len(new):  # pyright: ignore[reportUnknownArgumentType]  # any value
            return changed
    else:
        return None if _is_same(old, new) else changed
    for (step, was), (_, now) in zip(inside(old), inside(new), strict=False):
        found = _difference(was, now, f"{path}{step}")
        if found is not None:
            return found
    return None


def _of_dicts(old: Mapping[Any, Any], new: Any, path: str, changed: Change) -> Change | None:
    if not isinstance(new, dict) or len(old) != len(new):  # pyright: ignore[reportUnknownArgumentType]  # any value
        return changed
    for key, was in old.items():
        if key == key:  # nan is no key that can be found
            if key not in new:
                return changed
            found = _difference(was, new[key], f"{path}[{key!r}]")
            if found is not None:
                return found
    return None


def _is_same(old: Any, new: Any) -> bool:
    if isinstance(old, (datetime, time)):
        if not isinstance(new, (datetime, time)) or (old.tzinfo is None) is not (new.tzinfo is None):
            return False
        if isinstance(old, datetime) and isinstance(new, datetime) and old.tzinfo is not None:
            return old.astimezone(UTC) == new.astimezone(UTC)  # with a fold it equals no other zone's
    try:
        return bool(old == new) or bool(old != old and new != new)  # nan
    except ArithmeticError:  # a signalling NaN of decimal
        return repr(old) == repr(new)
