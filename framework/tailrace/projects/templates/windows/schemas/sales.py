"""Sales, and what they come to."""

import msgspec

import tailrace as tr


class Sale(msgspec.Struct, tr.Keyed[str], frozen=True):
    """Something was sold in a branch."""

    branch: tr.Key[str]
    at_ms: tr.EventTime[int]
    cents: int


class Revenue(msgspec.Struct, frozen=True):
    """An hour of a branch, from ``start`` (milliseconds since 1970): the value of both in the table."""

    branch: str
    start: int
    cents: int
    sales: int


class Quiet(msgspec.Struct, tr.Keyed[str], frozen=True):
    """A branch has sold nothing for two hours."""

    branch: tr.Key[str]
    since_ms: int
