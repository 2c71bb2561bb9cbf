"""What the declaration of a map or list state compiles to: a part of the plan of its actor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tailrace.core import rows
from tailrace.core.values.map_keys import MapKeyCodec


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionPlan:
    """A ``MapState`` or ``ListState`` field. ``check`` normalises or refuses a value, None if not needed.

    ``encode`` is for settled values, ``encode_unsettled`` for those that a handler may have left.
    ``immutable``: values cannot be changed in place, and the live value equals its decoded encoding.
    """

    attr: str
    name: str
    encode: Callable[[Any], bytes]
    encode_unsettled: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    immutable: bool
    check: Callable[[Any], Any] | None
    ttl_ms: int | None = None
    ttl_domain: int = rows.EVENT_TIME
    """``rows.EVENT_TIME`` or ``rows.PROCESSING_TIME``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapPlan(CollectionPlan):
    """A ``MapState`` field."""

    key_codec: MapKeyCodec
