from typing import Any, Generic, TypeVar

import msgspec
import pytest

import tailrace as tr
from tailrace.core.declare.schema import decode_schemas, describe, encode_schemas
from tailrace.core.errors import CorruptStateError, FormatError
from tailrace.core.values.type_schemas import ActorSchema, describe_type
from tests.core.durable import Frozen

T = TypeVar("T")


class Event(msgspec.Struct):
    tail: str


class Box(msgspec.Struct, Generic[T]):
    value: T
    inner: "Box[T] | None" = None


app = tr.App("flights")
events = app.topic("events", Event, key="tail")


@app.actor
class Aircraft(tr.Actor):
    legs: int = 0
    tail: str = tr.field(name="registration")
    last: Frozen | None = tr.field(default=None, ttl="1h")
    late: tr.MapState[str, float] = tr.field(name="late_by_airport", ttl="1d", ttl_time="processing")
    log: tr.ListState[Box[int]]

    @tr.process(events)
    def seen(self, event: Event, ctx: tr.Context[str]) -> None: ...


def schema() -> ActorSchema:
    return app.plan().actors[0].schema


def test_a_schema_has_the_stored_names_types_defaults_and_times_to_live() -> None:
    fields = {field.name: field for field in schema().fields}
    assert list(fields) == sorted(fields) == ["last", "late_by_airport", "legs", "log", "registration"]
    assert {name: str(field) for name, field in fields.items()} == {
        "last": "Frozen | None",
        "late_by_airport": "MapState[str, float]",
        "legs": "int",
        "log": "ListState[Box]",
        "registration": "str",
    }
    assert [name for name, field in fields.items() if field.required] == ["registration"]
    assert (fields["last"].ttl_ms, fields["last"].ttl_time) == (3_600_000, "event")
    assert (fields["late_by_airport"].ttl_ms, fields["late_by_airport"].ttl_time) == (
        86_400_000,
        "processing",
    )
    assert str(schema().key) == "str"


def test_a_schema_reaches_into_nested_and_recursive_structs() -> None:
    box = describe_type(Box[int])
    assert [str(field.type) for field in box.fields] == ["int", "Box | None"]
    (recursive, _) = box.fields[1].type.of
    assert (recursive.kind, recursive.up) == ("recursive", 0)


def test_a_description_is_the_same_each_time_and_survives_being_stored() -> None:
    row = encode_schemas({"Aircraft": describe(Aircraft)})
    assert decode_schemas(row) == {"Aircraft": schema()}
    assert encode_schemas(decode_schemas(row)) == row
    assert msgspec.json.decode(row)["format"] == 3


def test_a_row_of_another_version_is_refused_whatever_else_it_holds() -> None:
    with pytest.raises(FormatError, match="format 4"):
        decode_schemas(b'{"format":4,"actors":"elsewhere"}')
    with pytest.raises(FormatError, match="format 1"):
        decode_schemas(b'{"format":1,"actors":"elsewhere"}')


@pytest.mark.parametrize(
    "row", [b"", b"{", b"\xff", b'{"format":3}', b'{"format":"3"}', b'{"format":3,"actors":{"A":{}}}']
)
def test_a_damaged_row_is_refused(row: Any) -> None:
    with pytest.raises(CorruptStateError, match="Restore"):
        decode_schemas(row)
