"""Activity under a key, and the count of it when it has gone quiet."""

import msgspec


class Activity(msgspec.Struct, frozen=True):
    """Something happened under a key."""

    key: str
    at_ms: int


class Count(msgspec.Struct, frozen=True):
    """How often something has happened under a key so far."""

    key: str
    count: int
