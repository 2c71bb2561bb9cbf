"""Random types of events, changed versions of them, and values that show each way in which a value of a type is written.

A type is first a *plan*: plain data that can be changed. ``built`` makes the type, ``values`` its values: each member of a union
and of an enum, the ends of limits, lengths and ranges, each optional field with and without its value. So a reader that cannot
decode some value of the type, as far as these types go, cannot decode one of these values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from random import Random
from typing import Annotated, Any, Literal, NamedTuple, Union
from uuid import UUID

import msgspec

NAMES = ("a", "b", "c", "d")
WORDS = ("red", "green", "yellow", "black")  # none of them is base64
_LONG = 9
_PLAIN: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "None": (None, (None,)),
    "bool": (bool, (True, False)),
    "date": (date, (date(2020, 2, 29), date(2021, 1, 1))),
    "time": (time, (time(1, 2), time(1, 2, tzinfo=UTC))),
    "timedelta": (timedelta, (timedelta(1, 2), timedelta(-1))),
    "UUID": (UUID, (UUID(int=7), UUID(int=8))),
    "Decimal": (Decimal, (Decimal("1.5"), Decimal(-2))),
}
_KEYS = ("str", "int", "float", "date", "UUID", "enum", "literal")


@dataclass
class Planned:
    """A type: ``kind`` as in ``TypeSchema``, and its parts."""

    kind: str
    of: list[Planned] = field(default_factory=list)
    limits: dict[str, Any] = field(default_factory=dict)
    choices: list[Any] = field(default_factory=list)
    fields: list[PlannedField] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    type: Any = None
    """The type that was built."""


@dataclass
class PlannedField:
    """A field: ``mode`` is required, default, or unset."""

    name: str
    type: Planned
    mode: str
    default: list[Any] = field(default_factory=list)
    """The default itself: ``omit_defaults`` goes by identity."""


# --- random plans ---


def planned(rng: Random, depth: int = 2) -> Planned:
    """A random type."""
    kinds = ["int", "int", "float", "str", "str", "bytes", "datetime", "enum", "literal", *_PLAIN]
    if depth:
        kinds += [
            *("list", "tuple...", "set", "tuple", "namedtuple"),
            *("dict", "union", "union", "struct", "struct", "structs"),
        ]
    kind = rng.choice(kinds)
    if kind == "structs":
        tags = rng.sample(WORDS, rng.randint(2, 3))
        like = rng.random() < 0.3
        return Planned("union", of=[struct(rng, depth - 1, tag=tag, array_like=like) for tag in tags])
    if kind == "struct":
        return struct(rng, depth - 1, tag=rng.choice((None, None, "red")), array_like=rng.random() < 0.3)
    one = Planned(kind, limits=limits(rng, kind))
    if kind in ("list", "tuple..."):
        one.of = [planned(rng, depth - 1)]
    elif kind == "set":
        one.of = [scalar(rng)]
        while one.of[0].kind == "enum":  # msgspec cannot sort them
            one.of = [scalar(rng)]
    elif kind in ("tuple", "namedtuple"):
        one.of = [planned(rng, depth - 1) for _ in range(rng.randint(1, 3))]
        one.choices = [rng.randint(0, len(one.of))]  # required items of a NamedTuple
    elif kind == "dict":
        one.of = [scalar(rng), planned(rng, depth - 1)]
    elif kind == "union":
        one.of = [planned(rng, depth - 1) for _ in range(rng.randint(1, 2))] + [Planned("None")]
    elif kind in ("enum", "literal"):
        known = WORDS if rng.random() < 0.6 else (1, 2, 3, 40)
        one.choices = rng.sample(known, rng.randint(1, 3))
    return one


def scalar(rng: Random) -> Planned:
    while True:
        one = planned(rng, 0)
        if one.kind in _KEYS:
            one.limits = {}
            return one


def struct(rng: Random, depth: int, **options: Any) -> Planned:
    fields = [
        PlannedField(name, planned(rng, depth), rng.choice(("required", "required", "default", "unset")))
        for name in rng.sample(NAMES, rng.randint(0, 3))
    ]
    options["forbid_unknown_fields"] = rng.random() < 0.2
    options["omit_defaults"] = rng.random() < 0.2
    return Planned("struct", fields=fields, options=options)


def limits(rng: Random, kind: str) -> dict[str, Any]:
    """Random limits; mostly none."""
    if rng.random() < 0.6:
        return {}
    if kind == "int" and rng.random() < 0.2:
        return {"multiple_of": rng.choice((1, 2, 4))}
    if kind in ("int", "float"):
        return {
            **rng.choice(({}, {"ge": rng.randint(-2, 2)}, {"gt": rng.randint(-2, 2)})),
            **rng.choice(({}, {"le": rng.randint(5, 9)}, {"lt": rng.randint(5, 9)})),
        }
    if kind in ("str", "bytes", "list", "tuple...", "set", "dict"):
        return {
            **rng.choice(({}, {"min_length": rng.randint(0, 2)})),
            **rng.choice(({}, {"max_length": rng.randint(2, 4)})),
        }
    return {"tz": rng.random() < 0.5} if kind == "datetime" else {}


# --- changes ---


def changed(rng: Random, one: Planned, depth: int = 2) -> Planned:
    """A copy of a type with one random change in it."""
    one = deepcopy(one)
    places = list(_places(one))
    if not places or rng.random() < 0.3:
        return _change(rng, one, depth)
    where, at = rng.choice(places)
    if isinstance(where, PlannedField):
        where.type = _change(rng, where.type, depth)
    else:
        where[at] = _change(rng, where[at], depth)
    return one


def _places(one: Planned) -> Iterator[tuple[PlannedField | list[Planned], int]]:
    """Where the parts of a type are: fields, and lists with a number. Keys and items of sets stay as they are."""
    for at in range(len(one.of)):
        if not (one.kind in ("dict", "set") and at == 0):
            yield one.of, at
        yield from _places(one.of[at])
    for each in one.fields:
        yield each, 0
        yield from _places(each.type)


def _change(rng: Random, one: Planned, depth: int) -> Planned:
    if one.kind == "struct" and one.fields:
        return _changed_struct(rng, one)
    if one.kind in ("enum", "literal") and rng.random() < 0.7:
        known = WORDS if isinstance(one.choices[0], str) else (1, 2, 3, 40)
        return Planned(rng.choice(("enum", "literal")), choices=rng.sample(known, rng.randint(1, 4)))
    if one.kind in ("list", "tuple...", "set", "tuple", "namedtuple") and rng.random() < 0.7:
        items = one.of[:1] * rng.randint(1, 3)
        kinds = ["list", "tuple...", "tuple", "namedtuple"]
        if one.of[0].kind in _KEYS[:5] and not one.of[0].limits:
            kinds.append("set")
        kind = rng.choice(kinds)
        return Planned(
            kind, of=items if "tuple" in kind[-5:] else items[:1], choices=[rng.randint(0, len(items))]
        )
    choice = rng.random()
    if choice < 0.3:
        return Planned("union", of=[one, Planned("None")])
    if choice < 0.5 and one.kind == "union":
        return rng.choice(one.of)
    if choice < 0.7:
        return Planned(one.kind, one.of, limits(rng, one.kind), one.choices, one.fields, one.options)
    wider = {
        "int": "float",
        "float": "Decimal",
        "enum": "str",
        "date": "str",
        "UUID": "str",
        "bytes": "str",
        "datetime": "str",
    }
    if one.kind in wider and rng.random() < 0.5:
        return Planned(wider[one.kind])
    return planned(rng, min(depth, 1))


def _changed_struct(rng: Random, one: Planned) -> Planned:
    match rng.randrange(6):
        case 0:
            free = [name for name in NAMES if name not in {each.name for each in one.fields}]
            if free:
                mode = rng.choice(("required", "default", "unset"))
                one.fields.append(PlannedField(free[0], planned(rng, 0), mode))
        case 1:
            one.fields.pop(rng.randrange(len(one.fields)))
        case 2:
            rng.choice(one.fields).mode = rng.choice(("required", "default", "unset"))
        case 3:
            name = rng.choice(("array_like", "forbid_unknown_fields", "omit_defaults"))
            one.options[name] = not one.options.get(name)
        case 4:
            rng.shuffle(one.fields)
        case _:
            one.options["tag"] = rng.choice((*WORDS, None))
    return one


# --- types and values ---


def built(one: Planned) -> Any:
    """The type. TypeError if there is none, or msgspec cannot decode it."""
    one.type = _built(one)
    return one.type


def _built(one: Planned) -> Any:
    parts = [built(each) for each in one.of]
    if one.kind in ("set", "dict") and (one.of[0].limits or one.of[0].kind in ("enum", "literal")):
        one.limits = {}  # there may be too few items to reach a length
    meta = msgspec.Meta(**one.limits) if one.limits else None
    match one.kind:
        case "int" | "float" | "str" | "bytes":
            made: Any = {"int": int, "float": float, "str": str, "bytes": bytes}[one.kind]
        case "datetime":
            made = datetime
        case "enum":
            members = {f"m{value}": value for value in one.choices}
            made = Enum(f"E{id(one)}", members)  # type: ignore[misc, no-redef]  # only known here
        case "literal":
            return Literal[tuple(one.choices)]
        case "list":
            made = list[parts[0]]  # type: ignore[valid-type]
        case "set":
            made = set[parts[0]]  # type: ignore[valid-type]
        case "tuple...":
            made = tuple[parts[0], ...]  # type: ignore[valid-type]
        case "tuple":
            return tuple.__class_getitem__(tuple(parts))
        case "namedtuple":
            return _named_tuple(one, parts)
        case "dict":
            made = dict[parts[0], parts[1]]  # type: ignore[valid-type]
        case "union":
            flat = list(_members(one))
            kinds = [each.kind for each in flat]
            if any(kinds.count(kind) > 1 for kind in ("int", "float", "str", "bytes", "datetime")):
                raise TypeError("the limits of which one count is not defined")
            if "literal" in kinds and any(each.limits for each in flat):
                raise TypeError("it may have values that it does not read itself")
            if "tuple" in kinds and any(each.limits for each in flat):
                raise TypeError("msgspec 0.22 reads memory that is not its own for such a type")
            return Union[tuple(parts)]  # noqa: UP007  # its members are only known here
        case "struct":
            return _struct(one)
        case _:
            made = _PLAIN[one.kind][0]
    return made if meta is None else Annotated[made, meta]


def _members(one: Planned) -> Iterator[Planned]:
    if one.kind == "union":
        for each in one.of:
            yield from _members(each)
    else:
        yield one


def _named_tuple(one: Planned, parts: list[Any]) -> Any:
    fields: Any = [(f"f{at}", part) for at, part in enumerate(parts)]
    made: Any = NamedTuple(f"N{id(one)}", fields)  # type: ignore[misc]
    defaults = [values(each)[0] for each in one.of]
    made.__new__.__defaults__ = tuple(defaults[one.choices[0] :])
    made._field_defaults = {f"f{at}": defaults[at] for at in range(one.choices[0], len(parts))}
    return made


def _struct(one: Planned) -> Any:
    fields: list[Any] = []
    required = -1
    for each in one.fields:
        made = built(each.type)
        if each.mode == "default" and len(set(map(repr, values(each.type)))) < 2:
            each.mode = "required"  # no value would be written with omit_defaults
        if each.mode == "required":
            fields.insert(required := required + 1, (each.name, made))
        elif each.mode == "unset":
            fields.append((each.name, Union[made, msgspec.UnsetType], msgspec.UNSET))  # noqa: UP007
        else:
            default = values(each.type)[0]
            if isinstance(default, (list, set, dict, msgspec.Struct)):
                fields.append((each.name, made, msgspec.field(default_factory=partial(_first, each.type))))
            else:
                each.default = [default]
                fields.append((each.name, made, default))
    if not one.fields:
        one.options["array_like"] = False  # msgspec has no JSON Schema for it
    options = {name: value for name, value in one.options.items() if value is not None}
    defaults = [member for each in one.fields if each.mode == "default" for member in _members(each.type)]
    if any(each.kind in ("enum", "literal") for each in defaults):
        options["omit_defaults"] = False  # the default would never be written
    return msgspec.defstruct(f"S{id(one)}", fields, **options, frozen=True)


def _first(one: Planned) -> Any:
    return values(one)[0]


def values(one: Planned) -> list[Any]:
    """Values of a type that was built; the first is a plain one."""
    least, most = one.limits.get("min_length", 0), one.limits.get("max_length", _LONG)
    match one.kind:
        case "int":
            return _ints(one.limits)
        case "float":
            return _floats(one.limits)
        case "str":
            return ["x" * least, "y" * most]
        case "bytes":
            return [b"x" * least, b"y" * most]
        case "datetime":
            zones = {True: (UTC,), False: (None,), None: (UTC, None)}[one.limits.get("tz")]
            return [datetime(2020, 1, 2, 3, tzinfo=zone) for zone in zones]
        case "enum":
            return list(one.type)
        case "literal":
            return list(one.choices)
        case "list" | "tuple..." | "set":
            return _lists(one, least, most)
        case "tuple" | "namedtuple":
            make = tuple if one.kind == "tuple" else lambda some: one.type(*some)
            return [make(some) for some in _varied([values(each) for each in one.of])]
        case "dict":
            keys, inner = _distinct(one.of[0]), values(one.of[1])
            return [
                dict(zip(keys, [each] * size, strict=False))
                for size in {least, most, 1}
                if least <= size <= most
                for each in inner
            ]
        case "union":
            return [value for each in one.of for value in values(each)]
        case "struct":
            fields = [
                ([msgspec.UNSET] if each.mode == "unset" else each.default, each) for each in one.fields
            ]
            if one.options.get("array_like"):
                fields = [([], each) for each in one.fields]
            choices = [[*values(each.type), *more] for more, each in fields]
            return [
                one.type(**dict(zip((each.name for each in one.fields), some, strict=True)))
                for some in _varied(choices)
            ]
        case _:
            return list(_PLAIN[one.kind][1])


def _varied(choices: list[list[Any]]) -> list[list[Any]]:
    """Combinations in which one place at a time takes each of its values."""
    if any(not one for one in choices):
        return []
    plain = [one[0] for one in choices]
    return [
        plain,
        [one[at % len(one)] for at, one in enumerate(choices)],
        *([*plain[:at], value, *plain[at + 1 :]] for at, one in enumerate(choices) for value in one[1:]),
    ]


def _distinct(one: Planned) -> list[Any]:
    more: dict[str, list[Any]] = {
        "str": [f"key {at}" for at in range(_LONG)],
        "UUID": [UUID(int=at) for at in range(_LONG)],
        "date": [date(2020, 1, 1 + at) for at in range(_LONG)],
    }
    return [*values(one), *([] if one.limits else more.get(one.kind, []))]


def _lists(one: Planned, least: int, most: int) -> list[Any]:
    inner = _distinct(one.of[0]) if one.kind == "set" else values(one.of[0])
    if one.kind == "set":
        sizes = {size for size in (least, 1, min(most, len(inner))) if least <= size <= min(most, len(inner))}
        return [set(inner[at : at + size]) for size in sorted(sizes) for at in range(len(inner) - size + 1)]
    make = list if one.kind == "list" else tuple
    lengths = sorted({size for size in (least, 1, most) if least <= size <= most})
    different = make(_distinct(one.of[0])[:most])
    return [
        *(make([value] * size) for size in lengths for value in inner[: None if size else 1]),
        *([different] if len(different) >= least else []),
    ]


def _ints(limits: dict[str, Any]) -> list[int]:
    low = max(limits.get("ge", -(2**63)), limits.get("gt", -(2**63) - 1) + 1)
    high = min(limits.get("le", 2**64 - 1), limits.get("lt", 2**64) - 1)
    step = limits.get("multiple_of", 1)
    found = [low, low + 1, -1, 0, 1, 2, 3, 5, 7, high - 1, high, high // step * step]
    return sorted({one for one in found if low <= one <= high and one % step == 0}, key=abs)


def _floats(limits: dict[str, Any]) -> list[float]:
    found = [0.0, 0.5, -0.5, 3.5, -1e300, 1e300]
    found += [float(limits[name]) for name in ("ge", "le") if name in limits]
    found += [math.nextafter(limits["gt"], math.inf)] if "gt" in limits else []
    found += [math.nextafter(limits["lt"], -math.inf)] if "lt" in limits else []
    return [
        one
        for one in found
        if limits.get("ge", one) <= one <= limits.get("le", one)
        and limits.get("gt", -math.inf) < one < limits.get("lt", math.inf)
    ]
