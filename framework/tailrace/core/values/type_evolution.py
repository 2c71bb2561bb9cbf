"""Whether bytes written as one type can be read as another, and the merged schema of the stored values.

There is one rule: *every value that may be stored must decode as the declared type, and mean the same*. Rows
are not rewritten when a declaration changes, so the set of values that may be stored grows: after a field was
added there are rows without it, after one was removed there are rows with it. ``evolve`` therefore returns
the changes and the merged schema, which is the one to store.

==========================================  ================================================================
stored                                      may be declared as
==========================================  ================================================================
any T                                       T, or a union with it
enum, Literal                               one with more values, or their plain type
limits, such as ``Meta(ge=0)``              the same, wider ones or none
list, dict, tuple, map and list state       the same, with what their items may become (keys of a map: grown)
struct                                      one with more fields, if these have defaults, or with fewer, if it
                                            does not forbid unknown ones; the same tag
NamedTuple, array_like struct               the same
==========================================  ================================================================

A row without a field reads the field's default. So the default of a field that some rows lack cannot be
changed. A TTL may be added and become longer or shorter, but not be removed or change its time domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from tailrace.core.values.defaults import NOT_CERTAIN, are_same, shown_default
from tailrace.core.values.type_schemas import FieldSchema, TypeSchema

ChangeKind = Literal["added", "returned", "removed", "widened", "ttl", "default", "key", "incompatible"]
"""``returned``: a field that earlier rows may have, and the version that has stored the schema does not declare."""
ABSENT = "absent in some rows"
"""The stored side of a change that adds a required field."""
NO_TTL = "no ttl"
_DEFAULT = (
    "Give the field a default. If it is a renamed field, give it its old name instead: tr.field(name=...)."
)
_SAME_DEFAULT = (
    "Rows without the field read its default. Keep the default, or give the field another name (name=)."
)
_CERTAIN_DEFAULT = "Give the field a default of its type that is the same at each call."
_SAME_TTL = (
    "A stored value has the time at which it expires. Keep the TTL by this time, longer if it need not "
    'expire (ttl="36500d"), or store the new field under another name (name=).'
)
_OTHER_NAME = "Keep the type, or store the new field under another name (name=)."


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between the stored and the declared type. ``field`` is dotted where it is nested."""

    kind: ChangeKind
    field: str
    stored: str
    declared: str
    hint: str = ""


def evolve_fields(
    path: str,
    stored: tuple[Sequence[FieldSchema], Sequence[FieldSchema]],
    declared: Sequence[FieldSchema],
    changes: list[Change],
) -> tuple[tuple[FieldSchema, ...], tuple[FieldSchema, ...]]:
    """The merged and the past fields of a type that stores fields by name. Appends to ``changes``."""
    fields, past = stored
    before = {field.name: field for field in fields}
    names = {field.name for field in declared}
    merged: list[FieldSchema] = []
    for field in declared:
        ghosts = [ghost for ghost in past if ghost.name == field.name]
        there = before.get(field.name)
        if there is None:
            kind: ChangeKind = "returned" if ghosts else "added"
            changes.append(Change(kind, _dotted(path, field.name), "", str(field)))
        one = field
        ancestors = [*ghosts, *([there] if there is not None else [])]
        for at, ancestor in enumerate(ancestors, 1):
            one = _evolve_field(path, ancestor, one, changes, is_last=at == len(ancestors))
        if there is None:
            one = msgspec.structs.replace(one, absent=True)
        hint = _unreadable(one, ancestors)
        if hint:
            changes.append(Change("incompatible", _dotted(path, field.name), ABSENT, str(field), hint))
        merged.append(one)
    gone = [field for field in fields if field.name not in names]
    changes.extend(Change("removed", _dotted(path, field.name), str(field), "") for field in gone)
    kept = [ghost for ghost in past if ghost not in gone]
    return tuple(merged), (*kept, *gone)


def evolve_key(path: str, stored: TypeSchema, declared: TypeSchema, changes: list[Change]) -> TypeSchema:
    """The merged type of keys, whose bytes must not change. Appends to ``changes``."""
    if not _same_key_bytes(stored, declared):
        changes.append(Change("incompatible", path, str(stored), str(declared), "Keep the type of the key."))
    elif stored.values != declared.values:
        changes.append(Change("widened", path, str(stored), str(declared)))
    return declared


def _same_key_bytes(stored: TypeSchema, declared: TypeSchema) -> bool:
    return (
        stored.kind == declared.kind
        and set(stored.values) <= set(declared.values)
        and len(stored.of) == len(declared.of)
        and all(map(_same_key_bytes, stored.of, declared.of))
    )


