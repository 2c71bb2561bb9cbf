"""Whether every value that is written as one type can be read as another one.

Reading is strict decoding by msgspec, which looks at forms, not at classes: in JSON, a ``date`` is text, and a ``str`` reads it.
So the writer's type is taken apart into *forms*, and each form is given to the member of the reader's type that decodes it. A
union has at most one such member for each form, or, for tagged structs, one for each tag. Types that contain themselves are
read once for each pair of types (``_Reading.seen``): what is being shown may be assumed.

================================  =========================================================================
written                           is read as
================================  =========================================================================
int                               int, int values, float, Decimal: the first of these in the reader's type
float                             float, Decimal
text: str, str values             str, str values
date, UUID ... (bytes in JSON)    the same, or str without limits
bytes, aware datetime in msgpack  the same: they are no text there. In Avro, nor are date, UUID and Decimal
list, set, tuple, NamedTuple,     any of these that takes each item and each length
array_like struct
struct, dataclass, dict ...       a dict that reads all keys and values. But for a dict also a struct whose
                                  required fields are always written, if its fields read what has their names
anything (Any)                    anything
================================  =========================================================================

A few pairs of types are refused though all values may decode: a text with limits for a date, another pattern, ``Literal["1"]``
as Decimal, a struct without required fields for a dict, and what the ``_missing_`` of an enum accepts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, Final, NamedTuple

from tailrace.core.values.guards import INT_MAX, INT_MIN
from tailrace.core.values.type_schemas import TypeSchema

_TEXTS: Final = ("str", "bytes", "datetime", "time", "date", "timedelta", "UUID", "Decimal")
_SETS: Final = ("set", "frozenset")
_LISTS: Final = ("list", "tuple...", *_SETS)
_VALUES: Final = ("enum", "literal")


class Misread(NamedTuple):
    """A value that the reader cannot decode: where it is, and the reason, which completes "cannot be read: ..."."""

    path: str
    why: str
    hint: str


class Node(NamedTuple):
    """A type where it stands: ``around`` are the types that contain it, outermost first."""

    schema: TypeSchema
    around: tuple[TypeSchema, ...] = ()

    def resolved(self) -> Node:
        """The type itself, for one that is given as a type around it."""
        if self.schema.kind != "recursive":
            return self
        at = len(self.around) - 1 - self.schema.up
        return Node(self.around[at], self.around[:at])

    def part(self, schema: TypeSchema) -> Node:
        """A part of the type. Types that have fields are around their parts."""
        named = self.schema.kind in ("struct", "namedtuple")
        return Node(schema, (*self.around, self.schema) if named else self.around)

    def members(self) -> list[Node]:
        """The members of a union, or the type itself."""
        return [Node(one, self.around).resolved() for one in self.schema.members]


class _Form(NamedTuple):
    """How a value is written. ``kind`` is the kind of a text; ``least`` and ``most`` are the lengths of an array or a map."""

    sort: str
    of: TypeSchema
    kind: str = ""
    values: tuple[str | int, ...] | None = None
    limits: Mapping[str, Any] = {}
    items: tuple[Node, ...] = ()
    rest: Node | None = None
    least: int = 0
    most: float = inf
    fields: Mapping[str, tuple[Node, bool]] = {}
    """By name: the type, and whether a value may be without the field."""
    key: Node | None = None

    def item(self, place: int) -> Node | None:
        """The type of an item; None if there is none at this place."""
        return self.items[place] if place < len(self.items) else self.rest if place < self.most else None


def misreads(written: TypeSchema, read: TypeSchema, *, json: bool, avro: bool = False) -> list[Misread]:
    """What the type ``read`` cannot decode of the values of the type ``written``; empty if it decodes all."""
    return list(_Reading(json=json, avro=avro).read(Node(written), Node(read), ""))


def _literal(value: str | int) -> TypeSchema:
    return TypeSchema("literal", values=(value,))


class _Reading:
    def __init__(self, *, json: bool, avro: bool) -> None:
        self._json = json
        self._no_texts = () if json else ("bytes", "date", "UUID", "Decimal") if avro else ("bytes",)
        self.seen: dict[tuple[int, int], tuple[TypeSchema, TypeSchema]] = {}
        """By identity, with the types, so that these stay alive."""

    def read(self, written: Node, read: Node, path: str) -> Iterator[Misread]:
        """What cannot be read, each pair of types once."""
        written, read = written.resolved(), read.resolved()
        pair = id(written.schema), id(read.schema)
        if pair in self.seen:
            return
        self.seen[pair] = written.schema, read.schema
        for member in written.members():
            for form in self._forms(member):
                yield from self._read_form(form, read, path)

    # --- what is written ---

    def _forms(self, node: Node) -> Iterator[_Form]:
        schema = node.schema
        kind, limits = schema.kind, schema.limits
        least, most = _lengths(limits)
        if kind == "datetime" and not self._json and limits.get("tz") is not False:
            yield _Form("timestamp", schema, limits=limits)
            if limits.get("tz") is None:
                yield _Form("str", schema, kind, limits={"tz": False})
        elif kind in self._no_texts:
            yield _Form(kind, schema, limits=limits)
        elif kind in _TEXTS:
            yield _Form("str", schema, kind, limits=limits)
        elif kind in _VALUES:
            yield _Form(type(schema.values[0]).__name__, schema, "str", schema.values)
        elif kind in _LISTS:
            item = schema.of[0]
            if kind in _SETS and item.kind in _VALUES:
                most = min(most, len(item.values))
            yield _Form("array", schema, kind, rest=node.part(item), least=least, most=most)
        elif kind == "dict":
            key, value = map(node.part, schema.of)
            yield _Form("map", schema, rest=value, least=least, most=most, key=key)
        elif kind in ("tuple", "namedtuple") or schema.array_like:
            items = tuple(map(node.part, _places(schema)))
            yield _Form("array", schema, kind, items=items, least=len(items), most=len(items))
        elif kind == "struct":
            fields = {one.name: (node.part(one.type), one.absent) for one in schema.fields}
            if schema.tag_field is not None and schema.tag is not None:
                fields[schema.tag_field] = Node(_literal(schema.tag)), False
            least = sum(not absent for _, absent in fields.values())
            yield _Form("map", schema, fields=fields, least=least, most=len(fields))
        else:
            yield _Form(kind, schema, limits=limits)

    # --- what reads it ---

    def _read_form(self, form: _Form, read: Node, path: str) -> Iterator[Misread]:
        members = read.members()
        found = {one.schema.kind: one for one in members}
        if "Any" in found:
            return
        path = path or str(form.of)
        match form.sort:
            case "array":
                arrays = [one for one in members if one.schema.array_like]
                others = [found[kind] for kind in (*_LISTS, "tuple", "namedtuple") if kind in found]
                yield from self._array(form, arrays or others, path, read)
            case "map":
                maps = [one for one in members if one.schema.kind in ("struct", "dict")]
                maps = [one for one in maps if not one.schema.array_like]
                yield from self._map(form, maps, path, read)
            case "str":
                yield from _text(form, found, members, path, read)
            case "int" | "float":
                yield from _number(form, found, members, path, read)
            case "timestamp":
                taken = found.get("datetime")
                if taken is None or taken.schema.limits.get("tz") is False:
                    yield _other(form, read, path)
            case _:
                taken = found.get(form.sort)
                if taken is None or not _holds_lengths(form, taken.schema):
                    yield _other(form, read, path)

    def _array(self, form: _Form, readers: Sequence[Node], path: str, read: Node) -> Iterator[Misread]:
        if not readers:
            yield _other(form, read, path)
            return
        if len(readers) > 1:
            yield from self._tagged(form, form.item(0), readers, path)
            return
        reader = readers[0]
        schema = reader.schema
        if schema.kind in _LISTS:
            # A JSON array has the length of the set that it becomes, an array in msgpack its own.
            to_set = self._json and schema.kind in _SETS and form.kind not in _SETS
            repeated = to_set and _lengths(schema.limits)[0] > 1
            if repeated or not _holds_lengths(form, schema):
                yield _other(form, read, path)
            for one in (*form.items, *([] if form.rest is None else [form.rest])):
                yield from self.read(one, reader.part(schema.of[0]), f"{path}[]")
            return
        places = _places(schema)
        needed = len(places)
        if schema.kind != "tuple":
            tags = len(places) - len(schema.fields)
            needed = max((at for at, one in enumerate(schema.fields, tags + 1) if one.required), default=tags)
        if form.least < needed or (form.most > len(places) and (schema.forbid or not schema.array_like)):
            yield _other(form, read, path)
        for at, place in enumerate(places):
            item = form.item(at)
            if item is not None:
                yield from self.read(item, reader.part(place), f"{path}[{at}]")

    def _map(self, form: _Form, readers: Sequence[Node], path: str, read: Node) -> Iterator[Misread]:
        if not readers:
            yield _other(form, read, path)
        elif readers[0].schema.kind == "dict":
            yield from self._dict(form, readers[0], path, read)
        elif len(readers) > 1:
            tag = form.fields.get(readers[0].schema.tag_field or "")
            yield from self._tagged(form, None if tag is None or tag[1] else tag[0], readers, path)
        elif form.key is not None:
            yield Misread(path, f"{form.of} is a dict, which {readers[0].schema} does not read", _SAME)
        else:
            yield from self._struct(form, readers[0], path)

    def _tagged(self, form: _Form, tag: Node | None, readers: Sequence[Node], path: str) -> Iterator[Misread]:
        """Give the value to the struct with its tag."""
        by_tag = {(type(one.schema.tag), one.schema.tag): one for one in readers}
        values = () if tag is None or tag.schema.kind not in _VALUES else tag.schema.values
        for value in values:
            reader = by_tag.get((type(value), value))
            if reader is None:
                known = ", ".join(sorted(str(one.schema) for one in readers))
                yield Misread(path, f"its tag is {value!r}, and only {known} are known", _KEEP_VALUES)
            elif form.sort == "map":
                yield from self._struct(form, reader, path)
            else:
                yield from self._array(form, [reader], path, reader)
        if not values:
            yield Misread(
                path, f"it has no tag to select {' or '.join(str(one.schema) for one in readers)}", _SAME
            )

    def _dict(self, form: _Form, reader: Node, path: str, read: Node) -> Iterator[Misread]:
        key, value = map(reader.part, reader.schema.of)
        if not _holds_lengths(form, reader.schema):
            yield _other(form, read, path)
        if form.key is not None and form.rest is not None:
            yield from self._key(form.key, key, f"{path}[key]")
            yield from self.read(form.rest, value, f"{path}[]")
        for name, (node, _) in form.fields.items():
            yield from self._key(Node(_literal(name)), key, f"{path}[key]")
            yield from self.read(node, value, f"{path}.{name}")

    def _key(self, written: Node, read: Node, path: str) -> Iterator[Misread]:
        """Keys in JSON are text: a number is read as a number only where no member reads text."""
        as_text = self._json and any(one.schema.kind == "str" for one in read.members())
        for form in (form for one in written.members() for form in self._forms(one)):
            key = form
            if as_text and form.sort in ("int", "float"):
                key = form._replace(sort="str", kind=form.sort, values=None)
            yield from self._read_form(key, read, path)

    def _struct(self, form: _Form, reader: Node, path: str) -> Iterator[Misread]:
        schema = reader.schema
        for field in schema.fields:
            node, absent = form.fields.get(field.name, (None, True))
            if absent and field.required:
                why = f"the field is required, and {'may be' if node else 'is'} absent"
                yield Misread(f"{path}.{field.name}", why, _DEFAULT)
            if node is not None:
                yield from self.read(node, reader.part(field.type), f"{path}.{field.name}")
        known = {one.name for one in schema.fields}
        if schema.tag_field is not None and schema.tag is not None:
            known.add(schema.tag_field)
            if schema.tag_field in form.fields:
                node, tag = form.fields[schema.tag_field][0], Node(_literal(schema.tag))
                yield from self.read(node, tag, f"{path}.{schema.tag_field}")
        unknown = [name for name in form.fields if name not in known]
        if schema.forbid and unknown:
            yield Misread(f"{path}.{unknown[0]}", f"{schema} forbids unknown fields", _FORBID)


_SAME: Final = "Keep the type. Add what is new as another field that has a default, or declare another topic."
_KEEP_VALUES: Final = "Keep the values and tags that exist. Teach new ones to all readers first."
_DEFAULT: Final = "Give the field a default. If it was renamed, add its old name: msgspec.field(name=...)."
_FORBID: Final = "Remove forbid_unknown_fields, or do not add and remove fields."


def _places(schema: TypeSchema) -> tuple[TypeSchema, ...]:
    """The types of the items of a tuple, NamedTuple or array_like struct, which begins with its tag."""
    tag = () if schema.tag is None else (_literal(schema.tag),)
    return schema.of or (*tag, *(one.type for one in schema.fields))


def _other(form: _Form, read: Node, path: str) -> Misread:
    return Misread(path, f"{form.of} is not always {read.schema}", _SAME)


def _text(
    form: _Form, found: Mapping[str, Node], members: Iterable[Node], path: str, read: Node
) -> Iterator[Misread]:
    limits = found["str"].schema.limits if "str" in found else None
    if form.values is not None and limits is not None:
        if not all(_fits_text(str(one), limits) for one in form.values):
            yield _other(form, read, path)
    elif form.values is not None:
        yield from _values(form, members, path, read)
    elif limits is not None:
        fits = form.kind == "str" and limits.get("pattern") in (None, form.limits.get("pattern"))
        if limits and not (fits and _holds_lengths(form, found["str"].schema)):
            yield _other(form, read, path)
    else:
        taken = found.get(form.kind)
        if (
            taken is None
            or not _holds_lengths(form, taken.schema)
            or taken.schema.limits.get("tz") not in (None, form.limits.get("tz"))
        ):
            yield _other(form, read, path)


def _number(
    form: _Form, found: Mapping[str, Node], members: Iterable[Node], path: str, read: Node
) -> Iterator[Misread]:
    has_values = any(type(value) is int for one in members for value in one.schema.values)
    if form.sort == "int" and has_values and "int" not in found:
        yield from _values(form, members, path, read)
        return
    taken = next((found[kind] for kind in (form.sort, "float", "Decimal") if kind in found), None)
    if taken is None or not _within(form, taken.schema.limits):
        yield _other(form, read, path)


def _values(form: _Form, members: Iterable[Node], path: str, read: Node) -> Iterator[Misread]:
    known = {(type(value), value) for one in members for value in one.schema.values}
    lost = [value for value in form.values or () if (type(value), value) not in known]
    if form.values is None or (lost and not known):
        yield _other(form, read, path)
    elif lost:
        shown = ", ".join(map(repr, lost))
        yield Misread(path, f"{read.schema} does not have the value {shown}", _KEEP_VALUES)


def _fits_text(text: str, limits: Mapping[str, Any]) -> bool:
    least, most = _lengths(limits)
    return least <= len(text) <= most and re.search(limits.get("pattern", ""), text) is not None


def _holds_lengths(form: _Form, schema: TypeSchema) -> bool:
    """Whether a type takes all lengths of a form: of the text or the bytes, or of its items."""
    wanted = _lengths(schema.limits)
    written = _lengths(form.limits)
    return wanted[0] <= max(form.least, written[0]) and min(form.most, written[1]) <= wanted[1]


def _lengths(limits: Mapping[str, Any]) -> tuple[int, float]:
    return limits.get("min_length", 0), limits.get("max_length", inf)


def _within(form: _Form, limits: Mapping[str, Any]) -> bool:
    """Whether limits take all numbers of a form, limit by limit."""
    if form.values is not None:
        found: list[Mapping[str, Any]] = [{"ge": one, "le": one, "multiple_of": one} for one in form.values]
    else:
        ends = {"ge": INT_MIN, "le": INT_MAX, "multiple_of": 1} if form.sort == "int" else {}
        found = [{**ends, **form.limits}]
    step, whole = limits.get("multiple_of"), int(form.sort == "int")
    return all(
        _bound(one, "g", 1, whole) >= _bound(limits, "g", 1, whole)
        and _bound(one, "l", -1, whole) >= _bound(limits, "l", -1, whole)
        and (step is None or ("multiple_of" in one and one["multiple_of"] % step == 0))
        for one in found
    )


def _bound(limits: Mapping[str, Any], side: str, sign: int, whole: int) -> tuple[float, bool]:
    """A limit, and whether it excludes itself: the larger, the tighter. Of whole numbers none does."""
    if f"{side}t" in limits:
        return limits[f"{side}t"] * sign + whole, not whole
    return limits.get(f"{side}e", -inf * sign) * sign, False
