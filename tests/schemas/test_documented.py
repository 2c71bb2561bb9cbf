"""Each row of the table of changes in ``docs/schemas.md``: an example, in both directions, against msgspec."""

from __future__ import annotations

import re
from datetime import date, datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec
import pytest
from msgspec import UNSET, Meta, Struct, UnsetType, defstruct, field

from tailrace.core.values.types import CODEC_ERRORS
from tests.schemas.verdicts import lost

PAGE = Path(__file__).parents[2] / "docs" / "schemas.md"


class Colour(Enum):
    RED = "red"


class Colours(Enum):
    RED = "red"
    BLUE = "blue"


class Pair(NamedTuple):
    x: int
    y: int


class Triple(NamedTuple):
    x: int
    y: int
    z: int = 0


class A(Struct, tag=True):
    x: int


class B(Struct, tag=True):
    x: int


class AsDict(TypedDict):
    x: int


def of(*fields: Any, **options: Any) -> Any:
    return defstruct("T", fields, **options)


def one(kind: Any) -> Any:
    return of(("x", kind))


X, Y, Y_DEFAULT = ("x", int), ("y", int), ("y", int, 0)
ROWS: dict[str, tuple[Any, list[Any], Any, list[Any], bool, bool]] = {
    "a field is added, with a default": (of(X), [{"x": 1}], of(X, Y_DEFAULT), [{"x": 1, "y": 2}], True, True),
    "a field is added, without a default": (of(X), [{"x": 1}], of(X, Y), [{"x": 1, "y": 2}], False, True),
    "a field with a default is removed": (of(X, Y_DEFAULT), [{"x": 1, "y": 2}], of(X), [{"x": 1}], True, True),
    "a field without a default is removed": (of(X, Y), [{"x": 1, "y": 2}], of(X), [{"x": 1}], True, False),
    "a field gets a default": (of(X), [{"x": 1}], of(("x", int, 0)), [{"x": 0}], True, True),
    "a field may be `UNSET` that was required": (of(X), [{"x": 1}], of(("x", int | UnsetType, UNSET)), [{}, {"x": 1}], True, False),
    "a field is renamed, with its old name: `msgspec.field(name=...)`": (of(X), [{"x": 1}], of(("new", int, field(name="x"))), [{"x": 1}], True, True),
    "`T` to `T \\| None`, or to another union with it": (of(X), [{"x": 1}], one(int | None), [{"x": None}], True, False),
    "an enum or `Literal` gets a value": (one(Colour), [{"x": "red"}], one(Colours), [{"x": "blue"}], True, False),
    "an enum of texts to `str`, of integers to `int`": (one(Colour), [{"x": "red"}], one(str), [{"x": "?"}], True, False),
    "limits become wider, such as `Meta(ge=0)` to none": (one(Annotated[int, Meta(ge=0)]), [{"x": 0}], of(X), [{"x": -1}], True, False),
    "a tagged struct is added to a union": (A, [{"type": "A", "x": 1}], A | B, [{"type": "B", "x": 1}], True, False),
    "`forbid_unknown_fields` is added": (of(X), [{"x": 1}], of(X, forbid_unknown_fields=True), [{"x": 1}], True, True),
    "`int` to `float`, `date` to `str`, `list` to `set`, another tag, another item of a tuple, another field of an `array_like` struct": (one(int), [{"x": 1}], one(float), [{"x": 1.5}], False, False),
    "a dataclass, `TypedDict` or struct in place of another one": (of(X), [{"x": 1}], AsDict, [{"x": 1}], True, True),
}  # fmt: skip
"""For each row: the old type with plain values, the new one with plain values, what reads which."""
ELSEWHERE = (
    "a field is renamed, without it",
    "the default of a field changes",
    "a topic's format, or the fields or type of its key",
    "a message that an actor takes is removed",
    "a message is added",
    "a topic is added or removed",
)
"""Rows without a type of their own: ``test_comparing`` has them."""


def documented() -> dict[str, tuple[str, str]]:
    section = PAGE.read_text("utf-8").partition("\n## What is compatible\n")[2]
    rows = re.findall(
        r"^\| (.+?) \| (?!new)(?!-)(.+?)(?: \| (.+?))? \|$", section.replace("\\|", "\\OR"), re.MULTILINE
    )
    return {
        row[0].replace("\\OR", "\\|"): (row[1], row[2]) for row in rows if not row[0].startswith("change")
    }


def decodes(declared: Any, plain: Any) -> bool:
    try:
        msgspec.json.decode(msgspec.json.encode(plain), type=declared)
    except CODEC_ERRORS:
        return False
    return True


def test_each_row_has_an_example_and_each_example_a_row() -> None:
    assert set(documented()) == {*ROWS, *ELSEWHERE}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *((date, str), (datetime, str), (bytes, str), (list[int], set[int]), (dict[str, int], of(X))),
        *((of(X), dict[str, int]), (of(X), A), (A, B), (Pair, Triple), (of(X), of(X, array_like=True))),
        (of(X, array_like=True), of(X, Y_DEFAULT, array_like=True)),
        (of(X, Y), of(X, forbid_unknown_fields=True)),
    ],
)
def test_the_form_of_a_value_stays(old: Any, new: Any) -> None:
    assert lost(one(old), one(new))
    assert not lost(one(new), one(new))


@pytest.mark.parametrize("row", ROWS)
def test_the_row(row: str) -> None:
    old, old_values, new, new_values, backward, forward = ROWS[row]
    assert all(decodes(old, value) for value in old_values)
    assert all(decodes(new, value) for value in new_values)
    for written, values, read, expected, shown in (
        (old, old_values, new, backward, documented()[row][0]),
        (new, new_values, old, forward, documented()[row][1]),
    ):
        assert (not lost(written, read)) == expected
        assert not expected or all(decodes(read, value) for value in values)
        if re.match(r"(yes|no)\b", shown):
            assert shown.startswith("yes" if expected else "no")
