"""The exported documents: events validate against the JSON Schema, and AsyncAPI names what the app reads and writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
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
from tailrace.schemas.exporting import asyncapi, json_schema
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


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        yield from (one for name, one in part.items() if name == "$ref")
        for one in part.values():
            yield from references(one)
    elif isinstance(part, list):
        for one in part:
            yield from references(one)


def resolved(document: Any, reference: str) -> Any:
    for name in reference.removeprefix("#/").split("/"):
        document = document[name]
    return document


def test_asyncapi_has_a_channel_for_each_topic_and_an_operation_for_what_is_read_and_written() -> None:
    document = asyncapi(app.plan())
    assert set(document) == {"asyncapi", "info", "channels", "operations", "components"}
    assert (document["asyncapi"], document["info"]["title"]) == ("3.0.0", "shop")
    assert list(document["channels"]) == sorted(EVENTS)
    found = list(references(document))
    assert len(found) == 20
    assert all(resolved(document, one) for one in found)
    assert {name: one["action"] for name, one in document["operations"].items()} == {
        "receive.orders": "receive",
        "receive.packed": "receive",
        "send.boxes": "send",
        "send.customers": "send",
        "send.late": "send",
    }
    (first, second) = document["operations"]["receive.orders"]["messages"]
    assert resolved(document, first["$ref"])["name"] == "Placed"
    paid = resolved(document, second["$ref"])
    assert (paid["name"], paid["summary"]) == ("Paid", "Money came in.")
    assert resolved(document, paid["payload"]["$ref"])["required"] == ["type", "order", "cents"]


def test_channels_have_the_bindings_of_kafka() -> None:
    channels = asyncapi(app.plan())["channels"]
    assert channels["orders"]["bindings"]["kafka"] == {
        "topic": "orders",
        "partitions": 3,
        "bindingVersion": "0.5.0",
    }

    def message(topic: str) -> Any:
        (one,) = channels[topic]["messages"].values()
        return one

    assert message("late")["contentType"] == "application/vnd.msgpack"
    assert message("customers")["bindings"]["kafka"]["key"] == {"type": "string", "description": "id"}
    assert message("packed")["bindings"]["kafka"]["key"]["description"] == "order, pieces"
    assert message("boxes")["bindings"]["kafka"]["key"]["description"] == "computed from the event"
    assert "bindings" not in message("suppliers")


def test_two_models_with_parts_of_one_name_are_kept_apart() -> None:
    types = json_schema(app.plan())["$defs"]
    assert {"Customer", "Customer.Address", "Supplier", "Supplier.Address"} <= set(types)


def test_the_document_is_the_same_in_every_process(tmp_path: Any) -> None:
    export = ["schemas", "export", "services.flights.aircraft:app", "--format", "asyncapi"]
    done(*export, "--output", tmp_path / "here.json")
    ran = subprocess.run(
        [sys.executable, "-m", "tailrace", *export],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        check=True,
    )
    assert ran.stdout == (tmp_path / "here.json").read_bytes()
    assert done("schemas", "export", *export[2:3], "--format", "json-schema").out.startswith('{\n  "$schema"')
