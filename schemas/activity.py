"""Activity under a key, and the count of it when it has gone quiet."""

import msgspec

import tailrace as tr


class Activity(msgspec.Struct, tr.Keyed[str], frozen=True):
    """Something happened under a key."""

    key: tr.Key[str]
    at_ms: tr.EventTime[int]


class Count(msgspec.Struct, tr.Keyed[str], frozen=True):
    """How often something has happened under a key so far."""

    key: tr.Key[str]
    count: int
