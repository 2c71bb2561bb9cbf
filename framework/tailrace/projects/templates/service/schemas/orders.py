"""Events and standing of orders."""

from typing import Literal

import msgspec

import tailrace as tr

Status = Literal["placed", "paid", "cancelled"]


class Placed(msgspec.Struct, tr.Keyed[str], frozen=True, tag=True):
    """A customer has placed an order."""

    order: tr.Key[str]
    at_ms: tr.EventTime[int]
    customer: str
    cents: int


class Paid(msgspec.Struct, tr.Keyed[str], frozen=True, tag=True):
    """The money for an order has come."""

    order: tr.Key[str]
    at_ms: tr.EventTime[int]


class Standing(msgspec.Struct, tr.Keyed[str], frozen=True):
    """How an order stands: the value of its key in the table."""

    order: tr.Key[str]
    status: Status
    cents: int