def _evolve_field(
    path: str, stored: FieldSchema, declared: FieldSchema, changes: list[Change], *, is_last: bool = True
) -> FieldSchema:
    """The merged field. ``is_last``: ``stored`` is its last declaration, not an earlier one."""
    path = _dotted(path, declared.name)
    if stored.kind != declared.kind:
        changes.append(Change("incompatible", path, str(stored), str(declared), _OTHER_NAME))
        return declared
    key = declared.key
    if stored.key is not None and key is not None:
        key = evolve_key(path, stored.key, key, changes)
    if stored.ttl_ms is not None and _ttl_time(stored) != _ttl_time(declared):
        changes.append(Change("incompatible", path, _ttl(stored), _ttl(declared), _SAME_TTL))
    elif is_last and stored.ttl_ms != declared.ttl_ms:
        changes.append(Change("ttl", path, _ttl(stored), _ttl(declared)))
    before, now = stored.default, declared.default
    if is_last and before and now and not are_same(before, now):
        changes.append(Change("default", path, shown_default(before), shown_default(now)))
    return msgspec.structs.replace(
        declared,
        key=key,
        type=evolve_type(path, stored.type, declared.type, changes),
        absent=stored.absent or declared.absent,
    )


def _unreadable(field: FieldSchema, ancestors: Sequence[FieldSchema]) -> str:
    """The hint if rows without the field can no longer be read with its former value; empty if they can."""
    if field.kind != "value" or not field.absent:
        return ""
    if field.required:
        return _DEFAULT
    if field.default == NOT_CERTAIN:
        return _CERTAIN_DEFAULT
    before = [one.default for one in ancestors if one.absent]
    return "" if all(_are_equal(one, field.default) for one in before) else _SAME_DEFAULT


def _are_equal(one: bytes | None, other: bytes | None) -> bool:
    """Whether two defaults are equal. A field without a default that rows may lack has the default UNSET."""
    return one == other if one is None or other is None else are_same(one, other)


def _ttl_time(field: FieldSchema) -> str | None:
    return None if field.ttl_ms is None else field.ttl_time


def evolve_type(path: str, stored: TypeSchema, declared: TypeSchema, changes: list[Change]) -> TypeSchema:
    """The merged type. Appends to ``changes``, one of kind ``incompatible`` if there is none."""
    merged = list(declared.members)
    for member in stored.members:
        at = _reader(member, merged)
        if at is None:
            changes.append(Change("incompatible", path, str(stored), str(declared), _OTHER_NAME))
            return declared
        merged[at] = _evolve_member(path, member, merged[at], changes)
    if str(stored) != str(declared):
        changes.append(Change("widened", path, str(stored), str(declared)))
    return msgspec.structs.replace(declared, of=tuple(merged)) if declared.kind == "union" else merged[0]


def _reader(stored: TypeSchema, members: Sequence[TypeSchema]) -> int | None:
    """The member of a union that reads the stored type: at most one, since msgspec can distinguish them."""
    plain = {"enum", "literal"} & {stored.kind} and type(stored.values[0]).__name__
    for wanted in (stored.kind, plain):
        for at, member in enumerate(members):
            if member.kind == wanted and _accepts(stored, member):
                return at
    return None


def _accepts(stored: TypeSchema, declared: TypeSchema) -> bool:
    """Whether the two types are compatible, apart from their parts, which are compared afterwards."""
    if declared.kind in ("enum", "literal"):
        return set(map(_typed, stored.values)) <= set(map(_typed, declared.values))
    if declared.kind == "struct":
        tagged = (stored.tag_field, stored.tag, stored.array_like)
        known = {one.name for one in declared.fields}
        reads_all = not declared.forbid or all(one.name in known for one in stored.fields)
        return reads_all and tagged == (declared.tag_field, declared.tag, declared.array_like)
    return stored.up == declared.up and all(
        _is_wider(name, stored.limits.get(name), limit) for name, limit in declared.limits.items()
    )


def _typed(value: str | int) -> tuple[type, str | int]:
    return type(value), value


def _is_wider(name: str, stored: object, declared: object) -> bool:
    if isinstance(stored, int | float) and isinstance(declared, int | float):
        if name in ("ge", "gt", "min_length"):
            return declared <= stored
        if name in ("le", "lt", "max_length"):
            return declared >= stored
    return stored == declared


def _evolve_member(path: str, stored: TypeSchema, declared: TypeSchema, changes: list[Change]) -> TypeSchema:
    if declared.kind == "struct" and not declared.array_like:
        fields, past = evolve_fields(path, (stored.fields, stored.past), declared.fields, changes)
        return msgspec.structs.replace(declared, fields=fields, past=past)
    if len(stored.of) != len(declared.of) or stored.fields != declared.fields:
        changes.append(Change("incompatible", path, str(stored), str(declared), _OTHER_NAME))
        return declared
    of = [
        evolve_type(f"{path}[]", one, other, changes)
        for one, other in zip(stored.of, declared.of, strict=True)
    ]
    return msgspec.structs.replace(declared, of=tuple(of))


def _dotted(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _ttl(field: FieldSchema) -> str:
    return NO_TTL if field.ttl_ms is None else f"a ttl of {field.ttl_ms} ms by {field.ttl_time} time"
