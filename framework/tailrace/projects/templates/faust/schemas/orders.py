"""Orders, as the Faust app has read them, and the counts of its table."""

import msgspec

import tailrace as tr


class Order(msgspec.Struct, tr.Keyed[str], frozen=True):
    """An order of a customer."""

    customer: tr.Key[str]
    at_ms: tr.EventTime[int]


class Counted(msgspec.Struct, tr.Keyed[str], frozen=True):
    """A row of the table of the Faust app, as `tailrace faust import` writes it."""

    key: tr.Key[str]
    value: int
    at_ms: tr.EventTime[int]


class Total(msgspec.Struct, tr.Keyed[str], frozen=True):
    """How many orders a customer has made."""

    customer: tr.Key[str]
    orders: int
