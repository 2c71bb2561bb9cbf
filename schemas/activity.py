"""Activity under a key, and its count, emitted when the activity has stopped."""

import msgspec

import tailrace as tr


class Activity(msgspec.Struct, tr.Keyed[str], frozen=True):
    """Something happened under a key."""

    key: tr.Key[str]
    at_ms: tr.EventTime[int]


class Count(msgspec.Struct, tr.Keyed[str], frozen=True):
    """The number of activities under a key so far."""

    key: tr.Key[str]
    count: int
