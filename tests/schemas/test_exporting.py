"""The exported document: events validate against the JSON Schema."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any, Generic, TypeVar

import msgspec
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it has no types
from pydantic import BaseModel

import tailrace as tr
from tailrace.core.errors import DefinitionError
from tailrace.schemas.exporting import json_schema
from tests.cli.commands import done
from tests.schemas.random_types import built, struct, values

T = TypeVar("T")


class Placed(msgspec.Struct, tag=True):
    order: str
    at: datetime


class Paid(msgspec.Struct, tag=True):
    """Money came in."""

    order: str
    cents: int
    note: bytes = b""


class Box(msgspec.Struct, Generic[T]):
    id: str
    content: T


@dataclass(slots=True)
class Packed:
    order: str
    pieces: int = 1


class Address(BaseModel):
    street: str


class Customer(BaseModel):
    id: str
    address: Address


class Supplier(BaseModel):
    id: str
    address: Address | None = None


app = tr.App("shop", partitions=3)
orders = app.topic("orders", Placed | Paid, key="order")
late = app.topic("late", Packed, key="order", format="msgpack")
packed = app.topic("packed", Packed, key=("order", "pieces"), late=late)
boxes = app.topic("boxes", Box[int], key=lambda box: box.id, key_type=str)
customers = app.topic("customers", Customer, key="id")
suppliers = app.topic("suppliers", Supplier, key=None)


@app.actor
class Desk(tr.Actor):
    seen: int = 0

    @tr.process(orders)
    def ordered(self, event: Placed | Paid, ctx: tr.Context[str]) -> None:
        ctx.emit(customers, Customer(id=ctx.key, address=Address(street="")))


@app.process(packed)
def forward(event: Packed, ctx: tr.Context[tuple[str, int]]) -> None:
    ctx.emit(boxes, Box(event.order, event.pieces))


EVENTS: dict[str, list[Any]] = {
    "orders": [Placed("a", datetime(2020, 1, 1, tzinfo=UTC)), Paid("a", 3, b"x")],
    "packed": [Packed("a")],
    "late": [Packed("a", 2)],
    "boxes": [Box("a", 7)],
    "customers": [Customer(id="a", address=Address(street="b"))],
    "suppliers": [Supplier(id="a"), Supplier(id="a", address=Address(street="b"))],
}


def validator(topic: str, document: dict[str, Any]) -> Draft202012Validator:
    Draft202012Validator.check_schema(document)
    return Draft202012Validator({**document, "required": [topic]})


@pytest.mark.parametrize("topic", EVENTS)
def test_events_are_valid_and_changed_ones_are_not(topic: str) -> None:
    document = json_schema(app.plan())
    assert set(document["properties"]) == set(EVENTS)
    found = validator(topic, document)
    for event in EVENTS[topic]:
        plain = event.model_dump() if isinstance(event, BaseModel) else msgspec.to_builtins(event)
        plain = json.loads(msgspec.json.encode(plain))
        found.validate({topic: plain})
        for name in ("id", "order"):
            if name in plain:
                assert not found.is_valid({topic: {**plain, name: 3}})
                assert not found.is_valid({topic: {key: one for key, one in plain.items() if key != name}})


def test_the_values_of_random_types_are_valid(seeds: range) -> None:
    for seed in seeds:
        one = struct(Random(seed), 2)
        if one.options.get("array_like"):
            continue
        try:
            of = tr.App("random")
            topic = of.topic("topic", built(one), key=None)
            found = validator("topic", json_schema(of.plan()))
        except (TypeError, DefinitionError):
            continue  # there is no such type
        for value in values(one):
            try:
                record = topic.encode(value)
            except tr.TailraceError:
                continue
            found.validate({"topic": json.loads(record)})


def test_two_models_with_parts_of_one_name_are_kept_apart() -> None:
    types = json_schema(app.plan())["$defs"]
    assert {"Customer", "Customer.Address", "Supplier", "Supplier.Address"} <= set(types)


def test_the_document_is_the_same_in_every_process() -> None:
    export = ["schemas", "export", "services.flights.aircraft:app"]
    here = done(*export).out
    ran = subprocess.run(
        [sys.executable, "-m", "tailrace", *export],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        check=True,
    )
    assert ran.stdout.decode() == here
    assert ran.stdout.startswith(b'{\n  "$schema"')
