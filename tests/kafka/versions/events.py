"""The events of all versions."""

import msgspec

import tailrace as tr


class Visit(msgspec.Struct, tr.Keyed[str], frozen=True):
    """Someone came."""

    key: tr.Key[str]
    at_ms: tr.EventTime[int]


class Total(msgspec.Struct, tr.Keyed[str], frozen=True):
    """How often, and by which version of the code."""

    key: tr.Key[str]
    count: int
    version: int
