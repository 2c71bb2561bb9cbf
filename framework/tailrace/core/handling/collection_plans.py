"""What the declaration of a map or list state compiles to: a part of the plan of its actor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tailrace.core.values.keys import MapKeyCodec


@dataclass(frozen=True, slots=True)
class MapPlan:
    """A ``MapState`` field. ``check`` normalises or refuses a value, or is None where none needs it.

    ``encode`` is for settled values, ``encode_unsettled`` for those that a handler may have left.
    ``immutable``: values cannot be changed in place, and the live value is what its encoding says.
    """

    attr: str
    name: str
    key_codec: MapKeyCodec
    encode: Callable[[Any], bytes]
    encode_unsettled: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    immutable: bool
    check: Callable[[Any], Any] | None
    ttl_ms: int | None
    ttl_domain: int
    """``rows.EVENT_TIME`` or ``rows.PROCESSING_TIME``."""
    ttl_version: int = 0
    """See ``FieldSchema.ttl_version``; it follows from what is stored, and a plan alone does not know it."""

    def expires(self, domain: int, version: int) -> bool:
        """Whether an expiry that was set under this version of the TTL is one of the TTL declared now."""
        return self.ttl_ms is not None and (domain, version) == (self.ttl_domain, self.ttl_version)


@dataclass(frozen=True, slots=True)
class ListPlan:
    """A ``ListState`` field; the same as for a map, and the codec of its two bounds."""

    attr: str
    name: str
    encode: Callable[[Any], bytes]
    encode_unsettled: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    immutable: bool
    check: Callable[[Any], Any] | None
    ttl_ms: int | None
    ttl_domain: int
    encode_bounds: Callable[[tuple[int, int]], bytes]
    decode_bounds: Callable[[bytes], tuple[int, int]]
