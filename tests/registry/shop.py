"""An app whose topics are in the wire format. The environment says the format, and how far the types have evolved."""

from __future__ import annotations

import os
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated
from uuid import UUID

import msgspec

import tailrace as tr
from tailrace.registry import Registry

Euros = Annotated[Decimal, msgspec.Meta(extra={"precision": 18, "scale": 2})]
PREFIX = os.environ.get("SHOP_PREFIX", "")


class Kind(Enum):
    """How it was ordered."""

    WEB = "WEB"
    SHOP = "SHOP"


class Line(msgspec.Struct, frozen=True):
    """A part of an order."""

    what: str
    number: int = 1


class Order(msgspec.Struct, tr.Keyed[str], frozen=True):
    """Something was ordered."""

    customer: tr.Key[str]
    at: tr.EventTime[datetime]
    price: Euros
    kind: Kind
    id: UUID
    day: date
    lines: list[Line] = []
    tags: dict[str, int] = {}
    note: str | None = None


class Total(msgspec.Struct, tr.Keyed[str], frozen=True):
    """What a customer has ordered so far."""

    customer: tr.Key[str]
    at: datetime
    price: Euros
    orders: int
    kinds: dict[str, int]
    lines: list[Line]
    notes: list[str | None]


class NewTotal(Total, frozen=True, kw_only=True):
    """The next version of it: its new field has no default."""

    currency: str


Written = NewTotal if os.environ.get("SHOP_TOTALS") == "incompatible" else Total
registry = Registry(register=os.environ.get("SHOP_REGISTER") != "no")
format_ = registry.json_schema if os.environ.get("SHOP_FORMAT") == "json_schema" else registry.avro
app = tr.App("shop", partitions=2, on_error="dead-letter")
orders = app.topic(f"{PREFIX}orders", Order, format=format_, out_of_order="1h")
totals = app.topic(f"{PREFIX}totals", Written, format=format_)


@app.actor
class Customer(tr.Actor):
    """Adds up."""

    price: Decimal = Decimal(0)
    kinds: dict[str, int] = {}
    lines: list[Line] = []
    notes: list[str | None] = []

    @tr.process(orders)
    def ordered(self, order: Order, ctx: tr.Context[str]) -> None:
        """Add an order."""
        self.price += order.price
        self.kinds[order.kind.value] = self.kinds.get(order.kind.value, 0) + 1
        self.lines.extend(order.lines)
        self.notes.append(order.note)
        so_far = (order.at, self.price, sum(self.kinds.values()), self.kinds, self.lines, self.notes)
        ctx.emit(totals, Total(order.customer, *so_far))
