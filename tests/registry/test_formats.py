"""Topics of a registry in apps: what is written, read and refused, with the registry of tests (``mock://``)."""

from __future__ import annotations

import json
from math import nan
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types
import msgspec
import pydantic
import pytest

import tailrace as tr
from tailrace.core.errors import EventValueError, RegistryError
from tailrace.registry import Registry
from tailrace.schemas.lock import shape_of
from tailrace.testing import Harness
from tests.registry.shop import Line


class Placed(msgspec.Struct, tr.Keyed[str], tag=True, frozen=True):
    customer: tr.Key[str]
    at_ms: tr.EventTime[int]
    price: float
    lines: list[Line] = []


class Cancelled(msgspec.Struct, tr.Keyed[str], tag=True, frozen=True):
    customer: tr.Key[str]
    at_ms: tr.EventTime[int]


class Sum(msgspec.Struct, tr.Keyed[str], frozen=True):
    customer: tr.Key[str]
    price: float


registry = Registry("mock://")


def made(name: str, **options: Any) -> tuple[tr.App, Any, Any]:
    app = tr.App(name)
    orders = app.topic("orders", Placed, format=registry.avro, **options)
    sums = app.topic("sums", Sum, format=registry.json_schema)

    @app.actor
    class Adder(tr.Actor):
        price: float = 0.0

        @tr.process(orders)
        def placed(self, order: Placed, ctx: tr.Context[str]) -> None:
            self.price += order.price
            ctx.emit(sums, Sum(order.customer, self.price))

    return app, orders, sums


@pytest.mark.parametrize("options", [{}, {"repartition": True}])
def test_an_app_gives_the_same_as_in_other_formats(options: dict[str, Any]) -> None:
    app, orders, sums = made("adding", **options)
    harness = Harness(app)
    prices = [1.5, 2.25, 4.0, 8.5]
    for at, price in enumerate(prices):
        harness.send(orders, Placed("ab"[at % 2], at, price, [Line("tea")] * at))
    found = [(one.customer, one.price) for one in harness.emitted(sums)]
    assert sorted(found) == [("a", 1.5), ("a", 5.5), ("b", 2.25), ("b", 10.75)]


def test_the_topic_behind_a_repartitioned_one_is_in_no_registry() -> None:
    app, _, _ = made("behind", repartition=True)
    formats = {name: one.settings.format for name, one in app.plan().topics.items()}
    assert formats == {"orders": "avro", "behind.orders.by-key": "msgpack", "sums": "json-schema"}


def test_the_lock_has_the_formats() -> None:
    plan = made("locked")[0].plan()
    assert {name: one.format for name, one in shape_of(plan).topics.items()} == {
        "orders": "avro",
        "sums": "json-schema",
    }


@pytest.mark.parametrize(
    "event", [Placed("Ada", 5, 1.5, [Line("tea", 2)]), Placed("Ada", 5, 2.0), Cancelled("Ada", 5)]
)
def test_a_union_in_json_fits_the_schema_that_is_registered(event: Any) -> None:
    topic = tr.App("json").topic("orders", Placed | Cancelled, format=registry.json_schema)
    written = topic.encode(event)
    assert topic.decode(written) == event
    schema = json.loads(Registry._declared[int.from_bytes(written[1:5], "big")])
    validator = jsonschema.Draft7Validator(schema)
    validator.check_schema(schema)
    validator.validate(json.loads(written[5:]))
    assert not validator.is_valid({**json.loads(written[5:]), "at_ms": "now"})


def test_what_json_cannot_hold_and_records_without_an_id_are_refused() -> None:
    topic = tr.App("json").topic("orders", Placed, format=registry.json_schema)
    with pytest.raises(EventValueError, match="price is nan"):
        topic.encode(Placed("Ada", 5, nan))
    for data in (b"", b"{}", topic.encode(Placed("Ada", 5, 1.0))[1:], b"\0\0\0\0\1"):
        with pytest.raises(msgspec.DecodeError):
            topic.decode(data)


def test_an_id_that_a_mock_does_not_know_is_no_bad_record() -> None:
    topic = tr.App("mock").topic("orders", Placed, format=registry.avro)
    with pytest.raises(RegistryError):
        topic.decode(b"\0\0\0\0\1xyz")


def test_pydantic_models_are_refused() -> None:
    class Model(pydantic.BaseModel):
        key: str

    for format_ in (registry.avro, registry.json_schema):
        with pytest.raises(tr.DefinitionError, match="pydantic models are written as JSON"):
            tr.App("models").topic("models", Model, key="key", format=format_)
