"""Whether the readers of an event's record get an equal event: no value becomes null or a different value.

msgspec does not check the fields of a struct when it is created, and its JSON encoder writes ``null`` for nan
and infinities. So there are two checks. *Can JSON write every float?* is checked for each event of a JSON
topic whose type can hold floats, by a function compiled from the type that looks only at these fields
(``json_writer``). *Does a reader get an equal event?* (``change_of``) requires decoding the record. It is
checked in checked runs, and where the first check could not decide:

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

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, time
from math import isfinite
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from tailrace.core.values.canonical_nan import canonical
from tailrace.core.values.guards import Scope
from tailrace.core.values.types import CODEC_ERRORS, parts_of, shortened

_EXACT = float(2**53)
"""Every int up to this has an equal float."""
_MOST = sys.float_info.max
_UNTYPED = (inspect.AnyType, inspect.CustomType, inspect.ExtType, inspect.RawType, inspect.TypedDictType)
"""Types without a declared content, or whose content cannot be compared."""
_FIELDS = (inspect.StructType, inspect.DataclassType)

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
    """``encode``, or ``checked`` for an event in which a float is not finite.

    It is ``encode`` itself for types without floats. Otherwise it takes about 30 ns more for each float, and
    5 ns for each float in a list. A type with floats in unions, dicts or fixed tuples, or with parts that are
    not declared, has no test: its record is searched for null, and the event is searched if there is one.
    """

    def searching(event: Any) -> bytes:
        written = encode(event)
        return checked(event) if b"null" in written and not_finite(event) is not None else written

    return _writer(declared, encode, checked, searching, nan_only=False)


def canonical_writer(declared: Any, encode: Encode) -> Encode:
    """``encode`` (of MessagePack) with one form of NaN, see ``canonical_nan``.

    It is ``encode`` itself for types without floats. Otherwise it takes about 20 ns more for each float, and
    5 ns for each float in a list. Records of a type without a test (see ``json_writer``) are always searched.
    """

    def checked(value: Any) -> bytes:
        return canonical(encode(value))

    return _writer(declared, encode, checked, checked, nan_only=True)


def _is_untyped(declared: Any) -> bool:
    return any(isinstance(part, _UNTYPED) for part in parts_of(inspect.type_info(declared), set()))


def _writer(declared: Any, encode: Encode, checked: Encode, searching: Encode, *, nan_only: bool) -> Encode:
    if _is_untyped(declared):
        return searching
    node = inspect.type_info(declared)
    if not _holds_floats(node):
        return encode
    try:
        return _Look(nan_only).writer(node, encode, checked)
    except _NoTestError:
        return searching


class _NoTestError(Exception):
    """A type has floats in a place that is not tested."""


class _Look:
    """Compiles the check of a type's floats by expressions: ``first`` gives the value, ``then`` names it.

    The test of a float is "it is finite", or, with ``nan_only``, "it is not NaN".
    """

    def __init__(self, nan_only: bool) -> None:
        self._nan_only = nan_only
        self._scope = Scope()
        self._scope.constants |= {"isfinite": isfinite, "UNSET": msgspec.UNSET}
        self._functions: dict[Any, str] = {}

    def writer(self, node: inspect.Type, encode: Encode, checked: Encode) -> Encode:
        """The whole function. A test that raises (a str in a float field) leaves the event to ``checked``."""
        test = self._fields(node) if isinstance(node, _FIELDS) else self._test(node, "v", "v")
        namespace = self._scope.constants | {"encode": encode, "checked": checked}
        source = (
            "".join(self._scope.functions)
            + f"def write(v):\n try:\n  if {test}: return encode(v)\n"
            + " except (TypeError, AttributeError, OverflowError, IndexError): pass\n return checked(v)\n"
        )
        # The source consists of field names (identifiers) and constants only.
        exec(compile(source, "<tailrace write>", "exec"), namespace)  # noqa: S102
        write: Encode = namespace["write"]
        return write

    def _test(self, node: inspect.Type, first: str, then: str) -> str:
        match node:
            case inspect.Metadata():
                return self._test(node.type, first, then)
            case inspect.FloatType() if self._nan_only:
                return f"({first} == {then})"
            case inspect.FloatType():
                within = f"-{_EXACT!r} <= {first} <= {_EXACT!r}"
                return f"({within} or type({then}) is float and -{_MOST!r} <= {then} <= {_MOST!r})"
            case inspect.UnionType():
                members = [one for one in node.types if not isinstance(one, inspect.NoneType)]
                if len(members) != 1:
                    raise _NoTestError
                return f"({first} is None or {self._test(members[0], then, then)})"
            case inspect.ListType() | inspect.VarTupleType():
                return self._each(node.item_type, first)
            case inspect.StructType() | inspect.DataclassType():
                return f"{self._function(node)}({first})"
            case _:
                raise _NoTestError

    def _each(self, node: inspect.Type, values: str) -> str:
        if isinstance(node, inspect.FloatType):
            # A sum of finite floats may be infinite, and one of infinities may be NaN: then ``checked``
            # decides.
            if self._nan_only:
                total = self._scope.name("t")
                return f"(({total} := sum({values})) == {total})"
            return f"isfinite(sum({values}))"
        return f"all(map({self._function(node)}, {values}))"

    def _function(self, node: inspect.Type) -> str:
        """The name of a function that tests one value: for recursive types, and for items."""
        if not isinstance(node, _FIELDS):
            name = self._scope.name("f")
            self._scope.functions.append(f"def {name}(v): return {self._test(node, 'v', 'v')}\n")
            return name
        cls = node.cls
        if cls not in self._functions:
            name = self._functions[cls] = self._scope.name("f")
            self._scope.functions.append(f"def {name}(v): return {self._fields(node)}\n")
        return self._functions[cls]

    def _fields(self, node: inspect.StructType | inspect.DataclassType) -> str:
        """The test of all fields of ``v``."""
        tests: list[str] = []
        for field in node.fields:
            if _holds_floats(field.type):
                value = self._scope.name("t")
                test = self._test(field.type, f"({value} := v.{field.name})", value)
                # msgspec's inspection omits UnsetType from unions; a default of UNSET shows that it was
                # there.
                unset = not field.required and field.default is field.default_factory is msgspec.NODEFAULT
                tests.append(f"(v.{field.name} is UNSET or {test})" if unset else test)
        return " and ".join(tests) or "True"


def _holds_floats(node: inspect.Type) -> bool:
    return any(isinstance(part, inspect.FloatType) for part in parts_of(node, set()))


# --- what a reader gets ---


def is_comparable(declared: Any) -> bool:
    """Whether a type declares all its content, so can be compared: msgspec chooses how to decode ``Any``."""
    return not _is_untyped(declared)


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
