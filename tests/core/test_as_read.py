"""States of two versions of the code are compared by what each of them reads."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core import rows
from tailrace.core.declare.schema import decode_schemas
from tailrace.core.engine.as_read import ReadAs, defaults_apart, read_the_same
from tailrace.core.engine.value_rows import KeyRows
from tests.core.versions import Fields, Lives, Set, plan_of

KEPT: Fields = {"kept": (int, 0)}
OPTIONAL = tr.field(default=None)
MAP: Any = tr.MapState  # so that a type made here may stand in its brackets


def side(values: dict[str, Any], *versions: Fields, at: int = 1) -> tuple[ReadAs, KeyRows]:
    """What reads the state that versions have left one after another, and the rows of the key set under the
    first.
    """
    lives = Lives(plan_of(versions[0]))
    lives.clock(1)
    lives.take(Set("a", 1, values), Set("other", at, {"kept": 1}))
    lives.commit()
    for version in versions[1:]:
        lives.start(plan_of(version))
        lives.commit()
    row = lives.store.get(rows.SCHEMA_ROW)
    assert row is not None
    prefix = rows.actor_prefix("Plane") + rows.escaped(b"a")
    found = {row[len(prefix) :]: value for row, value in lives.state().items() if row.startswith(prefix)}
    return ReadAs(decode_schemas(row)["Plane"]), found


def equal(one: tuple[ReadAs, KeyRows], other: tuple[ReadAs, KeyRows]) -> bool:
    found = read_the_same(*one, *other)
    assert read_the_same(*other, *one) is found
    return found


ZERO: Fields = {**KEPT, "n": (int, 0)}
SEVEN: Fields = {**KEPT, "n": (int, 7)}


def test_equal_bytes_that_read_differently_differ() -> None:
    one, other = side({"kept": 1}, KEPT, ZERO), side({"kept": 1}, KEPT, SEVEN)
    assert one[1] == other[1]
    assert not equal(one, other)
    assert not equal(side({"kept": 1, "n": 7}, ZERO), side({"kept": 1}, KEPT, ZERO))


def test_a_nan_that_an_earlier_version_stored_with_a_sign_is_the_same_nan() -> None:
    fields: Fields = {**KEPT, "x": (float, 0.0)}
    reader, found = side({"kept": 1, "x": math.nan}, fields)
    signed = {name: value.replace(b"\x7f\xf8", b"\xff\xf8") for name, value in found.items()}
    assert signed != found
    assert equal((reader, found), (reader, signed))


def test_different_bytes_that_read_alike_do_not() -> None:
    assert equal(side({"kept": 1}, KEPT, ZERO), side({"kept": 1}, ZERO))
    assert equal(side({"kept": 1}, KEPT, SEVEN), side({"kept": 1, "n": 7}, ZERO))


def test_a_key_of_which_nothing_is_stored_reads_the_defaults_of_its_side() -> None:
    one, other = side({}, ZERO), side({}, SEVEN)
    assert one[1] == other[1] == {}
    assert not equal(one, other)
    assert defaults_apart(one[0], other[0]) == [("n", "0", "7")]
    assert equal(side({"n": 7}, ZERO), side({}, SEVEN))
    assert not equal(side({"n": 6}, ZERO), side({}, SEVEN))


def test_a_field_that_only_one_side_declares_counts_unless_it_has_its_default() -> None:
    assert equal(side({"kept": 1}, KEPT), side({"kept": 1}, ZERO))
    assert not equal(side({"kept": 1}, KEPT), side({"kept": 1, "n": 1}, ZERO))


def test_a_field_that_nothing_declares_any_more_does_not_count() -> None:
    assert equal(side({"kept": 1, "n": 5}, ZERO, KEPT), side({"kept": 1}, KEPT))


def test_nested_structs_are_read_as_well() -> None:
    one = msgspec.defstruct("Place", [("x", int)])
    two = msgspec.defstruct("Place", [("x", int), ("y", int, 2)])
    versions: list[Fields] = [{**KEPT, "p": (kind | None, OPTIONAL)} for kind in (one, two)]
    old = side({"p": {"x": 1}}, *versions)
    assert equal(old, side({"p": {"x": 1, "y": 2}}, versions[1]))
    assert not equal(old, side({"p": {"x": 1, "y": 3}}, versions[1]))
    entries: list[Fields] = [{**KEPT, "m": (MAP[str, kind], None)} for kind in (one, two)]
    old = side({"m[k]": one(1)}, *entries)
    assert equal(old, side({"m[k]": two(1, 2)}, entries[1]))
    assert not equal(old, side({"m[k]": two(1, 3)}, entries[1]))


@pytest.mark.parametrize("place", ["p", "m[k]"])
def test_an_expiry_counts(place: str) -> None:
    def fields(**ttl: Any) -> Fields:
        return {
            **KEPT,
            "p": (int, tr.field(default=0, **ttl)),
            "m": (tr.MapState[str, int], tr.field(**ttl) if ttl else None),
        }

    values = {place: 5}
    assert not equal(side(values, fields(), fields(ttl=100)), side(values, fields(ttl=100)))
    assert equal(side(values, fields(ttl=100)), side(values, fields(ttl=100), fields(ttl=30)))


def test_a_required_field_has_no_default_to_read() -> None:
    required: Fields = {**KEPT, "name": (str, None)}
    lives = Lives(plan_of(required))
    lives.take(Set("a", 1, {"name": "x"}))
    lives.commit()
    reads = ReadAs(lives.plan.actors[0].schema)
    ((_, value),) = lives.state().items()
    assert not equal((reads, {b"": value}), (reads, {}))
